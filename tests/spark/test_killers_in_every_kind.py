"""A message that crashes its worker, or never ends, in every kind of bolt: which messages fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.helpers_semantics import Feed, finish
from tests.spark.killing import DEEDS, Task
from tupletree import Bolt, Collector, Emit, Reject, TaskContext, Topology, arrow_bolt, batch_bolt, bolt, window_bolt
from tupletree.errors import TupletreeError
from tupletree.sinks import jsonl
from tupletree.tracking.outcomes import FailureKind

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

LIMIT_S = 1.0
MESSAGES = 60
KILLER = 25


def do(deed: str) -> None:
    if deed:
        DEEDS[deed]()


@batch_bolt(size=10, max_age_s=1.0)
def batch(tasks: list[Task]) -> list[Task]:
    for task in tasks:
        do(task.deed)
    return tasks


@window_bolt(count=10)
def window(tasks: list[Task]) -> list[Task]:
    for task in tasks:
        do(task.deed)
    return tasks


@arrow_bolt(outputs=Task)
def arrow(tasks: pa.RecordBatch) -> pa.RecordBatch:
    for deed in tasks["deed"].to_pylist():
        do(deed or "")
    return tasks


@bolt(concurrency=8)
async def waiting(task: Task) -> Task:
    await asyncio.sleep(0.001)
    if task.deed == "wait":
        await asyncio.Event().wait()
    do(task.deed)
    return task


@bolt
async def waiting_by_hand(task: Task, out: Collector[Task]) -> None:
    out.emit(task)
    if task.deed == "wait":
        await asyncio.Event().wait()
    do(task.deed)


class Processing(Bolt[Task]):
    def process(self, value: Task, collector: Collector[Task]) -> None:
        collector.emit(value)
        do(value.deed)


class Beside(Bolt[Task]):
    """Does it for no message, in one of its two tasks."""

    deed = where = met = ""

    def open(self, context: TaskContext) -> None:
        self.is_killer = context.task_index == 1
        self.act("open")

    def tick(self, collector: Collector[Task]) -> None:
        self.act("tick")

    def close(self) -> None:
        self.act("close")

    def process(self, value: Task, collector: Collector[Task]) -> None:
        collector.emit(value)

    def act(self, where: str) -> None:
        if self.is_killer and where == self.where:
            Path(self.met).touch()
            do(self.deed)


class UntilMet(Feed[Task]):
    """Does not end before a file is there: a run that is over sooner meets no tick."""

    def __init__(self, name: str, messages: Sequence[Emit[Task]], met: Path) -> None:
        super().__init__(name, Task, messages)
        self.met = met

    def next(self) -> list[Emit[Task] | Reject]:
        if self.taken >= len(self.mine) and not self.met.exists():
            return []
        return super().next()


def beside(where: str, deed: str, met: Path) -> type[Beside]:
    return type("Somewhere", (Beside,), {"where": where, "deed": deed, "met": str(met), "__module__": __name__})


DIES = {"exit": (FailureKind.POISON, "it ended without an error"), "loop": (FailureKind.TIMEOUT, f"({LIMIT_S:g} s)")}
DIES["wait"] = DIES["loop"]


def topology_of(name: str, what: Any, deed: str, out: Path, met: Path | None = None) -> Topology:
    t = Topology(name)
    tasks = [Emit(Task(number, deed if number == KILLER else ""), number) for number in range(MESSAGES)]
    parallelism = 2 if isinstance(what, type) else 1
    source = t.spout("source", Feed(name, Task, tasks) if met is None else UntilMet(name, tasks, met))
    worked = t.bolt("work", what, parallelism=parallelism).shuffle(source)
    t.sink("out", jsonl(out / "out", made=True)).shuffle(worked)  # so that roots carry numbers: the harder case
    return t


KINDS: list[tuple[Any, str]] = [
    (what, deed) for what in (batch, window, arrow, waiting, waiting_by_hand, Processing) for deed in ("exit", "loop")
]
KINDS += [(waiting, "wait"), (waiting_by_hand, "wait")]


@pytest.mark.parametrize(("what", "deed"), KINDS)
def test_a_crashing_message_fails_alone_or_with_the_call_that_needs_it(
    what: Any, deed: str, tmp_path: Path, run_topology: RunTopology
) -> None:
    topology = topology_of(f"{getattr(what, '__name__', 'work')}-{deed}", what, deed, tmp_path)
    result = finish(run_topology, topology, tmp_path, max_attempts=1, processing_timeout_s=LIMIT_S)
    lost = {*range(20, 30)} if what is window else {KILLER}
    assert result.dead.keys() == lost
    assert result.tally("out", "number") == dict.fromkeys(set(range(MESSAGES)) - lost, 1)
    kind, words = DIES[deed]
    for letter in result.letters:
        assert (letter.failure.kind, letter.failure.component) == (kind, "work")
        assert words in letter.failure.error


@pytest.mark.parametrize("deed", ["exit", "loop"])
@pytest.mark.parametrize("where", ["open", "tick", "close"])
def test_a_crash_outside_of_messages_fails_at_most_the_messages_of_its_task(
    where: str, deed: str, tmp_path: Path, run_topology: RunTopology
) -> None:
    met = tmp_path / "met"
    what = beside(where, deed, met)
    topology = topology_of(f"{where}-{deed}", what, "", tmp_path, met if where == "tick" else None)
    result = finish(run_topology, topology, tmp_path, max_attempts=1, processing_timeout_s=LIMIT_S, tick_interval_s=0.5)
    assert met.exists()
    published = result.tally("out", "number")
    assert published.keys() == set(range(MESSAGES)) - result.dead.keys()
    assert set(published.values()) == {1}
    if where != "open":
        assert result.dead == {}
        return
    assert len(result.dead) == MESSAGES // 2
    kind, words = DIES[deed]
    for letter in result.letters:
        assert (letter.failure.kind, letter.failure.component) == (kind, "work")
        assert words in letter.failure.error


def dies_of_the_killer(task: Task, tasks: int) -> int:
    do("exit" if task.number == KILLER else "")
    return task.number % tasks


def test_a_grouping_that_crashes_ends_the_run(tmp_path: Path, run_topology: RunTopology) -> None:
    t = Topology("grouping")
    source = t.spout("source", Feed("grouping", Task, [Emit(Task(number, ""), number) for number in range(MESSAGES)]))
    worked = t.bolt("work", Processing, parallelism=2).shuffle(source)
    t.sink("out", jsonl(tmp_path / "out"), parallelism=2).custom(worked, dies_of_the_killer)
    with pytest.raises(TupletreeError):
        run_topology(t, tmp_path / "state", timeout_s=600.0, max_restarts=0)  # thirty-two workers die of it
