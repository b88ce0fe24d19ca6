"""The history of a run, read from its state directory, running or not. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from tupletree.errors import CheckpointError
from tupletree.runtimes.inspect import ComponentState
from tupletree.runtimes.spark.driver.archive import read_archive
from tupletree.runtimes.spark.format.entries import (
    SettleEntry,
    epoch_path,
    numbered,
    read_epoch,
    read_settle,
    settle_path,
)
from tupletree.runtimes.spark.format.epoch_messages import EpochMessage
from tupletree.runtimes.spark.format.inputs import messages_of
from tupletree.runtimes.spark.format.statedir import spout_tasks
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.runtimes.spark.worker.carryover import CarryOverFiles, TaskCarryOver
from tupletree.state.segments import Segment
from tupletree.tracking.facts import Fact, What
from tupletree.tracking.holds import Hold
from tupletree.tracking.message_ids import id_text, plain_id
from tupletree.tracking.outcomes import Failure


def all_facts(state_dir: Path) -> Iterator[Fact]:
    """The facts about every message in the journal and the archive, epoch by epoch."""
    spouts, upgrades = _spouts(state_dir), Upgrades.read(state_dir)
    seen: set[int] = set()
    still_open: dict[int, EpochMessage] = {}
    for archived in read_archive(state_dir / "history"):
        if archived.entry.epoch in seen:
            continue  # a sweep was killed before it removed the logs: the next one archived them again
        seen.add(archived.entry.epoch)
        entry = archived.entry
        messages = messages_of(archived.messages, archived.splits, entry.epoch, entry.time_s)
        yield from _facts(messages, entry.epoch, entry.time_s, entry, spouts, still_open)
    for epoch in numbered(state_dir / "epochs", ".epoch"):
        if epoch in seen:
            continue
        settles = state_dir / "settles"
        try:
            header, body = read_epoch(state_dir / "epochs", epoch, upgrades)
            settled = read_settle(settles, epoch, upgrades) if settle_path(settles, epoch).exists() else None
        except CheckpointError:
            if epoch_path(state_dir / "epochs", epoch).exists():
                raise
            continue  # removed meanwhile: next time it is in the archive
        messages = messages_of(body[: header.messages_length], header.splits, epoch, header.time_s)
        yield from _facts(messages, epoch, settled.time_s if settled else header.time_s, settled, spouts, still_open)


def holds_of(state_dir: Path, root: int) -> list[str]:
    """What holds tuples of an attempt after the last settled epoch, in words; empty if nothing is known."""
    newest = max(numbered(state_dir / "settles", ".settle"), default=-1)
    found: list[str] = []
    try:
        kept = read_settle(state_dir / "settles", newest).kept if newest >= 0 else {}
        files = CarryOverFiles(state_dir / "kept", "")
        for name, tasks in kept.items():
            for index, version in tasks.items():
                since_s, arrives = TaskCarryOver.of(name, 0, index, files, {}, version).since_s(root)
                if since_s is not None:
                    found.append(f"{Hold('held', name, since_s=since_s)}{_first_of(version.hold(name))}")
                elif arrives:
                    found.append(str(Hold("queue", name)))
    except CheckpointError:
        return []  # an epoch was settled meanwhile: what it does not need is gone
    return found


def _first_of(hold: Hold) -> str:
    text = hold.counted()
    return f" ({text})" if hold.until_s is not None else ""


def _facts(
    messages: Iterable[EpochMessage],
    epoch: int,
    time_s: float,
    entry: SettleEntry | None,
    spouts: Mapping[int, str],
    still_open: dict[int, EpochMessage],
) -> Iterator[Fact]:
    """One fact per message of an epoch, and per earlier message that it settled or failed.

    Without an entry its messages are still in flight. `still_open` has the messages of trees that are open before the
    epoch, and is brought up to date.
    """
    failed: dict[int, Failure] = {}
    notes: dict[int, str] = {}
    other: dict[int, What] = {}
    dues: dict[int, float | None] = {}
    earlier: list[EpochMessage] = []
    if entry is not None:
        failed = {root: attempt.failure for attempt in entry.failed for root in attempt.roots}
        other = dict.fromkeys(entry.put_back, "put back")
        other.update({tree.root: "open" for tree in entry.opened})
        other.update(dict.fromkeys(failed, "failed"))
        other.update({one.root: "dead" for one in entry.dead})
        notes = _notes(entry, spouts)
        dues = {one.root: one.due_s for one in entry.pending.waiting}
        named = dict.fromkeys([*failed, *(one.root for one in entry.acked)])
        earlier = [still_open[root] for root in named if root in still_open]
    opened = {tree.root: tree.attempt for tree in entry.opened} if entry is not None else {}
    for message in chain(earlier, messages):
        what = "in flight" if entry is None else other.get(message.root, "acked")
        has_failed = what == "failed"
        yield Fact(
            time_s=time_s,
            epoch=epoch,
            spout=spouts.get(message.task, str(message.task)),
            message_id=plain_id(message.message_id),
            attempt=message.attempt,
            root=message.root,
            what=what,
            failure=failed.get(message.root) if what in {"failed", "dead"} else None,
            next_s=(dues.get(message.root) or None) if has_failed else None,
            by_source=has_failed and dues.get(message.root, 0.0) is None,
            note=notes.get(message.root, "") if what == "put back" else "",
        )
        if message.root in opened:
            still_open[message.root] = message
    if entry is not None:
        for root in entry.closed:
            still_open.pop(root, None)
        for root, attempt in opened.items():
            if root in still_open:
                still_open[root].attempt = attempt


def _notes(entry: SettleEntry, spouts: Mapping[int, str]) -> dict[int, str]:
    """What each root waits for that the epoch put back for its turn."""
    return {
        root: str(Hold("key", one.bolt, message=f"{spouts.get(one.task, one.task)}/{id_text(one.message_id)}"))
        for one in entry.behind
        for root in one.roots
    }


def _spouts(state_dir: Path) -> dict[int, str]:
    path = state_dir / "spouts.json"
    return spout_tasks(path) if path.exists() else {}


def committed_state(state_dir: Path) -> tuple[int, list[ComponentState]]:
    """The newest committed version of the state of every bolt: its epoch, and a component each.

    The segments are open on return, so they stay readable when a running topology removes them meanwhile.
    """
    settles = state_dir / "settles"
    epoch = -1
    while True:
        newest = max(numbered(settles, ".settle"), default=-1)
        try:
            upgrades = Upgrades.read(state_dir)
            entry = read_settle(settles, newest, upgrades) if newest >= 0 else None
            version = upgrades.state_after(entry.generation, entry.state) if entry else upgrades.state_after(0, {})
            opened = {
                name: {file.name: Segment(upgrades.folder_of(state_dir / "state", name) / file.name) for file in files}
                for name, files in version.items()
            }
        except CheckpointError:
            if newest == epoch:  # the journal has not changed since the last try: it is really missing or damaged
                raise
            epoch = newest
            continue
        now_s = entry.time_s if entry is not None else 0.0
        return newest, [ComponentState(name, opened[name], files, now_s) for name, files in version.items()]
