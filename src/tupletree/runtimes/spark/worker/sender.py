"""Sending: what a task emits becomes frames with edges, for tasks of its own stage, of later stages, of the next epoch.

Owns where a frame goes, its id, its entry in the ledger, and the output of a call that is not over. Frames are
encoded as they are sent, so that a message that becomes very many tuples never has all of them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tupletree.bolts.effects import ColumnOutput, Outlet, Output
from tupletree.bolts.failures import FailureMaker
from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import ColumnFrame, Frame, Root, segments_of
from tupletree.errors import PermanentError, ProcessingError
from tupletree.ids import mix64
from tupletree.routing.column_groupings import route_columns
from tupletree.routing.groupings import Router
from tupletree.routing.plan import Plan, Task
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.worker.edges import Edges
from tupletree.runtimes.spark.worker.inbox import OBJECT_BYTES, Inbox, OutgoingRows, QueuedFrame, weight_of
from tupletree.runtimes.spark.worker.spill_buffer import SpillBuffer, SpillSlot
from tupletree.tasks.making import MakingOrder, Numbers
from tupletree.topology.model import ComponentSpec

MOST_PART_BYTES = 16 * 1024 * 1024
LEAST_PART_BYTES = 64 * 1024
"""Memory, about, of the tuples of a chunk: an eighth of what the stage may hold, between these limits."""


@dataclass(frozen=True)
class Destinations:
    """Where the tasks of a stage's partition send frames.

    Attributes:
        spill_buffer: holds what waits.
        inbox: of the same partition.
        outgoing: to later stages.
        carry: takes (task, row, frame id, roots) for the next epoch.
        edges: the ledger.
        fail: (maker, root, tuple, error): a tuple failed.
        call_max_bytes: what one call may emit.
        message_max_bytes: the longest tuple that goes elsewhere, encoded.
        numbers: of what is made here, in the order of making.
    """

    spill_buffer: SpillBuffer
    inbox: Inbox
    outgoing: OutgoingRows
    carry: Callable[[Task, wire.Row, int, wire.U64], None]
    edges: Edges
    fail: Callable[[FailureMaker, Root, object, BaseException | str], None]
    call_max_bytes: int
    message_max_bytes: int
    numbers: Numbers


@dataclass(slots=True)
class _OutgoingFrame:
    """A frame with its id, ready to go: the object, or its bytes."""

    edge: int
    task: int
    sequence: int
    roots: wire.U64
    frame: Frame | None
    slot: SpillSlot | None
    weight: int


# More than 12 attributes: each is looked up once, because tuples go by the thousand.
class Sender(Outlet):
    """The sender of one task during one run: an `effects.Outlet`.

    Args:
        plan, codecs: the topology laid out, and how its tuples are encoded.
        place: epoch, run and stage.
        task, component: which task sends.
        destinations: where to.
        sends_in: the partition it sends in, if that is not its task's partition.

    Attributes:
        ordering: how the task treats numbers in the order of making.
    """

    def __init__(
        self,
        plan: Plan,
        codecs: Mapping[tuple[str, str], ArrowCodec[Any]],
        place: tuple[int, int, int],
        task: Task,
        component: ComponentSpec,
        destinations: Destinations,
        *,
        sends_in: int | None = None,
    ) -> None:
        self._plan = plan
        self._codecs = codecs
        self._place = place
        self._task = task
        self._component = component.name
        self._destinations = destinations
        self.ordering = MakingOrder(plan, component.name, destinations.numbers)
        self._fail = partial(destinations.fail, FailureMaker(component.name, task.task_id, component.retry))
        self._routers = {stream: Router.of(plan, task.task_id, stream, sends_in) for stream in component.outputs}
        self._sequence = 0
        self._held: list[_OutgoingFrame] = []
        self._held_bytes = 0
        self._part_bytes = min(MOST_PART_BYTES, max(LEAST_PART_BYTES, destinations.spill_buffer.limit_bytes // 8))
        links = [link for link in plan.links if link.producer == component.name]
        self._carried = {link.consumer for link in links if link.carried}

    def number_from(self, sequence: int) -> None:
        """Number the frames to come from here on; where several send as one task, no two may share one."""
        self._sequence = sequence

    # --- an outlet --------------------------------------------------------------------------------------------

    def room_for(self, stream: str, value: Any) -> int:
        length = OBJECT_BYTES + wire.length_of(self._codecs[self._component, stream], value)
        return max(1, min(wire.FRAME_TUPLES, int(self._part_bytes / length)))

    def send(self, outputs: list[Output]) -> None:
        """See `effects.Outlet`; what cannot be routed fails."""
        for output in self.ordering.order(outputs):
            frames, refused = self._route(output)
            for root, value, error in refused:
                self._fail(root, value, error)
            for frame in frames:
                for outgoing in self._packed(frame):
                    self._go(outgoing)

    def hold(self, outputs: list[Output]) -> None:
        """See `effects.Outlet`; a tuple that cannot be routed fails the call."""
        for output in self.ordering.order(outputs):
            frames, refused = self._route(output)
            if refused:
                raise refused[0][2]
            for frame in frames:
                for outgoing in self._packed(frame):
                    self._held.append(outgoing)
                    self._held_bytes += outgoing.slot.size_bytes if outgoing.slot is not None else outgoing.weight
        limit = self._destinations.call_max_bytes
        if self._held_bytes > limit:
            raise PermanentError(
                f"one call emitted more than call_max_bytes: {self._held_bytes:,} bytes so far, expected at most "
                f"{limit:,}; raise the option, or split the message in an earlier bolt"
            )

    def settle(self, *, counts: bool) -> None:
        parcels, self._held, self._held_bytes = self._held, [], 0
        for outgoing in parcels:
            if counts:
                self._go(outgoing)
            elif outgoing.slot is not None:
                outgoing.slot.release()
            else:
                self._destinations.spill_buffer.give_back(outgoing.weight)

    # --- one frame --------------------------------------------------------------------------------------------

    def _route(self, output: Output) -> tuple[list[Frame], list[tuple[Root, Any, Exception]]]:
        """(frames without an id, what could not be routed). A tuple that fails for one target goes to none."""
        router = self._routers[output.stream]
        source, sender = (self._component, output.stream), self._task.task_id
        if isinstance(output, ColumnOutput):
            parts, errors = route_columns(router, output.columns)
            frames: list[Frame] = [ColumnFrame(task, *source, columns, 0, sender) for task, columns in parts]
        else:
            values, roots, ends, made = output.values, output.roots, output.ends, output.made
            if output.direct_task is not None:
                try:
                    batches, errors = [router.route_direct(output.direct_task, values, roots, ends, made)], []
                except ProcessingError as error:
                    return [], [(root, part[0], error) for root, part in segments_of(values, roots, ends)]
            else:
                batches, errors = router.route(values, roots, ends, made)
            frames = [Frame(one.task, *source, one.values, one.roots, one.ends, 0, one.made, sender) for one in batches]
        if not errors:
            return frames, []
        owners = [root for root, part in segments_of(output.values, output.roots, output.ends) for _ in part]
        return frames, [(owners[position], output.values[position], error) for position, error in errors]

    def _stays(self, frame: Frame) -> bool:
        """Whether a frame is for a task of this run."""
        target = self._plan.tasks[frame.task].component
        return target not in self._carried and self._plan.stage_of(target) == self._place[2]

    def _packed(self, frame: Frame) -> Iterator[_OutgoingFrame]:
        """The frame with an id; as several, if it is too long for a row."""
        epoch, run, stage = self._place
        codec = self._codecs[frame.component, frame.stream]
        self._sequence += 1
        source, sequence = self._task.task_id, self._sequence
        frame.id = mix64(epoch, run, stage, source, frame.task, sequence)
        if self._stays(frame):
            length = 0.0 if isinstance(frame, ColumnFrame) else wire.length_of(codec, frame.values[0])
            weight = weight_of(frame, length)
            if self._destinations.spill_buffer.has_room(weight):
                self._destinations.spill_buffer.claim(weight)
                yield _OutgoingFrame(frame.id, frame.task, sequence, wire.NO_ROOTS, frame, None, weight)
                return
        if frame.size > wire.FRAME_TUPLES:
            for half in wire.halves(frame):
                yield from self._packed(half)
            return
        row = wire.encode_frame(frame, codec, self._plan.placement(frame.task), source, sequence, self._fail)
        if row is None:
            return
        longest = self._destinations.message_max_bytes
        if len(row[3]) > min(wire.FRAME_BYTES, longest) and frame.size > 1:
            for half in wire.halves(frame):
                yield from self._packed(half)
            return
        if len(row[3]) > longest:
            self._fail(frame.roots[0], frame.values[0], PermanentError(wire.too_long_text(len(row[3]), longest)))
            return
        slot = self._destinations.spill_buffer.put(row[2], row[3])
        yield _OutgoingFrame(frame.id, frame.task, sequence, wire.frame_roots(frame), None, slot, 0)

    def _go(self, outgoing: _OutgoingFrame) -> None:
        """Enter a frame in the ledger, and deliver it here or encode it as a row."""
        destinations, target = self._destinations, self._plan.tasks[outgoing.task]
        if target.component in self._carried:
            assert outgoing.slot is not None, "only frames for this run are objects"
            row = (self._plan.placement(outgoing.task), wire.FRAME, *outgoing.slot.take())
            destinations.carry(target, row, outgoing.edge, outgoing.roots)
            destinations.edges.sent(outgoing.edge, outgoing.roots)
        elif self._plan.stage_of(target.component) == self._place[2]:
            arrival = QueuedFrame(self._task.task_id, outgoing.sequence, outgoing.frame, outgoing.slot, outgoing.weight)
            destinations.inbox.add(outgoing.task, arrival)
            if outgoing.frame is not None:
                destinations.edges.born(outgoing.frame)
            else:
                destinations.edges.sent(outgoing.edge, outgoing.roots)
        else:
            assert outgoing.slot is not None, "only frames for this run are objects"
            destinations.outgoing.put_slot(self._plan.placement(outgoing.task), wire.FRAME, outgoing.slot)
            destinations.edges.sent(outgoing.edge, outgoing.roots)
