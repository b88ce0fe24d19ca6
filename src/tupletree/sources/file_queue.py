"""Files in turn: which of a source's files gives its next lines, and what is said about lines that are lost.

Owns the order of files, those that are open, and looking for where they are now. `file_table` says which file is
which; the source decides what to do with the lines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tupletree.clock import Clock
from tupletree.durable import identity_of
from tupletree.errors import ConnectorError, Finding, SourceChangedError
from tupletree.sources.file_table import FileRecord, FileTable, Reconciled
from tupletree.sources.files import FileList, FoundFile, compression_of, is_absent
from tupletree.sources.line_reader import DamagedFileError, LineReader, LongLineError, ReplacedFileError
from tupletree.sources.text_pieces import TakenLines, loss_of

logger = logging.getLogger("tupletree.sources")

MAX_TOLD = 1000
"""So many notes are kept, so as not to be logged at each look."""

MAX_OPEN = 64
"""So many files that are followed stay open."""

QUIET_S = 5.0
"""After so long without a change a file that was rotated is over, and so is a compressed file that lacks its end."""

LOOK_PAUSE = 4.0
"""Between two looks passes so many times what a look takes: with 200,000 files that is seconds."""

MAX_LOOKS = 4
"""Files that change faster than they can be looked at: so many looks in one call."""


@dataclass(frozen=True)
class ReadOptions:
    """How files are read; see `text_lines`."""

    encoding: str
    follow: bool
    changed: Literal["read", "refuse"]
    poll_interval_s: float
    logged: bool | None
    clock: Clock
    max_line_bytes: int | None = None


@dataclass(eq=False)
class _Source:
    """A file that may have lines to read."""

    record: FileRecord
    found: FoundFile | None  # None: it has no name any more, and is held open
    reader: LineReader | None = None
    backlog: int = 0  # its size when it was queued
    # A compressed file that lacked its end, or that of its last line, as it was then.
    incomplete: FoundFile | None = None


class FileQueue:
    """The files of a source, one after the other. It holds files open from the first `take` to `close`.

    Attributes:
        table: what was read of each file.
    """

    def __init__(self, files: FileList, reading: ReadOptions) -> None:
        self.table = FileTable(reading.encoding, has_relative=not all(map(os.path.isabs, files.given)))
        self._files = files
        self._reading = reading
        self._sources: list[_Source] = []
        self._at = 0
        self._losses: list[TakenLines] = []
        self._is_looked, self._look_again = False, True
        self._next_look_s = 0.0
        self._told: set[str] = set()
        self._open_count = 0

    def close(self) -> None:
        """Close the files."""
        for source in self._sources:
            self._close(source)

    def _close(self, source: _Source) -> None:
        if source.reader is not None:
            source.reader.close()
            source.reader = None
            self._open_count -= 1

    def take(self, max_rows: int | None, max_bytes: int) -> TakenLines | None:
        """The next lines of one file, or the report of a loss; None if there is nothing now."""
        if self._reading.follow and self._reading.clock.monotonic() >= self._next_look_s:
            self._look_again = True
        for _ in range(MAX_LOOKS):
            if self._look_again:
                self._look()
            if self._losses:
                return self._report(self._losses.pop(0))
            for _ in range(len(self._sources)):
                self._at %= len(self._sources)
                taken = self._take_from(self._sources[self._at], max_rows, max_bytes)
                if taken is not None:
                    return taken
                if self._look_again:
                    break
                self._at += 1
            if not self._look_again:
                break
        self._sources = [source for source in self._sources if source.reader is not None or not source.record.done]
        return None

    def _take_from(self, source: _Source, max_rows: int | None, max_bytes: int) -> TakenLines | None:
        """The next lines of this file; None if it has none now, or if it must be looked for again (`look_again`)."""
        record = source.record
        if record.damaged or (source.reader is None and (record.done or self._is_waiting(source))):
            return None
        try:
            reader = source.reader or self._opened(source)
        except DamagedFileError as error:
            return self._damaged(source, str(error))
        if reader is None:
            return None
        to_end = not self._reading.follow or self._is_over(source)
        while True:
            offset, is_rest = reader.offset, reader.is_within_line
            long: LongLineError | None = None
            try:
                piece = reader.take(1 if is_rest else max_rows, max_bytes, to_end=to_end)
            except DamagedFileError as error:
                return self._damaged(source, str(error))
            except ConnectorError:
                # What is open may stay unreadable for ever (a file server was started again): the next call opens it.
                if source.found is not None:
                    self._close(source)
                raise
            except ReplacedFileError:
                self._close(source)
                self._look_again = True
                return None
            except LongLineError as error:
                piece, long = error.start, error
            if not piece and long is None:
                self._at_end(source)
                return None
            if not record.series:
                self.table.begin(record)
            record.stream = reader.stream
            record.offset, (record.head, record.tail) = reader.offset, reader.hashes
            record.done = False
            self.table.changed(record)
            if long is not None and not is_rest:
                record.lines += 1
                return self._too_long(record, long, offset)
            if not is_rest:
                rows = piece.count(b"\n") + (not piece.endswith(b"\n"))
                record.lines += rows
                first = record.lines - rows + 1
                path = self._path_of(source, reader)
                return TakenLines(record, first, rows, offset, piece, reader.encoding, path)
            rest = piece.rstrip(b"\r\n")
            if rest:  # else the line was whole, and only its end was missing
                reason = f"{record.name}: line {record.lines} was taken as whole when the file ended there; its rest"
                return self._report(loss_of(record, "rest", offset, f"{reason} came later", rest))

    def _too_long(self, record: FileRecord, long: LongLineError, offset: int) -> TakenLines:
        reason = (
            f"{record.name}, line {record.lines}: longer than max_line_bytes ({long.length:,} bytes, expected at most "
            f"{self._reading.max_line_bytes:,}); its start is the payload"
        )
        return TakenLines(record, record.lines, 1, offset, long.start, lost=reason)

    def _opened(self, source: _Source) -> LineReader | None:
        """The file of a source, open where the next line begins; None if it has changed since it was compared."""
        record, found = source.record, source.found
        if found is None:
            return None
        try:
            reader = LineReader(found.path, self._reading.encoding, record.offset, longest=self._reading.max_line_bytes)
        except EOFError:
            self._look_again = True  # truncated since
            return None
        except ConnectorError:
            if not is_absent(found.path):
                raise
            self._look_again = True  # deleted or renamed since
            return None
        if reader.identity != found.identity or not (record.offset == 0 or reader.fits(record.head, record.tail)):
            reader.close()
            self._look_again = True
            return None
        source.reader = reader
        self._open_count += 1
        return reader

    def _path_of(self, source: _Source, reader: LineReader) -> str | None:
        """Where others can read what is taken now; None where lines must travel themselves."""
        logged = self._reading.follow if self._reading.logged is None else self._reading.logged
        found = source.found
        if logged or reader.stream or found is None or identity_of(found.path) != reader.identity:
            return None
        return found.path

    def _is_over(self, source: _Source) -> bool:
        """Whether nothing will be added to a file that is followed: it was renamed, and is not written to now."""
        found = source.found
        if found is None:
            return True
        is_rotated = os.path.realpath(source.record.name) != found.path
        is_packed = bool(compression_of(found.path))
        return (is_rotated or is_packed) and self._reading.clock.wall() - found.mtime_ns / 1e9 >= QUIET_S

    def _is_waiting(self, source: _Source) -> bool:
        """Whether a compressed file that is followed still lacks its end."""
        return source.incomplete is not None and source.incomplete == source.found and not self._is_over(source)

    def _at_end(self, source: _Source) -> None:
        """Everything that is there was taken: note it, and close what need not stay open."""
        record, reader = source.record, source.reader
        assert reader is not None
        size, mtime_ns, is_read = reader.state()
        if reader.is_compressed and not is_read:
            source.incomplete = source.found
        if record.series and (record.size, record.mtime_ns, record.done) != (size, mtime_ns, is_read):
            record.size, record.mtime_ns, record.done = size, mtime_ns, is_read
            self.table.changed(record)
        elif not record.series:
            record.done = is_read
        stays_open = self._reading.follow and not reader.is_compressed and source.found is not None
        if not stays_open or self._open_count > MAX_OPEN:
            self._close(source)
        if source.found is None and record.series:
            record.done = record.gone = True
            self.table.changed(record)

    def _damaged(self, source: _Source, error: str) -> TakenLines | None:
        """Report the rest of a compressed file; one that is followed may still be written."""
        record, reader = source.record, source.reader
        left = b"" if reader is None else reader.unread()
        self._close(source)
        if self._reading.follow and not self._is_over(source):
            source.incomplete = source.found
            return None
        if not record.series:
            self.table.begin(record)
        record.damaged = record.stream = True
        self.table.changed(record)
        reason = f"{record.name}: what follows line {record.lines} cannot be decompressed ({error})"
        return self._report(loss_of(record, "damaged", record.offset, reason, left))

    def _report(self, loss: TakenLines) -> TakenLines:
        logger.warning("%s", loss.lost)
        if loss.kind == "unread":
            loss.record.gone = True
            self.table.changed(loss.record)
        return loss

    # --- looking ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """See where the files are now, and queue those that may have lines to read."""
        began_s = self._reading.clock.monotonic()
        listing = self._files.find()
        current = self._sources[self._at % len(self._sources)] if self._sources else None
        before = {id(source.record): source for source in self._sources}
        held = {key for key, source in before.items() if source.reader is not None}
        out = self.table.reconcile(listing.files, lambda record: id(record) in held)
        unread = {one.name: one.unread for one in out.missed if one.unread and id(one) not in held}
        known = {record.name for record in self.table.records}
        listing.check(known, unread, follow=self._reading.follow, is_looked=self._is_looked)
        if out.replaced and self._reading.changed == "refuse":
            raise SourceChangedError(
                "files are not those that were begun", findings=[_difference(*one) for one in out.replaced]
            )
        kept: list[_Source] = []
        for record in out.missed:
            source = before.get(id(record))
            if source is not None and source.reader is not None and not self._is_replaced(source, out):
                source.found = None  # what is still to come, comes from the open file
                kept.append(source)
        taken_up = {id(source.record) for source in kept}
        self._note_missed([record for record in out.missed if id(record) not in taken_up], out)
        for record, file in out.present:
            source = before.get(id(record)) or _Source(record, file, backlog=file.size)
            source.found = file
            if source.reader is not None and source.reader.identity != file.identity:
                self._close(source)  # it goes on in a copy
            kept.append(source)
            taken_up.add(id(record))
        there = {file.identity for file in listing.files}
        for key, source in before.items():
            if key not in taken_up:
                self._close(source)
                if source.found is not None and not source.record.series and source.found.identity not in there:
                    self._say(f"{source.found.name} was there, and was deleted or replaced before it was read")
        listed = {file.path for file in listing.files}
        self._sources = self._in_turn(
            [source for source in kept if source.reader is not None or not source.record.done], listed, current
        )
        self._at = 0
        self._is_looked, self._look_again = True, False
        ended_s = self._reading.clock.monotonic()
        self._next_look_s = ended_s + max(self._reading.poll_interval_s, LOOK_PAUSE * (ended_s - began_s))
        self._tell(out)

    def _in_turn(self, sources: list[_Source], listed: set[str], current: _Source | None) -> list[_Source]:
        """Sources in the order in which they are asked, given who was asked last.

        First come files that were rotated out of the list. What was there from the start is read in order; after that,
        a file that grows all the time waits for the others.
        """
        first: list[_Source] = []
        others: list[_Source] = []
        for source in sources:
            is_listed = source.found is not None and source.found.path in listed
            (others if is_listed else first).append(source)
        if not self._reading.follow or current not in others:
            return first + others
        has_caught_up = not current.record.stream and current.record.offset >= current.backlog
        turn = others.index(current) + has_caught_up
        return first + others[turn:] + others[:turn]

    @staticmethod
    def _is_replaced(source: _Source, out: Reconciled) -> bool:
        """Whether the very file that is open has other content now."""
        assert source.reader is not None
        return any(
            record is source.record and found.identity == source.reader.identity for record, found in out.replaced
        )

    def _note_missed(self, missed: Sequence[FileRecord], out: Reconciled) -> None:
        """Queue reports of what is lost, and note the others as removed."""
        replaced = {id(record): found for record, found in out.replaced}
        self._losses = []
        for record in missed:
            found = replaced.get(id(record))
            what = "is another file now, or was truncated" if found else "cannot be found among the files to read"
            if record.unread:
                reason = f"{record.path} {what}: {record.unread} of it, behind line {record.lines}, were never read"
                self._losses.append(loss_of(record, "unread", record.offset, reason, b""))
            else:
                record.gone = True
                self.table.changed(record)

    def _tell(self, out: Reconciled) -> None:
        for record, path in out.moved:
            logger.info("%s is %s under a new name: reading goes on", record.path, path)
        notes = [
            f"{found.path} is not the file that was read so far: it is read from its start" for _, found in out.replaced
        ]
        notes += [f"{name} is another name of {first}: it is read once" for name, first in out.aliases.items()]
        notes += [
            f"{path} was {name} for a while, when nobody looked: it is not read. "
            f"A pattern, such as {name}*, finds such files, too"
            for path, name in out.passed_over.items()
        ]
        notes += [f"{name} is a copy of {first}: it is read once" for name, first in out.copies.items()]
        for note in notes:
            self._say(note)

    def _say(self, note: str) -> None:
        """Log it, once."""
        if note not in self._told:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told.add(note)
            logger.warning("%s", note)


def _difference(record: FileRecord, found: FoundFile) -> Finding:
    is_short = not record.stream and found.size < record.offset
    return Finding(
        "the file is not the one that was begun",
        where=found.path,
        got=f"{found.size} bytes" if is_short else f"other content before byte {record.offset}",
        expected=f"at least the {record.offset} bytes that were read before" if is_short else "what was read before",
        next_step="bring the old file back, or say changed='read' to read this one from its start",
    )
