"""Reading whole lines of a file from an offset on, in any compression and encoding.

Owns opening, decompressing, encodings by their mark, and where a line ends. It refuses to know which file comes next.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import xxhash

from tupletree.errors import ConnectorError
from tupletree.sources.files import compression_of, way_out

CHUNK_BYTES = 256 * 1024

BLOCK_BYTES = 1024
"""So much at the start of a file and before an offset tells whether it is the file that was read so far."""

START_BYTES = 64 * 1024
"""So much is kept of a line that is too long."""

# --- compression --------------------------------------------------------------------------------------------------


def _open_zst(path: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(path, "rb"), "zstd")


_OPENERS: dict[str, Callable[[str], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zst}


class ReplacedFileError(Exception):
    """An open file has other content than was read of it."""


class DamagedFileError(Exception):
    """What follows in a compressed file cannot be decompressed, or its end is missing."""


class LongLineError(Exception):
    """The next line is longer than lines may be. It is behind the offset now.

    Attributes:
        start: its first bytes, at most `START_BYTES`.
        length: of it, in bytes, without its end.
    """

    def __init__(self, start: bytes, length: int) -> None:
        super().__init__(f"a line of {length:,} bytes")
        self.start = start
        self.length = length


# --- encodings ----------------------------------------------------------------------------------------------------

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
"""Encodings whose characters are wider than a byte: their text becomes UTF-8 while it is read."""


def _wide_encoding(start: bytes, encoding: str) -> str | None:
    """The wide encoding of a text that begins so: the declared one, or the one that its mark tells."""
    if encoding in WIDE:
        return encoding
    if encoding == "utf-8":
        return next((name for mark, name in _MARKS if start.startswith(mark)), None)
    return None


class _Transcoder:
    """Bytes of a wide encoding as UTF-8. What is no text becomes what is not UTF-8 either, so that its line fails."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")

    def feed(self, block: bytes) -> bytes:
        try:
            return self._decoder.decode(block).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._decoder.reset()
            return b"\xff"

    def end(self) -> bytes:
        """What stands for a character that is cut off by the end of the file."""
        is_cut = bool(self._decoder.getstate()[0])
        self._decoder.reset()
        return b"\xff" if is_cut else b""


@dataclass
class _LongLine:
    """A line that is too long, as far as it was read: all of it is behind the offset, and only this is kept."""

    start: bytes = b""
    last: bytes = b""
    length: int = 0

    def add(self, block: bytes) -> None:
        if len(self.start) < START_BYTES:
            self.start += block[: START_BYTES - len(self.start)]
        self.last = block[-BLOCK_BYTES:] if len(block) >= BLOCK_BYTES else (self.last + block)[-BLOCK_BYTES:]
        self.length += len(block)


# --- lines --------------------------------------------------------------------------------------------------------


# More than 12 attributes: one position in one file: buffer, offsets and limits move together.
class LineReader:
    """Whole lines of an open file, from an offset on. Offsets count what comes out: decompressed, as UTF-8.

    Attributes:
        offset: where the line that comes next begins.
        head: the first `BLOCK_BYTES` before the offset.
        tail: the last `BLOCK_BYTES` before the offset.
        encoding: of the lines that it gives.
        stream: whether a line can only be reached from the start of the file.
        identity: of the file that is open.
    """

    def __init__(self, path: str, encoding: str, offset: int = 0, *, longest: int | None = None) -> None:
        """Open it and go to the offset.

        Args:
            path: of the file.
            encoding: of its text.
            offset: where to begin.
            longest: bytes of a line at most, without its end; None: no limit.

        Raises:
            EOFError: the file ends before the offset.
            DamagedFileError: it cannot be decompressed up to there.
            ConnectorError: it cannot be opened or read.
        """
        self.path = path
        self.encoding = encoding
        self.offset = 0
        self.head = self.tail = b""
        self._rest: list[bytes] = []
        self._longest = longest
        self._long: _LongLine | None = None  # begun, and not at its end yet
        self._known = 0, b""  # what must still be where in the file
        self._state = 0, 0
        self._transcoder: _Transcoder | None = None
        self._compressed = bool(compression_of(path))
        try:
            self._raw = io.open(path, "rb")  # noqa: UP020, SIM115 - names stay as given; closed in `close`
            self._file: Any = self._raw
            if self._compressed:
                self._raw.close()
                self._file = _OPENERS[compression_of(path)](path)
            status = os.stat(path) if self._compressed else os.fstat(self._raw.fileno())
        except OSError as error:
            raise ConnectorError(
                f"cannot open: {error.strerror or error}", where=path, next_step=way_out(error)
            ) from error
        self.identity = status.st_dev, status.st_ino
        self.mtime_ns, self.size = status.st_mtime_ns, status.st_size
        try:
            self._start(encoding)
            self._go_to(offset)
        except BaseException:
            self.close()
            raise

    def _start(self, encoding: str) -> None:
        start = self._read_file(4)
        wide = _wide_encoding(start, encoding)
        self.stream = self._compressed or wide is not None
        if wide is not None:
            self._transcoder = _Transcoder(wide)
            self.encoding = "utf-8"
            start = self._transcoder.feed(start)
        self._put(start)

    def _go_to(self, offset: int) -> None:
        if not offset:
            return
        if not self.stream:
            size = os.fstat(self._raw.fileno()).st_size
            if size < offset:
                raise EOFError(size)
            self._rest = []
            length = min(offset, BLOCK_BYTES)
            self.head = os.pread(self._raw.fileno(), length, 0)
            self.tail = os.pread(self._raw.fileno(), length, offset - length)
            self._raw.seek(offset)
            self.offset = offset
            self._known = offset - length, self.tail
            return
        while self.offset < offset:
            block = b"".join(self._rest) or self._read()
            self._rest = []
            if not block:
                raise EOFError(self.offset)
            room = offset - self.offset
            self._put(block[room:])
            self._pass(block[:room])

    def fits(self, head: int, tail: int) -> bool:
        """Whether what is before the offset has these hashes."""
        return (xxhash.xxh3_64_intdigest(self.head), xxhash.xxh3_64_intdigest(self.tail)) == (head, tail)

    @property
    def hashes(self) -> tuple[int, int]:
        """Of `head` and `tail`."""
        return xxhash.xxh3_64_intdigest(self.head), xxhash.xxh3_64_intdigest(self.tail)

    @property
    def is_within_line(self) -> bool:
        """Whether the offset is behind a last line that had no end."""
        return bool(self.offset) and not self.tail.endswith(b"\n")

    @property
    def is_compressed(self) -> bool:
        """Whether the file is decompressed while it is read."""
        return self._compressed

    def state(self) -> tuple[int, int, bool]:
        """The file's size, when it was changed last, and whether everything in it was given."""
        if self._compressed:
            try:
                status = os.stat(self.path)
            except FileNotFoundError:
                return self.size, self.mtime_ns, not self._has_rest
            is_read = (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns) and not self._has_rest
            return status.st_size, status.st_mtime_ns, is_read
        status = os.fstat(self._raw.fileno())
        is_read = self._raw.tell() == status.st_size and not self._has_rest
        return status.st_size, status.st_mtime_ns, is_read

    @property
    def _has_rest(self) -> bool:
        return self._long is not None or any(self._rest)

    def exactly(self, length: int) -> bytes:
        """So many bytes from here on; fewer at the end of the file."""
        while sum(map(len, self._rest)) < length and (block := self._read()):
            self._rest.append(block)
        return b"".join(self._rest)[:length]

    def take(self, max_rows: int | None, max_bytes: int, *, to_end: bool) -> bytes:
        """The next whole lines within the limits; b"" if there are none now.

        Args:
            max_rows: lines at most.
            max_bytes: about so many bytes at most, and never more than about `CHUNK_BYTES` but for one long line.
            to_end: also give a last line without an end, if the file ends there.

        Raises:
            LongLineError: the next line is too long; it was taken, in pieces, and only its start was kept.
            ReplacedFileError: the file was truncated, and may have been written again; nothing was taken.
            DamagedFileError: what follows cannot be decompressed; all lines before were given.
            ConnectorError: it cannot be read.
        """
        rest = self._filled(to_end=to_end)
        self._check()
        rest = self._without_long(rest, to_end=to_end)
        end = rest.rfind(b"\n") + 1
        if not end and to_end:
            end = len(rest)
        if self._longest is not None and self._longest < CHUNK_BYTES:
            end = _before_long(rest, end, self._longest)
        piece = _cut(rest[:end] if end < len(rest) else rest, max_rows, max_bytes)
        if not self.offset and piece == codecs.BOM_UTF8 and self.encoding == "utf-8":
            return b""  # a mark is no line
        self._rest = [rest[len(piece) :]] if len(piece) < len(rest) else []
        self._pass(piece)
        self._known = self.offset - len(self.tail), self.tail + b"".join(self._rest)[:BLOCK_BYTES]
        return piece

    def _without_long(self, rest: bytes, *, to_end: bool) -> bytes:
        """What was read, without the start of a line that is too long; raises LongLineError at the end of that line."""
        if self._longest is None:
            return rest
        found = rest.find(b"\n", 0, None if self._long is not None else self._longest + 1)
        if self._long is None and (found >= 0 or len(rest) <= self._longest):
            return rest
        found = rest.find(b"\n")
        end = found + 1 if found >= 0 else len(rest)
        long = self._long or _LongLine()
        long.add(rest[: end - (found >= 0)])
        if found < 0 and not to_end:
            self._long, self._rest = long, []
            return b""
        self._long, self._rest = None, [rest[end:]]
        head = (self.head + long.start)[:BLOCK_BYTES]
        end_of_line = b"\n" if found >= 0 else b""
        self.tail = (self.tail + long.last + end_of_line)[-BLOCK_BYTES:]
        self.head = (head + end_of_line)[:BLOCK_BYTES]
        self.offset += long.length + len(end_of_line)
        self._known = self.offset - len(self.tail), self.tail + rest[end : end + BLOCK_BYTES]
        raise LongLineError(long.start, long.length)

    def _check(self) -> None:
        """See that what was read before is still in the file, if anything was done to it."""
        if self._compressed:
            return
        status = os.fstat(self._raw.fileno())
        state = status.st_size, status.st_mtime_ns
        if state == self._state:
            return
        if self.stream:
            is_intact = status.st_size >= self._raw.tell()
        else:
            start, known = self._known
            is_intact = os.pread(self._raw.fileno(), len(known), start) == known
        if not is_intact:
            raise ReplacedFileError
        self._state = state

    def unread(self) -> bytes:
        """What was read from the file and was not given; of a line that is too long, its start."""
        return b"".join([self._long.start if self._long is not None else b"", *self._rest])

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._raw.close()

    def _filled(self, *, to_end: bool) -> bytes:
        """Read on until there is a whole line, or the file ends."""
        if any(b"\n" in block for block in self._rest):
            return b"".join(self._rest)
        length = sum(map(len, self._rest))
        while block := self._read():
            self._rest.append(block)
            if b"\n" in block:
                break
            length += len(block)
            if self._longest is not None and length > self._longest:
                self._long = self._long or _LongLine()
                for one in self._rest:
                    self._long.add(one)
                self._rest, length = [], 0
        else:
            if to_end and self._transcoder is not None:
                self._put(self._transcoder.end())
        self._rest = [b"".join(self._rest)]
        return self._rest[0]

    def _put(self, block: bytes) -> None:
        if block:
            self._rest.append(block)

    def _pass(self, piece: bytes) -> None:
        if len(self.head) < BLOCK_BYTES:
            self.head += piece[: BLOCK_BYTES - len(self.head)]
        self.tail = piece[-BLOCK_BYTES:] if len(piece) >= BLOCK_BYTES else (self.tail + piece)[-BLOCK_BYTES:]
        self.offset += len(piece)

    def _read(self) -> bytes:
        block = self._read_file(CHUNK_BYTES)
        while block and self._transcoder is not None:
            block = self._transcoder.feed(block)
            if block:
                break
            block = self._read_file(CHUNK_BYTES)
        return block

    def _read_file(self, count: int) -> bytes:
        try:
            # Of a damaged file, `read1` gives what comes before the damage; `read` would lose that.
            read = getattr(self._file, "read1", self._file.read) if self._compressed else self._file.read
            block: bytes = read(count)
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise DamagedFileError(str(error)) from error
        except OSError as error:
            if self._compressed and error.errno is None:
                raise DamagedFileError(str(error)) from error
            raise ConnectorError(f"cannot read: {error.strerror or error}", where=self.path) from error
        return block


def _before_long(rest: bytes, end: int, longest: int) -> int:
    """Where whole lines end before the first one that is too long; the first line is not."""
    lines = rest[:end].split(b"\n")
    if max(map(len, lines)) <= longest:
        return end
    end = 0
    for line in lines:
        if len(line) > longest:
            break
        end += len(line) + 1
    return end


def _cut(chunk: bytes, max_rows: int | None, max_bytes: int) -> bytes:
    """As many of a chunk's lines as fit; the first fits always."""
    if len(chunk) > max_bytes:
        end = chunk.rfind(b"\n", 0, max_bytes) + 1 if max_bytes > 0 else 0
        chunk = chunk[: end or chunk.find(b"\n") + 1 or len(chunk)]
    if max_rows is None:
        return chunk
    lines = chunk.split(b"\n", max_rows)  # what is behind that many line ends comes last
    return chunk[: len(chunk) - len(lines[-1])] if len(lines) > max_rows else chunk
