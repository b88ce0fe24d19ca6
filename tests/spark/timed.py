"""The word count of `counting` with windows by event time and a join behind it, through which every count passes once.

A line's number is its time, in seconds. Lines that fail come again when later ones would have moved the watermark on:
it must wait for them, kills or no kills.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.spark import counting
from tests.spark.counting import SOURCES, Count, stumble
from tupletree import KeyedState, TaskContext, Topology, Window, bolt, join_bolt, window_bolt
from tupletree.sinks import jsonl, parquet
from tupletree.sources.text import Line

LAG_S = 6.0
"""Lines of one epoch may come in any order, but none is further behind: a few windows are over while others fill."""

HOLD_S = 600.0
"""Longer than a restart takes."""


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A word, and where it stands."""

    word: str
    line: int
    position: int


class PlacedCount(msgspec.Struct, frozen=True, gc=False):
    word: str
    line: int
    position: int
    count: int


@bolt
def split(line: Line, context: TaskContext) -> Iterator[Placed]:
    words = list(counting.split(line, context))
    yield from (Placed(word.word, line.number, position) for position, word in enumerate(words))


@bolt(state=int)
def count(placed: Placed, total: KeyedState[int]) -> PlacedCount:
    total.value += 1
    return PlacedCount(placed.word, placed.line, placed.position, total.value)


@window_bolt(
    length_s=4, timestamp="line", late="fail", lag_s=LAG_S, retry_hold_s=HOLD_S, per_key=True, extend_timeout=True
)
def in_windows(window: Window[PlacedCount]) -> Iterator[PlacedCount]:
    """Holds the counts of a word until four lines are over."""
    yield from window


@join_bolt(within_s=1, timestamp="line", late="fail", lag_s=4 * LAG_S, retry_hold_s=HOLD_S, extend_timeout=True)
def confirm(placed: Placed, counted: PlacedCount) -> Count:
    """Each word with its own count, which comes some windows later."""
    return Count(placed.word, counted.count)


def topology(folder: Path, batch_size: int = 10, source: str = "file") -> Topology:
    t = Topology("crash-timed")
    lines = t.spout("source", SOURCES[source](folder, batch_size))
    words = t.bolt("split", split, parallelism=3).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    seen = t.bolt("windows", in_windows, parallelism=2).fields(counts, "word")
    joined = t.bolt("confirm", confirm, parallelism=2)
    joined.fields(words, "word", "line", "position").fields(seen, "word", "line", "position")
    passed = t.bolt("stumble", stumble).shuffle(joined)
    t.sink("lines", jsonl(folder / "lines")).shuffle(passed)
    t.sink("columns", parquet(folder / "columns")).shuffle(passed)
    return t
