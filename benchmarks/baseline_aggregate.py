"""The peer of the stateful rows: Spark's built-in streaming aggregate, without a line of Python per row.

Split, explode, groupBy and count all run in the JVM, in update mode; each epoch's changed rows go to a Parquet folder,
as in `baseline_idiomatic`. Counts live in Spark's default state store.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program gives it

from benchmarks.backlog import finish_backlog, read_lines
from benchmarks.job import JobResult, JobSpec
from benchmarks.session import start_session

__all__ = ["run"]


def run(spec: JobSpec) -> JobResult:
    """Split, explode, groupBy, count, one Parquet folder per epoch."""
    session = start_session(spec.master, full_jit=True)
    words = read_lines(session, spec.corpus).select(F.explode(F.split("value", " ")).alias("word"))
    counts = words.groupBy("word").count()

    def write_epoch(changed: DataFrame, epoch: int) -> None:
        changed.write.mode("overwrite").parquet(str(spec.out / f"epoch={epoch}"))

    return finish_backlog(counts.writeStream.outputMode("update").foreachBatch(write_epoch), spec.checkpoint)
