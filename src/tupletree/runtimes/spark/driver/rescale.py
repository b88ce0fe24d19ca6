"""A restart with other tasks: what was logged for the old ones is routed again to the new ones.

Keyed state needs no change, because its segments are kept by key group. Epochs that are logged and not settled are
written again, with the same messages, roots and positions, and other frames. What belongs to a task by its index can
not move: that needs a drained topology, or the restart is refused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import UNTRACKED
from tupletree.durable import pack, replace_file
from tupletree.errors import CheckpointError
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker, EpochFrames, SpoutTask
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader, epoch_path
from tupletree.runtimes.spark.format.logged_messages import only_of
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.tracking.outcomes import Failure

Tasks = Mapping[str, tuple[int, int]]


class Rescaler:
    """Writes epoch logs again whose frames are addressed to tasks that no longer exist."""

    def __init__(
        self,
        directory: StateDirectory,
        plan: Plan,
        frame_maker: EpochFrameMaker,
        spouts: list[SpoutTask],
        codecs: Mapping[tuple[str, str], ArrowCodec[Any]],
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._frame_maker = frame_maker
        self._spouts = spouts
        self._codecs = codecs

    def check(self, before: Tasks, accounts: Accounts, *, is_settled: bool) -> None:
        """Refuse another parallelism for what belongs to a task by its index, unless nothing is open.

        Then tasks of windows and joins start again without a watermark.

        Args:
            before: the tasks that the newest epoch was routed to.
            accounts: from the settle entries.
            is_settled: whether that epoch is settled.

        Raises:
            CheckpointError: names the components, and says how to drain.
        """
        is_drained = is_settled and accounts.is_idle() and not len(accounts.trees)
        tasks = self._frame_maker.tasks
        stuck = bound_to_tasks(self._plan.spec, before, tasks, accounts.kept, is_drained=is_drained)
        for name in changed_parallelism(before, tasks):
            if is_drained:
                accounts.kept.pop(name, None)  # no tuples, only watermarks of other tasks
        if stuck:
            raise CheckpointError(
                "this parallelism can change only while no message is open",
                where=str(self._directory.path),
                got="; ".join(stuck),
                expected="no open message: a stop keeps what windows and batches hold, a drain ends them",
                next_step="start it with the old parallelism, end it with `tupletree drain`, and change it then",
            )

    def is_due(self, header: EpochHeader) -> bool:
        """Whether an epoch was routed to other tasks, or by another topology."""
        was_before = header.generation < self._directory.upgrades.generation
        return was_before or header.tasks != self._frame_maker.tasks

    def reroute(self, header: EpochHeader, body: memoryview, task_of: Mapping[int, int]) -> None:
        """Write an epoch's log again, atomically: a reader finds the old one or the new one.

        Args:
            header: of the log.
            body: its sections.
            task_of: root → spout task, of every message in it.
        """
        epoch_frames = EpochFrames()
        failures: dict[int, Failure] = {}
        given = self._given(header, body, task_of)
        section, dropped = bytes(body[: header.messages_length]), 0
        if not given.keys() >= set(task_of.values()):
            section, dropped = only_of(section, given)
        components = self._plan.spec.components
        after = msgspec.structs.replace(
            header,
            generation=self._directory.generation,
            tasks=self._frame_maker.tasks,
            messages_length=len(section),
            messages=header.messages - dropped,
            fresh=max(0, header.fresh - dropped),
            ticks=[name for name in header.ticks if name in components],
            unsendable=[one for one in header.unsendable if task_of[one.root] in given],
            ended=[task for task in header.ended if task in given],
            positions={task: position for task, position in header.positions.items() if task in given},
            splits=[
                msgspec.structs.replace(one, place=one.place % self._plan.readers(one.component))
                for one in header.splits
                if one.task in given
            ],
            segments=[
                msgspec.structs.replace(one, place=one.place % self._plan.readers(one.component))
                for one in header.segments
                if one.task in given
            ],
        )
        for spout in given.values():
            after.unsendable += self._frame_maker.add_frames(header.epoch, spout, failures, epoch_frames)
        sections = epoch_frames.sections(after, section)
        replace_file(epoch_path(self._directory.epochs, header.epoch), pack(after, sections))

    def _given(self, header: EpochHeader, body: memoryview, task_of: Mapping[int, int]) -> dict[int, SpoutTask]:
        """What each spout task gave, taken from the frames.

        A message may be in the frames of several readers, and counts once. Untracked tuples have no root to find
        copies by: all that one reader got are taken, or those of one task of a reader whose tasks all got copies.
        """
        given = {
            spout.number: replace(spout, roots=[], values=[], made=[], untracked=[], rejected={})
            for spout in self._spouts
        }
        made_of: dict[int, int] = {}
        seen: set[int] = set()
        for _, offset, head_length, body_length in header.frames:
            head = wire.decode_head(body[offset : offset + head_length])
            start = offset + head_length
            head.component = self._directory.upgrades.today(head.component)
            codec = self._codecs.get((head.component, head.stream))
            if codec is None:
                continue  # of a spout that was dropped
            frame = wire.decode_frame(head, body[start : start + body_length], codec)
            reader = self._reader_of_untracked(head.component, head.stream, header.tasks)
            ends = iter(frame.ends)
            for root, values in frame.segments():
                end = next(ends)
                made = () if frame.made is None else frame.made[end - len(values) : end]
                if root == UNTRACKED:
                    if head.task in reader:
                        owner = next(one for one in given.values() if one.name == head.component)
                        owner.untracked += values
                        owner.made += made
                elif isinstance(root, int) and root not in seen and task_of[root] in given:
                    seen.add(root)
                    given[task_of[root]].roots.append(root)
                    given[task_of[root]].values += values
                    if made:
                        made_of[root] = made[0]
        order = {root: position for position, root in enumerate(task_of)}
        for spout in given.values():
            pairs = sorted(zip(spout.roots, spout.values, strict=True), key=lambda pair: order[pair[0]])
            spout.roots, spout.values = [root for root, _ in pairs], [value for _, value in pairs]
            if made_of:
                spout.made = [*(made_of.get(root, 0) for root in spout.roots), *spout.made]
        return given

    def _reader_of_untracked(self, component: str, stream: str, tasks: Tasks) -> range:
        """The old tasks whose frames together hold every untracked tuple of a stream."""
        links = self._plan.links_from(component, stream)
        # A custom grouping may drop tuples, or give one to several tasks: another reader is preferred.
        links = tuple(link for link in links if link.grouping.kind != "custom") or links
        # A consumer that is new got none of them.
        links = tuple(link for link in links if link.consumer in tasks)
        if not links:
            return range(0)
        first, count = tasks[links[0].consumer]
        return range(first, first + (1 if links[0].grouping.kind == "all" else count))


def changed_parallelism(before: Tasks, after: Tasks) -> list[str]:
    """Components that have another number of tasks than before."""
    return [name for name, (_, count) in after.items() if name in before and before[name][1] != count]


def bound_to_tasks(
    spec: TopologySpec, before: Tasks, after: Tasks, kept: Container[str], *, is_drained: bool
) -> list[str]:
    """What belongs to tasks by their index and forbids their number to change, in words.

    Args:
        spec: the topology.
        before: component → first id and number of tasks that it had.
        after: the same of those that it is to have.
        kept: components of which something is kept.
        is_drained: whether no message is open.
    """
    stuck = []
    for name in changed_parallelism(before, after):
        changed = f"{name}: parallelism changed from {before[name][1]} to {after[name][1]}"
        if _has_task_state(spec.components[name]) and not is_drained:
            stuck.append(f"{changed}, and it has state per task")
        if name in kept and not is_drained:
            stuck.append(f"{changed}, and its tasks hold tuples")
    return stuck


def _has_task_state(component: ComponentSpec) -> bool:
    body = component.body
    return isinstance(body, BoltSpec) and body.state is not None and not body.state.is_keyed
