"""The vectorised baseline: split and count as Arrow columns in plain `mapInArrow`, untracked, totals in the worker.

The least that a word count without Python per word can cost on Spark, and like `baseline_plain` not a correct one. It
writes one row per word and batch: the count so far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.backlog import finish_backlog, read_lines
from benchmarks.job import JobResult, JobSpec
from benchmarks.session import start_session

__all__ = ["run"]

worker_totals: defaultdict[str, int] = defaultdict(int)
"""Lives as long as the Python worker: this module is imported there, not pickled."""


def split_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Lines in, words out, split as `str.split` does."""
    for batch in batches:
        words = pc.list_flatten(pc.utf8_split_whitespace(batch.column(0)))
        yield pa.RecordBatch.from_arrays([words.filter(pc.not_equal(words, pa.scalar("")))], ["word"])


def count_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Words in, one running count out per word of the batch."""
    for batch in batches:
        counted = pc.value_counts(batch.column(0))
        words, counts = counted.field("values"), counted.field("counts")
        totals = []
        for word, count in zip(cast("list[str]", words.to_pylist()), cast("list[int]", counts.to_pylist())):
            worker_totals[word] += count
            totals.append(worker_totals[word])
        yield pa.RecordBatch.from_arrays([words, pa.array(totals, pa.int64())], ["word", "count"])


def run(spec: JobSpec) -> JobResult:
    """Split, exchange by word, count, append to Parquet."""
    session = start_session(spec.master, full_jit=True)
    words = read_lines(session, spec.corpus).mapInArrow(split_stage, "word string")
    counts = words.repartition("word").mapInArrow(count_stage, "word string, count long")
    return finish_backlog(counts.writeStream.format("parquet"), spec.checkpoint, spec.out)
