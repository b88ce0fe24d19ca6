"""The Parquet files of a source: which are there, which are new, and which rows come next.

Owns the records of files, which are the source's position, and what is said of files that cannot be read or are gone.
It refuses to read rows: it reads footers. A Parquet file does not grow: one that was written again is another file. It
is the one of a record if the file system says so (device, inode, size and time of change), or if its size and its
footer are the same, at the same path or with the same inode.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import msgspec
import xxhash

from tupletree.clock import Clock
from tupletree.errors import ConnectorError, SourceChangedError
from tupletree.sources.files import FileList, FoundFile, Listing, is_absent, pattern_folder, siblings, way_out
from tupletree.sources.packed_records import PackedRecords
from tupletree.texts import counted
from tupletree.topology.splits import Split

logger = logging.getLogger("tupletree.sources")

QUIET_S = 5.0
"""A file without a footer that was not changed for so long is not being written any more."""

LOOK_PAUSE = 4.0
"""Between two looks passes so many times what a look takes."""

FORGET_BEYOND = 10_000
"""Of files that were read and removed, so many records are kept, the latest."""

_MAGIC = b"PAR1"


class NotParquetError(ValueError):
    """A file has no footer of Parquet; says why. `status` is that of the file."""

    def __init__(self, why: str, status: os.stat_result) -> None:
        super().__init__(why)
        self.status = status


class Footer(NamedTuple):
    """What a file's footer says.

    Attributes:
        checksum: XXH3-64 of it.
        rows: how many the file has.
        columns: their names.
        size: bytes of the file that ends with it.
        status: of that file, and of no other one that has come to its path meanwhile.
    """

    checksum: int
    rows: int
    columns: list[str]
    size: int
    status: os.stat_result


class ParquetFileRecord(msgspec.Struct, array_like=True):
    """What was planned of one file.

    Attributes:
        name: the one under which it was first seen: that of its rows' ids.
        series: the number of this file among those of that name, from 1; 0: nothing of it was planned yet.
        path: where it was last.
        device, inode, size, mtime_ns: as it was when it was last seen.
        footer: XXH3-64 of it.
        rows: how many it has.
        row: the next one to be planned.
        is_over: nothing of it is to be planned any more.
    """

    name: str
    series: int
    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    footer: int = 0
    rows: int = 0
    row: int = 0
    is_over: bool = False


class InFile(msgspec.Struct, frozen=True, tag="file"):
    """Where a split's rows are."""

    path: str
    inode: int
    footer: int


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """What cannot be read, as one row."""

    reason: str


@dataclass(eq=False)
class _Source:
    """A file that may have rows to plan."""

    record: ParquetFileRecord
    found: FoundFile


class ParquetFiles:
    """The files of a source, one after the other.

    Args:
        files: what the source was given.
        follow: more files may come.
        poll_interval_s: seconds between two looks for them.
        needs: columns without which a file cannot be read, less those that its path has.
        clock: the process's.
    """

    def __init__(
        self, files: FileList, *, follow: bool, poll_interval_s: float, needs: Sequence[str], clock: Clock
    ) -> None:
        self._records = PackedRecords(ParquetFileRecord, has_relative=not all(map(os.path.isabs, files.given)))
        self._files = files
        self._follow = follow
        self._poll_interval_s = poll_interval_s
        self._needs = needs
        self._clock = clock
        self._sources: list[_Source] = []
        self._losses: list[Split] = []
        self._series: dict[str, int] = {}  # name → how many files it had
        self._is_looked = False
        self._next_look_s = 0.0

    def snapshot(self) -> dict[str, Any]:
        """The position: what was planned of each file."""
        return self._records.snapshot()

    def restore(self, position: Mapping[str, Any]) -> None:
        """Go on after a snapshot. Raises CheckpointError: it is none, or was taken in another folder."""
        self._records.restore(position)
        for record in self._records.records:
            self._series[record.name] = max(record.series, self._series.get(record.name, 0))

    def take(self, max_rows: int, max_bytes: int) -> Split | None:
        """The next rows of one file, or the report of a loss; None if there is nothing now.

        Raises:
            ConnectorError: files cannot be looked at; names them all.
        """
        if not self._is_looked or (self._follow and self._clock.monotonic() >= self._next_look_s):
            self._look()
        at = 0  # before it are files that are being written
        while at < len(self._sources) and not self._losses:
            source = self._sources[at]
            split = self._take_from(source, max_rows, max_bytes)
            if source.record.is_over:
                del self._sources[at]
            else:
                at += 1
            if split is not None:
                return split
        return self._losses.pop(0) if self._losses else None

    def _take_from(self, source: _Source, max_rows: int, max_bytes: int) -> Split | None:
        record = source.record
        if not record.series and not self._begun(source):
            return None
        count = min(max_rows, record.rows - record.row, max(1, max_bytes * record.rows // max(1, record.size)))
        if record.is_over or count == 0:
            record.is_over = True
            self._records.changed(record)
            return None
        first = record.row
        record.row += count
        record.is_over = record.row == record.rows
        self._records.changed(record)
        return Split(
            count,
            first,
            record.name,
            msgspec.to_builtins(InFile(record.path, record.inode, record.footer)),
            max(1, record.size * count // record.rows),
            series=None if record.series == 1 else record.series,
        )

    def _begun(self, source: _Source) -> bool:
        """Whether a file that is new can be read; if it cannot for good, its loss is reported."""
        record, path = source.record, source.found.path
        try:
            footer = footer_of(path)
        except NotParquetError as error:
            if self._follow and self._clock.wall() - error.status.st_mtime < QUIET_S:
                return False  # it is being written
            _identify(record, error.status, error.status.st_size)
            self._lose(record, "unreadable", f"{record.name} cannot be read as Parquet: {error}")
            return False
        except FileNotFoundError:
            record.is_over = True  # a file that came and went; it is in no position
            return False
        except OSError as error:
            raise ConnectorError(
                f"cannot open: {error.strerror or error}", where=record.name, next_step=way_out(error)
            ) from error
        _identify(record, footer.status, footer.size)
        record.footer, record.rows = footer.checksum, footer.rows
        known = {*footer.columns, *partition_of(record.name)}
        if missing := [name for name in self._needs if name not in known]:
            which = ", ".join(missing)
            self._lose(record, "unreadable", f"{record.name} has no column for {which}; none of its rows is read")
            return False
        self._begin(record)
        return True

    def _begin(self, record: ParquetFileRecord) -> None:
        self._series[record.name] = record.series = self._series.get(record.name, 0) + 1
        self._records.append(record)

    def _lose(self, record: ParquetFileRecord, kind: str, reason: str) -> None:
        """Plan the report of a loss, as one row of its own."""
        if not record.series:
            self._begin(record)
        record.is_over = True
        self._records.changed(record)
        logger.warning("%s", reason)
        series = kind if record.series == 1 else f"{record.series} {kind}"
        self._losses.append(Split(1, record.row, record.name, msgspec.to_builtins(Lost(reason)), 1, series=series))

    # --- looking ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See which files are there now, and queue those that have rows to plan."""
        began_s = self._clock.monotonic()
        listing = find_files(self._files)
        known = _Known(self._records.records)
        taken: set[int] = set()
        sources: list[_Source] = []
        identities: set[tuple[int, int]] = set()
        for found in listing.files:
            if found.identity in identities:
                continue  # another name of a file
            identities.add(found.identity)
            record = known.record_of(found)
            if record is None:
                record = ParquetFileRecord(found.name, 0, found.path, *found.identity, found.size, found.mtime_ns)
            else:
                self._note(record, found)
            taken.add(id(record))
            if not record.is_over:
                sources.append(_Source(record, found))
        gone = [record for record in self._records.records if id(record) not in taken]
        names = {record.name for record in self._records.records}
        unread = {one.name: counted(one.rows - one.row, "row") for one in gone if not one.is_over}
        listing.check(names, unread, follow=self._follow, is_looked=self._is_looked)
        for record in gone:
            if not record.is_over:
                what = "cannot be found among the files to read" if is_absent(record.path) else "was written again"
                rows = f"{counted(record.rows - record.row, 'row')} of it, from row {record.row}"
                self._lose(record, "unread", f"{record.path} {what}: {rows}, were never read")
        if len(gone) > FORGET_BEYOND:
            self._records.forget(gone[: len(gone) - FORGET_BEYOND])
        self._sources = sources
        self._is_looked = True
        ended_s = self._clock.monotonic()
        self._next_look_s = ended_s + max(self._poll_interval_s, LOOK_PAUSE * (ended_s - began_s))

    def _note(self, record: ParquetFileRecord, found: FoundFile) -> None:
        now = (found.path, found.device, found.inode, found.size, found.mtime_ns)
        if now != (record.path, record.device, record.inode, record.size, record.mtime_ns):
            record.path, record.device, record.inode, record.size, record.mtime_ns = now
            self._records.changed(record)


def _identify(record: ParquetFileRecord, status: os.stat_result, size: int) -> None:
    """Since a file was found it may have been written to its end, or another one may have come to its path."""
    record.device, record.inode, record.size, record.mtime_ns = status.st_dev, status.st_ino, size, status.st_mtime_ns


class _Known:
    """Records by what a file may be known by."""

    def __init__(self, records: Iterable[ParquetFileRecord]) -> None:
        self._by_identity: dict[tuple[int, int], ParquetFileRecord] = {}
        self._by_path: dict[str, ParquetFileRecord] = {}
        for record in records:  # the latest of several
            self._by_identity[record.device, record.inode] = record
            self._by_path[record.path] = record

    def record_of(self, found: FoundFile) -> ParquetFileRecord | None:
        """The record of a file that is there; None: it is new."""
        record = self._by_identity.get(found.identity)
        if record is not None and (record.size, record.mtime_ns) == (found.size, found.mtime_ns):
            return record
        for one in (self._by_path.get(found.path), record):
            if one is not None and one.size == found.size and _has_footer(found.path, one.footer):
                return one  # restored from a copy, or touched
        return None


# --- what is in a file, and where it is ---------------------------------------------------------------------------


def footer_of(path: str) -> Footer:
    """Read a file's footer.

    Raises:
        NotParquetError: it has none.
        OSError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with Path(path).open("rb") as file:
        checksum, size = _checksum(file)
        status = os.fstat(file.fileno())
        try:
            metadata = pq.read_metadata(file)
            return Footer(checksum, metadata.num_rows, metadata.schema.to_arrow_schema().names, size, status)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # it cannot be read now; that its content is wrong is said without a number
            raise NotParquetError(str(error).partition("\n")[0], status) from error


def _checksum(file: BinaryIO) -> tuple[int, int]:
    """Of a file's footer; and how many bytes the file has."""
    size = file.seek(0, os.SEEK_END)
    if size < 12:
        raise NotParquetError(f"it has {counted(size, 'byte')}", os.fstat(file.fileno()))
    file.seek(size - 8)
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _MAGIC or length > size - 12:
        why = "it does not end as a Parquet file does, or was not written to its end"
        raise NotParquetError(why, os.fstat(file.fileno()))
    file.seek(size - 8 - length)
    return xxhash.xxh3_64_intdigest(file.read(length)), size


def _has_footer(path: str, footer: int) -> bool:
    """Whether a file has this footer. Raises ConnectorError: it cannot be opened now."""
    try:
        with Path(path).open("rb") as file:
            return _checksum(file)[0] == footer
    except (NotParquetError, FileNotFoundError):
        return False
    except OSError as error:
        raise ConnectorError(f"cannot open: {error.strerror or error}", where=path, next_step=way_out(error)) from error


def place_of_rows(split: Split, data: InFile) -> str:
    """Where the file of a split is now: where it was, or renamed in its folder.

    Raises:
        SourceChangedError: it is gone, or another one has its name.
        ConnectorError: it cannot be opened.
    """
    for path in _candidates(data):
        if _has_footer(path, data.footer):
            return path
    raise SourceChangedError(
        "a file is not as it was when its rows were planned",
        where=f"{split.source}, rows {split.first} to {split.first + split.rows - 1}",
        got="no file" if is_absent(data.path) else "another file of this name",
        expected=f"{data.path} with the footer that it had",
        next_step="bring the old file back, or start with a fresh --state-dir",
    )


def _candidates(data: InFile) -> Iterator[str]:
    yield data.path
    yield from (path for path, inode in siblings(data.path) if inode == data.inode and path != data.path)


def find_files(files: FileList) -> Listing:
    """The files that are there, without those that a pattern finds in folders, or under names, that begin with _ or .

    As Spark and Hive do: these are of writers that have not finished, and logs of tables.
    """
    listing = files.find()
    given = {*files.given}
    roots = sorted((pattern_folder(name) for name in given if glob.has_magic(name)), key=len, reverse=True)
    listing.files = [file for file in listing.files if file.name in given or not _is_hidden(file.name, roots)]
    return listing


def _is_hidden(name: str, roots: Sequence[str]) -> bool:
    root = next((root for root in roots if name.startswith(root)), "")
    return any(part.startswith(("_", ".")) for part in name[len(root) :].split("/"))


def partition_of(name: str) -> dict[str, str | None]:
    """The values that folders of a path have in their names (`day=2026-11-29/part-0.parquet`), as Spark writes them."""
    found: dict[str, str | None] = {}
    for part in Path(name).parts[:-1]:
        key, sign, value = part.partition("=")
        if sign and key:
            found[unquote(key)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return found
