"""Carry-over versions: which files hold the frames that tasks keep for later epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tupletree.tracking.holds import Hold


class CarryOverPart(msgspec.Struct, frozen=True, array_like=True):
    """One part of a version: which part of which file, how many frames it has, and if it is a base."""

    file: str
    number: int
    frames: int
    is_base: bool


class CarryOver(msgspec.Struct, array_like=True):
    """The carry-over of one task.

    Attributes:
        parts: the version, oldest first.
        due_s: the epoch time at which its holder has work to do.
        waits: some of it belongs to messages that wait for another attempt.
        arrives: some of it is to be delivered at the next epoch.
        put_off_since_s: see `Holder.put_off_since_s`.
        tuples: how many there are, without those that other tasks have sent since.
        until_s, in_event_time, watermark_s: when its holder lets go of the first of them; see `Hold`.
    """

    parts: list[CarryOverPart]
    due_s: float | None = None
    waits: bool = False
    arrives: bool = False
    put_off_since_s: float | None = None
    tuples: int = 0
    until_s: float | None = None
    in_event_time: bool = False
    watermark_s: float | None = None

    def hold(self, component: str) -> Hold:
        """How much is held."""
        return Hold("held", component, self.tuples, None, self.until_s, self.in_event_time, self.watermark_s)


class CarryOverReport(msgspec.Struct, array_like=True):
    """The carry-over that a run reports for one task.

    Attributes:
        part: what was added to its version; None if nothing changed.
        own: what the task kept itself, without the parts; None: another task sends it to this one in the next epoch.
        is_empty: nothing is kept for the task any more.
    """

    component: str
    task_index: int
    part: CarryOverPart | None
    own: CarryOver | None = None
    is_empty: bool = False


def carryover_after(
    before: Mapping[str, Mapping[int, CarryOver]], reports: Iterable[CarryOverReport]
) -> dict[str, dict[int, CarryOver]]:
    """The versions that an epoch leaves. What a task keeps itself comes before what others send to it."""
    after = {component: dict(tasks) for component, tasks in before.items()}
    for report in sorted(reports, key=lambda one: one.own is None):
        tasks = after.setdefault(report.component, {})
        old = tasks.get(report.task_index, CarryOver([]))
        parts = [] if report.is_empty or (report.part is not None and report.part.is_base) else old.parts
        if report.part is not None:
            parts = [*parts, report.part]
        if report.own is not None:
            tasks[report.task_index] = replace(report.own, parts=parts)
        else:
            tasks[report.task_index] = replace(old, parts=parts, arrives=True)
    return {
        component: {index: kept for index, kept in tasks.items() if kept.parts} for component, tasks in after.items()
    }


def missing_files(directory: Path, kept: Mapping[str, Mapping[int, CarryOver]]) -> list[Path]:
    """Files that a version names and that are not there."""
    return [path for path in sorted(files_of(directory, kept)) if not path.exists()]


def files_of(directory: Path, kept: Mapping[str, Mapping[int, CarryOver]]) -> set[Path]:
    """The files that a version names."""
    return {directory / part.file for tasks in kept.values() for one in tasks.values() for part in one.parts}
