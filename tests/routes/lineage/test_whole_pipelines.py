"""Lineage of pipelines that run: what is in the store, and what messages carry, when the ledger says complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.routes.running.test_pipelines import RUNTIMES, fan_out
from tupletree.queues import connect
from tupletree.routes.accounts import account_of
from tupletree.routes.document.spec import LineageSpec
from tupletree.routes.lineage import Lineage
from tupletree.routes.lineage.interop.cloudevents import attributes_of, to_event
from tupletree.routes.lineage.interop.traces import trace_of
from tupletree.routes.pipeline import Pipeline, PipelineRun

HANG_S = 60.0


@dataclass(frozen=True)
class Installed:
    """An installed exporter of spans, as its package declares it."""

    name: str
    exporter: InMemorySpanExporter

    def load(self) -> Callable[[], InMemorySpanExporter]:
        return lambda: self.exporter


Runtime = Callable[[Pipeline], PipelineRun]


@pytest.fixture(params=RUNTIMES, ids=lambda one: one.__name__)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    found: Runtime = request.param
    return found


def completed(pipeline: Pipeline, count: int, runtime: Runtime) -> str:
    """Run one execution of `count` numbers to its end; its id."""
    with runtime(pipeline) as running:
        execution = running.execute({"count": count}, route="split")
        assert execution.wait(HANG_S).state == "completed_with_dead_letters"
    return execution.id


def test_a_pipeline_that_ran_has_the_lineage_of_every_message_and_each_message_its_account(
    tmp_path: Path, runtime: Runtime
) -> None:
    pipeline = fan_out(tmp_path, lineage=LineageSpec(level="full"))
    execution = completed(pipeline, 10, runtime)
    with Lineage.open(f"sqlite:///{tmp_path}/pipeline.lineage.db") as lineage:
        tree = lineage.tree(execution)
        assert len(tree.roots) == 1
        first = tree.messages[tree.roots[0]]
        assert len(first.children) == 10
        statuses = Counter(call.status for one in first.children for call in tree.messages[one].calls)
        # 0 to 9: 5 fails once, 7 twice and dies, 9 is filtered; the others go through a batch.
        assert (statuses["failed"], statuses["filtered"]) == (3, 1)
        assert Counter(one.error for one in lineage.failures(execution)) == {"ValueError: 5": 1, "ValueError: 7": 2}
        stats = {one.adapter: one for one in lineage.stats(execution)}
        assert (stats["split"].calls, stats["judge"].calls, stats["judge"].failed) == (1, 12, 3)
        batched = [call for one in first.children for call in tree.messages[one].calls if call.adapter == "batch"]
        assert len(batched) == 8
        assert all(call.batch and call.input_hash and call.output_hash for call in batched)
        failed = [call for one in first.children for call in tree.messages[one].calls if call.status == "failed"]
        assert all(call.input_hash and call.error and not call.output_hash for call in failed)
        with pipeline.open() as asked:
            account = account_of(execution, asked.services.ledger, lineage)
            assert account is not None
            assert account.below["dead"] == 1
            assert account.below["filtered"] == 1
            dead = next(one for one in account.not_done if one.state == "dead")
            story = account_of(dead.id, asked.services.ledger, lineage)
            assert story is not None
            assert story.sentence.endswith("ValueError: 7")
            assert [one.what for one in story.events if "failed" in one.what] == [
                "attempt 1: adapter judge of route judge failed: ValueError: 7",
                "attempt 2: adapter judge of route judge failed: ValueError: 7",
            ]


def test_messages_carry_their_trace_and_attributes_and_all_spans_are_of_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Installed("memory", exporter)])
    pipeline = fan_out(tmp_path, lineage=LineageSpec(level="off", spans=True, cloudevents=True))
    execution = completed(pipeline, 8, runtime)
    assert not (tmp_path / "pipeline.lineage.db").exists()
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    batches = [span for span in spans if span.name == "judge/batch"]
    assert batches
    assert all(span.parent is None and span.links for span in batches)
    others = [span for span in spans if span.name != "judge/batch"]
    assert {span.context.trace_id for span in others if span.context is not None} == {trace_of(execution)}
    judged = [span for span in spans if span.name == "process q.judge"]
    assert len(judged) == 8 + 2  # 5 and 7 failed once more
    parents: Sequence[str] = [by_id[span.parent.span_id].name for span in judged if span.parent is not None]
    assert set(parents) == {"process q.split"}
    with connect(f"sqlite:///{tmp_path}/pipeline.db") as broker:
        [letter] = broker.peek("q.judge", "dead", 10)
    found = attributes_of(letter.message)
    assert (found["id"], found["source"], found["correlationid"]) == (letter.message.id, "/p/split", execution)
    assert to_event(letter.message, content_type="application/json").get_data() == {"number": 7}
