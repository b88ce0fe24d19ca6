"""Versions: which segments make up a component's state, and which of them a task merges when it writes.

A version is a list of segments, oldest first, each with the run of key groups that it counts for. A task of any
parallelism reads those that meet its own groups, so a change of parallelism moves no data. Pure: names and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tupletree.routing.hashing import KEY_GROUPS, task_of_group

STATE_SUFFIX = ".state"

MAX_FILES = 24
"""Segments that one task reads at most: beyond, it merges them all."""

GROWTH = 2
"""A segment is merged into the next write unless it has more than this many times as many records as that."""


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """A segment, as the settle entry names it.

    Attributes:
        name: its file name.
        first_group, end_group: the key groups that it counts for; of task state, the task indexes.
        records: how many records it has, keys that are gone among them.
        size_bytes: its length.
        half_expires_s: when half of its records will have expired, since the Unix epoch; None if nothing expires.
    """

    name: str
    first_group: int
    end_group: int
    records: int
    size_bytes: int = 0
    half_expires_s: float | None = None

    @property
    def groups(self) -> range:
        """The key groups that it counts for."""
        return range(self.first_group, self.end_group)


def groups_of_task(index: int, parallelism: int) -> range:
    """The run of key groups that a task owns; empty if there are more tasks than groups."""
    owned = [group for group in range(KEY_GROUPS) if task_of_group(group, parallelism) == index]
    return range(owned[0], owned[-1] + 1) if owned else range(0)


def files_of(version: Iterable[StateFile], groups: range) -> list[StateFile]:
    """The segments that count for any of these groups, oldest first.

    One that was split by changes of parallelism is listed once for each part, side by side.
    """
    return [file for file in version if file.first_group < groups.stop and groups.start < file.end_group]


def newest_to_merge(files: Sequence[StateFile], changed: int, now_s: float) -> int:
    """How many of the newest files a write of `changed` records takes in.

    Sizes then grow by more than `GROWTH` from each file to the next older one, so that there are as many files as the
    logarithm of the state, and a record is written again about as often (the logarithmic method of Bentley and Saxe,
    1980). A file half of which has expired is taken in as well, so that what expired takes up room for a while only.
    """
    if len(files) >= MAX_FILES:
        return len(files)
    taken, records = 0, changed
    for count, file in enumerate(reversed(files), start=1):
        has_expired = file.half_expires_s is not None and file.half_expires_s <= now_s
        if has_expired or file.records <= GROWTH * records:
            taken = count
            records = changed + sum(one.records for one in files[-count:])
    while 0 < taken < len(files) and files[-taken - 1].name == files[-taken].name:
        taken += 1  # the parts of one file go together
    return taken


def version_after(version: Sequence[StateFile], written: StateFile, merged: Iterable[str]) -> list[StateFile]:
    """The version once a task has written `written`, which stands for `merged` within its groups.

    A segment that counts for more groups than the writer owns (it was written at another parallelism) still counts for
    those.
    """
    gone = set(merged)
    after: list[StateFile] = []
    for file in version:
        if file.name not in gone:
            after.append(file)
            continue
        for first, end in (
            (file.first_group, min(file.end_group, written.first_group)),
            (max(file.first_group, written.end_group), file.end_group),
        ):
            if first < end:
                after.append(msgspec.structs.replace(file, first_group=first, end_group=end))
    return [*after, written]
