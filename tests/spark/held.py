"""The word count of `counting` with words that go round before it, and bolts that hold counts behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.spark.counting import SOURCES, Count, Word, count, split, stumble
from tupletree import Topology, Window, batch_bolt, bolt, window_bolt
from tupletree.sinks import jsonl, parquet


class Lap(msgspec.Struct, frozen=True, gc=False):
    """A word that goes round until it has done its laps."""

    word: str
    left: int


@bolt
def enter(word: Word) -> Lap:
    return Lap(word.word, 2 if word.word == "w1" else 0)


@bolt
def run_lap(lap: Lap) -> Lap | Word:
    return Lap(lap.word, lap.left - 1) if lap.left else Word(lap.word)


@batch_bolt(size=7, max_age_s=600.0)
def gather(counts: list[Count]) -> list[Count]:
    """Holds counts for as long as the next epochs, or the end of the input, take to come."""
    return counts


@window_bolt(count=5)
def in_windows(window: Window[Count]) -> Iterator[Count]:
    """Holds what `gather` lets go of until there are five; each count is in one window."""
    yield from window


def topology(folder: Path, batch_size: int = 10, source: str = "file") -> Topology:
    """The same count with a cycle before it, and bolts that hold behind it: trees are open for several epochs."""
    t = Topology("crash-held", allow_cycle=True)
    lines = t.spout("source", SOURCES[source](folder, batch_size))
    words = t.bolt("split", split, parallelism=3).shuffle(lines)
    laps = t.bolt("enter", enter, parallelism=2).shuffle(words)
    done = t.bolt("run", run_lap, parallelism=4).shuffle(laps)
    done.shuffle(done.stream(Lap))
    counts = t.bolt("count", count, parallelism=2).fields(done.stream(Word), "word")
    gathered = t.bolt("gather", gather, parallelism=2).fields(counts, "word")
    seen = t.bolt("windows", in_windows).global_(gathered)
    passed = t.bolt("stumble", stumble).shuffle(seen)
    t.sink("lines", jsonl(folder / "lines")).shuffle(passed)
    t.sink("columns", parquet(folder / "columns")).shuffle(passed)
    return t
