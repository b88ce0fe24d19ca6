"""What a user has dropped, at the first restart without it: it counts no more, and no message waits for it.

The settle entries of earlier starts still name it. So until the first epoch of this start is settled, recovery leaves
it out each time; that epoch writes a base, and nothing names it from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

from msgspec.structs import replace

from tupletree.runtimes.spark.format.entries import OpenTree, SettleEntry, WaitingFile, read_epoch
from tupletree.runtimes.spark.format.inputs import unread_inputs
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.runtimes.spark.settle.accounts import Accounts, Dropped
from tupletree.runtimes.spark.settle.decision import BASE_EPOCHS
from tupletree.runtimes.spark.worker.carryover import CarryOverFiles, TaskCarryOver
from tupletree.tracking.pending_log import PendingChanges


def without_dropped(entry: SettleEntry, upgrades: Upgrades, sinks: Container[str]) -> SettleEntry:
    """The last entry without rows that are to be given to a sink which was dropped."""
    dropped = upgrades.dropped_after(entry.generation)
    return replace(entry, outputs=[one for one in entry.outputs if one.sink in sinks and one.sink not in dropped])


def of_spouts(changes: Iterable[PendingChanges], tasks: Container[int]) -> list[PendingChanges]:
    """What entries say of the messages of these spout tasks: the number of a dropped one belongs to no other."""
    return [
        replace(
            one,
            waiting=[record for record in one.waiting if record.spout_task in tasks],
            gone=[entry for entry in one.gone if entry[0] in tasks],
            settled=[entry for entry in one.settled if entry[0] in tasks],
            confirmed=[entry for entry in one.confirmed if entry[0] in tasks],
        )
        for one in changes
    ]


def of_dropped_spouts(directory: StateDirectory, trees: Iterable[OpenTree], tasks: Container[int]) -> set[int]:
    """The roots of those open trees whose messages are not of these spout tasks."""
    roots = {tree.root: tree.epoch for tree in trees}
    found: set[int] = set()
    for epoch in sorted(set(roots.values())):
        header, body = read_epoch(directory.epochs, epoch, directory.upgrades)
        for one in unread_inputs(header, body[: header.messages_length]):
            if any(task not in tasks for task in one.by_task):
                found.update(message.root for message in one if message.root in roots and message.task not in tasks)
    return found


def drop_stored(
    directory: StateDirectory, accounts: Accounts, generation: int, waiting: Collection[WaitingFile]
) -> None:
    """Leave out of the accounts what is dropped, and let the messages go on that were held by it.

    Args:
        directory: the state directory.
        accounts: from the settle entries.
        generation: of the start that wrote the last of them.
        waiting: the files of rows that wait, as the entries say.
    """
    upgrades, components = directory.upgrades, accounts.spec.components
    dropped = upgrades.dropped_after(generation)
    names = frozenset(name for file in waiting for name in (file.candidate, file.sidecar))
    accounts.dropped = Dropped(accounts.state, dict(accounts.kept), names)
    files = CarryOverFiles(directory.kept, "")
    for name, tasks in [*accounts.kept.items()]:
        is_whole = name in dropped or name not in components
        if is_whole:
            del accounts.kept[name]
        for index, version in tasks.items():
            keep = TaskCarryOver.of(name, 0, index, files, {}, version)
            keep.renamed, keep.inputs = upgrades.names, () if is_whole else components[name].sources
            edges = keep.edges()
            _take_out(edges, accounts)
            if edges and not is_whole:  # it is worked in the next epoch, which leaves these frames out for good
                accounts.kept[name][index] = replace(version, due_s=0.0)
    for name in upgrades.reset_after(generation):
        accounts.kept.pop(name, None)  # no tuples, only what its holders remembered
    state = upgrades.state_after(generation, accounts.state)
    accounts.state = {name: files for name, files in state.items() if name in components}
    # Those that wait for rows of other trees are named, too: they go on waiting.
    accounts.released = [tree.root for tree in accounts.trees.all() if tree.is_complete]
    accounts.since_base = BASE_EPOCHS, 0


def _take_out(edges: Mapping[int, int], accounts: Accounts) -> None:
    """Let messages go on without tuples: root → the XOR of the edges of these."""
    for root, xor in edges.items():
        tree = accounts.trees.get(root)
        if tree is not None and tree.is_committed:
            accounts.trees.put(replace(tree, xor=tree.xor ^ xor))
