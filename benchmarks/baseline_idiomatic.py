"""Baseline (b): what a Spark programmer would write: a Python UDF that splits, explode, groupBy, count.

Update mode, so each epoch writes one row per word that changed, not one per word as the others do; the Parquet sink
takes only append mode, so `foreachBatch` writes each epoch to a folder named by its number (a second run of an epoch
replaces it). Counts live in Spark's default state store.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program gives it

from benchmarks.backlog import finish_backlog, read_lines
from benchmarks.job import JobResult, JobSpec
from benchmarks.session import start_session
from benchmarks.word_count import split_text

__all__ = ["run"]


def run(spec: JobSpec) -> JobResult:
    """Split, explode, groupBy, count, one Parquet folder per epoch."""
    session = start_session(spec.master, full_jit=True)
    # Made here, not by a decorator: a UDF learns from the running session whether Spark wants Arrow or pickle for it.
    split = F.udf(split_text, "array<string>")
    words = read_lines(session, spec.corpus).select(F.explode(split("value")).alias("word"))
    counts = words.groupBy("word").count()

    def write_epoch(changed: DataFrame, epoch: int) -> None:
        changed.write.mode("overwrite").parquet(str(spec.out / f"epoch={epoch}"))

    return finish_backlog(counts.writeStream.outputMode("update").foreachBatch(write_epoch), spec.checkpoint)
