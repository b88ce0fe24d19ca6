"""The judged jobs: the word count with full tracking, through Tupletree's public interface.

Same functions, same corpus, same limit per epoch and same compression as `baseline_plain`; the session is the one that
Tupletree gives its users, warmed up like the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.job import JobResult, JobSpec
from benchmarks.session import warm_up
from benchmarks.word_count import (
    Count,
    Line,
    Word,
    count,
    count_some,
    fail_at_random,
    fail_some,
    first_word,
    first_word_of_some,
    pass_on,
    split,
    split_text,
)
from tupletree import Bolt, Collector, Emit, Reject, Spout, TaskContext, Topology, bolt
from tupletree import run as run_topology
from tupletree.bolts import count_by_key, explode
from tupletree.runtimes.spark.format.entries import numbered, read_settle
from tupletree.runtimes.spark.session import open_session
from tupletree.sinks import parquet
from tupletree.sources.text import TextLines
from tupletree.topology.builder import BoltHandle, SpoutHandle
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.splits import Split, SplitSpout

__all__ = ["run", "word_count"]

TRACKED = ""
NO_ACKERS = "no ackers"
NO_IDS = "no ids"
ANCHORED = "anchored"
UNANCHORED = "unanchored"
FAILING = "failing: "
ORDER = "one key each: "
EXECUTORS = "read by executors"

asked: list[tuple[float, int]] = []
"""When the spout was asked, and how much it gave: seconds, messages. In the module: the runtime may copy the spout."""


class ReadLines(TextLines[Line]):
    """Text lines, read by executors, that remember when they were asked for."""

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        """See `TextLines.plan`."""
        at_s = time.time()
        given = super().plan(max_rows, max_bytes)
        asked.append((at_s, sum(split.rows for split in given or ())))
        return given


class TimedLines(Spout[Line]):
    """The same lines, pulled by the driver."""

    def __init__(self, path: str | Path, message_type: type[Line]) -> None:
        self._lines = ReadLines(path, message_type=message_type)

    def open(self, context: TaskContext) -> None:
        """See `TextLines.open`."""
        self._lines.open(context)

    def next(self) -> Sequence[Emit[Line] | Reject]:
        """See `SplitSpout.next`."""
        return SplitSpout.next(self._lines) or []

    def snapshot(self) -> Any:
        """See `TextLines.snapshot`."""
        return self._lines.snapshot()

    def restore(self, position: Any) -> None:
        """See `TextLines.restore`."""
        self._lines.restore(position)

    def close(self) -> None:
        """See `TextLines.close`."""
        self._lines.close()


class AnonymousLines(TimedLines):
    """The same lines without message ids: nobody wants to hear what becomes of them."""

    def next(self) -> Sequence[Emit[Line] | Reject]:
        """See `TimedLines.next`."""
        return [one if isinstance(one, Reject) else Emit(one.value, None) for one in super().next()]


class Splitter(Bolt[Line]):
    """`split` with a collector: every word belongs to its line's tree."""

    def process(self, value: Line, collector: Collector[Word]) -> None:
        """Emit each word of the line."""
        for word in value.text.split():
            collector.emit(Word(word))


class UnanchoredSplitter(Bolt[Line]):
    """The same without anchors: a line is done when it is split, whatever becomes of its words."""

    def process(self, value: Line, collector: Collector[Word]) -> None:
        """Emit each word of the line."""
        for word in value.text.split():
            collector.emit(Word(word), anchors=())


COUNT_BY_KEY = count_by_key(Word, "word", into=Count)

SPLITTERS: dict[str, type[Bolt[Line]]] = {ANCHORED: Splitter, UNANCHORED: UnanchoredSplitter}
"""Variant → a splitter that is a class, for those that tune a bolt's anchors."""

COLUMNS: dict[str, tuple[FunctionBolt[..., Any], FunctionBolt[..., Any]]] = {
    "vectorised": (explode(Line, "text", into=Word), COUNT_BY_KEY),
    "vectorised, " + EXECUTORS: (explode(Line, "text", into=Word), COUNT_BY_KEY),
    "python split": (explode(Line, "text", into=Word, split=split_text), COUNT_BY_KEY),
    "python words": (bolt(split), COUNT_BY_KEY),
}
"""Variant → (how to split, how to count), for those that give one output per word and frame.

They split in Arrow, by a Python function per line as `baseline_idiomatic` does, or by a bolt that makes a tuple per
word.
"""


def word_count(paths: Iterable[Path], out: Path, epoch_lines: int, variant: str = TRACKED) -> Topology:
    """The topology: split, count by word, one output per word.

    `variant` tunes reliability off, or names one of `COLUMNS`.
    """
    options: dict[str, Any] = {"epoch_max_messages": epoch_lines}
    if variant == NO_ACKERS:
        options["acker_tasks"] = 0
    elif variant == FAILING + "at_least_once":
        options["state_guarantee"] = "at_least_once"
    elif variant == FAILING + "at random":
        options["max_attempts"] = 100  # none may die, or the job would be smaller
    elif variant.startswith(ORDER):
        # What an ordered key waits for most of the time is the pause before the next attempt, one after the other.
        options |= {"backoff_initial_ms": 10.0, "backoff_max_ms": 10.0}
    topology = Topology("word-count", options=options)
    source = {NO_IDS: AnonymousLines, EXECUTORS: ReadLines}.get(variant.rpartition(", ")[2], TimedLines)
    splitter, counter = COLUMNS.get(variant) or (SPLITTERS.get(variant) or bolt(split), bolt(state=int)(count))
    lines = topology.spout("lines", source(paths, message_type=Line))
    if variant.startswith(ORDER):
        topology.sink("out", parquet(out, compression="snappy")).shuffle(_one_key_each(topology, lines, variant))
        return topology
    words = topology.bolt("split", splitter, parallelism=2).shuffle(lines)
    counts = topology.bolt("count", counter, parallelism=2).fields(words.stream(Word), "word")
    if variant.startswith(FAILING):
        behind = {"no failures": pass_on, "at random": fail_at_random}.get(variant.removeprefix(FAILING), fail_some)
        counts = topology.bolt("behind", bolt(behind), parallelism=2).shuffle(counts.stream(Count))
    topology.sink("out", parquet(out, compression="snappy")).shuffle(counts)
    return topology


def _one_key_each(topology: Topology, lines: SpoutHandle, variant: str) -> BoltHandle:
    """Count the first words of lines: as they come, or in the order of the lines; 1 % of the lines may fail once."""
    parse = first_word_of_some if variant.endswith("fail before") else first_word
    counter = bolt(state=int)(count_some if variant.endswith("fail there") else count)
    words = topology.bolt("parse", bolt(parse), parallelism=2).shuffle(lines)
    is_ordered = not variant.startswith(ORDER + "any order")
    return topology.bolt("count", counter, parallelism=2).fields(words, "word", ordered=is_ordered)


def state_numbers(state_dir: Path) -> dict[str, float]:
    """How large the state has become, and what an epoch read and wrote of it, of the epochs that are still named."""
    settles = state_dir / "settles"
    entries = [read_settle(settles, epoch) for epoch in numbered(settles, ".settle")]
    files = {file.name: file for version in entries[-1].state.values() for file in version}
    read, written = zip(*(entry.state_bytes for entry in entries), strict=True)
    return {
        "records of state": float(sum(file.records for file in files.values())),
        "MiB of state": sum(file.size_bytes for file in files.values()) / 2**20,
        "MiB read per epoch": median(read) / 2**20,
        "MiB written per epoch": sum(written) / len(entries) / 2**20,
        "runs per epoch": sum(entry.run + 1 for entry in entries) / len(entries),
    }


def costs_per_message() -> dict[str, float]:
    """Microseconds from message to message in the second and in the last quarter: the first one warms up."""
    total = sum(given for _, given in asked)
    passed, marks_s = 0, [asked[0][0]]
    for at_s, given in asked:
        if passed >= total * len(marks_s) / 4:
            marks_s.append(at_s)
        passed += given
    if len(marks_s) < 4:
        return {}  # too few questions to tell quarters apart
    quarter = total / 4 / 1e6
    return {
        "µs, second quarter": (marks_s[2] - marks_s[1]) / quarter,
        "µs, last quarter": (asked[-1][0] - marks_s[3]) / quarter,
    }


def run(spec: JobSpec) -> JobResult:
    """Run to the end of input.

    The clock starts when the spout is first asked, and stops when the last settle entry is there and the last output
    published: a file's status changes with its publication, its content before.
    """
    session, _ = open_session("tupletree-benchmarks", spec.master)
    warm_up(session)
    topology = word_count(sorted(Path(spec.corpus).glob("*.txt")), spec.out, spec.epoch_lines, spec.variant)
    summary = run_topology(topology, state_dir=spec.checkpoint, master=spec.master).wait()
    if summary.acked != summary.emitted:
        raise AssertionError(f"not every message was acked: {summary}")
    numbers = state_numbers(spec.checkpoint)
    if spec.variant in {TRACKED, EXECUTORS}:
        numbers |= costs_per_message()
    if spec.variant.startswith((FAILING, ORDER)):
        numbers = {"attempts that failed, per 100 messages": 100 * summary.failed / summary.emitted, **numbers}
    durable = [*spec.checkpoint.glob("settles/*.settle"), *spec.out.glob("*.parquet")]
    return JobResult(seconds=max(path.stat().st_ctime for path in durable) - asked[0][0], numbers=numbers)
