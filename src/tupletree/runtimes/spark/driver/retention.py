"""Retention: removes files of the state directory that are archived, or that no entry names any more."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tupletree.durable import DRAFT_NAME, open_file, read_header
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.spark.driver.archive import ArchivedEpoch, archive, trim
from tupletree.runtimes.spark.format.carryover import CarryOver, files_of
from tupletree.runtimes.spark.format.entries import (
    EpochHeader,
    amendment_path,
    epoch_path,
    numbered,
    read_epoch_header,
    read_settle,
    settle_path,
)
from tupletree.runtimes.spark.format.segments import epoch_of_segment
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.publish import remove
from tupletree.runtimes.spark.worker.crash_markers import sweep_markers
from tupletree.sinks.files import CANDIDATE_PREFIX, sweep
from tupletree.state.versions import STATE_SUFFIX, StateFile

_EPOCH_IN_NAME = re.compile(r"\d{6}-(\d{8})-\d{3}-")


def sweep_epochs(directory: StateDirectory, base: int, needed: set[int], history_max_bytes: int, taken: float) -> None:
    """Archive the epochs before a base, and remove their files.

    Args:
        directory: the state directory.
        base: an epoch whose settle entry holds a base; it and all later epochs stay.
        needed: epochs whose log is still needed, because a tree of theirs is open.
        history_max_bytes: the size of the archive; the oldest blocks beyond it are removed.
        taken: the oldest epoch that is in the name of a segment which a log may come to name.
    """
    epochs = [epoch for epoch in numbered(directory.epochs, ".epoch") if epoch < base and epoch not in needed]
    settled = [epoch for epoch in numbered(directory.settles, ".settle") if epoch < base and epoch not in needed]
    archived = [_archived(directory, epoch) for epoch in epochs if epoch in set(settled)]
    crash_point("sweep.before_history")
    if archived:
        archive(directory.history, archived)
        trim(directory.history, history_max_bytes)
    crash_point("sweep.after_history")
    remove(epoch_path(directory.epochs, epoch) for epoch in epochs)
    # An entry is removed after its epoch log, never before.
    remove(amendment_path(directory.settles, epoch) for epoch in settled)
    remove(settle_path(directory.settles, epoch) for epoch in settled)
    sweep_segments(directory, min(base, taken))
    crash_point("sweep.after")


def sweep_segments(directory: StateDirectory, before: float) -> None:
    """Remove segments that no log names: of logs that are gone, and of attempts that were lost.

    Args:
        directory: the state directory.
        before: those that an epoch from this one on may still come to name stay.
    """
    old = [path for path in directory.segments.glob("*.segment") if epoch_of_segment(path.name) < before]
    if old:
        headers = (read_epoch_header(directory.epochs, epoch) for epoch in numbered(directory.epochs, ".epoch"))
        named = {one.file for header in headers for one in header.segments}
        remove(path for path in old if path.name not in named)


def _archived(directory: StateDirectory, epoch: int) -> ArchivedEpoch:
    path = epoch_path(directory.epochs, epoch)
    header, offset = read_header(path, EpochHeader)
    with open_file(path) as file:
        file.seek(offset)
        messages = file.read(header.messages_length)
    return ArchivedEpoch(messages, read_settle(directory.settles, epoch, directory.upgrades), header.splits)


def sweep_orphans(
    directory: StateDirectory,
    sinks: Mapping[str, str],
    published: int,
    state: Mapping[str, list[StateFile]],
    kept: Mapping[str, dict[int, CarryOver]],
    waiting: Collection[str],
) -> None:
    """Remove what killed starts of this run left behind: candidates and state files that no entry names.

    Files of later epochs stay: an older start that still runs may commit them, and then they are needed.

    Args:
        directory: the state directory.
        sinks: sink → its folder.
        published: the newest epoch that is settled and published.
        state: the committed version of the keyed state.
        kept: the committed version of kept frames.
        waiting: committed candidates, and their sidecars, that are not published yet.
    """
    sweep_markers(directory.marks, published)
    mine = f"{CANDIDATE_PREFIX}{directory.run_id[:8]}-"
    for folder in sinks.values():
        sweep(
            Path(folder),
            lambda name: name.startswith(mine) and name not in waiting and _epoch_of(name) <= published,
        )
    needed = files_of(directory.kept, kept)
    remove(path for path in directory.kept.glob("*.kept") if path not in needed and _epoch_of(path.name) <= published)
    named = {file.name for files in state.values() for file in files}
    remove(
        path
        for path in directory.state.glob("*/*")
        if path.suffix == STATE_SUFFIX and path.name not in named and _epoch_of(path.name) <= published
    )


def sweep_drafts(directory: StateDirectory) -> None:
    """Remove half-written files of killed starts. An older start that still runs fails when its draft is gone."""
    folders = (
        directory.epochs,
        directory.settles,
        directory.dead,
        directory.history,
        directory.spools,
        directory.segments,
    )
    for place in (directory.path, *folders, directory.path / "generations"):
        remove(path for path in place.glob("_*") if DRAFT_NAME.fullmatch(path.name))


def _epoch_of(name: str) -> int:
    """The epoch in the name of a candidate or state file (GENERATION-EPOCH-RUN-…)."""
    found = _EPOCH_IN_NAME.search(name)
    return int(found[1]) if found else -1
