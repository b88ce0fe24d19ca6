"""Spans, run events and headers as a pipeline's run makes them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.routes.lineage.records import ingest
from tupletree.queues import Message
from tupletree.routes.lineage import ChildHeaders, LineageSink, RunEventExport, SpanExport, tell_completed
from tupletree.routes.lineage.exports import Export
from tupletree.routes.lineage.interop.cloudevents import attributes_of
from tupletree.routes.lineage.interop.traces import parse
from tupletree.routes.messages import Child, Settlement, Standing
from tupletree.topology.components import SinkBatch, SinkContext


@dataclass(frozen=True)
class Installed:
    """An installed exporter, as its package declares it."""

    name: str
    exporter: InMemorySpanExporter

    def load(self) -> Callable[[], InMemorySpanExporter]:
        return lambda: self.exporter


def test_a_run_writes_lineage_exports_spans_and_sends_run_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Installed("memory", exporter)])
    events = tmp_path / "events.json"
    config = tmp_path / "openlineage.yml"
    config.write_text(f"transport:\n  type: file\n  log_file_path: {events}\n  append: true\n")
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(config))
    exports: list[Export] = [
        SpanExport({"convert": "/q/in"}, {"convert": 2}),
        RunEventExport({"convert": ("/q/in", ["/q/out"])}),
    ]
    made = LineageSink(f"sqlite:///{tmp_path}/l.db", "ingest", level="failures", exports=exports)
    sink: LineageSink = pickle.loads(pickle.dumps(made))
    sink.open(cast("SinkContext", None))
    sink.write(SinkBatch("b1", ingest()))
    tell_completed("ingest", "e1", "completed", 2000.0)
    sink.close()
    assert sink.counts.written == 1
    spans = exporter.get_finished_spans()
    assert {"process /q/in", "convert/read", "process segment", "index/store"} <= {span.name for span in spans}
    assert {span.resource.attributes["service.name"] for span in spans} == {"ingest"}
    sent = [json.loads(line) for line in events.read_text().splitlines()]
    states = [(event["job"]["name"], event["eventType"]) for event in sent]
    assert states[:2] == [("ingest", "START"), ("ingest.convert", "START")]
    assert states[-1] == ("ingest", "COMPLETE")


def test_an_exporter_that_does_not_exist_costs_its_spans_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nothing")
    sink = LineageSink("", "ingest", level="off", exports=[SpanExport()])
    sink.open(cast("SinkContext", None))
    sink.write(SinkBatch("b1", ingest()))
    sink.close()
    assert "there is no such exporter of spans" in caplog.text


def test_children_carry_the_span_of_the_delivery_that_they_came_of_and_attributes_of_their_own() -> None:
    parent = Standing(id="doc", route="convert", queue="q", handle="h", executions=("e1",), attempt=2)
    outer = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    child = Child(id="piece", queue="q2", body=b"1", headers={"lang": "en", "ce_id": "doc", "traceparent": outer})
    setting = pickle.loads(pickle.dumps(ChildHeaders("ingest", trace=True, cloudevents=True)))
    settled = Settlement(messages=[parent], outcome="done", children=[child])
    [[made]] = [one.children for one in setting.set_in([settled], lambda: 0.0)]
    context = parse(made.headers["traceparent"])
    assert context is not None
    assert f"{context.trace:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{context.span:016x}" != "b7ad6b7169203331"
    assert TraceContextTextMapPropagator().extract(made.headers)
    assert made.headers["lang"] == "en"
    found = attributes_of(Message(id=made.id, headers=made.headers))
    assert (found["id"], found["source"], found["correlationid"], found["causationid"]) == (
        *("piece", "/ingest/convert"),
        *("e1", "doc"),
    )
    assert ChildHeaders("ingest").set_in([settled], lambda: 0.0) == [settled]
