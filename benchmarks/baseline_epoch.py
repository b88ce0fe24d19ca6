"""Another yardstick of latency: an almost empty epoch of three stages in a streaming query.

A Python source whose offset grows by one each time it is asked, three `mapInArrow` stages over one row per partition
built inside `foreachBatch`, and one `toArrow` there: what any epoch of a tracked topology has to pay for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.job import JobResult, JobSpec
from benchmarks.session import pass_through, start_session

__all__ = ["run"]

PARTITIONS = 2
WARM_UP_EPOCHS = 30
SCHEMA = "task int, frame binary"


class EpochPartition(InputPartition):
    """One partition of an epoch, with the row that it holds."""

    def __init__(self, task: int, frame: bytes) -> None:
        super().__init__(task)
        self.task = task
        self.frame = frame


class CountingReader(DataSourceStreamReader):
    """An epoch is due whenever Spark asks."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Start at epoch 0."""
        return {"epoch": 0}

    def latestOffset(self, start: dict[str, int], _limit: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        """One epoch more than before."""
        return {"epoch": start["epoch"] + 1}

    def partitions(self, _start: dict[str, int], _end: dict[str, int]) -> Sequence[InputPartition]:
        """The epoch's input travels inside the partitions."""
        return [EpochPartition(task, b"frame") for task in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row."""
        assert isinstance(partition, EpochPartition)
        yield pa.RecordBatch.from_pydict(
            {"task": pa.array([partition.task], pa.int32()), "frame": pa.array([partition.frame], pa.binary())}
        )


class CountingSource(DataSource):
    """The source's registration."""

    @classmethod
    def name(cls) -> str:
        """Name for `readStream.format`."""
        return "counting"

    def schema(self) -> str:
        """Columns of a row."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark passes it by name
        """The reader of a query."""
        return CountingReader()


def run(spec: JobSpec) -> JobResult:
    """Run epochs back to back; measure each from settle to settle, which is what a message waits for at least once."""
    session = start_session(spec.master, full_jit=False)
    session.dataSource.register(CountingSource)
    settled_s: list[float] = []
    settle_ms: list[float] = []

    def settle(frames: DataFrame, _epoch: int) -> None:
        started_s = time.perf_counter()
        for _stage in range(3):
            frames = frames.mapInArrow(pass_through, SCHEMA)
        frames.toArrow()
        settled_s.append(time.perf_counter())
        settle_ms.append((settled_s[-1] - started_s) * 1000)

    writer = session.readStream.format("counting").load().writeStream.foreachBatch(settle)
    query = writer.option("checkpointLocation", str(spec.checkpoint)).start()
    while len(settled_s) <= WARM_UP_EPOCHS + spec.epochs:
        if query.awaitTermination(1):
            raise RuntimeError("the query ended before all epochs were measured")
    query.stop()
    measured_s = settled_s[WARM_UP_EPOCHS : WARM_UP_EPOCHS + spec.epochs + 1]
    return JobResult(
        seconds=measured_s[-1] - measured_s[0],
        epoch_ms=[(after - before) * 1000 for before, after in pairwise(measured_s)],
        settle_ms=settle_ms[WARM_UP_EPOCHS + 1 : WARM_UP_EPOCHS + spec.epochs + 1],
    )
