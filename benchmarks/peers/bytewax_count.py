"""The word count in bytewax: `python bytewax_count.py CORPUS BATCH_SIZE map|batch`.

Nothing is tracked, and words travel as bare strings. `map` is what its users write: `stateful_map`, one call per word.
`batch` is the fastest that its keyed state can do: `stateful_batch`, one call per key and batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import TestingSource, run_main
from corpus_lines import measure, read_lines

written = {"rows": 0, "checksum": 0}


class CountingPartition(StatelessSinkPartition[Any]):
    """Counts its rows and adds up their counts, as Tupletree's sink does."""

    def write_batch(self, items: list[Any]) -> None:
        written["rows"] += len(items)
        written["checksum"] += sum([total for _, total in items])


class CountingSink(DynamicSink[Any]):
    """A sink that keeps nothing."""

    def build(self, _step_id: str, _worker_index: int, _worker_count: int) -> CountingPartition:
        return CountingPartition()


def split(line: str) -> Iterator[str]:
    """Emit each word of the line."""
    for word in line.split():  # noqa: UP028 - the same function that Tupletree is given
        yield word


def count(total: int | None, _word: str) -> tuple[int, int]:
    """Add one to the word's total and emit it."""
    after = (total or 0) + 1
    return after, after


class CountLogic(StatefulBatchLogic[str, int, int]):
    """Adds one to the total for each of a batch's words."""

    def __init__(self, total: int | None) -> None:
        self.total = total or 0

    def on_batch(self, values: list[str]) -> tuple[list[int], bool]:
        before = self.total
        self.total += len(values)
        return [*range(before + 1, self.total + 1)], StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self.total


def main(corpus: str, batch_size: str, kind: str) -> None:
    flow = Dataflow("word_count")
    lines = op.input("lines", flow, TestingSource(read_lines(corpus), int(batch_size)))
    words = op.key_on("word", op.flat_map("split", lines, split), lambda word: word)
    by_word = kind == "map"
    counts = op.stateful_map("count", words, count) if by_word else op.stateful_batch("count", words, CountLogic)
    op.output("out", counts, CountingSink())

    def work() -> dict[str, int]:
        run_main(flow)
        return written

    measure(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
