"""What is stored in a state directory, component by component, in numbers: what a changed topology is judged by.

Reads files only, so that it can be asked before anything starts, and of a directory on which nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tupletree.errors import CheckpointError
from tupletree.runtimes.deadletters import letters_of
from tupletree.runtimes.spark.format.entries import (
    OpenTree,
    SettleEntry,
    WaitingFile,
    numbered,
    read_epoch,
    read_epoch_header,
    read_settle,
)
from tupletree.runtimes.spark.format.inputs import unread_inputs
from tupletree.runtimes.spark.format.statedir import spout_tasks
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.runtimes.spark.settle.sink_delivery import delivered_in
from tupletree.runtimes.spark.worker.carryover import CarryOverFiles, TaskCarryOver
from tupletree.state.contents import count
from tupletree.state.segments import Segment
from tupletree.state.versions import StateFile
from tupletree.topology.changes.upgrades import StoredComponent
from tupletree.tracking.pending_log import fold


class Contents:
    """What is stored, by component, and whose tasks it belongs to.

    Attributes:
        stored: component → what is stored of it; none of those with nothing.
        tasks: component → first id and number of tasks that the newest epoch was routed to.
        kept: components of which something is kept.
    """

    def __init__(self) -> None:
        self.stored: dict[str, StoredComponent] = {}
        self.tasks: dict[str, tuple[int, int]] = {}
        self.kept: set[str] = set()

    def of(self, component: str) -> StoredComponent:
        """What is stored of a component, to be added to."""
        return self.stored.setdefault(component, StoredComponent())

    @property
    def is_idle(self) -> bool:
        """Whether no message is open."""
        return not any(one.open for one in self.stored.values())


def contents_of(path: Path, upgrades: Upgrades) -> Contents:
    """Count what is in a state directory. Raises CheckpointError for a file that is missing or damaged.

    Args:
        path: the state directory.
        upgrades: of it: names are those of now.
    """
    found = Contents()
    spouts = upgrades.spouts(spout_tasks(path / "spouts.json")) if (path / "spouts.json").exists() else {}
    entries = entries_since_base(path / "settles", upgrades)
    settled = entries[-1].epoch if entries else -1
    written_by, state = (entries[-1].generation, entries[-1].state) if entries else (0, {})
    state = upgrades.state_after(written_by, state)
    _count_state(path / "state", state, entries[-1].time_s if entries else 0.0, upgrades, found)
    if entries:
        _count_kept(path, entries[-1], upgrades, found)
        _count_undelivered(path, entries, found)
    for task in _open_messages(path, entries, settled, upgrades):
        if task in spouts:
            found.of(spouts[task]).open += 1
    for letter_id, letter in letters_of(path, lambda _: None).items():
        if not upgrades.is_of_dropped(letter.spout, letter_id):
            found.of(upgrades.today(letter.spout)).letters += 1
    epochs = numbered(path / "epochs", ".epoch")
    if epochs:
        header = read_epoch_header(path / "epochs", epochs[-1], upgrades)
        found.tasks = header.tasks
        for task in header.positions.keys() & spouts.keys():
            found.of(spouts[task]).has_position = True
    for name in upgrades.dropped_after(written_by) & found.stored.keys():
        found.stored[name] = StoredComponent(keys=found.stored[name].keys)  # what was imported since
    found.stored = {name: one for name, one in found.stored.items() if not one.is_empty}
    return found


def entries_since_base(settles: Path, upgrades: Upgrades) -> list[SettleEntry]:
    """The settle entries from the newest base on, oldest first. Raises CheckpointError for one that is missing."""
    entries: list[SettleEntry] = []
    for number in reversed(numbered(settles, ".settle")):
        if entries and number != entries[-1].epoch - 1:
            raise journal_gap(
                settles.parent, f"settle entry {entries[-1].epoch - 1}", f"settle entry {number} is there"
            )
        entries.append(read_settle(settles, number, upgrades))
        if entries[-1].base is not None:
            break
    if entries and entries[-1].base is None and entries[-1].epoch != 0:
        raise journal_gap(settles.parent, f"settle entry {entries[-1].epoch - 1}", "no entry before it")
    return entries[::-1]


def trees_after(entries: Iterable[SettleEntry]) -> dict[int, OpenTree]:
    """The trees that are open after these settle entries, by root."""
    trees: dict[int, OpenTree] = {}
    for entry in entries:
        if entry.base is not None:
            trees = {tree.root: tree for tree in entry.base.open}
            continue
        for root in entry.closed:
            trees.pop(root, None)
        trees.update({tree.root: tree for tree in entry.opened})
    return trees


def waiting_after(entries: Iterable[SettleEntry]) -> dict[str, WaitingFile]:
    """The candidates with rows that wait after these settle entries, by key."""
    waiting: dict[str, WaitingFile] = {}
    for entry in entries:
        if entry.base is not None:
            waiting = {file.key: file for file in entry.base.waiting}
            continue
        for key in entry.released:
            waiting.pop(key, None)
        waiting.update({file.key: file for file in entry.waiting})
    return waiting


def journal_gap(path: Path, missing: str, got: str) -> CheckpointError:
    """The error to raise for a file that the journal of this state directory should have."""
    return CheckpointError(
        "the journal has a gap",
        where=str(path),
        got=got,
        expected=missing,
        next_step="restore the file from a backup, or start with a new --state-dir",
    )


def _count_state(
    parent: Path, state: Mapping[str, list[StateFile]], now_s: float, upgrades: Upgrades, found: Contents
) -> None:
    for name, version in state.items():
        folder = upgrades.folder_of(parent, name)
        segments = {file.name: Segment(folder / file.name) for file in version}
        found.of(name).keys += count(segments, version, now_s=now_s)


def _count_kept(path: Path, last: SettleEntry, upgrades: Upgrades, found: Contents) -> None:
    files = CarryOverFiles(path / "kept", "")
    for name, tasks in last.kept.items():
        found.kept.add(name)
        inputs = upgrades.fingerprint.get(name, {}).get("inputs")
        for index, version in tasks.items():
            keep = TaskCarryOver.of(name, 0, index, files, {}, version)
            keep.renamed = upgrades.names
            for (component, stream), tuples in keep.tuples().items():
                if inputs is not None and f"{component}.{stream}" not in inputs:
                    continue  # dropped by a start that has settled nothing yet
                at = found.of(name)
                at.held += tuples
                at.held_of[component, stream] = at.held_of.get((component, stream), 0) + tuples
                elsewhere = found.of(component).streams
                elsewhere[stream] = elsewhere.get(stream, 0) + tuples


def _count_undelivered(path: Path, entries: list[SettleEntry], found: Contents) -> None:
    last = entries[-1]
    if last.epoch > delivered_in(path / "spools"):
        for output in last.outputs:
            if not output.final:
                found.of(output.sink).undelivered += output.rows
    for file in waiting_after(entries).values():
        found.of(file.sink).undelivered += file.rows


def _open_messages(path: Path, entries: list[SettleEntry], settled: int, upgrades: Upgrades) -> Iterator[int]:
    """The spout task of each message that is neither acked nor dead."""
    changes = fold([entry.base.pending if entry.base is not None else entry.pending for entry in entries])
    yield from (record.spout_task for record in changes.waiting)
    for epoch in numbered(path / "epochs", ".epoch"):
        if epoch > settled:
            header, body = read_epoch(path / "epochs", epoch, upgrades)
            for one in unread_inputs(header, body[: header.messages_length]):
                yield from (task for task, count in one.by_task.items() for _ in range(count))
    trees = trees_after(entries)
    for epoch in sorted({tree.epoch for tree in trees.values()}):
        header, body = read_epoch(path / "epochs", epoch, upgrades)
        for one in unread_inputs(header, body[: header.messages_length]):
            mine = {*one.among([*trees])}
            yield from (message.task for message in one if message.root in mine)
