"""What became of the records of one partition: the watermark, and what is known of the offsets behind it.

Owns the numbers, and the text in which they stand beside a committed offset. Refuses to know a connection.

Kafka keeps one offset per partition: what is before it is done. A queue settles in any order, so the committed offset
is that of the first record that is not settled, and the text beside it (its metadata) has a byte for each one behind:
how often it was delivered, or that it is settled. So an ack is durable in whatever order it comes.
"""

from __future__ import annotations

import base64
import binascii
import zlib

SETTLED = 255
MOST_DELIVERIES = 254
"""That are counted."""

MOST_MARKS = 8_000
"""Offsets behind the watermark that fit the text whatever became of them, a bit each: a server takes 4,096 bytes."""

MOST_TEXT = 4_000
"""Of its bytes, where it is kept shorter or is not made."""

_VERSION = "1:"


class Marks:
    """Of one partition.

    Attributes:
        base: the watermark: all before it is settled.
        position: the offset after the last one that was looked at, by this connection.

    Example:
        >>> marks = Marks(7)
        >>> [marks.reach(offset) for offset in (7, 8, 10)]
        [True, True, True]
        >>> marks.settle(8), marks.base
        (None, 7)
        >>> marks.settle(7), marks.base  # there is no record 9
        (None, 10)
    """

    __slots__ = ("_marks", "base", "position")

    def __init__(self, base: int, text: str = "") -> None:
        self.base = base
        self.position = base
        self._marks = bytearray(_decoded(text))
        self._advance()
        self.position = self.base

    @property
    def open(self) -> int:
        """How many offsets are known behind the watermark: the gap."""
        return len(self._marks)

    @property
    def settled(self) -> int:
        """How many of them are settled."""
        return self._marks.count(SETTLED)

    def reach(self, offset: int) -> bool:
        """A record of this offset was read; offsets between it and the one read before it have none.

        Returns:
            Whether it is not settled.
        """
        if offset < max(self.position, self.base):
            self.position = max(self.position, offset + 1)
            return False  # it was read before, or was settled by an earlier owner of the partition
        if self.position == self.base and offset >= self.base + len(self._marks):
            self.base = offset  # the log begins later
            self._marks.clear()
        first, last = max(0, self.position - self.base), offset - self.base
        self.position = offset + 1
        if last > len(self._marks):
            self._marks.extend(bytes((SETTLED,)) * (last - len(self._marks)))
        if last > first:
            self._marks[first:last] = bytes((SETTLED,)) * (last - first)
            self._advance()
            last = offset - self.base
        if last == len(self._marks):
            self._marks.append(0)
        return self._marks[last] != SETTLED

    def deliveries(self, offset: int) -> int:
        """How often it was delivered."""
        return self._marks[offset - self.base]

    def deliver(self, offset: int, by: int = 1) -> int:
        """It is delivered once more; or, with -1, was not. Returns how often."""
        at = offset - self.base
        self._marks[at] = min(MOST_DELIVERIES, max(0, self._marks[at] + by))
        return self._marks[at]

    def settle(self, offset: int) -> None:
        """It is done."""
        self._marks[offset - self.base] = SETTLED
        self._advance()

    def text_without(self, offsets: set[int]) -> tuple[int, str]:
        """The offset and the text to commit when these are settled, too."""
        if not offsets:
            return self.base, self.text()
        other = Marks(self.base)
        other._marks = bytearray(self._marks)
        for offset in offsets:
            if offset >= self.base:
                other._marks[offset - self.base] = SETTLED
        other._advance()
        return other.base, other.text()

    def text(self) -> str:
        """What stands beside the committed offset."""
        marks = self._marks.rstrip(b"\0")
        if not marks:
            return ""
        text = _encoded(marks)
        if len(text) > MOST_TEXT:  # how often is left out, not whether
            text = _encoded(marks.translate(_WHETHER))
        return text

    def _advance(self) -> None:
        left = len(self._marks.lstrip(b"\xff")) if self._marks[:1] == b"\xff" else len(self._marks)
        if done := len(self._marks) - left:
            del self._marks[:done]
            self.base += done


_WHETHER = bytes([0, *[1] * MOST_DELIVERIES, SETTLED])


def _encoded(marks: bytes | bytearray) -> str:
    return _VERSION + base64.b64encode(zlib.compress(marks, 6)).decode()


def _decoded(text: str) -> bytes:
    """Empty for a text that another program wrote."""
    if not text.startswith(_VERSION):
        return b""
    try:
        return zlib.decompress(base64.b64decode(text.removeprefix(_VERSION)))
    except (binascii.Error, zlib.error):
        return b""
