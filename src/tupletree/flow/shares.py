"""Root ids by acker: all roots of one turn belong to one acker, so their lists go to it as they are."""

from __future__ import annotations

import sys
from array import array

from tupletree.ids import MASK64, RandomBits

__all__ = ["ShareDraw"]


class ShareDraw:
    """Draws root ids whose remainder modulo the number of ackers is this turn's acker. It is a `RandomBits`.

    Args:
        random_bits: where the bits come from.
        ackers: how many there are; 0 or 1 leaves the bits as they are.
    """

    def __init__(self, random_bits: RandomBits, ackers: int) -> None:
        self._random_bits = random_bits
        self._ackers = ackers
        self._share = 0
        self._ones: dict[int, int] = {}  # number of bits → an id of 1 in each 64 of them

    def turn(self) -> None:
        """From here on, the next acker."""
        if self._ackers:
            self._share = (self._share + 1) % self._ackers

    def __call__(self, bits: int) -> int:
        """Draw `bits` bits: ids of the acker whose turn it is, where they are whole ids."""
        drawn = self._random_bits(bits)
        if self._ackers < 2 or bits % 64:
            return drawn
        ackers, share = self._ackers, self._share
        if not ackers & (ackers - 1):  # a power of two: its remainders are low bits, so one operation serves all ids
            ones = self._ones.get(bits)
            if ones is None:
                ones = self._ones[bits] = int.from_bytes(b"\1\0\0\0\0\0\0\0" * (bits // 64), "little")
            return drawn & ~(ones * (ackers - 1)) | ones * share
        if bits == 64:
            return (drawn - drawn % ackers + share) & MASK64
        words = array("Q", drawn.to_bytes(bits // 8, sys.byteorder))
        shared = array("Q", [(word - word % ackers + share) & MASK64 for word in words])
        return int.from_bytes(shared.tobytes(), sys.byteorder)
