"""The judged word count on the local runtime: one process, full tracking, the sink waits for each root.

The functions do what the peers' do; the streams are the variant's. The clock covers the whole run, from `run` to the
end of `wait`, as a peer's covers its whole call. Modules are imported before it starts, as a peer's are: `run` would
import those of the runtime, a tenth of the CPU of the shortest job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tupletree.runtimes.local.runtime  # noqa: F401 - see above
from benchmarks.job import JobResult, JobSpec
from benchmarks.peers.corpus_lines import read_lines
from benchmarks.word_count import Count, Line, Word, count, split
from tupletree import Bolt, Collector, Emit, EndOfInput, Options, Sink, Spout, Topology, bolt
from tupletree import run as run_topology
from tupletree.topology.components import KeyedState, SinkBatch

__all__ = ["VARIANTS", "run"]

LINES_PER_NEXT = 1_000


@dataclass(frozen=True, slots=True)
class PlainLine:
    """`Line` as users of dataclasses write it."""

    text: str


@dataclass(frozen=True, slots=True)
class PlainWord:
    """`Word`, likewise."""

    word: str


@dataclass(frozen=True, slots=True)
class PlainCount:
    """`Count`, likewise."""

    word: str
    count: int


def plain_split(line: PlainLine) -> Iterator[PlainWord]:
    """Emit each word of the line."""
    for word in line.text.split():
        yield PlainWord(word)


def plain_count(word: PlainWord, total: KeyedState[int]) -> PlainCount:
    """Add one to the word's total and emit it."""
    total.value += 1
    return PlainCount(word.word, total.value)


class CollectingSplit(Bolt[Line]):
    """`split` as a class bolt with a collector."""

    def process(self, value: Line, collector: Collector[Word]) -> None:
        for word in value.text.split():
            collector.emit(Word(word))


class TextSpout(Spout[Any]):
    """Lines from memory; each is made a message as it is asked for."""

    def __init__(self, lines: Sequence[str], message_type: type[Any]) -> None:
        self.message_type = message_type
        self._lines = lines
        self._taken = 0

    def next(self) -> list[Emit[Any]]:
        start = self._taken
        if start == len(self._lines):
            raise EndOfInput
        texts = self._lines[start : start + LINES_PER_NEXT]
        self._taken += len(texts)
        made = self.message_type
        return [Emit(made(text), number) for number, text in enumerate(texts, start)]


class CountingSink(Sink[Any]):
    """Counts its rows and adds up their counts, as the peers' sinks do."""

    def __init__(self, message_type: type[Any]) -> None:
        self.message_type = message_type
        self.rows = {"rows": 0, "checksum": 0}

    def write(self, batch: SinkBatch[Any]) -> None:
        self.rows["rows"] += len(batch.rows)
        self.rows["checksum"] += sum([row.count for row in batch.rows])


split_bolt = bolt(split)
count_bolt = bolt(state=int)(count)


@dataclass(frozen=True)
class Variant:
    """What differs: the classes of the streams, the bolt that splits, threads."""

    line: type[Any] = Line
    word: type[Any] = Word
    count_type: type[Any] = Count
    split: Any = split_bolt
    count: Any = count_bolt
    threads: int = 2
    durable: bool = False


VARIANTS = {
    "msgspec": Variant(),
    "cooperative": Variant(threads=1),
    "dataclass": Variant(PlainLine, PlainWord, PlainCount, bolt(plain_split), bolt(state=int)(plain_count)),
    "collector": Variant(split=CollectingSplit),
    "durable": Variant(durable=True),
}


def run(spec: JobSpec) -> JobResult:
    """Count the corpus, or the first `spec.messages` lines of it over and over."""
    variant = VARIANTS[spec.variant]
    lines = read_lines(spec.corpus)
    if spec.messages:
        lines = (lines * (spec.messages // len(lines) + 1))[: spec.messages]
    sink = CountingSink(variant.count_type)
    topology = Topology("word-count")
    given = topology.spout("lines", TextSpout(lines, variant.line))
    words = topology.bolt("split", variant.split, parallelism=2).shuffle(given)
    counts = topology.bolt("count", variant.count, parallelism=2).fields(words.stream(variant.word), "word")
    topology.sink("out", sink).shuffle(counts)
    options = Options(local_threads=variant.threads, max_spout_pending=spec.pending or None, durable=variant.durable)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    handle = run_topology(topology, runtime="local", options=options, state_dir=spec.checkpoint)
    summary = handle.wait()
    seconds, cpu_seconds = time.perf_counter() - wall_s, time.process_time() - cpu_s
    if summary.acked != len(lines):
        raise AssertionError(f"not every message was acked: {summary}")
    return JobResult(seconds=seconds, cpu_seconds=cpu_seconds, numbers=dict(sink.rows))
