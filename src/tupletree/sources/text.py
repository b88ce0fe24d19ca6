"""Lines of text files as messages, with a position to resume from.

Owns cutting files into lines and the identity of a line (path as given, line number). It refuses to follow files
that grow, to expand patterns and to guess encodings.
"""

from __future__ import annotations

import codecs
import inspect
import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, repeat
from pathlib import Path
from typing import IO, Any, Generic, TypeAlias, TypeVar, overload

import msgspec

from tupletree.errors import CheckpointError, ConfigError, ConnectorError, EndOfInput, Finding
from tupletree.topology.components import Emit, Reject, Spout, TaskContext
from tupletree.topology.streams import Schema

__all__ = ["Line", "TextLines", "text_lines"]

T = TypeVar("T")

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
_CHUNK_BYTES = 256 * 1024
_MARK = "\ufeff"


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of a text file.

    Attributes:
        text: the line without its line end.
        path: the file, as it was given to `text_lines`.
        number: 1-based line number in that file.
    """

    text: str
    path: str = ""
    number: int = 0


@overload
def text_lines(paths: Paths, *, encoding: str = ..., batch_size: int = ...) -> TextLines[Line]: ...


@overload
def text_lines(paths: Paths, *, message_type: type[T], encoding: str = ..., batch_size: int = ...) -> TextLines[T]: ...


def text_lines(
    paths: Paths, *, message_type: type[Any] = Line, encoding: str = "utf-8", batch_size: int = 1000
) -> TextLines[Any]:
    """Read text files line by line, in the order given; every line is one message, empty ones too.

    A line ends with LF or CR LF, neither of which is part of it; the last line needs no end. A byte order mark at the
    start of a file is dropped. A line that is not valid in `encoding` becomes a dead letter that names path, line and
    byte offset. The message id is (path as given, line number); a run that resumes continues at its byte offset.
    With several tasks each reads its own share of the files.

    Args:
        paths: one path or several; each an ordinary file, none twice.
        message_type: class of the messages. It gets those of `text`, `path` and `number` that it has as fields; a
            class with a single field gets the text in it.
        encoding: any encoding in which a line feed is the byte 0x0A (UTF-8, Latin-1, GBK, … but not UTF-16).
        batch_size: lines per call of `next` at most.

    Raises:
        ConfigError: no paths, a path twice, or an encoding or message class that does not fit.

    Example:
        >>> text_lines("server.log", encoding="latin-1").message_type.__name__
        'Line'
    """
    return TextLines(paths, message_type=message_type, encoding=encoding, batch_size=batch_size)


class TextLines(Spout[T], Generic[T]):
    """See `text_lines`. It holds one open file from the first `next` to `close`; before `open` it can be pickled."""

    _share: list[str]  # this task's files
    _index: int  # the file in hand
    _number: int  # of the line returned last
    _start: int  # where the chunk in hand begins in the file
    _chunk: bytes  # whole lines
    _texts: list[str] | None  # the chunk's lines; None if some of them cannot be decoded
    _count: int  # lines in the chunk
    _taken: int  # how many of them were returned
    _file: IO[bytes] | None = None

    def __init__(self, paths: Paths, *, message_type: type[T], encoding: str = "utf-8", batch_size: int = 1000) -> None:
        self.paths = _checked_paths(paths)
        self.message_type = message_type
        self.encoding = _checked_encoding(encoding)
        self.batch_size = batch_size
        _constructor(message_type)  # refuse an unsuitable class where it is named

    def open(self, context: TaskContext) -> None:
        """Check that every file is there, and take this task's share of them.

        Raises ConnectorError that names every path that cannot be read.
        """
        findings = [finding for path in self.paths if (finding := _fault(path))]
        if findings:
            raise ConnectorError(f"{context.component}: cannot read the files", findings=findings)
        self._columns, self._make = _constructor(self.message_type)
        self._share = self.paths[context.task_index :: context.parallelism]
        self._go_to(index=0, offset=0, number=0)

    def next(self) -> Sequence[Emit[T] | Reject]:
        """Return the next lines of one file, `batch_size` of them or fewer."""
        while self._taken == self._count:
            if not self._read_chunk():
                raise EndOfInput
        begin, end = self._taken, min(self._taken + self.batch_size, self._count)
        first = self._number + 1
        self._taken, self._number = end, self._number + end - begin
        if self._texts is None:
            return self._decode_each(begin, end, first)
        return list(self._emits(self._texts[begin:end], first))

    def snapshot(self) -> dict[str, Any]:
        """Where the line returned last ends: file, byte offset and line number."""
        return {
            "index": self._index,
            "path": self._share[self._index] if self._index < len(self._share) else None,
            "offset": self._start + sum(map(len, _raw_lines(self._chunk)[: self._taken])),
            "line": self._number,
        }

    def restore(self, position: dict[str, Any]) -> None:
        """Continue after a snapshot.

        Raises:
            CheckpointError: the list of paths is not the one the snapshot was taken with.
            ConnectorError: the file is gone, or shorter than it was.
        """
        index, path, offset = position["index"], position["path"], position["offset"]
        there = self._share[index] if index < len(self._share) else None
        if path is not None and there != path:
            raise CheckpointError(
                "the list of files changed since the run began",
                where=f"file {index + 1}",
                got=str(there),
                expected=path,
                next_step="give the same files in the same order (more may follow), or start a fresh --state-dir",
            )
        self._go_to(index, offset, position["line"])
        if path is None:
            return
        self._file = _open(path)
        size = self._file.seek(0, os.SEEK_END)
        if size < offset:
            raise ConnectorError(
                "a file is shorter than when the run began",
                where=path,
                got=f"{size} bytes",
                expected=f"at least the {offset} bytes that were read before",
                next_step="bring the old file back, or start with a fresh --state-dir",
            )
        self._file.seek(offset)

    def close(self) -> None:
        """Close the file in hand."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _go_to(self, index: int, offset: int, number: int) -> None:
        """Stand in file `index` behind line `number`, which ends at `offset`; nothing is read yet."""
        self.close()
        self._index, self._start, self._number = index, offset, number
        self._chunk, self._texts, self._count, self._taken = b"", [], 0, 0

    def _emits(self, texts: Sequence[str], first: int) -> Iterator[Emit[T]]:
        """Consecutive lines of the file in hand as messages; `first` is the first one's number."""
        path = self._share[self._index]
        sources: dict[str, Iterable[Any]] = {"text": texts, "path": repeat(path), "number": count(first)}
        values = map(self._make, *(sources[column] for column in self._columns))
        return (Emit(value, (path, number)) for number, value in enumerate(values, first))

    def _read_chunk(self) -> bool:
        """Bring in the next whole lines, from the next file if this one has no more. False if there is none."""
        while self._index < len(self._share):
            path = self._share[self._index]
            if self._file is None:
                self._file = _open(path)
            self._start += len(self._chunk)
            try:
                self._chunk = _read_whole_lines(self._file)
            except OSError as error:
                raise ConnectorError(f"cannot read: {error.strerror}", where=path) from error
            self._texts = self._decode_all()
            self._count = len(_raw_lines(self._chunk) if self._texts is None else self._texts)
            self._taken = 0
            if self._count:
                return True
            self._go_to(self._index + 1, offset=0, number=0)
        return False

    def _decode_all(self) -> list[str] | None:
        """The chunk's lines, decoded in one go; None if that fails or if a line feed was part of a character."""
        try:
            text = self._chunk.decode(self.encoding)
        except UnicodeDecodeError:
            return None
        if self._start == 0 and self.encoding == "utf-8":
            text = text.removeprefix(_MARK)
        texts = text.replace("\r\n", "\n").split("\n")
        if not texts[-1]:
            texts.pop()
        terminated = self._chunk.count(b"\n")
        return texts if len(texts) - terminated in {0, 1} else None

    def _decode_each(self, begin: int, end: int, first: int) -> list[Emit[T] | Reject]:
        """Lines `begin` to `end` of a chunk with undecodable ones, which become rejects."""
        path, messages = self._share[self._index], list[Emit[T] | Reject]()
        raw_lines = _raw_lines(self._chunk)
        offset = self._start + sum(map(len, raw_lines[:begin]))
        for number, raw in enumerate(raw_lines[begin:end], first):
            try:
                text = raw.decode(self.encoding)
            except UnicodeDecodeError as error:
                reason = (
                    f"{path}, line {number}, byte {offset + error.start}: not {self.encoding} ({error.reason}: "
                    f"{raw[error.start : error.end].hex(' ')})"
                )
                messages.append(Reject(raw.removesuffix(b"\n").removesuffix(b"\r"), (path, number), reason))
            else:
                if offset == 0 and self.encoding == "utf-8":
                    text = text.removeprefix(_MARK)
                if text.endswith("\n"):
                    text = text[:-1].removesuffix("\r")
                messages.extend(self._emits([text], number))
            offset += len(raw)
        return messages


def _read_whole_lines(file: IO[bytes]) -> bytes:
    """About `_CHUNK_BYTES` that end with a line, however long that is; b"" at the end of the file."""
    pieces = []
    while block := file.read(_CHUNK_BYTES):
        pieces.append(block)
        if b"\n" in block:
            pieces.append(file.readline() if not block.endswith(b"\n") else b"")
            break
    return b"".join(pieces)


def _raw_lines(chunk: bytes) -> list[bytes]:
    """Cut at line feeds only, which stay with their lines."""
    return io.BytesIO(chunk).readlines()


def _open(path: str) -> IO[bytes]:
    try:
        return io.open(path, "rb")  # noqa: UP020 - the path stays as given; closed in `close`
    except OSError as error:
        raise ConnectorError(
            f"cannot open: {error.strerror}", where=path, next_step="bring the file back and run again"
        ) from error


def _fault(path: str) -> Finding | None:
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


def _checked_paths(given: Paths) -> list[str]:
    several = [given] if isinstance(given, str | os.PathLike) else given
    paths = [os.fspath(path) for path in several]
    if not paths:
        raise ConfigError("no files to read", where="text_lines", got="no paths", expected="at least one path")
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ConfigError(
            "a file is listed twice, so its lines would have the same message ids",
            where="text_lines",
            got=", ".join(twice),
            expected="every path once",
        )
    return paths


def _checked_encoding(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")  # the mark is dropped here anyway
        fits = "\n".encode(name) == b"\n"
    except LookupError as error:
        raise ConfigError("unknown text encoding", where="text_lines", got=encoding) from error
    if not fits:
        raise ConfigError(
            "lines of this encoding do not end with the byte 0x0A",
            where="text_lines",
            got=encoding,
            expected="UTF-8 or another encoding that extends ASCII",
            next_step="convert the files to UTF-8",
        )
    return name


def _constructor(cls: type[T]) -> tuple[tuple[str, ...], Callable[..., T]]:
    """How to make a message: which of text, path and number it takes, and what to call with these, in that order."""
    schema = Schema.of(cls)
    names = tuple(name for name in schema.fields if len(schema.fields) == 1 or name in {"text", "path", "number"})
    columns = ("text",) if len(schema.fields) == 1 else names
    if "text" not in columns or not schema.required.issubset(names):
        raise ConfigError(
            f"text_lines cannot fill the fields of {cls.__qualname__}",
            where="text_lines",
            got=", ".join(schema.fields),
            expected="one field, or `text` with `path` and `number` as wished; others need a default",
        )
    parameters = list(inspect.signature(cls).parameters.values())[: len(names)]
    if all(p.name == name and p.kind is p.POSITIONAL_OR_KEYWORD for p, name in zip(parameters, names, strict=False)):
        return columns, cls
    return columns, lambda *values: cls(**dict(zip(names, values, strict=True)))
