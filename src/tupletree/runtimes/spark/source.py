"""The thin Python data source that hands Spark one epoch per batch.

It knows files, not topologies: epoch n exists once its log does, and its log says where each partition's frames lie.
`latestOffset` runs in a process of Spark's own, so the epoch log on disk is the only thing it shares with the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tupletree.durable import read_header
from tupletree.runtimes.spark import wire
from tupletree.runtimes.spark.journal import EpochHeader, epoch_path

__all__ = ["EpochSource"]

LONG_POLL_S = 0.2
"""How long `latestOffset` waits for the next epoch before it says "nothing": saves Spark's idle rounds, and is short
enough that a stop is not felt."""
POLL_STEP_S = 0.001


class EpochSource(DataSource):
    """`format("tupletree_epochs")` with these options.

    `directory` of the epoch logs, number of the `first` epoch, `partitions`, and, if stages must see every partition of
    an epoch whether it has frames or not, `wakes`.

    The first batch is a rehearsal without rows: Spark makes one anyway if a new query finds nothing, so it is better
    to have it always, and batch n + 1 is then the n-th epoch.
    """

    @classmethod
    def name(cls) -> str:
        """The name to register under."""
        return "tupletree_epochs"

    def schema(self) -> str:
        """The row schema."""
        return wire.SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """The reader."""
        return _EpochReader(self.options)


class _Slice(InputPartition):
    """One partition's rows of one epoch log.

    Args:
        path: of the log.
        rows: (place, head offset, head length, body length) of each frame.
        splits: rows of splits.
        wakes: the place that its first row names; -1 for none.
    """

    def __init__(
        self, path: str, rows: Sequence[tuple[int, int, int, int]], splits: Sequence[wire.Row] = (), wakes: int = -1
    ) -> None:
        self.path = path
        self.rows = rows
        self.splits = splits
        self.wakes = wakes


class _EpochReader(DataSourceStreamReader):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._directory = Path(options["directory"])
        self._first = int(options["first"])
        self._partitions = int(options["partitions"])
        self._wakes = options.get("wakes", "false") == "true"

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"next": self._first - 1}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's
        """The next epoch if its log is there: one epoch per batch, so that batch and epoch numbers run together."""
        if start["next"] < self._first:
            return {"next": self._first}
        path = epoch_path(self._directory, start["next"])
        until = time.monotonic() + LONG_POLL_S
        while not path.exists():
            if time.monotonic() >= until:
                return start
            time.sleep(POLL_STEP_S)
        return {"next": start["next"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if start["next"] < self._first:  # every worker that an epoch needs takes part in the rehearsal
            return [_Slice("", []) for _ in range(self._partitions)]
        slices: list[InputPartition] = []
        for epoch in range(start["next"], end["next"]):
            path = epoch_path(self._directory, epoch)
            header, body_offset = read_header(path, EpochHeader)
            rows: list[list[tuple[int, int, int, int]]] = [[] for _ in range(self._partitions)]
            for place, offset, head_length, body_length in header.frames:
                # Another start may have cut it for more partitions; frames of one place stay together.
                rows[place % self._partitions].append((place, body_offset + offset, head_length, body_length))
            splits: list[list[wire.Row]] = [[] for _ in range(self._partitions)]
            for planned in header.splits:
                mine = splits[planned.place % self._partitions]
                mine.append((planned.place, wire.SPLIT, wire.encode_split(planned), b""))
            for place, (frames, pieces) in enumerate(zip(rows, splits, strict=True)):
                if self._wakes or frames or pieces:
                    slices.append(_Slice(str(path), frames, pieces, place if self._wakes else -1))
        return slices or [_Slice("", [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Slice)
        yield from wire.rows_to_batches(_rows(partition))


def _rows(partition: _Slice) -> Iterator[wire.Row]:
    if partition.wakes >= 0:
        yield partition.wakes, wire.WAKE, b"", b""
    yield from partition.splits
    if not partition.rows:
        return
    with Path(partition.path).open("rb") as file:
        for place, offset, head_length, body_length in partition.rows:
            file.seek(offset)
            yield place, wire.FRAME, file.read(head_length), file.read(body_length)
