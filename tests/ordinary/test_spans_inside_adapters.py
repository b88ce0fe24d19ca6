"""Spans that an adapter makes are below the span of its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.routes.lineage.test_whole_pipelines import Installed
from tests.routes.running.pipelines import Batch, Config, adapter
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, pipeline, route
from tupletree.routes import Adapter, AdapterResult, PipelineContext
from tupletree.routes.document.spec import LineageSpec
from tupletree.routes.pipeline import Pipeline, PipelineRun

Start = Callable[[Pipeline], PipelineRun]
seen: dict[str, tuple[int, int]] = {}
"""Adapter → trace and span that were current in its last call."""


def note(name: str) -> None:
    current = trace.get_current_span().get_span_context()
    seen[name] = current.trace_id, current.span_id


class Async(Adapter[Config]):
    async def process(self, context: PipelineContext) -> AdapterResult:
        note("async")
        return AdapterResult(context.message)


class Plain(Adapter[Config]):
    def process(self, context: PipelineContext) -> AdapterResult:
        note("plain")
        return AdapterResult(context.message)


class Together(Batch):
    max_age_s = 0.01

    def process_batch(self, contexts: Sequence[PipelineContext]) -> Any:
        note("together")
        return [AdapterResult(one.message) for one in contexts]


class After(Adapter[Config]):
    async def process(self, context: PipelineContext) -> AdapterResult:
        note("after")
        return AdapterResult(context.message)


@pytest.mark.parametrize("start", RUNTIMES)
def test_the_current_span_inside_an_adapter_is_that_of_its_call(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Installed("memory", exporter)])
    seen.clear()
    p = pipeline(
        tmp_path,
        route("one", adapter(Async), adapter(Plain), adapter(Together, size=2), adapter(After)),
        lineage=LineageSpec(level="off", spans=True),
    )
    with start(p) as run:
        assert run.execute({"number": 1}).wait(HANG_S).state == "completed"
    spans = {}
    for span in exporter.get_finished_spans():
        context = span.get_span_context()
        if context is not None:
            spans[span.name] = context.trace_id, context.span_id
    assert seen == {name: spans[f"one/{name}"] for name in ("async", "plain", "together", "after")}
    assert trace.get_current_span() is trace.INVALID_SPAN, "nothing of it is left"
