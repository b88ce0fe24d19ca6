"""Inputs that are grouped by `fields(…, ordered=True)`: which tuples may be worked now, and which wait for others.

Owns the tuples that wait in front of one task. A tuple is worked when everything that its source emitted before has
come to this input (`tasks.upstream.in_order`), and what came earlier for its keys was worked here: a call succeeded.
What fails keeps its keys until its next attempt has been worked, or its message is dead. Tuples of one message in one
frame wait and go together. A message waits only for those that were emitted before it, so no two wait for each other.

A frame is worked at full speed as long as nothing fails: it may have several tuples of a key. When one fails, those of
its key behind it in the same frame get the verdict `BEHIND` at once (`FailureMaker.behind`), are not called, and wait.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Final

from tupletree.bolts.effects import Worked
from tupletree.bolts.failures import BEHIND, safe_text
from tupletree.data.frames import Frame, picked, roots_of
from tupletree.state.keys import KeyFunctions
from tupletree.tasks.upstream.in_order import OrderedInputs
from tupletree.tracking.holds import Hold

LOOK_FOR_EARLIER_S = 0.002
"""How soon a task looks whether what is earlier has come, after something came or was worked."""

LOOK_SHARE = 8
"""After that, the pauses between looks are this part of the time that it has waited."""

LOOK_AT_LEAST_S = 0.1
"""No pause between looks is longer."""

NO_SPOUT: Final = -1
"""In the place of a spout task, for tuples of no message: they wait for nothing."""

_Key = tuple[int, Any]
"""(spout task, key)"""


class _Part:
    """The tuples of one message, or of several that share tuples, in one frame."""

    __slots__ = ("frame", "is_gone", "is_in_hand", "keys", "number", "rank", "roots", "segments", "size", "spout_task")

    def __init__(self, frame: Frame, rank: int, segments: list[int], roots: set[int], keys: set[Any]) -> None:
        self.frame = frame
        self.rank = rank  # unique, in order of arrival
        self.segments = segments
        self.roots = roots
        self.keys = keys
        self.size = 0
        self.spout_task = NO_SPOUT
        self.number = 0
        self.is_in_hand = self.is_gone = False

    def __lt__(self, other: _Part) -> bool:
        return (self.number, self.rank) < (other.number, other.rank)

    def lines(self) -> Iterator[_Key]:
        """What it stands in line for."""
        return ((self.spout_task, key) for key in self.keys)


# More than 12 attributes: one task's tuples in the places where they wait, and the lines that say who is next.
class OrderedInput:
    """See the module docstring. One thread calls it.

    Args:
        component: the task's.
        inputs: what may still come.
        keys: of its ordered inputs, how tuples become keys; tuples of others are worked at once.
        one_by_one: calls of one key do not follow each other within a frame: they go on side by side.
    """

    def __init__(self, component: str, inputs: OrderedInputs, keys: KeyFunctions, *, one_by_one: bool = False) -> None:
        self._component = component
        self._inputs = inputs
        self._keys_of = keys
        self._one_by_one = one_by_one
        self._rank = 0
        self._coming: dict[int, list[_Part]] = {}  # by spout task, heaps: wait until all that is earlier has come
        self._ready: list[_Part] = []  # may be next, a heap
        self._lines: dict[_Key, list[_Part]] = {}  # not worked yet, in order
        self._failed: dict[_Key, list[int]] = {}  # numbers of messages that are to come again, in order
        self._failed_keys: dict[tuple[int, int], set[Any]] = {}
        self._behind: dict[_Key, list[_Part]] = {}  # heaps: parked until something changes for the key
        self._parts: dict[int, list[_Part]] = {}  # by root
        self._chosen: dict[_Key, int] = {}
        self._waits_since_s: float | None = None  # for nothing came and nothing was worked since; None: no look was yet
        self._waited_s = 0.0

    # --- tuples come and go -----------------------------------------------------------------------------------

    def add(self, frame: Frame) -> set[int]:
        """Take a frame; returns the attempts that are over, whose tuples are not to be worked."""
        keys_of = self._keys_of.get((frame.component, frame.stream))
        found = self._split(frame, None if keys_of is None else keys_of(frame.values))
        over: set[int] = set()
        self._waits_since_s = None
        for part in found:
            if not self._place(part, ordered=keys_of is not None):
                over |= part.roots
                continue
            for line in part.lines():
                insort(self._lines.setdefault(line, []), part)
            for root in part.roots:
                self._parts.setdefault(root, []).append(part)
            is_free = part.spout_task == NO_SPOUT
            heapq.heappush(self._ready if is_free else self._coming.setdefault(part.spout_task, []), part)
        self._inputs.came(frame)
        return over

    def _split(self, frame: Frame, keys: list[Any] | None) -> list[_Part]:
        parts: dict[int, _Part] = {}  # by root
        found: list[_Part] = []
        start = 0
        for segment, (root, end) in enumerate(zip(frame.roots, frame.ends, strict=True)):
            ones = roots_of(root)
            part = next((parts[one] for one in ones if one in parts), None)
            if part is None:
                self._rank += 1
                part = _Part(frame, self._rank, [], set(), set())
                found.append(part)
            part.segments.append(segment)
            part.size += end - start
            for one in ones:
                other = parts.get(one)
                if other is not None and other is not part:
                    _join(part, other)
                    found.remove(other)
                    parts.update(dict.fromkeys(other.roots, part))
                parts[one] = part
                part.roots.add(one)
            if keys is not None:
                part.keys.update(keys[start:end])
            start = end
        return found

    def _place(self, part: _Part, *, ordered: bool) -> bool:
        """Find where a part stands; False if all its messages are over."""
        if not part.roots:
            part.keys.clear()
            return True
        positions = [position for one in part.roots if (position := self._inputs.position(one)) is not None]
        if positions and ordered:
            part.spout_task, part.number = max(positions, key=lambda position: position[1])
        else:
            part.keys.clear()
        return bool(positions)

    def next_frame(self, most: int) -> Frame | None:
        """The next tuples that may be worked, about so many; None: there are none now.

        What came before is worked, except in the case of calls that go on side by side.
        """
        self._admit()
        chosen: list[_Part] = []
        self._chosen.clear()
        size = 0
        while self._ready:
            part = self._ready[0]
            if chosen and not _follows(part, chosen[-1]):
                break
            if size >= most > 0:
                break
            heapq.heappop(self._ready)
            if part.is_gone or part.is_in_hand:
                continue
            line = self._waits_in(part)
            if line is not None:
                heapq.heappush(self._behind.setdefault(line, []), part)
                continue
            for one in part.lines():
                self._chosen[one] = self._chosen.get(one, 0) + 1
            chosen.append(part)
            size += part.size
        if not chosen:
            return None
        self._waits_since_s = None
        for part in chosen:
            part.is_in_hand = bool(part.roots)
        return _frame_of(chosen)

    def _admit(self) -> None:
        """Parts for which all that is earlier has come may be worked, as far as their keys allow."""
        for spout_task, parts in self._coming.items():
            if parts:
                limit = self._inputs.earliest(self._component, spout_task)
                while parts and (parts[0].is_gone or limit is None or parts[0].number <= limit):
                    part = heapq.heappop(parts)
                    if not part.is_gone:
                        heapq.heappush(self._ready, part)

    def _waits_in(self, part: _Part) -> _Key | None:
        """The line in which an earlier one stands before it, if any."""
        for line in part.lines():
            failed = self._failed.get(line)
            if failed and failed[0] < part.number:
                return line
            parts = self._lines[line]
            if self._one_by_one:
                if parts[0] is not part:
                    return line
            elif parts[self._chosen.get(line, 0)] is not part:
                return line
        return None

    # --- verdicts ---------------------------------------------------------------------------------------------

    def take_back(self, worked: Worked) -> None:
        """What waits for a tuple that failed in its frame is no failure: it waits here."""
        for root in [root for root, failure in worked.failures.items() if failure is BEHIND]:
            del worked.failures[root]
            for part in self._parts.get(root, ()):
                if part.is_in_hand:
                    part.is_in_hand = False
                    heapq.heappush(self._ready, part)

    def settle(self, worked: Worked) -> None:
        """Take what became of tuples in hand."""
        failures = worked.failures
        for frame_id, roots in worked.done:
            for root in roots:
                for one in roots_of(root):
                    if one not in failures:
                        self._note_worked(one, frame_id)
        for root in failures:
            self._drop(root)

    def _note_worked(self, root: int, frame_id: int) -> None:
        parts = self._parts.get(root)
        if parts is None:
            return
        for part in [one for one in parts if one.is_in_hand and one.frame.id == frame_id]:
            self._remove(part)
            known = self._failed_keys.get((part.spout_task, part.number))
            if known is not None:
                self._release_failed((part.spout_task, part.number), part.keys & known)

    def _remove(self, part: _Part) -> None:
        part.is_gone, part.is_in_hand = True, False
        for root in part.roots:
            left = [one for one in self._parts.get(root, ()) if one is not part]
            if left:
                self._parts[root] = left
            else:
                self._parts.pop(root, None)
        for line in part.lines():
            parts = self._lines[line]
            parts.remove(part)
            if not parts:
                del self._lines[line]
            self._wake(line)

    def _drop(self, root: int) -> None:
        """An attempt failed: its tuples go, and its keys stay until it has come again."""
        for part in [*self._parts.get(root, ())]:
            if part.roots != {root} and any(self._inputs.position(one) for one in part.roots - {root}):
                part.roots.discard(root)
                self._parts[root] = [one for one in self._parts[root] if one is not part]
                continue
            if part.spout_task != NO_SPOUT:
                known = self._failed_keys.setdefault((part.spout_task, part.number), set())
                for line in part.lines():
                    if line[1] not in known:
                        known.add(line[1])
                        insort(self._failed.setdefault(line, []), part.number)
            self._remove(part)
        self._parts.pop(root, None)

    def _release_failed(self, message: tuple[int, int], keys: AbstractSet[Any]) -> None:
        spout_task, number = message
        known = self._failed_keys[message]
        for key in [*keys]:
            known.discard(key)
            line = spout_task, key
            self._failed[line].remove(number)
            if not self._failed[line]:
                del self._failed[line]
            self._wake(line)
        if not known:
            del self._failed_keys[message]

    def _wake(self, line: _Key) -> None:
        """Something changed for a key. Where its calls go on one by one, only the first of those parked can be next."""
        parked = self._behind.pop(line, [])
        while parked:
            part = heapq.heappop(parked)
            if not part.is_gone:
                heapq.heappush(self._ready, part)
                if self._one_by_one:
                    break
        if parked:
            self._behind[line] = parked

    def purge(self, roots: Iterable[int]) -> None:
        """These attempts are over: they failed elsewhere, or their messages are dead."""
        for root in roots:
            if root in self._parts and self._inputs.position(root) is None:
                self._drop(root)
        self._let_go()

    def look(self, now_s: float) -> None:
        """Let go of the keys of messages that are over, and note how long nothing has come; see `look_in_s`."""
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        self._waited_s = now_s - self._waits_since_s
        self._let_go()

    def _let_go(self) -> None:
        for message in [one for one in self._failed_keys if not self._inputs.holds_up(*one)]:
            self._release_failed(message, {*self._failed_keys[message]})

    def behind(self, failed: Iterable[int]) -> set[int]:
        """The messages in hand that wait for these, of the same frame: they come later, for a key of theirs."""
        found: set[int] = set()
        seen: set[_Key] = set()  # from the first part on, which came first
        left = [part for root in failed for part in self._parts.get(root, ()) if part.is_in_hand]
        heapq.heapify(left)
        while left:
            part = heapq.heappop(left)
            for line in part.lines():
                if line in seen:
                    continue
                seen.add(line)
                parts = self._lines[line]
                for other in islice(parts, bisect_right(parts, part), None):
                    if not other.is_in_hand:
                        break
                    if not found.issuperset(other.roots):
                        found |= other.roots
                        heapq.heappush(left, other)
        return found

    # --- questions --------------------------------------------------------------------------------------------

    @property
    def is_holding(self) -> bool:
        """Whether any tuple waits here."""
        return bool(self._behind or self._ready or self.looks_again)

    @property
    def looks_again(self) -> bool:
        """Whether something waits for what is still to come: nobody tells when that has changed."""
        return any(self._coming.values())

    @property
    def look_in_s(self) -> float:
        """How long after a look the next one is due, while anything waits."""
        if not self.looks_again:
            return LOOK_AT_LEAST_S
        waited_s = 0.0 if self._waits_since_s is None else self._waited_s
        return min(max(waited_s / LOOK_SHARE, LOOK_FOR_EARLIER_S), LOOK_AT_LEAST_S)

    def waiting_roots(self) -> list[int]:
        """The attempts of which tuples wait."""
        return [root for root, parts in self._parts.items() if not all(part.is_in_hand for part in parts)]

    def holds(self, root: int) -> list[Hold]:
        """What holds tuples of this attempt."""
        found = []
        for part in self._parts.get(root, ()):
            if not part.is_in_hand:
                line = next((line for line in part.lines() if part in self._behind.get(line, ())), None)
                found.append(
                    Hold("order", self._component)
                    if line is None
                    else Hold("key", self._component, key=safe_text(line[1], 100))
                )
        return found

    def held_now(self) -> list[Hold]:
        """How many tuples wait, by what."""
        behind = sum([part.size for parts in [*self._behind.values()] for part in parts if not part.is_gone])
        coming = sum([part.size for parts in [*self._coming.values()] for part in parts if not part.is_gone])
        counts: list[tuple[Any, int]] = [("key", behind), ("order", coming)]
        return [Hold(kind, self._component, count) for kind, count in counts if count]


def _join(part: _Part, other: _Part) -> None:
    part.segments = sorted([*part.segments, *other.segments])
    part.size += other.size
    part.keys |= other.keys


def _follows(part: _Part, before: _Part) -> bool:
    """Whether two parts can be worked as one frame, in this order."""
    return (
        part.frame is before.frame
        and part.segments[0] > before.segments[-1]
        and all(one.segments[-1] - one.segments[0] + 1 == len(one.segments) for one in (part, before))
    )


def _frame_of(parts: list[_Part]) -> Frame:
    frame = parts[0].frame
    segments = {segment for part in parts for segment in part.segments}
    if len(segments) == len(frame.roots):
        return frame
    return picked(frame, [segment in segments for segment in range(len(frame.roots))])
