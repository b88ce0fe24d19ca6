"""Which file is which: what was read of each file, and what it is called, moved to or replaced by since.

Owns the records of a source of files, which are its position, and their reconciliation with the files that are there
now. It refuses to read lines, to wait and to log: what is to be logged it returns.

A file is the one of a record if what is before the record's offset is the same (its first and its last
`BLOCK_BYTES`), and either the file system says so (device and inode), or it is at the same path, or, after the old
path went to another file, at one that rotation makes of it (`app.log` → `app.log.1`, `app.log.1.gz`). Two files that
begin with the same bytes are two: content alone is never enough.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tupletree.sources.files import FoundFile, found_at
from tupletree.sources.line_reader import BLOCK_BYTES, DamagedFileError, LineReader
from tupletree.sources.packed_records import UNREADABLE, PackedRecords, plain_name, unreadable_position
from tupletree.sources.rotation import Neighbours, Related, is_rotated

FORGET_BEYOND = 10_000
"""Of files that were removed, so many records are kept, the latest."""

EVIDENCE_BYTES = 32
"""A file that was moved and changed is recognised by so many bytes that were read of it: file systems give the inode of
a deleted file to a new one at once, and many files begin with the same few bytes."""

COPY_BYTES = 2 * BLOCK_BYTES
"""A file that rotation is still copying, while the original is there, is recognised by so many bytes."""

CANDIDATES = 20
"""A new file is compared with so many files of related names, the latest."""


class FileRecord(msgspec.Struct, array_like=True):
    """What was read of one file.

    Attributes:
        name: the one under which it was first read: that of its lines' ids.
        series: the number of this file among those of that name, from 1.
        path: where it was last.
        device, inode, size, mtime_ns: as it was when it was last compared.
        offset: behind what was taken of it, as `LineReader` counts.
        lines: taken so far.
        head, tail: XXH3-64 of the first and the last block before the offset.
        stream: it is compressed or of a wide encoding, so that `offset` says nothing about `size`.
        done: it was read to its end, as of `size`.
        gone: it was missed, and what it still had was reported as lost.
        damaged: what follows cannot be decompressed, and that was reported.
    """

    name: str
    series: int
    path: str
    device: int
    inode: int
    size: int = 0
    mtime_ns: int = 0
    offset: int = 0
    lines: int = 0
    head: int = 0
    tail: int = 0
    stream: bool = False
    done: bool = False
    gone: bool = False
    damaged: bool = False

    @property
    def identity(self) -> tuple[int, int]:
        """Which file it is, under any name."""
        return self.device, self.inode

    @property
    def unread(self) -> str:
        """How much of it was not read when it was last seen, in words; "" for nothing."""
        if self.done or self.damaged:
            return ""
        if self.stream:
            return f"what follows line {self.lines}"
        return f"{self.size - self.offset} bytes" if self.size > self.offset else ""

    def is_as_it_was(self, found: FoundFile) -> bool:
        """Whether nothing was done to the file since it was compared."""
        return (self.identity, self.size, self.mtime_ns) == (found.identity, found.size, found.mtime_ns)


@dataclass
class Reconciled:
    """The outcome of comparing the records with the files.

    Attributes:
        present: each record whose file is there, and the file; those outside the list first, then by the list.
        fresh: records of files that are new, among the present.
        moved: record → the path it had before.
        replaced: records whose path is another file's now, or whose content was replaced → that file.
        missed: records whose file cannot be found.
        aliases: files that are other names of one that is present → that one's name.
        copies: files that are copies of one that is present, made by rotation → that one's name.
        passed_over: files that had a name of the list between two looks, and have been rotated away since → that name.
    """

    present: list[tuple[FileRecord, FoundFile]] = field(default_factory=list)
    fresh: list[FileRecord] = field(default_factory=list)
    moved: list[tuple[FileRecord, str]] = field(default_factory=list)
    replaced: list[tuple[FileRecord, FoundFile]] = field(default_factory=list)
    missed: list[FileRecord] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)


class FileTable:
    """The records of a source's files.

    Args:
        encoding: of the files.
        has_relative: whether names are relative to the folder of this process.
    """

    def __init__(self, encoding: str, *, has_relative: bool = False) -> None:
        self._packed = PackedRecords(FileRecord, has_relative=has_relative)
        self._encoding = encoding
        self._series: dict[str, int] = {}  # name → how many files it had
        self.changed = self._packed.changed

    @property
    def records(self) -> list[FileRecord]:
        """Of every file of which something was read, in the order in which they were begun."""
        return self._packed.records

    def snapshot(self) -> dict[str, Any]:
        """The position, as JSON-compatible data."""
        # `json.dumps` keeps the text ASCII for any name.
        names = {json.dumps(name): count for name, count in self._series.items() if count > 1}
        return {**self._packed.snapshot(), "names": names}

    def restore(self, position: Any) -> None:
        """Restore the records of a snapshot.

        Raises:
            CheckpointError: it is none, or it was taken in another folder, and names are relative.
        """
        try:
            self._series = {plain_name(name): count for name, count in position["names"].items()}
        except UNREADABLE as error:
            raise unreadable_position(error) from error
        self._packed.restore(position)
        for record in self.records:
            self._series[record.name] = max(record.series, self._series.get(record.name, 0))

    def begin(self, record: FileRecord) -> None:
        """Keep the record of a file that was new: its first line is taken now."""
        self._series[record.name] = record.series = self._series.get(record.name, 0) + 1
        self._packed.append(record)

    # --- reconciliation -----------------------------------------------------------------------------------------

    def reconcile(self, listing: Sequence[FoundFile], is_open: Callable[[FileRecord], bool]) -> Reconciled:
        """Compare the records with the files that are there now.

        Args:
            listing: the files that the source is to read, in order.
            is_open: whether a record's file is held open, so that its inode can be no other file's.

        Raises:
            ConnectorError: a file cannot be read to be compared.
        """
        out = Reconciled()
        self._forget()
        owned: dict[int, FoundFile] = {}
        files: dict[tuple[int, int], FoundFile] = {}
        for found in listing:
            first = files.setdefault(found.identity, found)
            if first is not found:
                out.aliases[found.name] = first.name
        neighbours = Neighbours()
        rest = self._by_identity([*files.values()], owned, is_open)
        outside = self._outside(owned, neighbours, lambda record, found: self._is_same(record, found, is_open))
        rest = self._by_path(rest, owned)
        rest = self._by_rotation(rest, owned, out)
        outside |= self._outside(owned, neighbours, self._is_rotated_copy)
        self._note(owned, rest, out)
        present = {owned[id(record)].identity: record for record in self.records if id(record) in owned}
        for found in rest:
            record = FileRecord(found.name, 0, found.path, *found.identity, found.size, found.mtime_ns)
            present[found.identity] = record
            out.fresh.append(record)
        out.present = [(present[identity], found) for identity, found in outside.items()]
        out.present += [(present[identity], found) for identity, found in files.items() if identity in present]
        for identity, found in outside.items():
            self._find_passed_over(present[identity], found, {*present, *files}, neighbours, out)
        return out

    def _find_passed_over(
        self,
        record: FileRecord,
        rotated: FoundFile,
        known: set[tuple[int, int]],
        neighbours: Neighbours,
        out: Reconciled,
    ) -> None:
        """What was rotated away after a record's file was: it came and went while nobody looked."""
        name = os.path.realpath(record.name)
        if not is_rotated(name, rotated.path):
            return
        for path in neighbours.rotated_from(name):
            found = found_at(path)
            if (
                isinstance(found, FoundFile)
                and found.identity not in known
                and found.mtime_ns > rotated.mtime_ns
                and not any(self._fits(one, found) for one in self.records if one.name == record.name)
            ):
                out.passed_over[path] = record.name

    def _by_identity(
        self, files: Sequence[FoundFile], owned: dict[int, FoundFile], is_open: Callable[[FileRecord], bool]
    ) -> list[FoundFile]:
        """Give each file to the record of its device and inode; returns the others."""
        records: dict[tuple[int, int], list[FileRecord]] = defaultdict(list)
        for record in self.records:
            records[record.identity].append(record)  # several, where an inode was used again
        rest = []
        for found in files:
            known = sorted(records.get(found.identity, ()), key=lambda record: (record.gone, -record.offset))
            same = next((record for record in known if self._is_same(record, found, is_open)), None)
            if same is not None:
                owned[id(same)] = found
            else:
                rest.append(found)
        return rest

    def _is_same(self, record: FileRecord, found: FoundFile, is_open: Callable[[FileRecord], bool]) -> bool:
        """Whether a file with the device and inode of a record's is that one."""
        if record.identity != found.identity:
            return False
        if record.is_as_it_was(found):
            return True
        if record.stream and is_open(record) and found.size >= record.size:
            return True  # to compare it, it would have to be read from its start each time that it grows
        if found.path != record.path and not is_open(record):
            # The inode may be another file's by now, and files may begin with the same bytes: a renamed one that was
            # not changed is just as it was, and one that was changed has grown.
            has_grown = found.size > record.size
            if record.gone or not has_grown or record.offset < EVIDENCE_BYTES:
                return False
        return self._fits(record, found)

    def _by_path(self, files: Sequence[FoundFile], owned: dict[int, FoundFile]) -> list[FoundFile]:
        """Give each file to the record at its path, as after it was restored from a copy; returns the others."""
        records = {record.path: record for record in self.records if id(record) not in owned}
        rest = []
        for found in files:
            record = records.get(found.path)
            if record is not None and id(record) not in owned and self._fits(record, found):
                owned[id(record)] = found
            else:
                rest.append(found)
        return rest

    def _by_rotation(self, files: Sequence[FoundFile], owned: dict[int, FoundFile], out: Reconciled) -> list[FoundFile]:
        """Give files to records that they are rotated copies of; returns the others."""
        usable = [record for record in self.records if record.offset >= EVIDENCE_BYTES] if files else []
        related = Related([record.path for record in usable])
        rest = []
        for found in files:
            candidates = [usable[place] for place in related.originals_of(found.path)]
            original = self._rotated_from(candidates[-CANDIDATES:], found, owned)
            if original is None:
                rest.append(found)
            elif id(original) in owned:
                out.copies[found.name] = original.name
            else:
                owned[id(original)] = found
        return rest

    def _rotated_from(
        self, candidates: Sequence[FileRecord], found: FoundFile, owned: dict[int, FoundFile]
    ) -> FileRecord | None:
        """The record that a file is a rotated copy of. One whose own file is there needs more evidence."""
        for record in sorted(candidates, key=lambda one: (id(one) not in owned, one.offset), reverse=True):
            if (id(record) not in owned or record.offset >= COPY_BYTES) and self._fits(record, found):
                return record
        return None

    def _outside(
        self,
        owned: dict[int, FoundFile],
        neighbours: Neighbours,
        is_same: Callable[[FileRecord, FoundFile], bool],
    ) -> dict[tuple[int, int], FoundFile]:
        """Look for the files of records that have none in the folders where they were; those that were found."""
        outside: dict[tuple[int, int], FoundFile] = {}
        taken = {found.identity for found in owned.values()}
        for record in self.records:
            if id(record) in owned or record.gone:
                continue
            for path in neighbours.that_may_be(record.path, record.inode, record.name):
                found = found_at(path)
                if isinstance(found, FoundFile) and found.identity not in taken and is_same(record, found):
                    owned[id(record)] = outside[found.identity] = found
                    taken.add(found.identity)
                    break
        return outside

    def _is_rotated_copy(self, record: FileRecord, found: FoundFile) -> bool:
        is_related = record.offset >= EVIDENCE_BYTES and is_rotated(record.path, found.path)
        return is_related and self._fits(record, found)

    def _note(self, owned: dict[int, FoundFile], fresh: Sequence[FoundFile], out: Reconciled) -> None:
        """Bring the records up to date, and name those that have no file."""
        at_path = {found.path: found for found in fresh}
        for record in self.records:
            found = owned.get(id(record))
            if found is None:
                if not record.gone:
                    out.missed.append(record)
                    if record.path in at_path:
                        out.replaced.append((record, at_path[record.path]))
                continue
            if found.path != record.path:
                out.moved.append((record, record.path))
            if not record.is_as_it_was(found) or found.path != record.path or record.gone:
                record.done = record.done and record.size == found.size
                record.damaged = record.damaged and record.size == found.size
                record.path, record.gone = found.path, False
                record.device, record.inode = found.identity
                record.size, record.mtime_ns = found.size, found.mtime_ns
                self.changed(record)

    def _fits(self, record: FileRecord, found: FoundFile) -> bool:
        """Whether what was read of a record's file is at the start of this one."""
        try:
            reader = LineReader(found.path, self._encoding, record.offset)
        except (EOFError, DamagedFileError):
            return False
        try:
            return reader.fits(record.head, record.tail)
        finally:
            reader.close()

    def _forget(self) -> None:
        gone = [record for record in self.records if record.gone]
        if len(gone) > FORGET_BEYOND:
            self._packed.forget(gone[: len(gone) - FORGET_BEYOND])
