"""Key lines: which messages must not count yet, because something earlier for one of their keys waits.

For inputs that are grouped by `fields(…, ordered=True)`, whose components are *ordered bolts*, in a runtime that finds
out what a group of messages did when all of it is done. Pure: the caller says what each message did, and whether it
waits. Order is that of numbers, within one spout task: the first emissions of its messages. A message waits for earlier
ones only, so one pass in the order of numbers is enough, and no two wait for each other, whichever bolts they meet at.

Keys are hashes: two keys with one hash wait for each other, which is more waiting and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

ANY = -1
"""Among the keys of a message at an ordered bolt: not all of them are known, so it may have any."""

Keys = Mapping[str, AbstractSet[int]]
"""Ordered bolt → hashes of a message's keys there, and `ANY`. Absent: it has none there."""

MOST_KEYS = 1000
"""More of a message's keys at an ordered bolt are not remembered: it may have any then."""


class Waiting(NamedTuple):
    """A message that is to be tried again: its keys, and when it goes out at the earliest (monotonic)."""

    keys: Keys
    due_s: float


class Turn(NamedTuple):
    """When what is put back goes out (monotonic), and what it waits for: of several the one that goes out last.

    Attributes:
        due_s: when.
        behind: the number of that message; None: it waits for none.
        bolt: the ordered bolt where they meet.
    """

    due_s: float
    behind: int | None = None
    bolt: str = ""


class Behaviour(NamedTuple):
    """What a message did, in a run that may count or may not.

    Attributes:
        number: of its first emission.
        keys: all that are known. It is behind something for what it is known to have, and holds up what it may have.
        waits: it does not count in any case: it was left out, or put off.
        failed_at: the components that failed it; empty: none did.
        dies: its failure is final, so that nothing waits for it.
        crashed: a worker process ended with it. That is never taken for a consequence of the wrong order.
    """

    number: int
    keys: Keys
    waits: bool = False
    failed_at: AbstractSet[str] = frozenset()
    dies: bool = False
    crashed: bool = False


class _Lines:
    """What waits of one spout task, among the messages met so far; each line with what goes out last of it."""

    def __init__(self) -> None:
        self._any: dict[str, Turn] = {}
        self._last: dict[tuple[str, int], Turn] = {}

    def before(self, keys: Keys) -> dict[str, Turn]:
        """Ordered bolts at which a message with these keys is behind something → what of that goes out last."""
        found: dict[str, Turn] = {}
        for bolt, hashes in keys.items():
            ahead = [turn for one in hashes if (turn := self._last.get((bolt, one))) is not None]
            if bolt in self._any and not hashes <= {ANY}:
                ahead.append(self._any[bolt])
            if ahead:
                found[bolt] = max(ahead, key=_by_due)
        return found

    def join(self, keys: Keys, due_s: float, number: int) -> None:
        """A message with these keys waits."""
        for bolt, hashes in keys.items():
            turn = Turn(due_s, number, bolt)
            if ANY in hashes:
                self._any[bolt] = max(self._any.get(bolt, turn), turn, key=_by_due)
            for one in hashes:
                if one != ANY:
                    self._last[bolt, one] = max(self._last.get((bolt, one), turn), turn, key=_by_due)


def _by_due(turn: Turn) -> tuple[float, int]:
    """What goes out last is last; of what goes out together, what the others wait for."""
    return turn.due_s, -(turn.behind or 0)


def keys_known(arrived: Mapping[str, AbstractSet[int]], missing: Iterable[str]) -> Keys:
    """The keys of a message: those that arrived at ordered bolts, of which the `missing` did not see all of them."""
    known: dict[str, AbstractSet[int]] = dict(arrived)
    for bolt in missing:
        known[bolt] = {*known.get(bolt, ()), ANY}
    return known


def remembered(keys: Keys) -> Keys:
    """What is remembered of the keys of a message that waits."""
    return {bolt: frozenset(hashes) if len(hashes) <= MOST_KEYS else frozenset({ANY}) for bolt, hashes in keys.items()}


def behind(messages: Iterable[Behaviour], below: Mapping[str, AbstractSet[str]]) -> set[int]:
    """The messages of a spout task, by number, that must not count now although nothing else speaks against them.

    Those that have a key of something earlier that waits, and what is behind these in turn. Among them are messages
    that failed at the ordered bolt where they are behind, or further on: the wrong order may be the reason. The first
    one that failed is never among them.

    Args:
        messages: in any order; those that did nothing at an ordered bolt, and did not fail, may be left out.
        below: ordered bolt → itself, and every component that something of it comes to.
    """
    lines, found = _Lines(), set()
    for one in sorted(messages, key=lambda one: one.number):
        bolts = lines.before(one.keys)
        if one.failed_at and not one.waits:
            excused = not one.crashed and any(not one.failed_at.isdisjoint(below[bolt]) for bolt in bolts)
            if not excused and one.dies:
                continue
            if excused:
                found.add(one.number)
        elif not one.waits:
            if not bolts:
                continue
            found.add(one.number)
        lines.join(one.keys, 0.0, one.number)
    return found


def turns(waiting: Mapping[int, Waiting], put_back: AbstractSet[int]) -> dict[int, Turn]:
    """When each message that is put back goes out: not before anything that it waits for, so that they go out together.

    Args:
        waiting: all messages of a spout task that wait, by number.
        put_back: those whose due times are only the earliest possible ones.
    """
    lines, found = _Lines(), {}
    for number, one in sorted(waiting.items()):
        due_s = one.due_s
        if number in put_back:
            found[number] = Turn(due_s)
            ahead = lines.before(one.keys)
            if ahead:
                last = max(ahead.values(), key=_by_due)
                found[number] = last._replace(due_s=max(due_s, last.due_s))
            due_s = found[number].due_s
        lines.join(one.keys, due_s, number)
    return found
