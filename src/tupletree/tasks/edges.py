"""Edges as they are sent to ackers: one XOR value per root and step, and root ids that go to one acker together.

Owns the deltas of a step (`DeltaPool`), and drawing root ids of which a whole list belongs to one acker (`RootIds`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

from tupletree.data.frames import Root, roots_of
from tupletree.ids import MASK64, RandomBits
from tupletree.tracking.acker import Delta

ONLY_INT = {int}


class DeltaPool:
    """Gathers (edge, roots) pairs of one step."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[int, tuple[list[int], Sequence[Root]]] = {}  # by identity of the list, which it keeps alive

    def add(self, value: int, roots: Sequence[Root]) -> None:
        """XOR a value into each root of a list as it is in a frame (see `Frame.roots`); do not change it later."""
        group = self._groups.get(id(roots))
        if group is None:
            self._groups[id(roots)] = [value], roots
        else:
            group[0][0] ^= value

    def __bool__(self) -> bool:
        return bool(self._groups)

    def take(self) -> list[Delta]:
        """Take what was gathered, as `Delta`s: each root in one list only."""
        groups = self._groups
        if not groups:
            return []
        self._groups = {}
        if len(groups) == 1:
            (((value,), roots),) = groups.values()
            if value and set(map(type, roots)) == ONLY_INT:
                return [(value, roots)]  # type: ignore[list-item]  # just checked; the acker minds repetitions
        return [delta for delta in combined((value, roots) for (value,), roots in groups.values()) if delta[0]]


def combined(groups: Iterable[tuple[int, Sequence[Root]]]) -> list[Delta]:
    """Merge (value, roots) groups so that each root is in one list only, with the XOR of its values.

    Within a group a root counts once, 0 counts for nothing, and a tuple of roots counts for each of them. Lists that
    need no change come out as the same objects. Values may be 0.
    """
    kept = [group for group in groups if group[0]]
    if not kept:
        return []
    every: set[Root] = set().union(*(roots for _, roots in kept))
    if len(every) == sum(len(roots) for _, roots in kept) and 0 not in every and set(map(type, every)) == ONLY_INT:
        return kept  # type: ignore[return-value]  # just checked: every root is an int
    values: dict[int, int] = {}
    for value, roots in kept:
        for root in dict.fromkeys(one for entry in roots for one in roots_of(entry)):
            values[root] = values.get(root, 0) ^ value
    by_value: dict[int, list[int]] = {}
    for root, value in values.items():
        by_value.setdefault(value, []).append(root)
    return [*by_value.items()]


def split_by_acker(roots: list[int], ackers: int) -> list[tuple[int, list[int]]]:
    """(acker index, its roots): an acker's share is root mod ackers. A list of one share is returned unchanged."""
    if ackers == 1:
        return [(0, roots)] if roots else []
    shares = {root % ackers for root in roots}
    if len(shares) == 1:
        return [(shares.pop(), roots)]
    return [(share, [root for root in roots if root % ackers == share]) for share in sorted(shares)]


class RootIds:
    """Draws root ids whose remainder modulo the number of ackers is the present acker. It is a `RandomBits`.

    Args:
        random_bits: where the bits come from.
        ackers: how many there are; 0 or 1 leaves the bits unchanged.
    """

    def __init__(self, random_bits: RandomBits, ackers: int) -> None:
        self._random_bits = random_bits
        self._ackers = ackers
        self._share = 0
        self._ones: dict[int, int] = {}  # number of bits → an id of 1 in each 64 of them

    def turn(self) -> None:
        """Go on to the next acker."""
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
