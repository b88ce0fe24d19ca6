"""Sweeping: what may go from the state directory, and what is kept of it as history for `why`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tupletree.runtimes.crash import crash_point
from tupletree.runtimes.history import HistoryEvent, trim, write_block
from tupletree.runtimes.spark.journal import (
    EpochHeader,
    SettleEntry,
    epoch_path,
    numbered,
    read_epoch,
    read_settle,
    settle_path,
)
from tupletree.runtimes.spark.publishing import remove
from tupletree.runtimes.spark.recovery import logged_messages
from tupletree.runtimes.spark.statedir import StateDirectory
from tupletree.sinks.files import CANDIDATE_PREFIX, sweep
from tupletree.tracking.identity import plain_id
from tupletree.tracking.outcomes import Failure

__all__ = ["events_of", "sweep_epochs", "sweep_orphans"]


def sweep_epochs(
    directory: StateDirectory, base: int, needed: set[int], spout_of: Mapping[int, str], history_max_bytes: int
) -> None:
    """Turn the epochs before a base into history, and remove their files.

    Args:
        directory: the state directory.
        base: an epoch whose settle entry holds a base; it and all later ones stay.
        needed: epochs whose log is still wanted, because a tree of theirs is open.
        spout_of: spout task → component.
        history_max_bytes: the oldest history goes once there is more.
    """
    epochs = [epoch for epoch in numbered(directory.epochs, ".epoch") if epoch < base and epoch not in needed]
    settled = set(numbered(directory.settles, ".settle"))
    events = [
        event
        for epoch in epochs
        if epoch in settled
        for event in events_of(*_read(directory, epoch), spout_of=spout_of)
    ]
    crash_point("sweep.before_history")
    if events:
        write_block(directory.history, epochs[0], base - 1, events)
        trim(directory.history, history_max_bytes)
    crash_point("sweep.after_history")
    remove(epoch_path(directory.epochs, epoch) for epoch in epochs)
    # An entry outlives its epoch log, never the other way round: `needed` epochs keep theirs.
    remove(settle_path(directory.settles, epoch) for epoch in settled if epoch < base and epoch not in needed)
    crash_point("sweep.after")


def events_of(
    header: EpochHeader, body: memoryview, entry: SettleEntry | None, *, spout_of: Mapping[int, str]
) -> list[HistoryEvent]:
    """What happened to each message of an epoch; without an entry it is still in flight."""
    failed: dict[int, Failure] = {}
    dead: set[int] = set()
    other: dict[int, str] = {}
    if entry is not None:
        failed = {root: attempt.failure for attempt in entry.failed for root in attempt.roots}
        dead = {one.root for one in entry.dead}
        other = dict.fromkeys(entry.put_back, "put back")
        other.update({tree.root: "open" for tree in entry.opened})
    events: list[HistoryEvent] = []
    for message in logged_messages(header, body):
        root = message.root
        what = "in flight" if entry is None else other.get(root, "acked")
        detail = ""
        if root in failed:
            failure = failed[root]
            what = "dead" if root in dead else "failed"
            where = f"{failure.component} task {failure.task_id}: " if failure.component else ""
            detail = f"{where}{failure.error_type or failure.kind.value}: {failure.error}".partition("\n")[0]
        events.append(
            HistoryEvent(
                time_s=entry.time_s if entry is not None else header.time_s,
                epoch=header.epoch,
                spout=spout_of.get(message.task, str(message.task)),
                message_id=plain_id(message.message_id),
                attempt=message.attempt,
                root_hex=f"{root:016x}",
                what=what,
                detail=detail,
            )
        )
    return events


def _read(directory: StateDirectory, epoch: int) -> tuple[EpochHeader, memoryview, SettleEntry]:
    header, body = read_epoch(directory.epochs, epoch)
    return header, body, read_settle(directory.settles, epoch)


def sweep_orphans(directory: StateDirectory, sinks: Mapping[str, str], last: SettleEntry | None) -> None:
    """Remove what killed starts of this run left behind: candidates and state files that no entry names."""
    mine = f"{CANDIDATE_PREFIX}{directory.run_id[:8]}-"
    for folder in sinks.values():
        sweep(Path(folder), lambda name: name.startswith(mine))
    named = {file.name for tasks in (last.state.values() if last else ()) for files in tasks.values() for file in files}
    remove(
        path for path in directory.state.glob("*/*") if path.name not in named and path.suffix in {".base", ".delta"}
    )
    for place in (directory.epochs, directory.settles, directory.dead):
        remove(place.glob("_*"))
