"""Marks on held tuples that outlast their task: which of the tuples of a frame something is true of.

Owns a name for a held tuple: the frame that brought it, and its position among those of the frame that are held. A
holder gets all of them back in their order (see `Holder.restore`), so a position then is the same tuple as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tupletree.bolts.held import HeldTuple

Name = tuple[int, int]
"""(frame id, position)."""


def names(chosen: Iterable[HeldTuple]) -> dict[HeldTuple, Name]:
    """The names of the held tuples of all frames that brought any of these."""
    origins = {member.origin.id: member.origin for member in chosen}
    return {
        member: (frame_id, position)
        for frame_id, origin in origins.items()
        for position, member in enumerate(origin.members)
    }


def members_by_name(held: Iterable[HeldTuple]) -> Mapping[Name, HeldTuple]:
    """Every held tuple by its name; `held` are all that came back in a `restore`."""
    origins = {member.origin.id: member.origin for member in held}
    return {
        (frame_id, position): member
        for frame_id, origin in origins.items()
        for position, member in enumerate(origin.members)
    }


def marks(chosen: Iterable[HeldTuple]) -> list[Any]:
    """The marks of these tuples, as plain data."""
    wanted = [member for member in dict.fromkeys(chosen) if member.open]
    known = names(wanted)
    positions: dict[int, list[int]] = {}
    for member in wanted:
        frame_id, position = known[member]
        positions.setdefault(frame_id, []).append(position)
    return [[frame_id, places] for frame_id, places in positions.items()]


def marked(held: Iterable[HeldTuple], stored: Sequence[Any]) -> set[HeldTuple]:
    """Which of the held tuples have one of these marks; `held` are all that came back in a `restore`."""
    if not stored:
        return set()
    known = members_by_name(held)
    found = (known.get((frame_id, position)) for frame_id, positions in stored for position in positions)
    return {member for member in found if member is not None}
