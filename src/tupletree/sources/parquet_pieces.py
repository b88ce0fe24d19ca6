"""Pieces of Parquet files: some rows of a file, read where the last piece ended.

Owns how consecutive rows are read without decoding a row group from its start for each piece of it, and how a piece's
rows become messages. It refuses to know which rows come next, and which file is which. pyarrow is imported on first
use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tupletree.errors import UnusableDataError
from tupletree.topology.components import Reject
from tupletree.topology.splits import Split

if TYPE_CHECKING:
    import pyarrow as pa

    from tupletree.data.arrow_rows import ArrowRows

BATCH_ROWS = 8192
"""So many rows are decoded at a time."""

MAX_READERS = 4
"""So many files stay open in a process, each after the last rows that were read of it."""

_Key: TypeAlias = "tuple[str, int, int, int, tuple[str, ...]]"


class _Reader:
    """One open file, and how far it was read."""

    def __init__(self, key: _Key, path: str, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        self.key = key
        self._file: Any = pq.ParquetFile(path)
        self._columns = [*columns]
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(group).num_rows)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self.at = 0  # the row with which `_rest` or the next batch begins
        self._seek(0)

    @property
    def has_ended(self) -> bool:
        """Whether all rows were read."""
        return self.at >= self._starts[-1]

    def group_of(self, row: int) -> int:
        """The first row of the row group that has this one."""
        return max(start for start in self._starts if start <= row)

    def _seek(self, row: int) -> None:
        self.at = self.group_of(row)
        groups = [group for group, start in enumerate(self._starts[:-1]) if start >= self.at]
        self._batches = self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=self._columns, use_threads=False)
        self._rest = None

    def read(self, first: int, count: int) -> Iterator[pa.RecordBatch]:
        """These rows, as batches; fewer if the file has fewer."""
        if not self.group_of(first) <= self.at <= first:
            self._seek(first)
        while count > 0:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            self._rest = None
            if batch is None:
                return
            skipped = min(first - self.at, len(batch))
            taken = batch.slice(skipped, count)
            used = skipped + len(taken)
            if used < len(batch):
                self._rest = batch.slice(used)
            self.at += used
            first += len(taken)
            count -= len(taken)
            if len(taken):
                yield taken

    def close(self) -> None:
        """Close the file."""
        self._batches, self._rest = iter(()), None
        self._file.close(force=True)


_readers: list[_Reader] = []  # those that nobody uses now, the latest last
_lock = threading.Lock()


def read_batches(path: str, columns: Sequence[str], first: int, count: int) -> Iterator[pa.RecordBatch]:
    """Some consecutive rows of a file, as batches.

    The pieces of a file may be read in any order and by several threads and processes; rows that follow those which
    were read last in this process are not looked for from the start of their row group.

    Raises:
        OSError, ArrowException: the file cannot be read.
    """
    status = Path(path).stat()
    key = (path, status.st_ino, status.st_size, status.st_mtime_ns, tuple(columns))
    reader = _taken(key, first) or _Reader(key, path, columns)
    try:
        yield from reader.read(first, count)
    except BaseException:  # also of a caller that stops early
        reader.close()
        raise
    if reader.has_ended:
        reader.close()
        return
    with _lock:
        _readers.append(reader)
        superfluous = _readers[:-MAX_READERS]
        del _readers[:-MAX_READERS]
    for one in superfluous:
        one.close()


def _taken(key: _Key, first: int) -> _Reader | None:
    """The open reader of a file that is nearest before a row, for this caller alone."""
    with _lock:
        fitting = [one for one in _readers if one.key == key]
        reader = max(fitting, key=lambda one: (one.at <= first, one.at), default=None)
        if reader is not None:
            _readers.remove(reader)
        return reader


@lru_cache(maxsize=32)
def rows_of(message_type: Any) -> ArrowRows[Any]:
    """What makes messages of batches; by their class, so that a source can be pickled."""
    from tupletree.data.arrow_rows import ArrowRows

    return ArrowRows(message_type)


def values_of(message_type: type, batch: pa.RecordBatch, split: Split, index: int) -> Iterator[Any]:
    """The messages of a split's rows from `index` on; a row that its class cannot hold is rejected."""
    for at, value in enumerate(rows_of(message_type).each(batch)):
        if isinstance(value, UnusableDataError):
            finding = value.findings[0]
            reason = f"{finding.where}: got {finding.got}, expected {finding.expected}"
            yield Reject(str(batch.slice(at, 1).to_pylist()[0]).encode(), split.message_id(index + at), reason)
        else:
            yield value
