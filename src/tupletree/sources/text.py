"""Lines of text files as messages, with a position to resume from.

Owns the order of lines and the identity of a line (path as given, line number); what a line is, is `lines`. It refuses
to follow files that grow, to expand patterns and to guess encodings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, repeat
from typing import Any, Generic, TypeVar, overload

import msgspec

from tupletree.errors import ConnectorError, EndOfInput
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
from tupletree.texts import encodable
from tupletree.topology.components import Emit, Reject, Spout, TaskContext

__all__ = ["Line", "TextLines", "text_lines"]

T = TypeVar("T")


class Line(msgspec.Struct, frozen=True, gc=False):
    r"""One line of a text file.

    Attributes:
        text: the line without its line end.
        path: the file, as it was given to `text_lines`; a name that is not UTF-8 is escaped (`caf\udce9.txt`), because
            a field of a message holds text that can be encoded. The message id has the name itself.
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


class TextLines(FilesInTurn, Spout[T], Generic[T]):
    """See `text_lines`. It holds one open file from the first `next` to `close`; before `open` it can be pickled."""

    _start: int  # where the chunk in hand begins in the file
    _chunk: bytes  # whole lines
    _texts: list[str] | None  # the chunk's lines; None if some of them cannot be decoded
    _count: int  # lines in the chunk
    _taken: int  # how many of them were returned

    def __init__(self, paths: Paths, *, message_type: type[T], encoding: str = "utf-8", batch_size: int = 1000) -> None:
        super().__init__(paths, message_type=message_type, encoding=encoding)
        self.batch_size = batch_size

    def open(self, context: TaskContext) -> None:
        """See `FilesInTurn.open`."""
        super().open(context)
        self._columns, self._make = constructor(self.message_type)

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

    def _go_to(self, index: int, offset: int, number: int) -> None:
        self.close()
        self._index, self._start, self._number = index, offset, number
        self._chunk, self._texts, self._count, self._taken = b"", [], 0, 0

    def _offset_behind(self) -> int:
        return self._start + sum(map(len, raw_lines(self._chunk)[: self._taken]))

    def _emits(self, texts: Sequence[str], first: int) -> Iterator[Emit[T]]:
        """Consecutive lines of the file in hand as messages; `first` is the first one's number."""
        path = self._share[self._index]
        sources: dict[str, Iterable[Any]] = {"text": texts, "path": repeat(encodable(path)), "number": count(first)}
        values = map(self._make, *(sources[column] for column in self._columns))
        return (Emit(value, (path, number)) for number, value in enumerate(values, first))

    def _read_chunk(self) -> bool:
        """Bring in the next whole lines, from the next file if this one has no more. False if there is none."""
        while self._index < len(self._share):
            path = self._share[self._index]
            if self._file is None:
                self._file = open_file(path)
            self._start += len(self._chunk)
            try:
                self._chunk = read_whole_lines(self._file)
            except OSError as error:
                raise ConnectorError(f"cannot read: {error.strerror}", where=path) from error
            self._texts = decode_all(self._chunk, self.encoding, at_start=self._start == 0)
            self._count = len(raw_lines(self._chunk) if self._texts is None else self._texts)
            self._taken = 0
            if self._count:
                return True
            self._go_to(self._index + 1, offset=0, number=0)
        return False

    def _decode_each(self, begin: int, end: int, first: int) -> list[Emit[T] | Reject]:
        """Lines `begin` to `end` of a chunk with undecodable ones, which become rejects."""
        path, messages = self._share[self._index], list[Emit[T] | Reject]()
        raw = raw_lines(self._chunk)
        offset = self._start + sum(map(len, raw[:begin]))
        for number, line in enumerate(decode_each(raw[begin:end], self.encoding, path, offset, first), first):
            messages.extend([line] if isinstance(line, Reject) else self._emits([line], number))
        return messages
