"""What event time and the order of making cost the word count: pairs of jobs that differ in nothing else.

All runs of one runtime are made in one process, in turns, with the modules and the corpus of the first: on a machine
with other work, only jobs that run within the same second can be told apart by a few percent. The Spark runtime is the
real one without Spark, its stages in this process, so that their CPU time is all there is; Spark itself costs both jobs
of a pair the same.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Sequence
from typing import Any

import msgspec

import tupletree.runtimes.local.runtime  # noqa: F401 - as in `local_count`: imports are not in the clock
from benchmarks.job import JobResult, JobSpec
from benchmarks.local_count import CountingSink, TextSpout, count_bolt, split_bolt
from benchmarks.peers.corpus_lines import read_lines
from benchmarks.verify import read_rows
from benchmarks.word_count import Count, Line, Word
from tupletree import Options, Topology, bolt, window_bolt
from tupletree import run as run_topology
from tupletree.runtimes.api import RunRequest
from tupletree.sinks import parquet
from tupletree.testing.in_process import start_in_process
from tupletree.topology.components import KeyedState

__all__ = ["AS_IT_IS", "BY_COUNT", "BY_EVENT_TIME", "LOCAL", "NUMBERED", "SPARK", "run"]

LOCAL, SPARK = "local", "spark"

AS_IT_IS = "as it is"
NUMBERED = "order of making"
BY_COUNT = "count window behind"
BY_EVENT_TIME = "event-time window behind"
VARIANTS = (AS_IT_IS, NUMBERED, BY_COUNT, BY_EVENT_TIME)

MARK_EVERY = 5_000
"""Of the counts of a word: about one in 10,000 of all counts, since rare words never have so many."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A count that goes through the window, and when it was made."""

    word: str
    count: int
    at: float


class NumberedSink(CountingSink):
    """The same sink, which asks for the order in which its rows were made, and reads it."""

    ordered = True

    def write(self, batch: Any) -> None:
        super().write(batch)
        if len(batch.made) != len(batch.rows):
            raise AssertionError(f"{len(batch.rows)} rows have {len(batch.made)} numbers")


class SeekableSpout(TextSpout):
    """The same lines for a runtime that keeps positions."""

    def snapshot(self) -> int:
        """How many were given."""
        return self._taken

    def restore(self, position: int) -> None:
        """Go on behind those."""
        self._taken = position


@bolt(state=int)
def count_or_mark(word: Word, total: KeyedState[int]) -> Count | Mark:
    """As `count`; few of its results take the way through the window."""
    total.value += 1
    if total.value % MARK_EVERY == 0:
        return Mark(word.word, total.value, time.time())
    return Count(word.word, total.value)


def counts_of(marks: list[Mark]) -> list[Count]:
    """What the window was given."""
    return [Count(mark.word, mark.count) for mark in marks]


WINDOWS = {
    BY_COUNT: window_bolt(count=3)(counts_of),
    BY_EVENT_TIME: window_bolt(length_s=0.001, timestamp="at")(counts_of),
}


def word_count(lines: Sequence[str], variant: str, sink: Any) -> Topology:
    """The topology: everything before the window, the whole word count, may still bring it something."""
    topology = Topology("word-count")
    given = topology.spout("lines", SeekableSpout(lines, Line))
    words = topology.bolt("split", split_bolt, parallelism=2).shuffle(given)
    if variant not in WINDOWS:
        counts = topology.bolt("count", count_bolt, parallelism=2).fields(words.stream(Word), "word")
        topology.sink("out", sink).shuffle(counts)
        return topology
    counts = topology.bolt("count", count_or_mark, parallelism=2).fields(words.stream(Word), "word")
    behind = topology.bolt("window", WINDOWS[variant]).all(counts.stream(Mark))
    topology.sink("out", sink).shuffle(counts.stream(Count)).shuffle(behind)
    return topology


def run(spec: JobSpec) -> JobResult:
    """Run all variants `spec.epochs` times in turns; the numbers are CPU seconds, by variant and round."""
    lines = read_lines(spec.corpus)
    once = run_local if spec.variant == LOCAL else run_on_spark_runtime
    once(lines[:1_000], AS_IT_IS, spec)  # what is imported or compiled on first use
    numbers: dict[str, float] = {}
    wall_s = time.perf_counter()
    for number in range(spec.epochs):
        shift = number % len(VARIANTS)
        for variant in VARIANTS[shift:] + VARIANTS[:shift]:
            gc.collect()
            numbers[f"{variant} {number}"] = once(lines, variant, spec)
    return JobResult(seconds=time.perf_counter() - wall_s, numbers=numbers)


def run_local(lines: Sequence[str], variant: str, spec: JobSpec) -> float:
    """CPU seconds of a run on the local runtime. Raises AssertionError for a wrong count."""
    sink = (NumberedSink if variant == NUMBERED else CountingSink)(Count)
    topology = word_count(lines, variant, sink)
    cpu_s = time.process_time()
    summary = run_topology(topology, runtime="local", state_dir=spec.checkpoint).wait()
    spent_s = time.process_time() - cpu_s
    shutil.rmtree(spec.checkpoint, ignore_errors=True)
    check(sink.rows["rows"], summary.acked, lines)
    return spent_s


def run_on_spark_runtime(lines: Sequence[str], variant: str, spec: JobSpec) -> float:
    """The same on the Spark runtime without Spark; rows go to Parquet."""
    topology = word_count(lines, variant, parquet(spec.out, made=variant == NUMBERED))
    options = Options(epoch_max_messages=spec.epoch_lines)
    request = RunRequest(topology, options, None, spec.checkpoint, append=False, master="", redact=None)
    cpu_s = time.process_time()
    summary = start_in_process(request).wait()
    spent_s = time.process_time() - cpu_s
    check(len(read_rows(spec.out)), summary.acked, lines)
    for folder in (spec.checkpoint, spec.out):
        shutil.rmtree(folder)
    return spent_s


def check(rows: int, acked: int, lines: Sequence[str]) -> None:
    """Raises AssertionError if not every message was acked, or not every word has a row."""
    words = sum(len(line.split()) for line in lines)
    if (rows, acked) != (words, len(lines)):
        raise AssertionError(f"got {rows} rows of {acked} messages, expected {words} of {len(lines)}")
