"""Lines of text files, read on executors: the driver looks for line ends only, workers decode and deal.

Owns cutting files into pieces of whole lines. What a line is, is `lines`; the ids are those of `text_lines`. It
refuses compressed files, which nobody can read from the middle.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, repeat
from typing import IO, Any, TypeVar, overload

import msgspec
import xxhash

from tupletree.errors import ConfigError, ConnectorError, EndOfInput, Finding, SourceChangedError
from tupletree.sources.lines import (
    FilesInTurn,
    Paths,
    constructor,
    decode_all,
    decode_each,
    open_file,
    raw_lines,
    read_whole_lines,
)
from tupletree.sources.text import Line
from tupletree.texts import encodable
from tupletree.topology.components import Reject
from tupletree.topology.splits import Split, SplitSpout

__all__ = ["TextSplits", "text_splits"]

T = TypeVar("T")

BARE = codecs.BOM_UTF8
"""All that a file may hold that has no line: a byte order mark is none."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".snappy")


@overload
def text_splits(paths: Paths, *, encoding: str = ...) -> TextSplits[Line]: ...


@overload
def text_splits(paths: Paths, *, message_type: type[T], encoding: str = ...) -> TextSplits[T]: ...


def text_splits(paths: Paths, *, message_type: type[Any] = Line, encoding: str = "utf-8") -> TextSplits[Any]:
    """Read text files line by line as `text_lines` does, on Spark's executors.

    The messages, their ids (path as given, line number), the rules for line ends and the position are those of
    `text_lines`, so one may take the other's place on a state directory. What differs on Spark: the driver only looks
    for line ends, so lines become messages where they are worked; every worker must find the files under the same
    paths; and they must stay as they are until their lines are settled. Every piece is known by a hash: lines may be
    added to a file while it is read, but one that was planned and has changed ends the run with an error.

    Args:
        paths: one path or several; each an ordinary file that is not compressed, none twice.
        message_type: see `text_lines`.
        encoding: see `text_lines`.

    Raises:
        ConfigError: no paths, a path twice, a compressed file, or an encoding or message class that does not fit.

    Example:
        >>> text_splits(["a.log", "b.log"]).message_type.__name__
        'Line'
    """
    return TextSplits(paths, message_type=message_type, encoding=encoding)


class _Piece(msgspec.Struct, array_like=True, frozen=True):
    """Where a split's lines are: bytes of a file, and their XXH3-64."""

    offset: int
    length: int
    checksum: int


class TextSplits(FilesInTurn, SplitSpout[T]):
    """See `text_splits`. It holds one open file from the first `plan` to `close`."""

    _name = "text_splits"
    _offset: int  # where the next line begins in the file in hand

    def __init__(self, paths: Paths, *, message_type: type[T], encoding: str = "utf-8") -> None:
        super().__init__(paths, message_type=message_type, encoding=encoding)
        findings = [
            Finding(
                "a compressed file cannot be read in pieces",
                where=path,
                next_step="unpack it, or read what comes out of it by a Spout of your own",
            )
            for path in self.paths
            if path.lower().endswith(COMPRESSED)
        ]
        if findings:
            raise ConfigError("text_splits cannot read these files", findings=findings)

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split]:
        """Find the ends of the next lines, in as many files as it takes."""
        splits: list[Split] = []
        while self._index < len(self._share) and max_rows > 0 and (max_bytes > 0 or not splits):
            path = self._share[self._index]
            if self._file is None:
                self._file = open_file(path)
            try:
                self._file.seek(self._offset)
                rows, length, checksum = _measure(self._file, max_rows, max_bytes)
            except OSError as error:
                raise ConnectorError(f"cannot read: {error.strerror}", where=path) from error
            is_bare = length == len(BARE) and self._offset == 0 and self.encoding == "utf-8" and _is_bare(self._file)
            if not rows or is_bare:
                self._go_to(self._index + 1, offset=0, number=0)
                continue
            piece = msgspec.to_builtins(_Piece(self._offset, length, checksum))
            splits.append(Split(rows, self._number + 1, path, piece, size_bytes=length))
            self._offset += length
            self._number += rows
            max_rows -= rows
            max_bytes -= length
        if not splits:
            raise EndOfInput
        return splits

    def read(self, split: Split) -> Iterator[T | Reject]:
        """Read and decode the lines of a piece, if they are what they were."""
        piece = msgspec.convert(split.data, _Piece)
        path = str(split.source)
        with open_file(path) as file:
            try:
                file.seek(piece.offset)
                chunk = file.read(piece.length)
            except OSError as error:
                raise ConnectorError(f"cannot read: {error.strerror}", where=path) from error
        if xxhash.xxh3_64_intdigest(chunk) != piece.checksum:
            size = os.stat(path).st_size  # noqa: PTH116 - the path stays as given
            end = piece.offset + piece.length
            raise SourceChangedError(
                "a file has changed since its lines were planned",
                where=f"{path}, lines {split.first} to {split.first + split.rows - 1}",
                got=f"a file of {size} bytes" if size < end else f"other bytes at {piece.offset} to {end}",
                expected="the bytes that were planned",
                next_step="bring the old file back, or start with a fresh --state-dir",
            )
        texts = decode_all(chunk, self.encoding, at_start=piece.offset == 0)
        columns, make = constructor(self.message_type)
        if texts is not None:
            return map(make, *(_sources(texts, path, split.first)[column] for column in columns))
        return self._read_each(raw_lines(chunk), path, piece.offset, split.first)

    def _read_each(self, raw: Sequence[bytes], path: str, offset: int, first: int) -> Iterator[T | Reject]:
        columns, make = constructor(self.message_type)
        for number, line in enumerate(decode_each(raw, self.encoding, path, offset, first), first):
            if isinstance(line, Reject):
                yield line
            else:
                values = {"text": line, "path": encodable(path), "number": number}
                yield make(*(values[column] for column in columns))

    def _go_to(self, index: int, offset: int, number: int) -> None:
        self.close()
        self._index, self._offset, self._number = index, offset, number

    def _offset_behind(self) -> int:
        return self._offset


def _sources(texts: Sequence[str], path: str, first: int) -> dict[str, Iterable[Any]]:
    return {"text": texts, "path": repeat(encodable(path)), "number": count(first)}


def _is_bare(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(len(BARE) + 1) == BARE


def _measure(file: IO[bytes], max_rows: int, max_bytes: int) -> tuple[int, int, int]:
    """How many whole lines follow within the limits, but at least one: (lines, bytes, XXH3-64); no lines at the end."""
    checksum = xxhash.xxh3_64()
    rows = length = 0
    while rows < max_rows and (chunk := read_whole_lines(file)):
        piece = _cut(chunk, max_rows - rows, max_bytes - length, is_first=not rows)
        checksum.update(piece)
        length += len(piece)
        rows += piece.count(b"\n") + (piece != b"" and not piece.endswith(b"\n"))
        if len(piece) < len(chunk):
            break
    return rows, length, checksum.intdigest()


def _cut(chunk: bytes, max_rows: int, max_bytes: int, *, is_first: bool) -> bytes:
    """As many of a chunk's lines as fit; the first of all fits always."""
    if len(chunk) > max_bytes:
        end = chunk.rfind(b"\n", 0, max_bytes) + 1 if max_bytes > 0 else 0
        if not end and is_first:
            end = chunk.find(b"\n") + 1 or len(chunk)
        chunk = chunk[:end]
    lines = chunk.split(b"\n", max_rows)  # what stands behind that many line ends, at last
    return chunk[: len(chunk) - len(lines[-1])] if len(lines) > max_rows else chunk
