"""The ordered input of a task: what an epoch has for it, in the order of its messages' numbers.

All that an epoch has for a task is there before the task works, so sorting it is enough for the order within a run.
What the driver must know to decide whether the run counts, it is told: which messages had which keys here (`Arrivals`).

What is behind something that waits, as far as that is known here, is not worked: the driver would put it back all the
same, and a call that is not made changes nothing outside. That is known of what waits since before the run, and of
what fails in this task.

Frames that come in order are worked as they are. Others are laid out anew (`lined_up`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from tupletree.data.frames import UNTRACKED, Frame, Root, roots_of
from tupletree.routing.hashing import stable_hash
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.epoch_messages import I64
from tupletree.runtimes.spark.worker.edges import Edges
from tupletree.runtimes.spark.worker.lined_up import Decoded, LinedUp, Queued, Tuples, root_of_each
from tupletree.state.keys import KeyFunctions, ordered_keys
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.tracking.key_lines import ANY

PlacesOf = Callable[[wire.U64], tuple[I64, I64]]
"""Roots → the numbers of their spout tasks; and those of their messages, each that of its first emission, or 0."""

Held = Iterable[tuple[int, int, int]]
"""(spout task, hash of a key or `ANY`, number of the first message that waits) of what waits at an ordered bolt."""


class OrderedInput:
    """See the module docstring: what comes to one task in one run.

    Args:
        keys: of its ordered inputs, how tuples become keys.
        places_of: see `PlacesOf`.
        held: see `Held`.
        left_out: roots that the run must not touch.
        place: numbers that no other task of this run has, nor any sender.
        one_by_one: of a frame, calls go on side by side: none has two tuples of a key.
        by_source: the bolt may ask which task sent a tuple.
    """

    def __init__(
        self,
        keys: KeyFunctions,
        places_of: PlacesOf,
        held: Held,
        left_out: set[int],
        place: tuple[int, ...],
        *,
        one_by_one: bool = False,
        by_source: bool = False,
    ) -> None:
        self._keys_of = keys
        self._places_of = places_of
        self._held = {(task, key): number for task, key, number in held}
        self._in_hand: Frame | None = None
        self._index: _Index | None = None
        self._left_out = left_out
        self._place = place
        self._one_by_one = one_by_one
        self._by_source = by_source
        self._hashes: dict[Any, int] = {}
        self._arrived: list[wire.Arrivals] = []
        self._keys_by_root: dict[int, list[int]] | None = None

    @classmethod
    def of(
        cls,
        spec: TopologySpec,
        component: ComponentSpec,
        places_of: PlacesOf,
        held: Mapping[str, Held],
        left_out: set[int],
        place: tuple[int, ...],
    ) -> OrderedInput | None:
        """That of a task; None if its component has none."""
        keys = ordered_keys(spec, component)
        if not keys:
            return None
        body: BoltSpec = component.body
        return cls(
            keys,
            places_of,
            held.get(component.name, ()),
            left_out,
            place,
            one_by_one=body.is_async and body.concurrency > 1,
            by_source=body.style == "class" or "context" in body.inject.values(),
        )

    # --- before the task works --------------------------------------------------------------------------------

    def line_up(self, queued: Queued, skip: AbstractSet[int], edges: Edges) -> LinedUp | None:
        """Note what has come, and find its order; None if that is the order in which it came.

        Args:
            queued: the frames.
            skip: roots that have failed, or are left out: their tuples are not worked.
            edges: of the run; entered for the frames that are laid out anew.
        """
        tuples, decoded = Tuples(), Decoded(queued, self._left_out)
        latest: dict[int, int] = {}
        for index in range(len(decoded)):
            frame, each = decoded.at(index)
            hashes = self._note(frame, each)
            tuples.add(frame, self._numbers(frame, latest), hashes if self._one_by_one else None)
        if not self._one_by_one and tuples.is_in_order:
            return None
        return LinedUp.of(decoded, tuples, skip, edges, self._place, by_source=self._by_source)

    def arrivals(self) -> wire.Arrivals | None:
        """Which messages had which keys; None: no tracked tuple came to an ordered input."""
        if not self._arrived:
            return None
        roots = np.concatenate([one for one, _ in self._arrived])
        hashes = np.concatenate([one for _, one in self._arrived])
        order = np.lexsort((hashes, roots))
        roots, hashes = roots[order], hashes[order]
        first = np.ones(len(roots), np.bool_)
        first[1:] = (roots[1:] != roots[:-1]) | (hashes[1:] != hashes[:-1])
        return roots[first], hashes[first]

    def _numbers(self, frame: Frame, latest: dict[int, int]) -> I64:
        """The number of each tuple: of several messages the latest, as none may come before one of its own.

        What belongs to no message stays behind all that its sender had sent before it (`latest`, by sender).
        """
        ends = np.array([0, *frame.ends], dtype=np.int64)
        widths = ends[1:] - ends[:-1]
        if not any(isinstance(root, tuple) for root in frame.roots):
            numbers = self._places_of(np.array(frame.roots, dtype=np.uint64))[1]
        else:
            found = [self._places_of(np.array(roots_of(root), dtype=np.uint64))[1] for root in frame.roots]
            numbers = np.array([max(one.tolist(), default=0) for one in found], dtype=np.int64)
        numbers = np.repeat(numbers, widths)
        if frame.size:
            newest = np.maximum.accumulate(np.maximum(numbers, latest.get(frame.source, 0)))
            latest[frame.source] = int(newest[-1])
            numbers = np.where(numbers == 0, newest, numbers)
        return numbers

    def _note(self, frame: Frame, each: list[Root]) -> list[int] | None:
        """The hash of each tuple's key; None for an input that is not ordered."""
        hashes = self._hashed(frame)
        if hashes is None:
            return None
        if any(isinstance(root, tuple) for root in frame.roots):
            pairs = [(one, key) for root, key in zip(each, hashes, strict=True) for one in roots_of(root)]
            columns = np.array(pairs, dtype=np.uint64).reshape(-1, 2)
            roots, keys = columns[:, 0], columns[:, 1]
        else:
            roots, keys = np.array(each, dtype=np.uint64), np.array(hashes, dtype=np.uint64)
        tracked = roots != UNTRACKED
        if tracked.any():
            self._arrived.append((roots[tracked], keys[tracked]))
        return hashes

    def _hashed(self, frame: Frame) -> list[int] | None:
        keys_of = self._keys_of.get((frame.component, frame.stream))
        if keys_of is None or not frame.size:
            return None
        keys = keys_of(frame.values)
        if set(map(type, keys)) != {str}:  # 1, 1.0 and True are equal, and three keys
            return list(map(stable_hash, keys))
        known = self._hashes
        for key in keys:
            if key not in known:
                known[key] = stable_hash(key)
        return [known[key] for key in keys]

    # --- while it works ---------------------------------------------------------------------------------------

    def admit(self, frame: Frame) -> set[int]:
        """The messages of the next frame that are behind something that waits: they are not to be worked."""
        self._in_hand, self._index = frame, None
        if not self._held:
            return set()
        found: set[int] = set()
        for root, (task, number, keys) in self._index_of(frame).messages.items():
            if any(self._held.get((task, key), number) < number for key in (*keys, ANY)):
                found.add(root)
                self._hold(task, number, keys)
        return found

    def behind(self, failed: Iterable[int]) -> set[int]:
        """These failed: which messages of the frame in hand are to wait for them. See `FailureMaker.behind`."""
        wanted = [*failed]
        tasks, numbers = self._places_of(np.array(wanted, dtype=np.uint64))
        known = self._known_keys()
        left = [
            (task, number, known.get(root, []))
            for root, task, number in zip(wanted, tasks.tolist(), numbers.tolist(), strict=True)
        ]
        found: set[int] = set()
        index = _Index({}) if self._in_hand is None else self._index_of(self._in_hand)
        while left:
            task, number, keys = left.pop()
            self._hold(task, number, keys)
            for key in keys:
                for root in index.take(task, key, number):
                    if root not in found:
                        found.add(root)
                        left.append(index.messages[root])
        return found - {*wanted}

    def _known_keys(self) -> dict[int, list[int]]:
        """The keys of each message that came here; made when the first one fails."""
        if self._keys_by_root is None:
            self._keys_by_root = {}
            for roots, hashes in self._arrived:
                for root, key in zip(roots.tolist(), hashes.tolist(), strict=True):
                    self._keys_by_root.setdefault(root, []).append(key)
        return self._keys_by_root

    def _index_of(self, frame: Frame) -> _Index:
        if self._index is None:
            keys: dict[int, list[int]] = {}
            for root, key in zip(root_of_each(frame), self._hashed(frame) or (), strict=False):
                for one in roots_of(root):
                    keys.setdefault(one, []).append(key)
            tasks, numbers = self._places_of(np.array([*keys], dtype=np.uint64))
            self._index = _Index(dict(zip(keys, zip(tasks.tolist(), numbers.tolist(), keys.values()), strict=True)))
        return self._index

    def _hold(self, task: int, number: int, keys: Iterable[int]) -> None:
        for key in keys:
            self._held[task, key] = min(number, self._held.get((task, key), number))


class _Index:
    """The messages of a frame in order: root → (spout task, number, hashes of keys); and by key."""

    def __init__(self, messages: dict[int, tuple[int, int, list[int]]]) -> None:
        self.messages = messages
        self._by_key: dict[tuple[int, int], list[int]] = {}
        for root, (task, _, keys) in messages.items():
            for key in keys:
                self._by_key.setdefault((task, key), []).append(root)

    def take(self, task: int, key: int, number: int) -> list[int]:
        """Those of a key behind a number; each is given once, for it waits from then on."""
        line = self._by_key.pop((task, key), [])
        found = [root for root in line if self.messages[root][1] > number]
        if len(found) < len(line):
            self._by_key[task, key] = [root for root in line if self.messages[root][1] <= number]
        return found
