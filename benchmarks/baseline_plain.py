"""Baseline (a): the same per-tuple functions in plain `mapInArrow`, untracked, with totals in the worker.

The least that a Python job per tuple can cost on Spark. It is not a correct word count: a partition has no fixed
worker, totals are not in the checkpoint, and an epoch that runs again counts twice. Only its work is comparable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import cast

import pyarrow as pa

from benchmarks.backlog import finish_backlog, read_lines
from benchmarks.job import JobResult, JobSpec
from benchmarks.session import start_session
from benchmarks.word_count import Line, Word, count, split

__all__ = ["run"]


class WorkerTotal:
    """A total in the worker's memory, with the face of `KeyedState`."""

    __slots__ = ("key", "value")

    def __init__(self) -> None:
        self.key: object = None
        self.value = 0

    def clear(self) -> None:
        """Forget the count."""
        self.value = 0


worker_totals: defaultdict[str, WorkerTotal] = defaultdict(WorkerTotal)
"""Lives as long as the Python worker: this module is imported there, not pickled."""


def split_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Lines in, words out."""
    for batch in batches:
        texts = cast("list[str]", batch.column(0).to_pylist())
        words = [word.word for text in texts for word in split(Line(text))]
        yield pa.RecordBatch.from_pydict({"word": pa.array(words, pa.string())})


def count_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Words in, one running count out per word."""
    for batch in batches:
        texts = cast("list[str]", batch.column(0).to_pylist())
        counts = [count(Word(text), worker_totals[text]) for text in texts]
        yield pa.RecordBatch.from_pydict(
            {
                "word": pa.array([update.word for update in counts], pa.string()),
                "count": pa.array([update.count for update in counts], pa.int64()),
            }
        )


def run(spec: JobSpec) -> JobResult:
    """Split, exchange by word, count, append to Parquet; one output per word."""
    session = start_session(spec.master, full_jit=True)
    words = read_lines(session, spec.corpus).mapInArrow(split_stage, "word string")
    placed = words.repartition("word")  # spark.sql.shuffle.partitions partitions, by hash in the JVM
    counts = placed.mapInArrow(count_stage, "word string, count long")
    return finish_backlog(counts.writeStream.format("parquet"), spec.checkpoint, spec.out)
