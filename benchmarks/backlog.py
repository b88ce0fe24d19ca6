"""What the two streaming baselines share: reading the corpus epoch by epoch, and timing a backlog to its end."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.corpus import FILES_PER_EPOCH
from benchmarks.job import JobResult

__all__ = ["finish_backlog", "read_lines"]


def read_lines(session: SparkSession, corpus: str) -> DataFrame:
    """Stream the corpus as a column `value`, one epoch's files per epoch."""
    return session.readStream.option("maxFilesPerTrigger", FILES_PER_EPOCH).text(corpus)


def finish_backlog(writer: DataStreamWriter, checkpoint: Path, out: Path | None = None) -> JobResult:
    """Run a query until the backlog is done and time it.

    The clock starts when the first epoch is triggered, which is after the query was planned, and stops when the last
    epoch's commit file was written. Raises what made the query fail.
    """
    query = (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(None if out is None else str(out))
    )
    query.awaitTermination()
    epochs = [progress for progress in query.recentProgress if progress.numInputRows]
    started_s = datetime.fromisoformat(epochs[0].timestamp).timestamp()
    committed_s = max(path.stat().st_mtime for path in checkpoint.glob("commits/[0-9]*"))
    return JobResult(
        seconds=committed_s - started_s,
        epoch_ms=[float(progress.durationMs["triggerExecution"]) for progress in epochs],
    )
