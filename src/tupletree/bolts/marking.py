"""Marks on held tuples that outlast their task: which of the tuples of a frame something is true of.

Owns a name for a tuple within its frame that stays when messages are taken out of it: its messages, and how many tuples
of the same messages come before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tupletree.frames import roots_of
from tupletree.holding import Member

__all__ = ["marked", "marks"]


def marks(chosen: Iterable[Member]) -> list[Any]:
    """The marks of these tuples, as plain data."""
    wanted = dict.fromkeys(chosen)
    origins = {member.origin.id: member.origin for member in wanted}
    return [
        [frame_id, [[list(roots), number] for member, roots, number in _named(origin.members) if member in wanted]]
        for frame_id, origin in origins.items()
    ]


def marked(held: Iterable[Member], stored: Sequence[Any]) -> set[Member]:
    """Which of the held tuples have one of these marks; `held` are all that is left of their frames."""
    names = {(frame_id, tuple(roots), number) for frame_id, entries in stored for roots, number in entries}
    if not names:
        return set()
    origins = {member.origin.id: member.origin for member in held}
    return {
        member
        for origin in origins.values()
        for member, roots, number in _named(origin.members)
        if (origin.id, roots, number) in names
    }


def _named(members: Iterable[Member]) -> Iterator[tuple[Member, tuple[int, ...], int]]:
    met: Counter[tuple[int, ...]] = Counter()
    for member in members:
        roots = roots_of(member.root)
        yield member, roots, met[roots]
        met[roots] += 1
