"""Lines: what a line of a text file is, and how it becomes a message. Shared by the sources of text.

Owns line ends, encodings, byte order marks, message classes and the turn of files. It refuses to know which lines of a
file come next.
"""

from __future__ import annotations

import codecs
import inspect
import io
import os
import stat
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from tupletree.errors import CheckpointError, ConfigError, ConnectorError, Finding, SourceChangedError
from tupletree.topology.components import Reject, TaskContext
from tupletree.topology.streams import Schema

__all__ = [
    "FilesInTurn",
    "Paths",
    "checked_encoding",
    "checked_paths",
    "constructor",
    "decode_all",
    "decode_each",
    "fault_of",
    "open_file",
    "raw_lines",
    "read_whole_lines",
    "stand_at",
]

T = TypeVar("T")

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
CHUNK_BYTES = 256 * 1024
MARK = "\ufeff"


class FilesInTurn:
    """What the sources of text have in common: files that a task reads one after the other, one of them open.

    A subclass says where it stands in the file in hand, by `_go_to` and `_offset_behind`.
    """

    _name = "text_lines"
    message_type: type[Any]
    _share: list[str]  # this task's files
    _index: int  # the file in hand
    _number: int  # of the line taken last
    _file: IO[bytes] | None = None

    def __init__(self, paths: Paths, *, message_type: type[Any], encoding: str = "utf-8") -> None:
        self.paths = checked_paths(paths, self._name)
        self.message_type = message_type
        self.encoding = checked_encoding(encoding, self._name)
        constructor(message_type, self._name)  # refuse an unsuitable class where it is named

    def faults(self) -> list[Finding]:
        """Every path that cannot be read."""
        return [finding for path in self.paths if (finding := fault_of(path))]

    def open(self, context: TaskContext) -> None:
        """Check that every file is there, and take this task's share of them.

        Raises ConnectorError that names every path that cannot be read.
        """
        findings = self.faults()
        if findings:
            raise ConnectorError(f"{context.component}: cannot read the files", findings=findings)
        self._share = self.paths[context.task_index :: context.parallelism]
        self._go_to(index=0, offset=0, number=0)

    def snapshot(self) -> dict[str, Any]:
        """Where the line taken last ends: file, byte offset and line number."""
        return {
            "index": self._index,
            "path": self._share[self._index] if self._index < len(self._share) else None,
            "offset": self._offset_behind(),
            "line": self._number,
        }

    def restore(self, position: dict[str, Any]) -> None:
        """Continue after a snapshot.

        Raises:
            CheckpointError: the list of paths is not the one the snapshot was taken with.
            ConnectorError: the file is gone.
            SourceChangedError: it is shorter than it was.
        """
        self._go_to(position["index"], position["offset"], position["line"])
        self._file = stand_at(self._share, position)

    def close(self) -> None:
        """Close the file in hand."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @abstractmethod
    def _go_to(self, index: int, offset: int, number: int) -> None:
        """Stand in file `index` behind line `number`, which ends at `offset`; nothing is read yet."""

    @abstractmethod
    def _offset_behind(self) -> int:
        """Where the line taken last ends in its file."""


def decode_all(chunk: bytes, encoding: str, *, at_start: bool) -> list[str] | None:
    """A chunk's lines, decoded in one go; None if that fails or if a line feed was part of a character.

    Args:
        chunk: whole lines.
        encoding: as `checked_encoding` gave it.
        at_start: whether the chunk begins the file, so that it may begin with a byte order mark.
    """
    try:
        text = chunk.decode(encoding)
    except UnicodeDecodeError:
        return None
    if at_start and encoding == "utf-8":
        text = text.removeprefix(MARK)
    texts = text.replace("\r\n", "\n").split("\n")
    if not texts[-1]:
        texts.pop()
    terminated = chunk.count(b"\n")
    return texts if len(texts) - terminated in {0, 1} else None


def decode_each(raw: Sequence[bytes], encoding: str, path: str, offset: int, first: int) -> Iterator[str | Reject]:
    """Lines one by one, those that cannot be decoded as rejects.

    Args:
        raw: the lines, with their ends.
        encoding: as `checked_encoding` gave it.
        path: of the file, as it was given.
        offset: where the first of them begins in the file.
        first: its number.
    """
    for number, line in enumerate(raw, first):
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            reason = (
                f"{path}, line {number}, byte {offset + error.start}: not {encoding} ({error.reason}: "
                f"{line[error.start : error.end].hex(' ')})"
            )
            yield Reject(line.removesuffix(b"\n").removesuffix(b"\r"), (path, number), reason)
        else:
            if offset == 0 and encoding == "utf-8":
                text = text.removeprefix(MARK)
            yield text[:-1].removesuffix("\r") if text.endswith("\n") else text
        offset += len(line)


def read_whole_lines(file: IO[bytes]) -> bytes:
    """About `CHUNK_BYTES` that end with a line, however long that is; b"" at the end of the file."""
    pieces = []
    while block := file.read(CHUNK_BYTES):
        pieces.append(block)
        if b"\n" in block:
            pieces.append(file.readline() if not block.endswith(b"\n") else b"")
            break
    return b"".join(pieces)


def raw_lines(chunk: bytes) -> list[bytes]:
    """Cut at line feeds only, which stay with their lines."""
    return io.BytesIO(chunk).readlines()


def stand_at(share: Sequence[str], position: Mapping[str, Any]) -> IO[bytes] | None:
    """The file of a snapshot, open where the next line begins; None if the snapshot is behind the last file.

    Raises:
        CheckpointError: the list of paths is not the one the snapshot was taken with.
        ConnectorError: the file is gone.
        SourceChangedError: it is shorter than it was.
    """
    index, path, offset = position["index"], position["path"], position["offset"]
    there = share[index] if index < len(share) else None
    if path is not None and there != path:
        raise CheckpointError(
            "the list of files changed since the run began",
            where=f"file {index + 1}",
            got=str(there),
            expected=path,
            next_step="give the same files in the same order (more may follow), or start a fresh --state-dir",
        )
    if path is None:
        return None
    file = open_file(path)
    size = file.seek(0, os.SEEK_END)
    if size < offset:
        file.close()
        raise SourceChangedError(
            "a file is shorter than when the run began",
            where=path,
            got=f"{size} bytes",
            expected=f"at least the {offset} bytes that were read before",
            next_step="bring the old file back, or start with a fresh --state-dir",
        )
    file.seek(offset)
    return file


def open_file(path: str) -> IO[bytes]:
    """The file of a path as it was given. Raises ConnectorError."""
    try:
        return io.open(path, "rb")  # noqa: UP020 - the path stays as given; closed in `close`
    except OSError as error:
        raise ConnectorError(
            f"cannot open: {error.strerror}", where=path, next_step="bring the file back and run again"
        ) from error


def fault_of(path: str) -> Finding | None:
    """Why this path cannot be read as a file of lines, if so."""
    file = Path(path)
    try:
        mode = file.stat().st_mode
    except OSError as error:
        return Finding(error.strerror or str(error), where=path)
    if stat.S_ISDIR(mode):
        return Finding("is a folder", where=path, expected="a file", next_step="name the files in it")
    if not stat.S_ISREG(mode):
        return Finding("is no ordinary file, so it cannot be read again after a restart", where=path)
    if not os.access(file, os.R_OK):
        return Finding("may not be read by this user", where=path)
    return None


def checked_paths(given: Paths, where: str) -> list[str]:
    """The paths, as they were given. Raises ConfigError if there are none, or one twice; `where` names the source."""
    several = [given] if isinstance(given, str | os.PathLike) else given
    paths = [os.fspath(path) for path in several]
    if not paths:
        raise ConfigError("no files to read", where=where, got="no paths", expected="at least one path")
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ConfigError(
            "a file is listed twice, so its lines would have the same message ids",
            where=where,
            got=", ".join(twice),
            expected="every path once",
        )
    return paths


def checked_encoding(encoding: str, where: str) -> str:
    """Python's name of an encoding. Raises ConfigError for one that is not known, or in which lines end otherwise."""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")  # the mark is dropped here anyway
        fits = "\n".encode(name) == b"\n"
    except LookupError as error:
        raise ConfigError("unknown text encoding", where=where, got=encoding) from error
    if not fits:
        raise ConfigError(
            "lines of this encoding do not end with the byte 0x0A",
            where=where,
            got=encoding,
            expected="UTF-8 or another encoding that extends ASCII",
            next_step="convert the files to UTF-8",
        )
    return name


def constructor(cls: type[T], where: str = "text_lines") -> tuple[tuple[str, ...], Callable[..., T]]:
    """How to make a message: which of text, path and number it takes, and what to call with these, in that order."""
    schema = Schema.of(cls)
    names = tuple(name for name in schema.fields if len(schema.fields) == 1 or name in {"text", "path", "number"})
    columns = ("text",) if len(schema.fields) == 1 else names
    if "text" not in columns or not schema.required.issubset(names):
        raise ConfigError(
            f"{where} cannot fill the fields of {cls.__qualname__}",
            where=where,
            got=", ".join(schema.fields),
            expected="one field, or `text` with `path` and `number` as wished; others need a default",
        )
    parameters = list(inspect.signature(cls).parameters.values())[: len(names)]
    if all(p.name == name and p.kind is p.POSITIONAL_OR_KEYWORD for p, name in zip(parameters, names, strict=False)):
        return columns, cls
    return columns, lambda *values: cls(**dict(zip(names, values, strict=True)))
