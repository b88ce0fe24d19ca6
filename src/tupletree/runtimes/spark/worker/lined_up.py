"""Tuples of one task laid out anew, in the order of their messages' numbers, as frames with edges of their own.

So tuples of one message that came in one frame may go in several. Of the tuples only where they are is held in memory,
as columns; the frames that they came in are decoded again as they are needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise, repeat
from typing import Any, Protocol, TypeVar

import numpy as np

from tupletree.data.frames import UNTRACKED, Frame, Root, all_failed, without
from tupletree.ids import mix64
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.epoch_messages import I64
from tupletree.runtimes.spark.worker.edges import Edges

T = TypeVar("T")

FRAME_TUPLES = 4096
"""So many tuples at the most are worked as one frame."""

DECODED_TUPLES = 16 * FRAME_TUPLES
"""So many tuples of frames that they came in are held, at the least those of one frame."""


class Queued(Protocol):
    """See `inbox.QueuedFrames`."""

    def __len__(self) -> int: ...

    def at(self, index: int) -> Frame:
        """One of them."""
        ...


class Decoded:
    """The frames, without the roots that a run must not touch; the last ones that were asked for are held."""

    def __init__(self, queued: Queued, left_out: set[int]) -> None:
        self._queued = queued
        self._left_out = left_out
        self._known: OrderedDict[int, tuple[Frame, list[Root]]] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        return len(self._queued)

    def at(self, index: int) -> tuple[Frame, list[Root]]:
        """One of them, and the root of each of its tuples."""
        known = self._known.get(index)
        if known is not None:
            self._known.move_to_end(index)
            return known
        frame = self._queued.at(index)
        frame = without(frame, self._left_out) if self._left_out else frame
        found = self._known[index] = frame, root_of_each(frame)
        self._held += frame.size
        while self._held > DECODED_TUPLES and len(self._known) > 1:
            _, (gone, _) = self._known.popitem(last=False)
            self._held -= gone.size
        return found

    def forget(self) -> None:
        """Hold none of them."""
        self._known.clear()
        self._held = 0


def root_of_each(frame: Frame) -> list[Root]:
    """The root of each tuple."""
    return [root for root, part in frame.segments() for _ in part]


class Tuples:
    """Numbers, and hashes of keys, of all tuples of frames, in the order in which they came."""

    def __init__(self) -> None:
        self._numbers: list[I64] = []
        self._hashes: list[wire.U64 | None] = []

    def add(self, frame: Frame, numbers: I64, hashes: list[int] | None) -> None:
        """Those of the next frame; hashes only where no frame is to have two tuples of a key."""
        self._numbers.append(numbers)
        self._hashes.append(None if hashes is None else np.array(hashes, dtype=np.uint64))
        assert len(numbers) == frame.size, "a number for each tuple"

    @property
    def is_in_order(self) -> bool:
        """Whether no number is lower than one before."""
        every = _joined(self._numbers)
        return bool((every[1:] >= every[:-1]).all())

    def in_order(self) -> tuple[I64, I64, I64]:
        """Of each tuple, in order: its frame, its position in it, and its turn.

        By number; where there are hashes, by turn before that: the first tuples of all keys have the first turn, the
        second ones the second.
        """
        lengths = [len(one) for one in self._numbers]
        frames = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        positions = _joined([np.arange(length, dtype=np.int64) for length in lengths])
        turns = np.zeros(len(frames), np.int64)
        order = np.argsort(_joined(self._numbers), kind="stable")
        if any(one is not None for one in self._hashes):
            has_key = np.repeat(np.array([one is not None for one in self._hashes]), lengths)[order]
            hashes = np.concatenate(
                [np.zeros(len(one), np.uint64) if key is None else key for one, key in zip(self._numbers, self._hashes)]
            )[order]
            by_key = np.argsort(hashes, kind="stable")
            by_key = by_key[has_key[by_key]]
            sorted_hashes = hashes[by_key]
            is_first = np.ones(len(by_key), np.bool_)
            is_first[1:] = sorted_hashes[1:] != sorted_hashes[:-1]
            starts = np.flatnonzero(is_first)
            ranks = np.arange(len(by_key)) - np.repeat(starts, np.diff([*starts.tolist(), len(by_key)]))
            turns[by_key] = ranks + 1
            again = np.argsort(turns, kind="stable")
            order, turns = order[again], turns[again]
        return frames[order], positions[order], turns


class LinedUp:
    """See the module docstring; each pass over it makes the frames again. Made by `of`.

    Args:
        decoded: the frames that the tuples came in.
        frames, positions: where each tuple is, in order.
    """

    def __init__(self, decoded: Decoded, frames: I64, positions: I64) -> None:
        self._decoded = decoded
        self._frames = frames
        self._positions = positions
        self._parts: list[tuple[int, int, int]] = []  # (edge, from where, to where)

    @classmethod
    def of(
        cls,
        decoded: Decoded,
        tuples: Tuples,
        skip: AbstractSet[int],
        edges: Edges,
        place: tuple[int, ...],
        *,
        by_source: bool,
    ) -> LinedUp:
        """Lay the tuples of these frames out in order, without those whose roots are all in `skip`.

        Args:
            decoded: the frames.
            tuples: what is known of their tuples.
            skip: see above.
            edges: the old ones end, the new ones begin.
            place: the new ones are derived from it.
            by_source: a frame is to have tuples of one sending task.
        """
        kinds: dict[Any, int] = {}
        kind_of: list[int] = []
        live: list[Any] = []
        for index in range(len(decoded)):
            frame, each = decoded.at(index)
            kind = frame.component, frame.stream, frame.made is None, by_source and frame.source
            kind_of.append(kinds.setdefault(kind, len(kinds)))
            live.append(np.array([not all_failed(root, skip) for root in each], dtype=np.bool_))
            kept = [root for root in frame.roots if not all_failed(root, skip)]
            if kept:
                edges.ended(frame.id, frame.roots if len(kept) == len(frame.roots) else kept)
        frames, positions, turns = tuples.in_order()
        starts = np.cumsum([0, *map(len, live)])
        is_live = np.concatenate([np.empty(0, np.bool_), *live])[starts[frames] + positions]
        frames, positions, turns = frames[is_live], positions[is_live], turns[is_live]
        found = cls(decoded, frames, positions)
        found._cut(np.array(kind_of, dtype=np.int64)[frames], turns, edges, place)
        return found

    def _cut(self, kinds: I64, turns: I64, edges: Edges, place: tuple[int, ...]) -> None:
        """Cut the tuples into frames, each of one kind and turn."""
        changes = (kinds[1:] != kinds[:-1]) | (turns[1:] != turns[:-1])
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(kinds)] if len(kinds) else []
        for start, stop in pairwise(bounds):
            for at in range(start, stop, FRAME_TUPLES):
                end = min(at + FRAME_TUPLES, stop)
                self._parts.append((mix64(*place, len(self._parts)), at, end))
        for parts in self._together():
            begin = parts[0][1]
            roots = self._picked(begin, parts[-1][2], lambda _, each: each)
            for edge, at, end in parts:
                edges.sent(edge, wire.root_array(roots[at - begin : end - begin]))

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Frame]:
        for parts in self._together():
            begin, stop = parts[0][1], parts[-1][2]
            # One pass over the frames for all of these parts: they may alternate from tuple to tuple.
            tuples = self._picked(
                begin, stop, lambda frame, each: [*zip(frame.values, each, _made(frame), strict=True)]
            )
            for edge, at, end in parts:
                like, _ = self._decoded.at(int(self._frames[at]))
                yield _frame(like, edge, tuples[at - begin : end - begin])
        self._decoded.forget()

    def _together(self) -> Iterator[list[tuple[int, int, int]]]:
        """The parts, in groups of no more than so many tuples."""
        group: list[tuple[int, int, int]] = []
        for part in self._parts:
            if group and part[2] - group[0][1] > DECODED_TUPLES:
                yield group
                group = []
            group.append(part)
        if group:
            yield group

    def _picked(self, start: int, stop: int, of: Callable[[Frame, list[Root]], Sequence[T]]) -> list[T]:
        """What `of` gives for each tuple of a frame, of these tuples; each of their frames is decoded once."""
        found: list[Any] = [None] * (stop - start)
        frames, positions = self._frames[start:stop], self._positions[start:stop]
        order = np.argsort(frames, kind="stable")
        starts = np.flatnonzero(np.diff(frames[order], prepend=-1))
        for begin, end in pairwise([*starts.tolist(), len(order)]):
            mine = order[begin:end]
            given = of(*self._decoded.at(int(frames[mine[0]])))
            for at, position in zip(mine.tolist(), positions[mine].tolist(), strict=True):
                found[at] = given[position]
        return found


def _made(frame: Frame) -> Iterable[int | None]:
    return repeat(None, frame.size) if frame.made is None else frame.made


def _frame(like: Frame, edge: int, tuples: Sequence[tuple[Any, Root, int | None]]) -> Frame:
    roots: list[Root] = []
    ends: list[int] = []
    for at, (_, root, _) in enumerate(tuples, 1):
        if roots and root != UNTRACKED and roots[-1] == root:
            ends[-1] = at
        else:
            roots.append(root)
            ends.append(at)
    values = [value for value, _, _ in tuples]
    made = None if like.made is None else [number for _, _, number in tuples if number is not None]
    return Frame(like.task, like.component, like.stream, values, roots, ends, edge, made, like.source)


def _joined(parts: list[I64]) -> I64:
    return np.concatenate([np.empty(0, np.int64), *parts])
