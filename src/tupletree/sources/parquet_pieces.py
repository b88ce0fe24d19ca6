"""Pieces of Parquet files: some rows of a file, read where the last piece ended.

Owns how consecutive rows are read without decoding a row group from its start for each piece of it, and how a piece's
rows become messages. It refuses to know which rows come next, and which file is which. pyarrow is imported on first
use.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tupletree.data.payloads import lift, to_jsonable
from tupletree.errors import ProcessingError, UnusableDataError
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


@dataclass(frozen=True)
class Damaged:
    """Rows that cannot be read, because the content of the file is wrong.

    Attributes:
        rows: how many.
        why: what Arrow says.
    """

    rows: int
    why: str


class _Reader:
    """One open file, and how far it was read: one row group after the other, so that a damaged one costs no others."""

    def __init__(self, key: _Key, path: str, columns: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        self.key = key
        self._file: Any = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        leaves = [self._file.metadata.schema.column(leaf) for leaf in range(len(self._file.metadata.schema))]
        self._moments = {leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
        self._columns = [*columns]
        sizes = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        self._ends = [*accumulate(sizes)]
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._group = -1
        self.at = 0  # the row with which `_rest` or the next batch begins

    @property
    def has_ended(self) -> bool:
        """Whether all rows were read."""
        return not self._ends or self.at >= self._ends[-1]

    def _seek(self, row: int) -> None:
        """Begin with the row group of a row."""
        self._group = bisect_right(self._ends, row)
        self.at = self._ends[self._group - 1] if self._group else 0
        self._batches = self._file.iter_batches(
            BATCH_ROWS, row_groups=[self._group], columns=self._columns, use_threads=False
        )
        self._rest = None

    def read(self, first: int, count: int) -> Iterator[pa.RecordBatch | Damaged]:
        """These rows, as batches; fewer if the file has fewer."""
        end = min(first + count, self._ends[-1] if self._ends else 0)
        while first < end:
            if self.at > first or bisect_right(self._ends, first) != self._group:
                self._seek(first)
            try:
                batch = self._rest if self._rest is not None else self._in_utc(next(self._batches))
            except Exception as error:
                if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                    raise  # it cannot be read now; that the content of the file is wrong is said without a number
                lost = min(end, self._ends[self._group]) - first
                yield Damaged(lost, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
                first += lost
                self._group, self._rest = -1, None
                continue
            taken = batch.slice(first - self.at, end - first)
            used = min(first - self.at, len(batch)) + len(taken)
            self._rest = batch.slice(used) if used < len(batch) else None
            self.at += used
            if len(taken):
                first += len(taken)
                yield taken

    def _in_utc(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Spark writes moments as INT96, a type that cannot say that they are in UTC."""
        for at, name in enumerate(batch.schema.names):
            if name in self._moments:
                column = batch.column(at)
                batch = batch.set_column(at, name, column.cast(_with_zone(column.type)))
        return batch

    def close(self) -> None:
        """Close the file."""
        self._batches, self._rest = iter(()), None
        self._file.close(force=True)


def _with_zone(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if isinstance(kind, pa.TimestampType):
        return pa.timestamp(kind.unit, kind.tz or "UTC")
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_with_zone(field.type)) for field in kind.fields])
    if isinstance(kind, pa.MapType):
        return pa.map_(_with_zone(kind.key_type), _with_zone(kind.item_type))
    return pa.list_(_with_zone(kind.value_type)) if isinstance(kind, pa.ListType) else kind


_readers: list[_Reader] = []  # those that nobody uses now, the latest last
_lock = threading.Lock()


def read_batches(path: str, columns: Sequence[str], first: int, count: int) -> Iterator[pa.RecordBatch | Damaged]:
    """Some consecutive rows of a file, as batches; what cannot be read of them is said in its place.

    The pieces of a file may be read in any order and by several threads and processes; rows that follow those which
    were read last in this process are not looked for from the start of their row group.

    Raises:
        OSError, ArrowException: the file cannot be opened or read.
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


def values_of(message_type: type, part: pa.RecordBatch | Damaged, split: Split, index: int) -> Iterator[Any]:
    """The messages of a split's rows from `index` on; rows that cannot be read, or do not fit, are rejected."""
    if isinstance(part, Damaged):
        for at in range(index, index + part.rows):
            place = f"{split.source}, row {split.first + at}"
            payload = place.encode(errors="replace")
            yield Reject(payload, split.message_id(at), f"{place}: the file is damaged here ({part.why})")
        return
    for at, value in enumerate(rows_of(message_type).each(part), index):
        if isinstance(value, UnusableDataError):
            yield Reject(_shown(rows_of(message_type), part, at - index), split.message_id(at), _reason_of(value))
        else:
            yield value


def value_again(message_type: type, payload: bytes) -> Any:
    """The message of a row that was rejected, by its class as it is now.

    Raises:
        ProcessingError: the row does not fit it, or what was rejected is no row.
    """
    if not payload.startswith(b"{"):
        raise ProcessingError("it is no row, but a part of a file that could not be read")
    try:
        return rows_of(message_type).one(lift(msgspec.json.decode(payload), {}))
    except UnusableDataError as error:
        raise ProcessingError(_reason_of(error)) from error


def _reason_of(error: UnusableDataError) -> str:
    finding = error.findings[0]
    return f"{finding.where}: got {finding.got}, expected {finding.expected}"


def _shown(rows: ArrowRows[Any], batch: pa.RecordBatch, row: int) -> bytes:
    """A row as JSON; of a value that no object of Python holds, what it is made of."""
    shown = {}
    for at, field in enumerate(batch.schema):
        shown[field.name] = item = _item(batch.column(at).slice(row, 1))
        with suppress(Exception):  # of the class's own code; then it is shown as it is written
            shown[field.name] = rows.as_read(field.name, field, item)
    return msgspec.json.encode(to_jsonable(shown))


def _item(column: pa.Array[Any]) -> Any:
    import pyarrow as pa

    from tupletree.data.arrow_rows import python_values

    with suppress(ValueError, OverflowError, pa.ArrowException):
        return python_values(column)[0]
    for kind in (column.type, pa.int64(), pa.int32(), pa.binary()):
        with suppress(ValueError, OverflowError, pa.ArrowException):  # a moment beyond year 9999, text that is no UTF-8
            return column.view(kind).to_pylist()[0]
    return f"a {column.type}"


def rows_in(part: pa.RecordBatch | Damaged) -> int:
    """How many rows a part has."""
    return part.rows if isinstance(part, Damaged) else len(part)
