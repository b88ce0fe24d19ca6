"""Paged files: written once, opened by mmap, and verified a page at a time as they are touched.

A paged file is `TTPG`, a format version, the lengths of header and body, an XXH3-64 of all that goes before the body,
the header (msgpack), padding to eight bytes, and the body. The header carries an XXH3-64 of each page of the body: so a
reader of a few records of a large file verifies what it reads, and nothing else. `tupletree.durable` has the containers
that are read whole. Owns bytes on a local file system; refuses to know what they mean.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import xxhash

from tupletree.durable import DECODE_ERRORS, damaged, missing, other_format

PAGE: Final = 4096
"""Bytes of a page: what one lookup must verify, and the disk's own unit."""

_MAGIC = b"TTPG"
_FORMAT_VERSION = 1
_LEAD = struct.Struct("<4sHIQQ")  # magic, version, header length, body length, checksum

Positions = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")


class Paged(msgspec.Struct, Generic[T]):
    """The header as it is stored: the caller's own, and the checksum of each page (packed u64)."""

    content: T
    checks: bytes


def paged(content: Any, body: Sequence[bytes | memoryview]) -> list[bytes]:
    """A paged file as pieces to write one after the other."""
    whole = b"".join(body)
    view = memoryview(whole)
    checks = [xxhash.xxh3_64_intdigest(view[start : start + PAGE]) for start in range(0, len(whole), PAGE)]
    header = msgspec.msgpack.encode(Paged(content, np.array(checks, dtype="<u8").tobytes()))
    padded = header + bytes(-(_LEAD.size + len(header)) % 8)
    lead = _LEAD.pack(_MAGIC, _FORMAT_VERSION, len(header), len(whole), _checksum(len(header), len(whole), padded))
    return [lead, padded, whole]


def _checksum(header_length: int, body_length: int, padded: bytes | memoryview) -> int:
    checksum = xxhash.xxh3_64(struct.pack("<HIQ", _FORMAT_VERSION, header_length, body_length))
    checksum.update(padded)
    return checksum.intdigest()


class PagedFile(Generic[T]):
    """An open paged file. Its header is verified at once, its pages as they are asked for.

    Args:
        path: the file.
        header_type: what the header's content is.

    Attributes:
        content: the header's content.
        body: the body, unverified: `verify` what you are about to read of it.
        pages_read: how many pages were asked for so far, each time they were.

    Raises:
        CheckpointError: the file is missing, too short, damaged, or of a format that this version cannot read.
    """

    def __init__(self, path: Path, header_type: type[T]) -> None:
        self.path = path
        self._where = str(path)
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                if size < _LEAD.size:
                    raise damaged(self._where, f"{size} bytes", "a whole file")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise missing(path) from error
        view = memoryview(self._map)
        magic, version, header_length, body_length, checksum = _LEAD.unpack(view[: _LEAD.size])
        if magic != _MAGIC:
            raise damaged(self._where, f"it starts with {magic!r}", f"it starts with {_MAGIC!r}")
        if version != _FORMAT_VERSION:
            raise other_format(self._where, version, _FORMAT_VERSION)
        end = _LEAD.size + header_length
        start = end + -end % 8
        if start + body_length != size:
            raise damaged(self._where, f"{size} bytes", f"{start + body_length} bytes")
        if _checksum(header_length, body_length, view[_LEAD.size : start]) != checksum:
            raise damaged(self._where, "the checksum of its header does not fit", "an undamaged file")
        try:
            stored = msgspec.msgpack.decode(view[_LEAD.size : end], type=Paged[header_type])  # type: ignore[valid-type]  # a class in hand
        except DECODE_ERRORS as error:
            raise damaged(self._where, f"its header cannot be read: {error}", "a header of this format") from error
        self.content: T = stored.content
        self.body = view[start:]
        self.pages_read = 0
        self._checks = np.frombuffer(stored.checks, dtype="<u8")
        self._verified = np.zeros(len(self._checks), dtype=bool)
        self._is_small = len(self._checks) == 1

    def verify(self, starts: Positions, ends: Positions) -> None:
        """Verify the pages that hold these ranges of the body. Raises CheckpointError for a damaged one."""
        if not len(starts):
            return
        if self._is_small and self._verified[0]:
            self.pages_read += 1
            return
        first, last = starts // PAGE, np.maximum(ends - 1, starts) // PAGE
        wide = np.flatnonzero(last - first > 1)
        between = [np.arange(first[one], last[one]) for one in wide.tolist()]
        touched = np.unique(np.concatenate([first, last, *between]))
        self.pages_read += len(touched)
        for page in touched[~self._verified[touched]].tolist():
            if xxhash.xxh3_64_intdigest(self.body[page * PAGE : (page + 1) * PAGE]) != self._checks[page]:
                raise damaged(self._where, f"the checksum of its page {page} does not fit", "an undamaged file")
            self._verified[page] = True

    def verify_all(self) -> None:
        """Verify every page."""
        self.verify(np.zeros(1, dtype=np.int64), np.full(1, len(self.body), dtype=np.int64))
