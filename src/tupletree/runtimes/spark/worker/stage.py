"""A stage in a Spark worker: works the frames addressed to its tasks, passes every other row through.

One `StageRun` is one attempt of one partition of one run of an epoch. It reads its whole partition first, because a
task that runs again may receive frames in another order: they are sorted, which keeps the order per key. What it
reads and what it emits is held as bytes, beyond a limit in a file; rows go to Spark while it works.
Everything it writes is a candidate with a name of its own; nothing counts until settle names it. An exception that
leaves this module is a fault of the infrastructure, never of a message.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from tupletree.bolts.calls import CallingHolder
from tupletree.bolts.effects import CallsAgain, TaskPlace, Worked
from tupletree.bolts.factory import holder_of
from tupletree.bolts.failures import BEHIND, FailureMaker, late_text, rule_of, safe_text
from tupletree.bolts.forks import leave_if_forked
from tupletree.bolts.held import HeldFrame, Holder
from tupletree.bolts.plain import BoltTask
from tupletree.data.frames import UNTRACKED, Frame, Root, roots_of, without
from tupletree.durable import sync_directory
from tupletree.errors import ProcessingError, TupletreeError
from tupletree.ids import mix64
from tupletree.logs import follow_environment
from tupletree.routing.plan import Task
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.carryover import CarryOver
from tupletree.runtimes.spark.format.message_names import MessageNames
from tupletree.runtimes.spark.format.program import EpochControl, Program, load_program
from tupletree.runtimes.spark.format.segments import PlannedSegment, decode_segment
from tupletree.runtimes.spark.worker.call_timeout import CallTimeout
from tupletree.runtimes.spark.worker.carryover import CarryOverFiles, TaskCarryOver
from tupletree.runtimes.spark.worker.crash_markers import Blame, CrashingWorkError, CrashMarker, MarkedPlace
from tupletree.runtimes.spark.worker.edges import Edges
from tupletree.runtimes.spark.worker.inbox import Decode, Inbox, OutgoingRows, QueuedFrame, QueuedFrames
from tupletree.runtimes.spark.worker.joined_frames import join_frames
from tupletree.runtimes.spark.worker.keyed_task import StatefulTask
from tupletree.runtimes.spark.worker.ordered_input import OrderedInput
from tupletree.runtimes.spark.worker.segments import MessageReading, messages_of
from tupletree.runtimes.spark.worker.sender import Destinations, Sender
from tupletree.runtimes.spark.worker.sink_writer import SinkTask, takes_columns
from tupletree.runtimes.spark.worker.spill_buffer import SpillBuffer
from tupletree.runtimes.spark.worker.splits import rows_of
from tupletree.runtimes.spark.worker.tasks import TASKS, BoltWork, task_of
from tupletree.state.cells import is_immutable
from tupletree.state.keys import key_functions
from tupletree.tasks.making import Numbers, carried
from tupletree.texts import msgpack_bytes, unmarked_text
from tupletree.topology.model import ComponentSpec
from tupletree.topology.splits import place_of
from tupletree.tracking.ledger import combine, distinct
from tupletree.tracking.outages import error_text
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.work_done import WorkDone

logger = logging.getLogger("tupletree.spark.stage")

_Planned = TypeVar("_Planned", wire.PlannedSplit, PlannedSegment)

OUTAGE_PAUSES_S = (0.1, 0.2, 0.4)
"""Before each further call that a stage makes while something outside is not available."""

MAX_TRACEBACKS = 200
"""Failures of one stage run that keep their traceback; the others say the same, and would fill the driver's memory."""


class TaskIdentity(NamedTuple):
    """Which Spark task this is.

    Attributes:
        partition: of the plan.
        attempt: 0 for the first attempt of this partition of this stage.
        unique: a number that no other attempt has within one start of the run.
    """

    partition: int
    attempt: int
    unique: int


def run_stage(
    blob: bytes, control: bytes, index: int, identity: TaskIdentity, rows: Iterable[wire.Row]
) -> Iterator[wire.Row]:
    """One attempt of one partition of a stage: rows in, rows out; see the module docstring.

    Args:
        blob: what `pack_program` made.
        control: the `EpochControl` of the run, encoded.
        index: which stage of the plan this is.
        identity: which attempt this is.
        rows: the partition's rows.
    """
    known = msgspec.msgpack.decode(control, type=EpochControl)
    marker = CrashMarker(
        Path(known.markers_directory),
        (known.generation, known.epoch, index, identity.partition),
        (known.execution, identity.attempt),
        one_host=known.one_host,
        from_first=known.expects_crashes,
    )
    with marker:
        with follow_environment():
            program = load_program(blob)
        run = StageRun(program, known, index, identity.partition, identity.unique, marker)
        try:
            yield from run.read(rows)
            if run.has_work:
                yield from run.read_splits()
                with CallTimeout(known.processing_timeout_s, marker.crash_report):
                    yield from run.read_segments()
                    yield from run.work()
        finally:
            run.close()


# More than 12 attributes: one attempt of a stage: all of its components add to what it reports.
class StageRun:
    """One attempt of one partition of a stage. Fill it with `read`, then `work` once."""

    def __init__(
        self, program: Program, control: EpochControl, index: int, partition: int, attempt: int, marker: CrashMarker
    ) -> None:
        self._program = program
        self._plan = program.plan
        self._control = control
        self._stage = self._plan.stages[index]
        self._partition = partition
        self._attempt = attempt
        self._process = os.getpid()
        self._spill_buffer = SpillBuffer(control.stage_memory_bytes)
        self._inbox = Inbox(self._spill_buffer, self._decoder)
        self._outgoing = OutgoingRows(self._spill_buffer)
        self._splits: list[tuple[int, wire.PlannedSplit]] = []
        self._segments: list[tuple[int, PlannedSegment]] = []
        self._left_out = set(wire.unpack_roots(control.left_out).tolist())
        self._failures: dict[int, Failure] = {}
        self._skip: set[int] = set(self._left_out)
        self._edges = Edges()
        self._touched: list[Any] = []
        self._stats = wire.StatsReport({})
        self._untracked = Worked()  # strays only: failed tuples of no message
        self._places: set[int] = set()
        name = f"{control.run_id[:8]}-{self._version}-{index}-{partition}-{attempt}.kept"
        self._carryover_files = CarryOverFiles(Path(control.carryover_directory), name)
        self._carryover_values: list[int] = []
        self._carryover_roots: list[Any] = []
        self._gone = set(wire.unpack_roots(control.gone).tolist())
        self._parked = self._left_out.union(wire.unpack_roots(control.parked).tolist())
        self._crash_marker = marker
        self._ordered_input: OrderedInput | None = None
        self._names = MessageNames(Path(control.epochs_directory), control.epoch)
        self._skip.update(marker.crash_history.roots)
        self._destinations = Destinations(
            spill_buffer=self._spill_buffer,
            inbox=self._inbox,
            outgoing=self._outgoing,
            carry=self._carry,
            edges=self._edges,
            fail=self._fail,
            call_max_bytes=control.call_max_bytes,
            message_max_bytes=control.message_max_bytes,
            numbers=Numbers(wire.first_number(control.epoch)),
        )

    @property
    def _version(self) -> str:
        """What the names of this run's files have in common."""
        return f"{self._control.generation:06d}-{self._control.epoch:08d}-{self._control.run:03d}"

    @property
    def has_work(self) -> bool:
        """Whether any frame or split is for this stage in this partition, or a task may have other work to do."""
        return bool(self._inbox or self._splits or self._segments or self._places)

    def read(self, rows: Iterable[wire.Row]) -> Iterator[wire.Row]:
        """Take what is addressed to this stage; yields the rows that only pass through."""
        own = {task.task_id for name in self._stage.components for task in self._plan.tasks_of(name)}
        for row in rows:
            place, kind, head, body = row
            if kind == wire.FRAME:
                known = wire.decode_head(memoryview(head))
                if known.task in own:
                    slot = self._spill_buffer.put(head, body)
                    self._inbox.add(known.task, QueuedFrame(known.source, known.sequence, None, slot))
                    continue
            elif kind == wire.SPLIT:
                split = wire.decode_split(memoryview(head))
                if split.component in self._stage.components:
                    self._splits.append((place, split))
                    continue
            elif kind == wire.SEGMENT:
                segment = decode_segment(memoryview(head))
                if segment.component in self._stage.components:
                    self._segments.append((place, segment))
                    continue
            elif kind == wire.WAKE:
                self._places.add(place)
            yield row

    def read_splits(self) -> Iterator[wire.Row]:
        """Read the pieces of sources that came here, and route their rows; yields frames for later stages."""
        yield from self._read_all(self._splits, self._rows_of)

    def read_segments(self) -> Iterator[wire.Row]:
        """The same for the messages of segments."""
        yield from self._read_all(self._segments, self._messages_of)

    def _read_all(
        self,
        pieces: list[tuple[int, _Planned]],
        read: Callable[[_Planned, ComponentSpec, Task, FailureMaker], Iterator[tuple[Worked, int]]],
    ) -> Iterator[wire.Row]:
        senders: dict[tuple[str, int], Sender] = {}
        for place, planned in sorted(pieces, key=lambda piece: piece[1].ordinal):
            component = self._program.component(planned.component)
            task = self._plan.tasks_of(component.name)[0]
            sender = senders.get((component.name, place)) or self._sender(component, task, place)
            senders[component.name, place] = sender
            # Several partitions send as this task: the piece distinguishes their frames, and orders them.
            sender.number_from((planned.ordinal + 1) << 32)
            try:
                for worked, first_number in read(planned, component, task, FailureMaker(component.name, task.task_id)):
                    sender.ordering.number_rows(worked, first_number)
                    self._carry_out(worked, component, sender)
                    yield from self._outgoing.take()
            except TupletreeError as error:
                self._put(wire.UNREADABLE, msgpack_bytes(wire.Unreadable.of(error, component.name)))
                return
            self._stats.read.append(planned.ordinal)

    def _rows_of(
        self, planned: wire.PlannedSplit, component: ComponentSpec, task: Task, fail: FailureMaker
    ) -> Iterator[tuple[Worked, int]]:
        """What a split has, each with the number to which the positions of its outputs are added."""
        reading = partial(self._crash_marker.other_work, task.task_id, f"read of {place_of(planned.split)}")
        for worked in rows_of(planned, component, fail, self._left_out, reading):
            yield worked, self._first_number(planned)

    def _messages_of(
        self, planned: PlannedSegment, component: ComponentSpec, task: Task, fail: FailureMaker
    ) -> Iterator[tuple[Worked, int]]:
        """The same of a segment."""
        directory = Path(self._control.epochs_directory).parent / "segments"
        reading = MessageReading(component, task.task_id, fail, self._left_out, self._crash_marker)
        for worked in messages_of(planned, directory, reading):
            yield worked, 0

    def _first_number(self, planned: wire.PlannedSplit) -> int:
        """The number of the first row of a piece: as `SplitMessages` has it, if the row is tracked."""
        if planned.key:
            return wire.first_number(self._control.epoch) + planned.key - self._control.first_key
        return wire.first_number(self._control.epoch, planned.ordinal)

    def work(self) -> Iterator[wire.Row]:
        """Run every component that has frames, producers first; yields frames for later stages and the reports."""
        for name in self._stage.components:
            component = self._program.component(name)
            for task in self._plan.tasks_of(name) if component.kind != "spout" else ():
                arrivals = self._inbox.take(task.task_id)
                if not arrivals:
                    here = self._plan.placement(task.task_id) in self._places
                    if not (here and self._control.needs(name, task.index)):
                        continue
                run = self._sink if component.kind == "sink" else self._bolt
                for _ in run(component, task, arrivals):
                    yield from self._outgoing.take()
                arrivals.release()
        self._report()
        yield from self._outgoing.take()

    def close(self) -> None:
        """Remove what was spilled."""
        self._spill_buffer.close()

    def _decoder(self, task_id: int) -> Decode:
        """How frames for a task are decoded."""
        component = self._program.component(self._plan.tasks[task_id].component)
        decode = wire.decode_columns if takes_columns(component) else wire.decode_frame
        codecs = self._program.codecs
        return lambda head, body: (wire.decode_frame if head.made else decode)(
            head, body, codecs[head.component, head.stream]
        )

    def _place(self, component: ComponentSpec, task: Task) -> TaskPlace:
        fields: dict[str, Any] = {
            "retrying_since_s": self._control.retrying_since_s,
            "held_back_since_s": self._held_back_since_s(component.name),
            "kept_retrying": self._control.kept_retrying,
            "retries_run": self._control.retries_run,
            "run_s": self._control.ran_s,
            "message_timeout_s": self._control.timeout_s,
            "calls": self._control.more_calls.get(component.name, self._control.calls),
            "numbered": self._plan.numbers_outputs(component.name),
            "attempts": self._control.attempts,
            "again": self._control.again,
            "waits": True,
            "ids_of": self._names.ids_of,
            "retry": component.retry,
            "renamed": self._control.renamed,
        }
        if self._crash_marker.is_marking:
            return MarkedPlace.at(self._plan, task, marker=self._crash_marker, **fields)
        return TaskPlace.at(self._plan, task, **fields)

    def _held_back_since_s(self, component: str) -> float | None:
        """See `TaskPlace.held_back_since_s`."""
        kept = self._control.kept
        if not kept:
            return None
        above = (kept[name] for name in self._plan.upstream_of(component) if name in kept)
        sinces = [one.put_off_since_s for tasks in above for one in tasks.values()]
        return min((since_s for since_s in sinces if since_s is not None), default=None)

    def _fail_crashing(
        self, task: Task, frames: Iterable[Frame], held: list[HeldFrame], fail: FailureMaker
    ) -> Iterable[Frame]:
        """Fail messages that crashed their workers in this task; returns frames without untracked tuples that did."""
        crash_history = self._crash_marker.crash_history
        here = {root for root, blame in crash_history.roots.items() if blame.task_id == task.task_id}
        given = chain(frames, (one.frame for one in held)) if here else ()
        for root, values in (piece for frame in given for piece in frame.segments()):
            for one in here.intersection(roots_of(root)):
                here.remove(one)
                self._failures[one] = self._poison(crash_history.roots[one], safe_text(values[0]))
        frames, dropped = crash_history.drop_untracked(task.task_id, frames)
        for value, blame in dropped:
            fail.stray(self._untracked, value, f"lost, because worker processes ended on it: {blame.how}")
        return frames

    def _poison(self, blame: Blame, failing_tuple: str = "") -> Failure:
        """The failure of a message that crashed its workers."""
        component = self._program.component(self._plan.tasks[blame.task_id].component)
        return blame.failure(component.name, failing_tuple, rule_of(component.retry, None))

    def _bolt(self, component: ComponentSpec, task: Task, arrivals: QueuedFrames) -> Iterator[None]:
        """Run a bolt's task; yields whenever rows may be ready for Spark."""
        state = StatefulTask.of(component, task, self._plan, self._control, self._attempt)
        place = self._place(component, task)
        place.begin(self._control.time_s)
        keys = key_functions(self._plan.spec, component, task.index) if component.body.is_keyed else None
        holder = holder_of(component, place, keys)
        bolt = holder or task_of(self._plan, component, place, state, self._control.processing_timeout_s)
        fail = FailureMaker(component.name, task.task_id, component.retry)
        keep, held, arrivals.first = self._carryover_for(component, task, needed=holder is not None)
        in_order = self._lined_up(component, task, arrivals)
        if self._ordered_input is not None and isinstance(bolt, BoltTask):
            bolt.put_behind(self._ordered_input.behind)
        try:
            with self._crash_marker.other_work(task.task_id, "open"):
                bolt.open()
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, is a fault of the user's code here
            for frame in in_order:
                if place.takes_as_outage(error):
                    self._put_off(component.name, frame.roots, error)
                    continue
                for root in frame.roots:
                    self._fail(fail, root, "(the bolt could not be opened)", error)
            if not arrivals:  # no message fails because of it, so only the log can say it
                logger.warning("%s could not be opened: %s: %s", component.name, type(error).__name__, error)
            self._close(bolt, task)
            if keep is not None and holder is not None:
                keep.restore(holder, held, self._parked, self._gone)
                self._keep(keep, holder, keep.version.due_s, fail)
            elif keep is not None:
                self._record(keep.update(held, None, CarryOver([], keep.version.due_s), partial(self._fail, fail)))
            return
        frames = self._fail_crashing(task, in_order, held, fail)
        given = self._joined(component, task, frames)
        try:
            if holder is not None and keep is not None:
                keep.restore(holder, held, self._parked, self._gone)
                holder.forget(self._crash_marker.crash_history.roots)
            yield from self._work(bolt, holder, component, task, given, state)
        finally:
            self._close(bolt, task)
        self._note_calls(place.calls_again, component.name)
        if state is not None:
            self._write_state(state, fail, frames)
        if keep is not None and holder is not None:
            holder.forget(self._failures.keys())
            self._keep(keep, holder, holder.due_s, fail)
        elif keep is not None:
            self._record(keep.update([], None, CarryOver([]), partial(self._fail, fail)))

    def _joined(self, component: ComponentSpec, task: Task, frames: Iterable[Frame]) -> Iterable[Frame]:
        """The frames, larger ones where calls may have very many rows, and none is to be called alone."""
        if not component.body.takes_many_rows or self._ordered_input is not None or self._crash_marker.is_marking:
            return frames
        place = self._control.epoch, self._control.run, self._stage.index, -3, task.task_id
        codecs = self._program.codecs
        return join_frames(frames, codecs, self._skip, self._edges, lambda number: mix64(*place, number))

    def _note_calls(self, again: CallsAgain, component: str) -> None:
        """Report what came of calls that were made again."""
        if again.passed or again.failed:
            passed, failed = self._stats.calls_again.get(component, (0, 0))
            self._stats.calls_again[component] = passed + again.passed, failed + again.failed

    def _lined_up(self, component: ComponentSpec, task: Task, arrivals: QueuedFrames) -> Iterable[Frame]:
        """What came to a task, in the order in which it is worked; where an input is ordered, the keys are reported."""
        place = self._control.epoch, self._control.run, self._stage.index, -2, task.task_id
        spec, held = self._plan.spec, self._control.held
        self._ordered_input = ordered_input = OrderedInput.of(
            spec, component, self._names.places_of, held, self._left_out, place
        )
        if ordered_input is None:
            return arrivals
        lined_up = ordered_input.line_up(arrivals, self._skip, self._edges)
        arrived = ordered_input.arrivals()
        if arrived is not None:
            self._put(wire.ARRIVED, component.name.encode(), wire.pack_entries(arrived))
        return arrivals if lined_up is None else lined_up

    def _tick(self, bolt: BoltWork | Holder, task: Task) -> Worked:
        try:
            with self._crash_marker.other_work(task.task_id, "tick"):
                return bolt.tick(self._control.time_s)
        except CrashingWorkError as error:
            logger.warning("%s gets no tick: %s", task.component, error)
            return Worked()

    def _close(self, bolt: BoltWork | Holder, task: Task) -> None:
        try:
            with self._crash_marker.other_work(task.task_id, "close"):
                bolt.close()
        except BaseException:
            logger.exception("closing a task of %s failed; its results are kept", task.component)
        if isinstance(bolt, BoltTask):
            self._stats.strays += _log_strays(bolt.out_of_call(), task.component)

    def _work(
        self,
        bolt: BoltWork | Holder,
        holder: Holder | None,
        component: ComponentSpec,
        task: Task,
        frames: Iterable[Frame],
        state: StatefulTask | None,
    ) -> Iterator[None]:
        control = self._control
        sender = self._sender(component, task)
        done = self._stats.work.setdefault(component.name, WorkDone())
        worked_tuples = 0
        outage: BaseException | None = None
        for frame in frames:
            kept = without(frame, self._skip) if self._skip else frame
            if self._ordered_input is not None and (behind := self._ordered_input.admit(kept)):
                self._put_behind(behind, component)
                kept = without(kept, behind)
            if not kept.size:
                continue
            if outage is not None and holder is None:
                self._put_off(component.name, kept.roots, outage)
                continue
            if sender.ordering.inherits:
                kept = carried(kept)
            if state is not None:
                self._touched.append(wire.frame_roots(kept))
            outage = yield from self._work_frame(bolt, component, kept, sender, state, done)
            worked_tuples += kept.size
            done.tuples += kept.size
        if component.name in control.ticks:
            self._carry_out(self._tick(bolt, task), component, sender)
        if holder is not None:
            began_s = time.perf_counter()
            for call in (holder.advance, *([holder.flush] if control.drain else [])):
                worked = call()
                self._carry_out(worked, component, sender)
                if worked.outage is not None:
                    self._note_held(holder, component, worked.outage)
                    break
            done.seconds += time.perf_counter() - began_s
            if holder.watermark_us is not None:
                self._stats.watermarks[task.task_id] = holder.watermark_us
        self._stats.worked[component.name] = self._stats.worked.get(component.name, 0) + worked_tuples

    def _work_frame(
        self,
        bolt: BoltWork | Holder,
        component: ComponentSpec,
        frame: Frame,
        sender: Sender,
        state: StatefulTask | None,
        done: WorkDone,
    ) -> Generator[None, None, BaseException | None]:
        """Work one frame, again after pauses during an outage; returns the outage if it does not end."""
        pauses = self._pauses(component.name)
        began_s = time.perf_counter()
        parts = bolt.parts(frame, sender) if isinstance(bolt, TASKS) else (bolt.work(frame),)
        while True:
            outage: BaseException | None = None
            for part in parts:
                leave_if_forked(self._process)
                self._carry_out(part, component, sender)
                outage = part.outage
                done.seconds += time.perf_counter() - began_s
                yield  # others are worked
                began_s = time.perf_counter()
            if outage is None:
                return None
            if not isinstance(bolt, TASKS):  # what it holds is kept, and is tried again in the next epoch
                self._note_held(bolt, component, outage)
                return outage
            pause_s = next(pauses, None)
            if pause_s is None or (state is not None and not is_immutable(state.cell.value)):
                self._put_off(component.name, bolt.waiting(), outage)
                return outage
            time.sleep(pause_s)
            began_s = time.perf_counter()
            parts = bolt.resume_parts(sender)

    def _pauses(self, component: str) -> Iterator[float]:
        """Pauses before calls are made again within this run: a short outage costs no epoch, a long one little time."""
        return iter(() if component in self._control.away else OUTAGE_PAUSES_S)

    def _note_held(self, holder: Holder, component: ComponentSpec, error: BaseException) -> None:
        """What a holder could not work because of an outage stays with it, and does not time out."""
        self._put_off(component.name, (), error)
        self._stats.extended.extend(map(int, holder.waiting()))  # as above

    def _put_off(self, component: str, roots: Iterable[Root], error: BaseException) -> None:
        """Defer these messages to a later epoch, with no attempt counted: something outside is not available."""
        known, _ = self._stats.outages.get(component, (set(), ""))
        ones = {int(one) for root in roots for one in roots_of(root)}  # reports take no root that carries a number
        known |= ones
        self._stats.outages[component] = known, error_text(error)
        self._skip |= ones
        if UNTRACKED in roots:
            logger.warning("%s: untracked tuples are lost: %s", component, error_text(error))

    def _sender(self, component: ComponentSpec, task: Task, sends_in: int | None = None) -> Sender:
        place = self._control.epoch, self._control.run, self._stage.index
        return Sender(self._plan, self._program.codecs, place, task, component, self._destinations, sends_in=sends_in)

    def _carryover_for(
        self, component: ComponentSpec, task: Task, *, needed: bool
    ) -> tuple[TaskCarryOver | None, list[HeldFrame], list[Frame]]:
        """What is kept for a task, if anything is or could be: its carry-over, held frames, and frames that arrive."""
        version = self._control.kept.get(component.name, {}).get(task.index)
        if version is None and not needed:
            return None, [], []
        codecs = self._program.codecs
        keep = TaskCarryOver.of(component.name, task.task_id, task.index, self._carryover_files, codecs, version)
        keep.carries, keep.renamed = self._plan.passes_order_on(component.name), self._control.renamed
        keep.inputs = component.sources
        return keep, *keep.split(self._gone, self._parked)

    def _keep(self, keep: TaskCarryOver, holder: Holder, due_s: float | None, fail: FailureMaker) -> None:
        since_s, mark_us = holder.put_off_since_s, holder.watermark_us
        if since_s is not None and self._control.first_emitted and not isinstance(holder, CallingHolder):
            since_s = min([since_s, *self._first_emitted(holder)])
        own = CarryOver([], due_s, put_off_since_s=since_s, until_s=holder.until_s())
        own.in_event_time, own.watermark_s = holder.goes_by_event_time, None if mark_us is None else mark_us / 1e6
        self._record(keep.update(holder.held(), holder.memory(), own, partial(self._fail, fail)))

    def _first_emitted(self, holder: Holder) -> Iterator[float]:
        """When messages with a later attempt were first emitted, of those of which a task holds tuples."""
        known = self._control.first_emitted
        roots = (one for held in holder.held() for root in held.frame.roots for one in roots_of(root))
        return (known[root] for root in roots if root in known)

    def _record(self, edges: Iterable[tuple[int, list[int]]]) -> None:
        for frame_id, roots in edges:
            self._carryover_values.append(frame_id)
            self._carryover_roots.append(wire.root_array(roots))

    def _carry_out(self, worked: Worked, component: ComponentSpec, sender: Sender) -> None:
        sender.ordering.settle(worked)
        if self._ordered_input is not None:
            behind = {root for root, failure in worked.failures.items() if failure is BEHIND}
            self._put_behind(behind, component)
            worked.failures = {root: one for root, one in worked.failures.items() if root not in behind}
        for root, failure in worked.failures.items():
            self._failures.setdefault(root, failure)
        self._skip.update(worked.failures)
        self._stats.late_verdicts += worked.late_verdicts
        if worked.dropped and component.name not in self._stats.late:
            logger.warning("%s: %s", component.name, late_text(worked.late, worked.dropped))
        if worked.late:
            self._stats.late[component.name] = self._stats.late.get(component.name, 0) + worked.late
        self._stats.extended.extend(worked.extended)
        self._stats.strays += _log_strays(worked, component.name)
        for frame_id, roots in worked.done:
            self._edges.ended(frame_id, roots)
        sender.send(worked.outputs)

    def _put_behind(self, roots: set[int], component: ComponentSpec) -> None:
        """These wait for something earlier for a key of theirs: they are not worked on any more."""
        if roots:
            self._put(wire.BEHIND, component.name.encode(), wire.pack_roots(roots))
            self._skip.update(roots)

    def _carry(self, target: Task, row: wire.Row, frame_id: int, roots: wire.U64) -> None:
        """Carry a frame over to the next epoch."""
        self._carryover_files.carry(target.component, target.index, row)
        self._carryover_values.append(frame_id)
        self._carryover_roots.append(roots)

    def _fail(self, fail: FailureMaker, root: Root, value: object, error: BaseException | str) -> None:
        if root == UNTRACKED:
            fail.stray(self._untracked, value, error)
        if isinstance(error, CrashingWorkError):
            poison = self._poison(error.blame, str(value))
            for one in roots_of(root):
                self._failures.setdefault(one, poison)
        fail.note(self._failures, root, value, error)
        self._skip.update(roots_of(root))

    def _sink(self, component: ComponentSpec, task: Task, frames: Iterable[Frame]) -> Iterator[None]:
        """Run a sink's task: what it takes goes into candidates of bounded size."""
        control = self._control
        directory = Path(unmarked_text(control.sink_directories[component.name]))
        name = f"{control.run_id[:8]}-{self._version}-{task.index:04d}-{self._attempt}"
        fail = partial(self._fail, FailureMaker(component.name, task.task_id, component.retry))
        worked = self._stats.worked
        part = 0
        sink = SinkTask(component, directory, name, part, self._names.ids_of)
        for frame in frames:
            kept = without(frame, self._skip) if self._skip else frame
            sink.take(kept)
            self._edges.taken(kept)
            worked[component.name] = worked.get(component.name, 0) + kept.size
            if sink.weight >= control.stage_memory_bytes and sink.may_be_cut:
                part += self._write_candidates(sink, task, fail)
                yield
                sink = SinkTask(component, directory, name, part, self._names.ids_of)
        self._write_candidates(sink, task, fail)

    def _write_candidates(self, sink: SinkTask, task: Task, fail: wire.FailRoot) -> int:
        """Write what a task has gathered; returns how many candidates that are."""
        reports = sink.write(task.index, fail)
        if reports:
            sync_directory(sink.directory)
        for report in reports:
            self._put(wire.OUTPUT, msgpack_bytes(report))
        return len(reports)

    def _write_state(self, state: StatefulTask, fail: FailureMaker, frames: Iterable[Frame]) -> None:
        try:
            report = state.write(frames, partial(self._fail, fail))
        except ProcessingError as error:
            logger.info("%s: the epoch runs again to find out which message did it: %s", state.component, error)
            self._put(wire.UNSTORABLE, state.component.encode())
            return
        if report is not None:
            self._put(wire.STATE, msgpack_bytes(report))

    def _put(self, kind: int, head: bytes, body: bytes = b"") -> None:
        self._outgoing.put(self._partition, kind, head, body)

    def _report(self) -> None:
        self._stats.strays += _log_strays(self._untracked, ", ".join(self._stage.components))
        for root, blame in self._crash_marker.crash_history.roots.items():
            if root not in self._failures:  # this run had no frame of it
                self._failures[root] = self._poison(blame)
        entries = self._edges.entries()
        if entries is not None:
            self._put(wire.LEDGER, b"", wire.pack_entries(entries))
        self._carryover_files.write()
        if self._carryover_files.reports:
            entries = combine(self._carryover_values, self._carryover_roots)
            reports = msgpack_bytes(self._carryover_files.reports)
            self._put(wire.KEPT, reports, wire.pack_entries(entries))
        if self._touched:
            touched = distinct(np.concatenate(self._touched))
            self._put(wire.TOUCHED, b"", touched.tobytes())
        if self._failures:
            failures: dict[int, wire.FailureReport] = {}
            for root, failure in self._failures.items():
                failures.setdefault(id(failure), wire.FailureReport([], failure)).roots.append(root)
            shortened = [
                report if position < MAX_TRACEBACKS else _without_traceback(report)
                for position, report in enumerate(failures.values())
            ]
            self._put(wire.FAILURES, b"", msgpack_bytes(shortened))
        self._put(wire.STATS, msgpack_bytes(self._stats))


def _log_strays(worked: Worked, component: str) -> int:
    """Log, once per frame, errors that fail no message; returns how many there were."""
    if worked.stray_count:
        logger.warning(
            "%s: %d errors that fail no message (untracked tuples, or tuples settled before), such as %s",
            component,
            worked.stray_count,
            "; ".join(f"{one.error_type} {one.error} on {one.failing_tuple}" for one in worked.strays),
        )
    return worked.stray_count


def _without_traceback(report: wire.FailureReport) -> wire.FailureReport:
    return wire.FailureReport(report.roots, msgspec.structs.replace(report.failure, traceback=""))
