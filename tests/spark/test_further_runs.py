"""Further runs of an epoch: what they do not repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology
from tests.spark.counting import Count, Word
from tests.spark.tapped import TANKS, Tank, Tap
from tupletree import Bolt, Collector, KeyedState, PermanentError, TaskContext, Topology, arrow_bolt, batch_bolt, bolt
from tupletree.bolts import explode
from tupletree.config import resolve_options
from tupletree.routing.plan import Plan
from tupletree.runtimes.run import stored_state
from tupletree.runtimes.spark.format.entries import numbered, read_settle
from tupletree.runtimes.spark.settle.traceless_stages import traceless_stages
from tupletree.sinks import jsonl, read_rows
from tupletree.sources.text import Line

LINES = 60
TEXTS = [f"a b{number % 4} {'bad' if number % 20 == 7 else 'c'}" for number in range(LINES)]


@bolt
def split(line: Line) -> Iterator[Word]:
    with Path(line.path).open("a", encoding="ascii") as calls:  # the tank's name; a worker may be another process
        calls.write("x")
    return map(Word, line.text.split())


@bolt(state=int)
def split_and_remember(line: Line, lines: KeyedState[int]) -> Iterator[Word]:
    lines.value += 1
    yield from map(Word, line.text.split())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value)


@bolt
def behind(counted: Count, context: TaskContext) -> Count:
    if counted.word == "bad" and context.attempt == 1:
        raise ValueError("not accepted")
    return counted


class WithMemory(Bolt[Line]):
    def process(self, value: Line) -> Word:
        return Word(value.text)


@bolt
def emit(line: Line, out: Collector[Word]) -> None:
    out.emit(Word(line.text), anchors=())


@arrow_bolt(inputs=Line, outputs=Word)
def one_row(_: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"word": ["anchored to all rows"]})


@batch_bolt(size=2)
def together(lines: list[Line]) -> Iterator[Word]:
    yield Word("")


def topology(name: str, out: Path) -> Topology:
    t = Topology("further-runs")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("tap", Tap(name, batch_size=20)))
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    t.sink("out", jsonl(out)).shuffle(t.bolt("behind", behind, parallelism=2).shuffle(counts))
    return t


def run(name: str, place: Path, run_topology: RunTopology, **options: Any) -> list[int]:
    """Run it, check what came of it, and return how often each epoch ran."""
    tank = TANKS[name] = Tank(TEXTS, allowed=LINES)
    summary = run_topology(topology(name, place / "out"), place / "state", epoch_max_messages=20, **options)
    assert (summary.emitted, summary.acked, summary.failed) == (LINES, LINES, 3)
    expected = Counter(" ".join(TEXTS).split())
    assert Counter((row["word"], row["count"]) for row in read_rows(place / "out")) == tank.rows()
    assert {one.key: one.value for part in stored_state(place / "state")[1] for one in part.entries()} == expected
    settles = place / "state" / "settles"
    return [read_settle(settles, epoch).run + 1 for epoch in numbered(settles, ".settle")]


@SPARK_NIGHTLY
def test_a_further_run_starts_from_what_stages_without_a_trace_have_sent(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    calls = tmp_path / "calls"
    assert sum(runs := run(str(calls), tmp_path, run_topology)) == len(runs) + 3
    assert calls.stat().st_size == LINES + 3, "once for each attempt"


def stages_of(first: Any, *, by: str = "") -> int:
    t = Topology("stages")
    lines = t.spout("tap", Tap("stages"))
    made = t.bolt("first", first, parallelism=2)
    words = made.fields(lines, by) if by else made.shuffle(lines)
    t.bolt("count", count, parallelism=2, unconsumed=Count).fields(words.stream(Word), "word")
    return traceless_stages(Plan.of(t.build(), resolve_options(code={}), 2))


def test_what_leaves_a_trace_is_run_again() -> None:
    assert stages_of(split) == stages_of(explode(Line, "text", into=Word)) == 1
    assert stages_of(split_and_remember, by="text") == 0
    assert [*map(stages_of, (WithMemory, emit, one_row, together))] == [0, 0, 0, 0]


def test_so_are_stages_that_write_or_carry_and_all_where_an_input_is_ordered() -> None:
    def plan(*, sinks: bool = False, ordered: bool = False, loops: bool = False) -> int:
        t = Topology("traces", allow_cycle=loops)
        lines = t.spout("tap", Tap("traces"))
        words = t.bolt("split", split, parallelism=2).shuffle(lines)
        if sinks:
            t.sink("words", jsonl(Path("never-written"))).shuffle(words)
        if loops:
            words.shuffle(t.bolt("back", back, parallelism=2).fields(words, "word"))
        t.bolt("count", count, parallelism=2, unconsumed=Count).fields(words, "word", ordered=ordered)
        return traceless_stages(Plan.of(t.build(), resolve_options(code={}), 2))

    assert [plan(), plan(sinks=True), plan(ordered=True), plan(loops=True)] == [1, 0, 0, 0]


def test_of_two_stages_without_a_trace_the_second_is_run_again() -> None:
    """Else it would send on what a task of the first one had sent that was executed again, and said something else."""
    t = Topology("two")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("tap", Tap("two")))
    again = t.bolt("join", joined, parallelism=2).fields(words, "word")
    t.bolt("count", count, parallelism=2, unconsumed=Count).fields(
        t.bolt("split_again", split, parallelism=2).fields(again, "text"), "word"
    )
    plan = Plan.of(t.build(), resolve_options(code={}), 2)
    assert len(plan.stages) > 2
    assert traceless_stages(plan) == 1


@bolt
def joined(word: Word) -> Line:
    return Line(word.word)


@bolt
def back(word: Word) -> Line | None:
    if not word.word:
        raise PermanentError("never")
    return None
