"""Rows of a Delta Lake table as messages, read on executors: what its versions have added, one after the other.

Owns which files a version has added, as the table's log says, and cutting them into pieces. The driver reads the log;
workers read Parquet. It refuses versions that take rows away or change them. deltalake and pyarrow are imported on
first use (`pip install 'tupletree[delta]'`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import msgspec

from tupletree.errors import (
    ConfigError,
    ConnectorError,
    EndOfInput,
    Finding,
    SourceChangedError,
    needing,
)
from tupletree.sources.parquet_pieces import read_batches, rows_in, rows_of, value_again, values_of
from tupletree.topology.components import Reject, TaskContext
from tupletree.topology.splits import Split, SplitSpout
from tupletree.topology.streams import Schema

T = TypeVar("T")


class _File(msgspec.Struct, array_like=True, frozen=True):
    """A Parquet file of the table."""

    path: str
    size_bytes: int
    rows: int


class _Position(msgspec.Struct):
    """`started` is the version whose rows are all read; what follows is the place of the next row."""

    started: int
    version: int
    file: int
    row: int


class _Add(msgspec.Struct):
    """An action of the table's log, as the Delta transaction log protocol has it."""

    path: str
    size: int
    dataChange: bool = True  # noqa: N815 - the protocol's name
    stats: str | None = None
    deletionVector: Any = None  # noqa: N815 - the protocol's name


class _Remove(msgspec.Struct):
    dataChange: bool = True  # noqa: N815 - the protocol's name


class _Action(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None


class _Stats(msgspec.Struct):
    numRecords: int  # noqa: N815 - the protocol's name


class DeltaRows(SplitSpout[T], Generic[T]):
    """Read the rows of a Delta Lake table: those of its newest version first, then what later ones have added.

    Spark's executors read them, each piece from one Parquet file; every worker must find the table under its path.
    The message id is (file, row number in it), the position a version and a place in it. Compaction makes no
    difference, nor does vacuuming what is settled. A version that deletes or changes rows ends the run with an
    error that names it.

    Args:
        table: the table's folder; no store behind a URI yet.
        message_type: class of the messages; each of its fields is a column of that name, or has a default or may be
            None. Timestamps become datetimes, structs messages, lists and maps what the class says. A row that its
            fields cannot hold is rejected.
        follow: wait for later versions; False ends with the newest there is.

    Raises:
        ConfigError: the table is given as a URI.
        RuntimeUnavailableError: deltalake is not installed.
    """

    _index: int
    _tasks: int
    _at: _Position
    _files: Sequence[_File]  # of the current version, this task's

    def __init__(self, table: str | os.PathLike[str], *, message_type: type[T], follow: bool = False) -> None:
        with needing("the Delta source needs deltalake", "delta"):
            import deltalake  # noqa: F401 - so that it is missed here, and not when messages are in flight
        self.table = os.fspath(table)
        if "://" in self.table:
            raise ConfigError(
                "a Delta table is read from a folder", where="delta_rows", got=self.table, expected="a path"
            )
        self.message_type = message_type
        self.follow = follow

    def __repr__(self) -> str:
        return f"DeltaRows({self.table!r})"

    def faults(self) -> Sequence[Finding]:
        """Why the table cannot be read here and now."""
        try:
            self._newest_version()
        except (ConfigError, ConnectorError) as error:
            return error.findings
        return ()

    def open(self, context: TaskContext) -> None:
        """Find the newest version, and see that the table fits.

        Raises:
            ConfigError: it has no columns for the fields, or is laid out as this source cannot read it.
            ConnectorError: it cannot be read.
        """
        self._index, self._tasks = context.task_index, context.parallelism
        version = self._newest_version()
        self._stand(_Position(version, version, 0, 0))

    def _newest_version(self) -> int:
        """The version of a table that fits; see `open` for what is raised."""
        from deltalake import DeltaTable

        try:
            table = DeltaTable(self.table)
        except Exception as error:  # the library raises plain Exceptions, too
            raise self._failed(error) from error
        columns = {field.name for field in table.schema().fields}
        cls: type = self.message_type
        partitions = table.metadata().partition_columns
        findings = [
            Finding(f"there is no column for the field {name!r}", where=self.table)
            for name in rows_of(cls).missing(columns)
        ]
        if partitions:
            findings.append(Finding("a partitioned table cannot be read yet", self.table, got=", ".join(partitions)))
        if findings:
            raise ConfigError(f"{self} does not fit {self.message_type.__qualname__}", findings=findings)
        return table.version()

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        """Name the next rows, in as many files as it takes."""
        splits: list[Split] = []
        while max_rows > 0 and (max_bytes > 0 or not splits):
            if self._at.file == len(self._files):
                if not self._log_of(self._at.version + 1).exists():
                    break
                self._stand(_Position(self._at.started, self._at.version + 1, 0, 0))
                continue
            file = self._files[self._at.file]
            row_bytes = max(1, file.size_bytes // max(1, file.rows))
            count = min(max_rows, file.rows - self._at.row, max(1, max_bytes // row_bytes))
            if count:
                size_bytes = count * row_bytes
                splits.append(Split(count, self._at.row, file.path, file.size_bytes, size_bytes))
                max_rows -= count
                max_bytes -= size_bytes
                self._at.row += count
            if self._at.row == file.rows:
                self._at.file, self._at.row = self._at.file + 1, 0
        if not splits and not self.follow:
            raise EndOfInput
        return splits or None

    def value_of(self, payload: bytes) -> T:
        """See `Spout`. Raises ProcessingError: its class cannot hold it."""
        value: T = value_again(self.message_type, payload)
        return value

    def read(self, split: Split) -> Iterator[T | Reject]:
        """Read the rows of a file, if it is still there."""
        import pyarrow as pa

        path = Path(self.table, str(split.source))
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError as error:
            raise self._changed(
                split, "the file is gone", "as long as its rows are not settled, do not vacuum"
            ) from error
        if size_bytes != split.data:
            raise self._changed(split, f"a file of {size_bytes} bytes", f"one of {split.data} bytes")
        index = 0
        try:
            for part in read_batches(str(path), [*Schema.of(self.message_type).fields], split.first, split.rows):
                yield from values_of(self.message_type, part, split, index)
                index += rows_in(part)
        except (pa.ArrowException, OSError) as error:
            raise self._failed(error) from error

    def snapshot(self) -> dict[str, int]:
        """The current version, and how far it was planned."""
        place: dict[str, int] = msgspec.to_builtins(self._at)
        return place

    def restore(self, position: Mapping[str, int]) -> None:
        """Continue after a snapshot.

        Raises:
            SourceChangedError: the table's log has been cleaned of what is needed to know what comes next.
        """
        self._stand(msgspec.convert(position, _Position))

    # --- the table's log --------------------------------------------------------------------------------------

    def _stand(self, place: _Position) -> None:
        files = self._all_at(place.version) if place.version == place.started else self._added_in(place.version)
        self._at, self._files = place, files[self._index :: self._tasks]

    def _log_of(self, version: int) -> Path:
        return Path(self.table, "_delta_log", f"{version:020}.json")

    def _all_at(self, version: int) -> list[_File]:
        """Every file of a version, by name."""
        from deltalake import DeltaTable

        try:
            table = DeltaTable(self.table, version=version)
            has_vectors = bool(len(_rows_of(table.deletion_vectors())))
            actions = _rows_of(table.get_add_actions())
        except Exception as error:  # see `open`
            raise self._gone(version, error) from error
        if has_vectors:
            raise self._refused(version, "it has deletion vectors")
        found = (self._file(one["path"], one["size_bytes"], one.get("num_records")) for one in actions)
        return sorted(found, key=lambda file: file.path)

    def _added_in(self, version: int) -> list[_File]:
        """The files that a version has added, in the order of its log."""
        try:
            lines = self._log_of(version).read_bytes().splitlines()
        except FileNotFoundError as error:
            raise self._gone(version, error) from error
        actions = [msgspec.json.decode(line, type=_Action) for line in lines if line.strip()]
        if any(one.remove is not None and one.remove.dataChange for one in actions):
            raise self._refused(version, "it takes rows away or changes them")
        added = [one.add for one in actions if one.add is not None and one.add.dataChange]
        if any(one.deletionVector is not None for one in added):
            raise self._refused(version, "it has deletion vectors")
        return [
            self._file(unquote(one.path), one.size, msgspec.json.decode(one.stats, type=_Stats).numRecords)
            if one.stats
            else self._file(unquote(one.path), one.size, None)
            for one in added
        ]

    def _file(self, path: str, size_bytes: int, rows: int | None) -> _File:
        """A file; the number of its rows is in the log, or else in the file itself."""
        if rows is None:
            import pyarrow.parquet as pq

            rows = int(pq.read_metadata(Path(self.table, path)).num_rows)
        return _File(path, size_bytes, rows)

    # --- errors -----------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> ConnectorError:
        return ConnectorError(
            "the Delta table cannot be read",
            where=self.table,
            got=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            next_step="see that the folder is there, and that this user may read it",
        )

    def _changed(self, split: Split, got: str, expected: str) -> SourceChangedError:
        return SourceChangedError(
            "a file of the Delta table is not as it was when its rows were planned",
            where=f"{self.table}, {split.source}, rows {split.first} to {split.first + split.rows - 1}",
            got=got,
            expected=expected,
            next_step="bring the file back, or start with a fresh --state-dir",
        )

    def _gone(self, version: int, error: Exception) -> SourceChangedError:
        return SourceChangedError(
            "a version of the Delta table cannot be read any more",
            where=f"{self.table}, version {version}",
            got=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            next_step="keep the table's log for longer than a run may rest; start with a fresh --state-dir",
        )

    def _refused(self, version: int, got: str) -> SourceChangedError:
        return SourceChangedError(
            "a version of the Delta table does more than add rows",
            where=f"{self.table}, version {version}",
            got=got,
            next_step="a run with a fresh --state-dir reads the table as it is now",
        )


delta_rows = DeltaRows


def _rows_of(table: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(table).to_pylist()
    return rows
