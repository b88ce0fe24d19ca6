"""The acker for one epoch, as whole-array arithmetic.

Same verdicts as `acker.Acker`, for callers that hold an epoch's openings, deltas and failures all at once. Owns no
state: trees that stay open come back with what is left of their XOR, and go in again as openings. The only module of
this layer that needs numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

N = TypeVar("N", np.uint64, np.int64)
U64: TypeAlias = "npt.NDArray[np.uint64]"
Entries: TypeAlias = "tuple[U64, U64]"
"""(roots, xor): two uint64 arrays of the same length."""

_OPENED = 1
_TOUCHED = 2
_FAILED = 4
_KEPT = 8


@dataclass(frozen=True)
class Judgement:
    """The verdicts of one epoch; every array is uint64 and sorted by root.

    Attributes:
        complete: opened, XOR is zero, not failed.
        open_: opened, XOR is not zero, not failed.
        open_xor: what is left of each tree in `open_`; together they are the openings of the next epoch.
        failed: opened and failed; a failure beats completion.
        unknown: named by a delta or a failure, but never opened. They change nothing.
        earlier: opened by an earlier epoch, and named in this one.
        unexplained: those of `open_` of which something is left that is not in kept frames.
    """

    complete: U64
    open_: U64
    open_xor: U64
    failed: U64
    unknown: U64
    earlier: U64
    unexplained: U64


def combine(values: Sequence[int], roots: Sequence[U64]) -> Entries:
    """XOR the deltas of many frames into one entry per root, in O(n log n) for n entries in all.

    Args:
        values: one value per frame.
        roots: the roots of each frame, uint64. A root that a frame names twice counts once (one edge per root and
            frame), and 0 (untracked) counts for nothing.

    Returns:
        Distinct roots in ascending order, and the XOR of each.
    """
    if not roots:
        return _empty(), _empty()
    lengths = [len(part) for part in roots]
    every = np.concatenate(roots).astype(np.uint64, copy=False)
    frame = np.repeat(np.arange(len(lengths)), lengths)
    order = np.argsort(every)
    tracked = every[order]
    if ((tracked[2:] == tracked[:-2]) & (tracked[2:] != 0)).any():
        # A stable sort keeps the frames in order within a root, so that a repetition is next to its original. It takes
        # four times as long, and two of a root, as almost always, are next to each other anyway.
        order = np.argsort(every, kind="stable")
    every, frame = every[order], frame[order]
    keep = every != 0
    keep[1:] &= (every[1:] != every[:-1]) | (frame[1:] != frame[:-1])
    every, frame = every[keep], frame[keep]
    starts = _starts(every)
    if not len(starts):
        return _empty(), _empty()
    xor = np.array(values, dtype=np.uint64)[frame]
    return every[starts], np.bitwise_xor.reduceat(xor, starts)


def judge(
    openings: Entries,
    deltas: Iterable[Entries],
    failed: U64,
    *,
    kept: Iterable[Entries] = (),
    left_before: Callable[[int], int | None] | None = None,
) -> Judgement:
    """Decide every tree of an epoch; only a root with an opening can complete.

    Args:
        openings: (roots, XOR of all first edges), and the trees left open by earlier epochs. Roots are distinct
            and nonzero.
        deltas: what `combine` gave, from any number of places.
        failed: roots that a bolt failed; repetitions and 0 (untracked) are harmless.
        kept: edges of frames that came in this epoch and are kept for later ones. They decide nothing but
            `unexplained`.
        left_before: gives what earlier epochs left of a root's tree, None if they did not open it. Asked about named
            roots without an opening: instead of openings of all trees, of which an epoch may name few.
    """
    failed = failed[failed != 0]
    parts = [(openings, _OPENED), *((entries, _TOUCHED) for entries in deltas), *((entries, _KEPT) for entries in kept)]
    parts.append(((failed, np.zeros(len(failed), np.uint64)), _FAILED))
    roots = np.concatenate([entries[0] for entries, _ in parts]).astype(np.uint64, copy=False)
    edges = np.concatenate([entries[1] for entries, _ in parts]).astype(np.uint64, copy=False)
    marks = np.repeat(np.array([mark for _, mark in parts], np.uint8), [len(entries[0]) for entries, _ in parts])
    order = np.argsort(roots)
    roots, edges, marks = roots[order], edges[order], marks[order]
    starts = _starts(roots)
    if not len(starts):
        return Judgement(*(_empty() for _ in range(7)))
    roots = roots[starts]
    is_kept = marks == _KEPT
    xor = np.bitwise_xor.reduceat(np.where(is_kept, np.uint64(0), edges), starts)
    in_kept = np.bitwise_xor.reduceat(np.where(is_kept, edges, np.uint64(0)), starts)
    marks = np.bitwise_or.reduceat(marks, starts)
    opened = (marks & _OPENED) != 0
    earlier = np.zeros(len(roots), np.bool_)
    if left_before is not None:
        for index in np.flatnonzero(~opened).tolist():
            before = left_before(int(roots[index]))
            if before is not None:
                # Kept frames explain how a tree changed since: what was left before is in frames kept before.
                xor[index] ^= np.uint64(before)
                in_kept[index] ^= np.uint64(before)
                earlier[index] = True
        opened |= earlier
    lost = (marks & _FAILED) != 0
    done = xor == 0
    still_open = opened & ~lost & ~done
    return Judgement(
        complete=roots[opened & ~lost & done],
        open_=roots[still_open],
        open_xor=xor[still_open],
        failed=roots[opened & lost],
        unknown=roots[~opened & (marks != _KEPT)],
        earlier=roots[earlier],
        unexplained=roots[still_open & (xor != in_kept)],
    )


def distinct(values: npt.NDArray[N]) -> npt.NDArray[N]:
    """Each value once, sorted. `np.unique` looks each of them up, which takes 30 times as long for a million."""
    ordered = np.sort(values)
    return ordered[_starts(ordered)]


def _starts(ordered: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where each run of equal values begins."""
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return np.flatnonzero(first)


def _empty() -> U64:
    return np.empty(0, np.uint64)
