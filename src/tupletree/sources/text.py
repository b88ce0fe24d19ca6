"""Lines of text files as messages: files that are there, that grow, are rotated, moved and deleted meanwhile.

Owns the identity of a line, and how lines become messages and splits. What a line is, is `lines`; which lines come
next, `file_queue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, repeat
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from tupletree.clock import Clock, SystemClock
from tupletree.errors import ConfigError, EndOfInput, Finding, TupletreeError
from tupletree.sources.file_queue import FileQueue, ReadOptions
from tupletree.sources.files import FileList, Order, Paths
from tupletree.sources.lines import checked_encoding, constructor, decode_all, decode_each, raw_lines
from tupletree.sources.text_pieces import IdOf, Planned, ids_of, reread
from tupletree.texts import encodable
from tupletree.topology.components import Emit, Reject, TaskContext
from tupletree.topology.splits import Split, SplitSpout

T = TypeVar("T")

MAX_LINE_BYTES = 16 * 1024 * 1024

NEXT_BYTES = 64 * 1024
"""About how much one `next` gives."""


class Line(msgspec.Struct, frozen=True, gc=False):
    r"""One line of a text file.

    Attributes:
        text: the line without its line end.
        path: the file, under the name by which it was first read: as given to `text_lines`, or as a pattern found it.
            A name that is not UTF-8 is escaped (`caf\udce9.txt`), because a field of a message holds text that can be
            encoded; the message id has the name itself.
        number: 1-based line number in that file.
    """

    text: str
    path: str = ""
    number: int = 0


class TextLines(SplitSpout[T], Generic[T]):
    """Read text files line by line; every line is one message, empty ones too.

    A line ends with LF or CR LF, neither of which is part of it; the last line needs no end. A byte order mark at the
    start of a file is dropped, and one of UTF-16 or UTF-32 tells the encoding. A line that is not valid in `encoding`
    becomes a dead letter that names path, line and byte offset. Files that end with .gz, .bz2, .xz or .zst are
    decompressed.

    The message id is (name, line number), the name being the one under which the file was first read; a later file of
    the same name has (name, 2, line number), and so on. A run that resumes goes on where it was in each file: a file
    may have grown, or been renamed, rotated, restored from a copy or, once it was read, deleted, and others may have
    been added. Two names of one file are read once. Lines that can never be read (the rest of a file that was
    deleted or truncated) are reported by a dead letter.

    On Spark, executors read the lines from their places in the files, which every worker must find under the same
    paths, and which must stay as they are until their lines are settled (they may grow and be renamed in their folder).
    With `logged` the lines travel in the epoch's log instead. One task reads all files, at any parallelism.

    It holds files open from the first `plan` or `next` to `close`; not open, it can be pickled.

    Args:
        paths: one path or several, none twice; patterns (`logs/*.log`, `logs/**/*.log`) stand for what they match.
        message_type: class of the messages. It gets those of `text`, `path` and `number` that it has as fields; a
            class with a single field gets the text in it.
        encoding: any encoding in which a line feed is the byte 0x0A (UTF-8, Latin-1, GBK, …), or UTF-16 or UTF-32.
        follow: never end: wait for lines that are added, for files that patterns match later, and for a file that
            comes after one that was rotated away. A last line that has no end yet is kept back.
        order: "name": in the order given, what a pattern matches by name; "time": all by when they were changed last.
        changed: what to do with a file that is not the one that was read under its name before (truncated, replaced):
            "read" it from its start as a new one, or "refuse" to go on.
        poll_interval_s: with `follow`, seconds between two looks for new files, and at least four times what a look
            takes. Open ones are looked at all the time.
        logged: lines travel in the epoch's log, so that workers need not see the files, and that later changes
            of them do not matter. None: where `follow` is set, and for compressed files, UTF-16 and UTF-32.
        max_line_bytes: a longer line, without its end, becomes a dead letter that holds its first 64 KiB; it is
            read in pieces, and never held as a whole. Default 16 MiB; None: no limit.
        clock: for tests.

    Raises:
        ConfigError: no paths, a path twice, a compression that is not known, or an encoding, order or message class
            that does not fit.

    Example:
        >>> text_lines("server.log", encoding="latin-1").message_type.__name__
        'Line'
    """

    _reads: bool  # whether this is the task that reads
    _queue: FileQueue

    @overload
    def __init__(
        self: TextLines[Line],
        paths: Paths,
        *,
        encoding: str = ...,
        follow: bool = ...,
        order: Order = ...,
        changed: Literal["read", "refuse"] = ...,
        poll_interval_s: float = ...,
        logged: bool | None = ...,
        max_line_bytes: int | None = ...,
        clock: Clock | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        paths: Paths,
        *,
        message_type: type[T],
        encoding: str = ...,
        follow: bool = ...,
        order: Order = ...,
        changed: Literal["read", "refuse"] = ...,
        poll_interval_s: float = ...,
        logged: bool | None = ...,
        max_line_bytes: int | None = ...,
        clock: Clock | None = ...,
    ) -> None: ...

    def __init__(
        self,
        paths: Paths,
        *,
        message_type: type[Any] = Line,
        encoding: str = "utf-8",
        follow: bool = False,
        order: Order = "name",
        changed: Literal["read", "refuse"] = "read",
        poll_interval_s: float = 1.0,
        logged: bool | None = None,
        max_line_bytes: int | None = MAX_LINE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._files = FileList(paths, "text_lines", order)
        self.message_type = message_type
        self.encoding = checked_encoding(encoding, "text_lines")
        self.follow = follow
        if max_line_bytes is not None and (type(max_line_bytes) is not int or max_line_bytes < 1):
            raise ConfigError(
                "no length of a line",
                where="text_lines(max_line_bytes=…)",
                got=repr(max_line_bytes),
                expected="a whole number of bytes, at least 1, or None",
            )
        if changed not in {"read", "refuse"}:
            raise ConfigError(
                "no such answer to a changed file", where="text_lines", got=str(changed), expected="'read' or 'refuse'"
            )
        constructor(message_type, "text_lines")  # refuse an unsuitable class where it is named
        self._reading = ReadOptions(
            self.encoding, follow, changed, poll_interval_s, logged, clock or SystemClock(), max_line_bytes
        )

    @property
    def paths(self) -> list[str]:
        """As they were given."""
        return self._files.given

    def faults(self) -> Sequence[Finding]:
        """Every path that cannot be read; with `follow`, a pattern that matches nothing yet is none."""
        listing = self._files.find()
        unmatched = () if self.follow else listing.unmatched.values()
        return [*listing.faults.values(), *listing.missing.values(), *unmatched]

    # --- opening and closing ----------------------------------------------------------------------------------

    def open(self, context: TaskContext) -> None:
        """Begin at the start of every file; what cannot be read is named by the first `plan` or `next`."""
        self._reads = context.task_index == 0
        self._files.begin()
        self._queue = FileQueue(self._files, self._reading)

    def snapshot(self) -> dict[str, Any]:
        """What was read of each file, in a form of its own."""
        return self._queue.table.snapshot()

    def restore(self, position: Any) -> None:
        """Continue after a snapshot; the first `plan` or `next` compares it with the files that are there.

        Raises:
            CheckpointError: it is none.
        """
        self.close()
        self._queue = FileQueue(self._files, self._reading)
        self._queue.table.restore(position)

    def close(self) -> None:
        self._queue.close()

    # --- what comes next ----------------------------------------------------------------------------------------

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        """Name the next lines, in as many files as it takes.

        Raises:
            SourceChangedError: with `changed="refuse"`, a file is not the one that was begun.
            ConnectorError: files cannot be read; it names them all.
        """
        planned: list[Planned] = []
        while max_rows > 0 and (max_bytes > 0 or not planned):
            try:
                taken = self._queue.take(max_rows, max_bytes) if self._reads else None
            except TupletreeError:
                if planned:
                    break  # what was taken goes out first; the error comes again
                raise
            if taken is None:
                break
            if not (planned and planned[-1].extend(taken)):
                planned.append(Planned(taken))
            max_rows -= taken.rows
            max_bytes -= len(taken.piece)
        if not planned and not (self.follow and self._reads):
            raise EndOfInput
        return [one.split() for one in planned] or None

    def next(self) -> Sequence[Emit[T] | Reject] | None:
        """Read the next lines here.

        Raises what `plan` raises.
        """
        taken = self._queue.take(None, NEXT_BYTES) if self._reads else None
        if taken is None:
            if self.follow and self._reads:
                return None
            raise EndOfInput
        name, series, first = taken.record.name, taken.series, taken.first
        id_of = ids_of(name, series, first)
        if taken.lost is not None:
            return [Reject(taken.piece, id_of(0), taken.lost)]
        rows = self._values(taken.piece, taken.encoding, name, taken.offset, first, id_of)
        if isinstance(rows, list):  # all of them can be decoded
            if series is None:
                return [Emit(row, (name, number)) for number, row in enumerate(rows, first)]
            return [Emit(row, (name, series, number)) for number, row in enumerate(rows, first)]
        return [row if isinstance(row, Reject) else Emit(row, id_of(index)) for index, row in enumerate(rows)]

    def read(self, split: Split) -> Iterator[T | Reject]:
        """Read and decode the lines of a split, if they are what they were."""
        piece = reread(split, self.encoding)
        if isinstance(piece, Reject):
            return iter([piece])
        chunk, encoding, offset = piece
        return iter(self._values(chunk, encoding, split.source or "", offset, split.first, split.message_id))

    def _values(
        self, chunk: bytes, encoding: str, name: str, offset: int, first: int, id_of: IdOf
    ) -> list[T] | Iterator[T | Reject]:
        columns, make = constructor(self.message_type)
        texts = decode_all(chunk, encoding, at_start=offset == 0)
        with suppress(Exception):  # one by one, it is said of which line; the class's own code may raise anything
            if texts is not None:
                sources: dict[str, Iterable[Any]] = {
                    "text": texts,
                    "path": repeat(encodable(name)),
                    "number": count(first),
                }
                return list(map(make, *(sources[column] for column in columns)))
        return self._each(chunk, encoding, name, offset, first, id_of)

    def _each(
        self, chunk: bytes, encoding: str, name: str, offset: int, first: int, id_of: IdOf
    ) -> Iterator[T | Reject]:
        columns, make = constructor(self.message_type)
        for index, line in enumerate(decode_each(raw_lines(chunk), encoding, name, offset, first, id_of)):
            if isinstance(line, Reject):
                yield line
                continue
            values = {"text": line, "path": encodable(name), "number": first + index}
            try:
                yield make(*(values[column] for column in columns))
            except Exception as error:  # noqa: BLE001 - the class's own code may raise anything
                reason = f"{name}, line {first + index}: {refusal(error)}"
                yield Reject(line.encode(errors="surrogatepass"), id_of(index), reason)


def refusal(error: Exception) -> str:
    """Why a class does not take a line, in words."""
    of_ours = isinstance(error, msgspec.MsgspecError | UnicodeEncodeError)
    return str(error) if of_ours else f"{type(error).__name__}: {error}"


text_lines = TextLines
