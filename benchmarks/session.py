"""The Spark session of every job: one configuration, so that only the jobs differ."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

__all__ = ["LOW_LATENCY", "pass_through", "start_session", "warm_up"]

LOW_LATENCY = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.pollingDelay": "0",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that take a micro-batch from about 250 to 70 ms; throughput gains from them as well."""


def start_session(master: str, *, full_jit: bool) -> SparkSession:
    """Start a warm session: JVM up, one tiny streaming query done, so that no job pays for class loading alone.

    Args:
        master: Spark master, such as `local[2]`.
        full_jit: the JVM's full compiler, better for long runs; otherwise only the quick one, better for latency.
    """
    java_options = "-XX:+UseSerialGC" if full_jit else "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    builder = SparkSession.builder.master(master).appName("tupletree-benchmarks")
    for key, value in LOW_LATENCY.items():
        builder = builder.config(key, value)
    session = builder.config("spark.driver.extraJavaOptions", java_options).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    warm_up(session)
    print(f"session is warm: {master}, {java_options}", file=sys.stderr)
    return session


def warm_up(session: SparkSession) -> None:
    """Run one line through source, Python worker, exchange and Parquet sink."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in")
        source.mkdir()
        Path(source, "line.txt").write_text("warm\n", encoding="ascii")
        lines = session.readStream.text(str(source))
        rows = lines.mapInArrow(pass_through, "value string").repartition(2, "value")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(Path(folder, "checkpoint")))
        writer.trigger(availableNow=True).start(str(Path(folder, "out"))).awaitTermination()


def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand every batch on."""
    yield from batches
