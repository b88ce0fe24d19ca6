"""Spans of deliveries and calls, by the SDK's exporter in memory."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.routes.lineage.records import call, calls_of
from tupletree.clock import ManualClock
from tupletree.routes.lineage import LineageWriter
from tupletree.routes.lineage.interop.opentelemetry import SpanStore
from tupletree.routes.lineage.interop.traces import delivery_context, trace_of
from tupletree.routes.messages import CallRecord


def exported(records: list[CallRecord], **settings: object) -> dict[str, list[ReadableSpan]]:
    """Spans by name, as a run exports them."""
    exporter = InMemorySpanExporter()
    store = SpanStore(exporter, "ingest", **settings)  # type: ignore[arg-type]
    writer = LineageWriter(lambda: store, "ingest", what="spans", threaded=False)
    writer.put(records)
    writer.close()
    assert writer.counts.lost == 0
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def test_a_delivery_is_a_consumer_span_with_a_span_below_it_for_each_call() -> None:
    spans = exported(calls_of("doc", "convert", "read", "parse"), queues={"convert": "/queue/convert.in"})
    [delivery] = spans["process /queue/convert.in"]
    assert delivery.kind is SpanKind.CONSUMER
    assert delivery.parent is None
    assert delivery.context is not None
    assert delivery.context.trace_id == trace_of("e1")
    assert (delivery.start_time, delivery.end_time) == (1000 * 10**9, int(1001.01 * 1e9))
    assert delivery.attributes is not None
    assert (
        delivery.attributes.items()
        >= {
            "messaging.system": "tupletree",
            "messaging.operation.type": "process",
            "messaging.destination.name": "/queue/convert.in",
            "messaging.message.id": "doc",
            "messaging.message.conversation_id": "e1",
        }.items()
    )
    for name in ("convert/read", "convert/parse"):
        [one] = spans[name]
        assert one.kind is SpanKind.INTERNAL
        assert one.parent == delivery.context
    assert delivery.resource.attributes["service.name"] == "ingest"


def test_a_child_that_carries_the_header_of_its_parents_delivery_is_below_it_in_the_same_trace() -> None:
    header = delivery_context("doc", 2, "e1").header()
    carried = TraceContextTextMapPropagator().extract({"traceparent": header})
    assert carried  # the SDK reads what we write
    spans = exported(
        [
            *calls_of("doc", "convert", "read", attempt=2),
            *calls_of("piece", "segment", "clean", parents=["doc"], trace=header, execution="e1"),
        ]
    )
    [above], [below] = spans["process convert"], spans["process segment"]
    assert below.context is not None
    assert above.context is not None
    assert below.parent is not None
    assert below.parent.span_id == above.context.span_id
    assert below.context.trace_id == above.context.trace_id


def test_a_message_that_came_with_a_trace_of_another_system_stays_in_it() -> None:
    spans = exported(calls_of("doc", "r", "a", trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    [delivery] = spans["process r"]
    assert delivery.parent is not None
    assert delivery.parent.is_remote
    assert f"{delivery.parent.span_id:016x}" == "b7ad6b7169203331"
    assert delivery.context is not None
    assert f"{delivery.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


def test_a_batch_is_one_span_that_links_to_the_deliveries_of_all_members_and_has_none_as_its_parent() -> None:
    members = [call(f"m{n}", route="embed", adapter="vectors", batch="b1") for n in range(3)]
    spans = exported(members)
    [batch] = spans["embed/vectors"]
    assert batch.parent is None
    assert {link.context.span_id for link in batch.links} == {
        span.context.span_id for span in spans["process embed"] if span.context is not None
    }
    assert len(batch.links) == 3
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3


def test_a_message_of_several_parents_has_a_link_and_no_parent() -> None:
    header = delivery_context("a", 1, "e1").header()
    [delivery] = exported(calls_of("ab", "index", "store", parents=["a", "b"], trace=header))["process index"]
    assert delivery.parent is None
    assert [f"{link.context.span_id:016x}" for link in delivery.links] == [header.split("-")[2]]


def test_a_failure_is_an_error_of_its_call_and_its_delivery() -> None:
    spans = exported([call("doc", status="failed", error="ValueError: no text"), call("doc", attempt=2)])
    failed, done = spans["convert/read"]
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ValueError: no text")
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    assert done.status.status_code is StatusCode.UNSET
    deliveries = spans["process convert"]
    assert {one.status.status_code for one in deliveries} == {StatusCode.ERROR, StatusCode.UNSET}
    assert len({one.context.span_id for one in deliveries if one.context}) == 2


def test_a_delivery_is_exported_when_its_last_adapter_has_ended_or_nothing_more_comes() -> None:
    exporter, clock = InMemorySpanExporter(), ManualClock(wall=5_000.0)
    store = SpanStore(exporter, "ingest", lengths={"convert": 2})
    writer = LineageWriter(lambda: store, "ingest", clock=clock, interval_s=0.0, threaded=False)

    def names() -> list[str]:
        writer.step()
        writer.step()
        found = [span.name for span in exporter.get_finished_spans()]
        exporter.clear()
        return found

    first, second = calls_of("doc", "convert", "read", "parse")
    writer.put([first])
    assert names() == ["convert/read"]
    writer.put([second])
    assert names() == ["convert/parse", "process convert"]
    writer.put([call("piece", route="segment")])
    assert names() == ["segment/read"]  # how many adapters it has is not known
    clock.advance(2.5)
    assert names() == []
    clock.advance(5.0)
    assert names() == ["process segment"]


@pytest.mark.parametrize("raises", [False, True])
def test_spans_that_an_exporter_does_not_take_are_tried_again_and_messages_are_not_affected(
    caplog: pytest.LogCaptureFixture, raises: bool
) -> None:
    class Away(InMemorySpanExporter):
        is_away = True

        def export(self, spans: object) -> SpanExportResult:
            if self.is_away and raises:
                raise OSError("no route to host")
            return SpanExportResult.FAILURE if self.is_away else super().export(spans)  # type: ignore[arg-type]

    exporter, clock = Away(), ManualClock()
    store = SpanStore(exporter, "ingest")
    writer = LineageWriter(lambda: store, "ingest", what="spans", clock=clock, interval_s=0.0, threaded=False)
    for number in range(3):
        writer.put(calls_of(f"doc{number}", "convert", "read"))
        writer.step()
    assert writer.counts.waiting == 2
    assert caplog.text.count("spans cannot be written now") == 1
    exporter.is_away = False
    clock.advance(1.0)
    writer.step()
    assert [span.name for span in exporter.get_finished_spans()] == ["convert/read"] * 3
    writer.close()
    assert len(exporter.get_finished_spans()) == 6
