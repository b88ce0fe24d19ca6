"""Recovery: the accounts of a run from its journal, after a stop or a kill at any point.

Reads settle entries from the newest base on, then the epoch logs behind them. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tupletree.clock import Clock
from tupletree.durable import missing, sync_directory
from tupletree.runtimes.spark.driver.dropped import drop_stored, of_dropped_spouts, of_spouts, without_dropped
from tupletree.runtimes.spark.driver.rescale import Rescaler
from tupletree.runtimes.spark.driver.stored import entries_since_base, journal_gap, trees_after, waiting_after
from tupletree.runtimes.spark.format.carryover import missing_files
from tupletree.runtimes.spark.format.entries import (
    FailedAttempt,
    SettleEntry,
    amendment_path,
    numbered,
    read_epoch,
    read_epoch_header,
    read_settle,
    settle_path,
)
from tupletree.runtimes.spark.format.epoch_messages import EpochMessage
from tupletree.runtimes.spark.format.inputs import inputs_of_log
from tupletree.runtimes.spark.format.logged_messages import Codecs
from tupletree.runtimes.spark.format.segments import SegmentReader
from tupletree.runtimes.spark.format.sidecars import read_waiting
from tupletree.runtimes.spark.format.split_messages import readers_of
from tupletree.runtimes.spark.format.statedir import StateDirectory, older_copy
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.open_trees import OpenTrees, WaitingChanges
from tupletree.runtimes.spark.settle.sink_delivery import delivered_in
from tupletree.state.segments import Segment
from tupletree.texts import restored


@dataclass
class Recovered:
    """What recovery found besides the accounts.

    Attributes:
        last: the last settle entry; its publishing and callbacks may be unfinished.
        records: epochs that were logged but not settled, in order.
        next_epoch: number of the next epoch to cut.
    """

    last: SettleEntry | None = None
    records: list[EpochRecord] = field(default_factory=list)
    next_epoch: int = 0


def recover(
    directory: StateDirectory,
    accounts: Accounts,
    codecs: Codecs,
    sinks: Mapping[str, str],
    clock: Clock,
    rescaler: Rescaler,
) -> Recovered:
    """Fill the accounts; `sinks` has the folder of each, and `rescaler` routes again what was for other tasks.

    Raises CheckpointError, naming the file, for anything missing or damaged.
    """
    for folder in (directory.path, directory.epochs, directory.settles):
        sync_directory(folder)  # the last process may have been killed before it did: nothing may rest on such a file
    found = Recovered()
    entries = entries_since_base(directory.settles, directory.upgrades)
    if entries:
        found.last = without_dropped(entries[-1], directory.upgrades, sinks)
        _fold([*entries[:-1], found.last], accounts, sinks, clock, directory)
        _check_state(directory, accounts)
    elif directory.upgrades.generation:
        drop_stored(directory, accounts, 0, [])
    check_newest(directory, entries, sinks)
    epochs = numbered(directory.epochs, ".epoch")
    if epochs:
        before = read_epoch_header(directory.epochs, epochs[-1], directory.upgrades)
        rescaler.check(before.tasks, accounts, is_settled=epochs[-1] <= accounts.settled)
    for epoch in (one for one in epochs if one > accounts.settled):
        expected = accounts.settled + 1 + len(found.records)
        if epoch != expected:
            raise journal_gap(directory.path, f"epoch log {expected}", f"epoch log {epoch} is there")
        found.records.append(_readopt(directory, epoch, accounts, codecs, clock, rescaler))
    newest = found.records[-1].header if found.records else None
    if newest is None and found.last is not None:
        newest, _ = read_epoch(directory.epochs, found.last.epoch, directory.upgrades)
    if newest is not None:
        known = accounts.spout_of
        accounts.positions = {task: restored(one) for task, one in newest.positions.items() if task in known}
        accounts.ended = known.keys() & newest.ended
        accounts.epoch_time_s = newest.time_s
        accounts.ran_from_s = clock.monotonic() - newest.ran_s
    else:
        accounts.ran_from_s = clock.monotonic()
    found.next_epoch = accounts.settled + 1 + len(found.records)
    return found


def newest_time_s(directory: StateDirectory) -> float:
    """The latest time in the journal, seconds since the Unix epoch; 0: it is empty.

    Raises CheckpointError for a damaged file.
    """
    times = [0.0]
    for epoch in numbered(directory.epochs, ".epoch")[-1:]:
        header = read_epoch_header(directory.epochs, epoch, directory.upgrades)
        times.append(header.time_s)
    settled = numbered(directory.settles, ".settle")[-1:]
    times += [read_settle(directory.settles, epoch, directory.upgrades).time_s for epoch in settled]
    return max(times)


def _check_state(directory: StateDirectory, accounts: Accounts) -> None:
    """Raise CheckpointError for a state file that is missing or too short, here and not later in a worker."""
    for component, files in accounts.state.items():
        for name in {file.name for file in files}:
            Segment(directory.state / component / name)
    for path in missing_files(directory.kept, accounts.kept):
        raise missing(path)


def check_newest(directory: StateDirectory, entries: Sequence[SettleEntry], sinks: Mapping[str, str]) -> None:
    """Find a missing newest entry, or amendment, by files that follow from it: else its epoch would run a second time.

    Args:
        directory: the state directory.
        entries: from the newest base on.
        sinks: sink → its folder.

    Raises CheckpointError, naming the file that is gone.
    """
    settled = entries[-1].epoch if entries else -1
    newest, where = max(_traces(directory, sinks), default=(-1, ""))
    path = settle_path(directory.settles, newest)
    if newest > settled and not path.exists():
        if newest > max(numbered(directory.epochs, ".epoch"), default=-1):  # its log is not there either
            raise older_copy(where, newest, settled)
        raise missing(path)
    for entry in entries:
        if entry.generation >= directory.generation:  # else file names of another start would be used again
            raise missing(directory.path / "generations" / f"{entry.generation:06d}")
        letters = directory.dead / f"{entry.epoch:010d}.jsonl"
        if letters.exists() and letters.read_bytes().count(b"\n") > len(entry.dead):
            raise missing(amendment_path(directory.settles, entry.epoch))


def _traces(directory: StateDirectory, sinks: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Epochs of which something was published, each with the folder that shows it."""
    yield delivered_in(directory.spools), str(directory.spools)
    yield from ((epoch, str(directory.dead)) for epoch in numbered(directory.dead, ".jsonl"))
    mine = f"part-{directory.run_id[:8]}-"
    for folder in sinks.values():
        for path in Path(folder).glob(f"{mine}*"):
            epoch = path.name.removeprefix(mine).partition("-")[0]
            if epoch.isdigit():
                yield int(epoch), folder


def _fold(
    entries: list[SettleEntry],
    accounts: Accounts,
    sinks: Mapping[str, str],
    clock: Clock,
    directory: StateDirectory,
) -> None:
    last = entries[-1]
    accounts.settled = last.epoch
    accounts.state = last.state
    accounts.totals = last.counters
    accounts.kept = last.kept
    accounts.gone = last.gone
    accounts.since_base = last.epoch - (entries[0].epoch if entries[0].base else -1), 0
    changes = []
    refused: list[FailedAttempt] = []
    trees = trees_after(entries)
    waiting = waiting_after(entries)
    for entry in entries:
        if entry.base is not None:
            refused = list(entry.base.refused)
            accounts.replays = set(entry.base.replays)
            changes.append(entry.base.pending)
            continue
        refused += entry.refused
        accounts.replays.update(entry.replays)
        changes.append(entry.pending)
    changes = of_spouts(changes, accounts.spout_of)
    accounts.pending.restore(changes, accounts.decode_value, clock.monotonic(), clock.wall())
    if accounts.ordering is not None:
        for number in accounts.ordering.tasks:
            accounts.pending.number_waiting(number)
        accounts.key_table = accounts.ordering.restored(accounts.pending.waiting_numbers_due)
    is_changed = last.generation < directory.upgrades.generation
    if is_changed:
        forgotten = of_dropped_spouts(directory, trees.values(), accounts.spout_of)
        trees = {root: tree for root, tree in trees.items() if root not in forgotten}
        accounts.gone = sorted({*accounts.gone, *forgotten})  # the next epoch purges what is kept of them
    accounts.trees = OpenTrees(trees.values())
    # Publishing the last entry may be unfinished: then it does what makes a message dead that the entry acked and a
    # sink refused.
    matters = trees.keys() | {one.root for one in last.acked}
    accounts.refused = {root: one.failure for one in refused for root in one.roots if root in matters}
    changes_of_rows = WaitingChanges(accounts.waiting)
    dropped = directory.upgrades.dropped_after(last.generation)
    for file in waiting.values():
        if file.sink not in sinks or file.sink in dropped:
            continue
        folder = Path(sinks[file.sink])
        rows = read_waiting(folder / file.candidate, folder / file.sidecar)
        # A root that is not an open tree any more, and whose row still waits, is dead.
        changes_of_rows.add(
            file, enumerate(rows), accounts.trees.is_unfinished, lambda root: root not in accounts.trees
        )
    accounts.waiting.apply(changes_of_rows)
    accounts.waiting_names = accounts.waiting.names()
    if is_changed:
        drop_stored(directory, accounts, last.generation, waiting.values())


def adopt_open_trees(directory: StateDirectory, accounts: Accounts, codecs: Codecs, clock: Clock) -> None:
    """Set the messages of trees that are open across epochs in flight again, from the logs of their epochs."""
    readers = readers_of(accounts.spec), SegmentReader(directory.segments, accounts.spec)
    for epoch in sorted({tree.epoch for tree in accounts.trees.all()}):
        header, body = read_epoch(directory.epochs, epoch, directory.upgrades)
        roots = [tree.root for tree in accounts.trees.all()]
        for one in inputs_of_log(header, body, codecs, *readers):
            for message, value in one.find(one.among(roots)):
                message.attempt = accounts.trees.attempt_of(message.root)
                _adopt(message, value, accounts, clock)


def _readopt(
    directory: StateDirectory, epoch: int, accounts: Accounts, codecs: Codecs, clock: Clock, rescaler: Rescaler
) -> EpochRecord:
    header, body = read_epoch(directory.epochs, epoch, directory.upgrades)
    # Those of a spout that was dropped are never read, also where another one has its name now.
    header = replace(
        header,
        splits=[one for one in header.splits if one.task in accounts.spout_of],
        segments=[one for one in header.segments if one.task in accounts.spout_of],
    )
    readers = readers_of(accounts.spec), SegmentReader(directory.segments, accounts.spec)
    inputs = inputs_of_log(header, body, codecs, *readers)
    for one in inputs:
        one.check_readable()
    if rescaler.is_due(header):
        logged = (message for one in inputs if not one.is_counted for message in one)
        rescaler.reroute(header, body, {message.root: message.task for message in logged})
        header, body = read_epoch(directory.epochs, epoch, directory.upgrades)
        inputs = inputs_of_log(header, body, codecs, *readers)
    sent_again = {one.root for one in header.unsendable if not one.failure.permanent}
    attempts: dict[int, int] = {}
    for one in inputs:
        if one.is_counted:
            accounts.count(one.by_task)
            continue
        for message, value in one.logged():
            if message.root in sent_again:
                value = accounts.decode_value(message.task, value.payload)
            if message.attempt > 1:
                attempts[message.root] = message.attempt
            _adopt(message, value, accounts, clock)
    accounts.log(epoch, inputs)
    failures = {one.root: one.failure for one in header.unsendable}
    return EpochRecord(header, [one.for_runs() for one in inputs], attempts, failures)


def _adopt(message: EpochMessage, value: Any, accounts: Accounts, clock: Clock) -> None:
    accounts.pending.adopt(
        message.root,
        message.task,
        message.message_id,
        value,
        attempt=message.attempt,
        first_emitted_s=message.first_emitted_s,
        now_s=clock.monotonic(),
        wall_s=clock.wall(),
        made=message.made,
    )
