"""Pieces of text: lines that were taken from a file, on their way into a split and out of it again.

Owns what a split of `text_lines` holds (a place in a file, the lines themselves, or the report of a loss) and the ids
of its rows. It refuses to know which lines come next.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import xxhash

from tupletree.errors import ConnectorError, SourceChangedError
from tupletree.ids import MessageId
from tupletree.sources.file_table import FileRecord
from tupletree.sources.files import siblings, way_out
from tupletree.sources.line_reader import DamagedFileError, LineReader
from tupletree.topology.components import Reject
from tupletree.topology.splits import Split

IdOf: TypeAlias = Callable[[int], MessageId]
"""Index of a row → its message id."""

COPY_BYTES = 1024 * 1024
"""So much text travels in one split, where lines travel in the log: several readers share what one epoch has."""

PAYLOAD_BYTES = 64 * 1024
"""So much of a line that was lost is in its dead letter."""


class _InFile(msgspec.Struct, frozen=True, tag="file"):
    """Where a split's lines are: bytes of a file, and their XXH3-64."""

    path: str
    inode: int
    offset: int
    length: int
    checksum: int


class _InLog(msgspec.Struct, frozen=True, tag="log"):
    """A split's lines themselves, packed as text; `offset` as in the file."""

    text: str
    encoding: str
    offset: int


class _Lost(msgspec.Struct, frozen=True, tag="lost"):
    """What cannot be read, as one row."""

    reason: str
    payload: str = ""


@dataclass
class TakenLines:
    """Lines that were taken from a file, or the report of a loss.

    Attributes:
        record: of the file.
        first: number of the first line; of a loss, the offset.
        rows: how many lines.
        offset: where they begin.
        piece: the lines.
        encoding: of the piece.
        path: where the file is; None: nowhere that it could be read again.
        lost: of a loss, the reason.
        kind: of a loss, what its id says; empty for a line that is lost, whose id is that of any line.
    """

    record: FileRecord
    first: int
    rows: int
    offset: int
    piece: bytes
    encoding: str = ""
    path: str | None = None
    lost: str | None = None
    kind: str = ""

    @property
    def series(self) -> int | str | None:
        """What is in the ids between name and number."""
        number = self.record.series
        if self.lost is not None and self.kind:
            return self.kind if number == 1 else f"{number} {self.kind}"
        return None if number == 1 else number


class Planned:
    """A split in the making."""

    def __init__(self, taken: TakenLines) -> None:
        self._taken = taken
        self._rows, self._length = taken.rows, len(taken.piece)
        self._checksum = xxhash.xxh3_64(taken.piece)
        self._pieces = [taken.piece]

    def extend(self, taken: TakenLines) -> bool:
        """Add what follows in the same file, if it can be one split with this."""
        mine = self._taken
        fits = mine.record is taken.record and mine.offset + self._length == taken.offset and mine.path == taken.path
        if not fits or mine.lost is not None or taken.lost is not None or mine.encoding != taken.encoding:
            return False
        if mine.path is None:
            if self._length + len(taken.piece) > COPY_BYTES:
                return False
            self._pieces.append(taken.piece)
        self._checksum.update(taken.piece)
        self._rows += taken.rows
        self._length += len(taken.piece)
        return True

    def split(self) -> Split:
        """The split."""
        taken = self._taken
        data: _InFile | _InLog | _Lost
        if taken.lost is not None:
            data = _Lost(taken.lost, base64.b64encode(taken.piece).decode("ascii"))
        elif taken.path is None:
            text = base64.b85encode(zlib.compress(b"".join(self._pieces), 1)).decode("ascii")
            data = _InLog(text, taken.encoding, taken.offset)
        else:
            data = _InFile(taken.path, taken.record.inode, taken.offset, self._length, self._checksum.intdigest())
        return Split(
            self._rows, taken.first, taken.record.name, msgspec.to_builtins(data), self._length, series=taken.series
        )


def ids_of(name: str, series: int | str | None, first: int) -> IdOf:
    """Index of a row → its message id, as `Split.message_id` has it."""
    if series is None:
        return lambda index: (name, first + index)
    return lambda index: (name, series, first + index)


def loss_of(record: FileRecord, kind: str, offset: int, reason: str, payload: bytes) -> TakenLines:
    """The report of a loss: what follows `offset` cannot be read."""
    return TakenLines(record, offset, 1, offset, payload[:PAYLOAD_BYTES], lost=reason, kind=kind)


def reread(split: Split, encoding: str) -> tuple[bytes, str, int] | Reject:
    """The lines of a split, their encoding and where they begin in their file; of a loss, what is reported.

    Raises:
        SourceChangedError: they are no longer in their file.
        ConnectorError: the file cannot be opened or read.
    """
    data = msgspec.convert(split.data, _InFile | _InLog | _Lost)
    if isinstance(data, _Lost):
        return Reject(base64.b64decode(data.payload), split.message_id(0), data.reason)
    if isinstance(data, _InLog):
        return zlib.decompress(base64.b85decode(data.text)), data.encoding, data.offset
    return _reread_file(split, data, encoding), encoding, data.offset


def _reread_file(split: Split, data: _InFile, encoding: str) -> bytes:
    """The bytes of a split, from where the file is now."""
    unread: ConnectorError | None = None
    for path in _candidates(data):
        try:
            reader = LineReader(path, encoding, data.offset)
            try:
                chunk = reader.exactly(data.length)
            finally:
                reader.close()
        except (EOFError, DamagedFileError):
            continue
        except ConnectorError as error:
            if os.path.lexists(path):
                unread = unread or error
            continue
        if xxhash.xxh3_64_intdigest(chunk) == data.checksum:
            return chunk
    if unread is not None:  # nothing says that it has changed
        raise unread
    where = f"{split.source}, lines {split.first} to {split.first + split.rows - 1}"
    try:
        size = os.stat(data.path).st_size
    except OSError as error:
        raise ConnectorError(f"cannot open: {error.strerror}", where=where, next_step=way_out(error)) from error
    end = data.offset + data.length
    raise SourceChangedError(
        "a file has changed since its lines were planned",
        where=where,
        got=f"a file of {size} bytes" if size < end else f"other bytes at {data.offset} to {end}",
        expected="the bytes that were planned",
        next_step="bring the old file back, or start with a fresh --state-dir; `logged=True` makes a run "
        "independent of what is done to files later",
    )


def _candidates(data: _InFile) -> Iterator[str]:
    """Where the file of a split may be: where it was, or renamed in the same folder."""
    yield data.path
    yield from (path for path, inode in siblings(data.path) if inode == data.inode and path != data.path)
