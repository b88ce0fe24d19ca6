"""A stage in a Spark worker: takes the frames addressed to its tasks, passes every other row through.

One `StageRun` is one attempt of one partition of one run of an epoch. It reads its whole partition first, because a
task that runs again may receive frames in another order: they are sorted, so that the order per key is kept.
Everything it writes is a candidate with a name of its own; nothing counts until settle names it. An exception that
leaves this module is a fault of the infrastructure, never of a message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tupletree.arrow_task import ArrowTask
from tupletree.column_routing import route_columns
from tupletree.dispatch import BoltTask
from tupletree.durable import sync_directory
from tupletree.effects import ColumnOutput, Output, TaskPlace, Worked
from tupletree.errors import ProcessingError
from tupletree.failing import FailureMaker, safe_text
from tupletree.flow.holders import holder_of
from tupletree.frames import UNTRACKED, ColumnFrame, Frame, Root, roots_of, segments_of, without
from tupletree.holding import HeldFrame, Holder
from tupletree.ids import mix64
from tupletree.logs import follow_environment
from tupletree.plan import Plan, Task
from tupletree.routing import Router
from tupletree.runtimes.spark import wire
from tupletree.runtimes.spark.alarm import Alarm
from tupletree.runtimes.spark.awaiting import AwaitingBoltTask
from tupletree.runtimes.spark.edges import Edges
from tupletree.runtimes.spark.keeping import KeptFiles, TaskKeep
from tupletree.runtimes.spark.keyed import StatefulTask
from tupletree.runtimes.spark.marks import Marker, MarkingPlace
from tupletree.runtimes.spark.program import Control, Program, control_from, load_program
from tupletree.runtimes.spark.sinking import SinkTask, takes_columns
from tupletree.state.keys import key_functions
from tupletree.topology.model import ComponentSpec
from tupletree.tracking.ledger import combine
from tupletree.tracking.outcomes import Failure

__all__ = ["place_anew", "run_stage"]

_Task = BoltTask | ArrowTask

logger = logging.getLogger("tupletree.spark.stage")

MAX_TRACEBACKS = 200
"""Failures of one stage run that keep their traceback; the rest say the same thing again, and would fill the driver."""


def run_stage(blob: bytes, control: bytes, index: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function that `mapInArrow` calls: see the module docstring.

    Args:
        blob: what `pack_program` made.
        control: the run, as `control_bytes` made it.
        index: which stage of the plan this is.
        batches: the partition's rows.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a stage runs only inside a Spark task"
    follow_environment()
    known = control_from(control)
    marker = Marker(
        Path(known.marks_directory),
        (known.generation, known.epoch, index, context.partitionId()),
        (known.execution, context.attemptNumber()),
        one_host=known.one_host,
        from_first=known.expects_killers,
    )
    with marker:
        run = StageRun(load_program(blob), known, index, context.partitionId(), context.taskAttemptId(), marker)
        passed = run.read(batches)
        if passed:
            yield from wire.rows_to_batches(passed)
        if run.has_work:
            with Alarm(known.processing_timeout_s, marker.last_words):
                rows = run.work()
            yield from wire.rows_to_batches(rows)


def place_anew(blob: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give frames that were logged for another number of partitions their places, for `mapInArrow`.

    A task must not run in two partitions of one run: the one to which its frames went, and the one where it lives.
    """
    plan = load_program(blob).plan
    for batch in batches:
        places = [
            plan.placement(wire.decode_head(head).task) if kind == wire.FRAME else place
            for place, kind, head in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True)
        ]
        yield batch.set_column(0, "place", pa.array(places, pa.int32()))


class StageRun:
    """One attempt of one partition of a stage. Fill it with `read`, then `work` once."""

    def __init__(
        self, program: Program, control: Control, index: int, partition: int, attempt: int, marker: Marker
    ) -> None:
        self._program = program
        self._plan = program.plan
        self._control = control
        self._stage = self._plan.stages[index]
        self._partition = partition
        self._attempt = attempt
        self._inbox: dict[int, list[tuple[int, int, Frame]]] = {}
        self._left_out = set(wire.unpack_roots(control.left_out).tolist())
        self._failures: dict[int, Failure] = {}
        self._skip: set[int] = set(self._left_out)
        self._edges = Edges()
        self._touched: list[Any] = []
        self._rows: list[wire.Row] = []
        self._stats = wire.StatsReport({})
        self._untracked = Worked()  # strays only: tuples of no message that could not go on
        self._sequence = 0
        self._places: set[int] = set()
        name = f"{control.run_id[:8]}-{self._version}-{index}-{partition}-{attempt}.kept"
        self._kept_files = KeptFiles(Path(control.kept_directory), name)
        self._kept_values: list[int] = []
        self._kept_roots: list[Any] = []
        self._gone = set(wire.unpack_roots(control.gone).tolist())
        self._parked = self._left_out.union(wire.unpack_roots(control.parked).tolist())
        self._carried = {(link.producer, link.consumer) for link in self._plan.links if link.carried}
        self._marker = marker
        self._skip.update(marker.suspicions.roots)

    @property
    def _version(self) -> str:
        """What the names of this run's files have in common."""
        return f"{self._control.generation:06d}-{self._control.epoch:08d}-{self._control.run:03d}"

    @property
    def has_work(self) -> bool:
        """Whether any frame is addressed to this stage in this partition, or a task may have something to do here."""
        return bool(self._inbox or self._places)

    def read(self, batches: Iterator[pa.RecordBatch]) -> list[wire.Row]:
        """Take what is addressed to this stage; returns the rows that only pass through."""
        passed: list[wire.Row] = []
        decode_as = {
            task.task_id: wire.decode_columns if takes_columns(self._program.component(name)) else wire.decode_frame
            for name in self._stage.components
            for task in self._plan.tasks_of(name)
        }
        for batch in batches:
            places, kinds, heads, bodies = batch.columns
            for position in range(batch.num_rows):
                kind = kinds[position].as_py()
                head = heads[position].as_buffer()
                body = bodies[position].as_buffer()
                if kind == wire.FRAME:
                    frame_head = wire.decode_head(memoryview(head))
                    decode = decode_as.get(frame_head.task)
                    if decode is not None:
                        codec = self._program.codecs[frame_head.component, frame_head.stream]
                        frame = decode(frame_head, body, codec)
                        self._deliver(frame_head.source, frame_head.sequence, frame)
                        continue
                elif kind == wire.WAKE:
                    self._places.add(places[position].as_py())
                passed.append((places[position].as_py(), kind, head.to_pybytes(), body.to_pybytes()))
        return passed

    def work(self) -> list[wire.Row]:
        """Run every component that has frames, producers first; returns frames for later stages and the reports."""
        for name in self._stage.components:
            component = self._program.component(name)
            for task in self._plan.tasks_of(name):
                frames = self._inbox.pop(task.task_id, None)
                if frames is None:
                    here = self._plan.placement(task.task_id) in self._places
                    if not (here and self._control.needs(name, task.index)):
                        continue
                    frames = []
                frames.sort(key=lambda entry: entry[:2])
                ordered = [frame for _, _, frame in frames]
                if component.kind == "sink":
                    self._sink(component, task, ordered)
                else:
                    self._bolt(component, task, ordered)
        self._report()
        return self._rows

    def _deliver(self, source: int, sequence: int, frame: Frame) -> None:
        self._inbox.setdefault(frame.task, []).append((source, sequence, frame))

    def _place(self, component: ComponentSpec, task: Task) -> TaskPlace:
        fields: dict[str, Any] = {
            "topology": self._plan.spec.name,
            "component": component.name,
            "task_id": task.task_id,
            "task_index": task.index,
            "parallelism": self._plan.parallelism(component.name),
            "retrying_since_s": self._control.retrying_since_s,
            "message_timeout_s": self._control.timeout_s,
            "calls": self._control.calls,
            "attempts": self._control.attempts,
            "component_tasks": self._plan.component_tasks,
        }
        if self._marker.is_marking:
            return MarkingPlace(self._marker, **fields)
        return TaskPlace(**fields)

    def _fail_killers(self, task: Task, frames: list[Frame], held: list[HeldFrame], fail: FailureMaker) -> list[Frame]:
        """Fail what killed its workers in this task; returns the frames without the untracked tuples among that."""
        suspicions = self._marker.suspicions
        here = {root for root, blame in suspicions.roots.items() if blame.task_id == task.task_id}
        given = [*frames, *(one.frame for one in held)] if here else []
        for root, values in (piece for frame in given for piece in frame.segments()):
            for one in here.intersection(roots_of(root)):
                here.remove(one)
                self._failures[one] = suspicions.roots[one].failure(task.component, safe_text(values[0]))
        frames, dropped = suspicions.drop_untracked(task.task_id, frames)
        for value, blame in dropped:
            fail.stray(self._untracked, value, f"lost, for worker processes ended over it: {blame.how}")
        return frames

    def _bolt(self, component: ComponentSpec, task: Task, frames: list[Frame]) -> None:
        state = StatefulTask.of(component, task, self._plan, self._control, self._attempt)
        place = self._place(component, task)
        place.begin(self._control.time_s)
        keys = key_functions(self._plan.spec, component, task.index) if component.body.is_keyed else None
        holder = holder_of(component, place, keys)
        bolt = holder or _task_of(self._plan, component, place, state)
        fail = FailureMaker(component.name, task.task_id)
        keep, held, arriving = self._kept_for(component, task, needed=holder is not None)
        frames = arriving + frames
        try:
            bolt.open()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, is a fault of the user's code here
            for frame in frames:
                for root in frame.roots:
                    self._fail(fail, root, "(the bolt could not be opened)", error)
            if not frames:  # no message fails of it, so nobody would hear
                logger.warning("%s could not be opened: %s: %s", component.name, type(error).__name__, error)
            _close(bolt, component.name)
            if keep is not None:
                memory = msgspec.msgpack.decode(keep.memory) if keep.memory else None
                self._keep(keep, held, memory, keep.version.due_s, fail)
            return
        frames = self._fail_killers(task, frames, held, fail)
        try:
            if holder is not None and keep is not None:
                holder.restore(held, msgspec.msgpack.decode(keep.memory) if keep.memory else None)
                holder.forget(self._marker.suspicions.roots)
            self._work(bolt, holder, component, task, frames, fail, is_stateful=state is not None)
        finally:
            _close(bolt, component.name)
        if state is not None:
            self._write_state(state, fail, frames)
        if keep is not None and holder is not None:
            holder.forget(self._failures.keys())
            self._keep(keep, holder.held(), holder.memory(), holder.due_s, fail)
        elif keep is not None:
            self._keep(keep, [], None, None, fail)

    def _work(
        self,
        bolt: _Task | Holder,
        holder: Holder | None,
        component: ComponentSpec,
        task: Task,
        frames: list[Frame],
        fail: FailureMaker,
        *,
        is_stateful: bool,
    ) -> None:
        control = self._control
        emitter = _Emitter(self._plan, task, component)
        worked_tuples = 0
        for frame in frames:
            kept = without(frame, self._skip) if self._skip else frame
            if not kept.size:
                continue
            if is_stateful:
                self._touched.append(wire.frame_roots(kept))
            worked = bolt.work(kept)
            worked_tuples += kept.size
            self._carry_out(worked, component, task, emitter, fail)
        if component.name in control.ticks:
            self._carry_out(bolt.tick(control.time_s), component, task, emitter, fail)
        if holder is not None:
            self._carry_out(holder.advance(), component, task, emitter, fail)
            if control.drain:
                self._carry_out(holder.flush(), component, task, emitter, fail)
            if holder.watermark_us is not None:
                self._stats.watermarks[task.task_id] = holder.watermark_us
        self._stats.worked[component.name] = self._stats.worked.get(component.name, 0) + worked_tuples

    def _kept_for(
        self, component: ComponentSpec, task: Task, *, needed: bool
    ) -> tuple[TaskKeep | None, list[HeldFrame], list[Frame]]:
        """What is kept for a task, if anything is or could be: its keep, held frames, and frames that arrive."""
        version = self._control.kept.get(component.name, {}).get(task.index)
        if version is None and not needed:
            return None, [], []
        codecs = self._program.codecs
        keep = TaskKeep.of(component.name, task.task_id, task.index, self._kept_files, codecs, version)
        return keep, *keep.split(self._gone, self._parked)

    def _keep(
        self, keep: TaskKeep, held: list[HeldFrame], memory: Any, due_s: float | None, fail: FailureMaker
    ) -> None:
        for frame_id, roots in keep.update(held, memory, due_s, partial(self._fail, fail)):
            self._kept_values.append(frame_id)
            self._kept_roots.append(wire.root_array(roots))

    def _carry_out(
        self, worked: Worked, component: ComponentSpec, task: Task, emitter: _Emitter, fail: FailureMaker
    ) -> None:
        self._failures = {**worked.failures, **self._failures} if worked.failures else self._failures
        self._skip.update(worked.failures)
        self._stats.late_verdicts += worked.late_verdicts
        self._stats.late += worked.late
        self._stats.extended.extend(worked.extended)
        if worked.stray_count:
            _log_strays(worked, component.name)
        for frame_id, roots in worked.done:
            self._edges.ended(frame_id, roots)
        for output in worked.outputs:
            frames, refused = emitter.route(output)
            for root, value, error in refused:
                self._fail(fail, root, value, error)
            for frame in frames:
                self._send(task, frame, fail)

    def _send(self, source: Task, frame: Frame, fail: FailureMaker) -> None:
        """Give a frame its edge id, enter it in the ledger, and deliver it here or put it on the wire.

        One that is too long for a row goes as several.
        """
        control, component, stream = self._control, frame.component, frame.stream
        self._sequence += 1
        frame.id = mix64(control.epoch, control.run, self._stage.index, source.task_id, frame.task, self._sequence)
        target = self._plan.tasks[frame.task]
        is_carried = (component, target.component) in self._carried
        stays = not is_carried and self._plan.stage_of(target.component) == self._stage.index
        if stays:
            self._deliver(source.task_id, self._sequence, frame)
        elif frame.size > wire.FRAME_TUPLES:
            for half in wire.halves(frame):
                self._send(source, half, fail)
            return
        else:
            codec = self._program.codecs[component, stream]
            place = self._plan.placement(frame.task)
            row = wire.encode_frame(frame, codec, place, source.task_id, self._sequence, partial(self._fail, fail))
            if row is None:
                return
            if len(row[3]) > wire.FRAME_BYTES and frame.size > 1:
                for half in wire.halves(frame):
                    self._send(source, half, fail)
                return
            if is_carried:
                self._kept_files.carry(target.component, target.index, row)
                self._kept_values.append(frame.id)
                self._kept_roots.append(wire.frame_roots(frame))
            else:
                self._rows.append(row)
        self._edges.born(frame, stays=stays)

    def _fail(self, fail: FailureMaker, root: Root, value: object, error: BaseException | str) -> None:
        if root == UNTRACKED:
            fail.stray(self._untracked, value, error)
        fail.note(self._failures, root, value, error)
        self._skip.update(roots_of(root))

    def _sink(self, component: ComponentSpec, task: Task, frames: list[Frame]) -> None:
        control = self._control
        directory = Path(control.sink_directories[component.name])
        name = f"{control.run_id[:8]}-{self._version}-{task.index:04d}-{self._attempt}"
        sink = SinkTask(component.body, directory, name)
        fail = FailureMaker(component.name, task.task_id)
        for frame in frames:
            kept = without(frame, self._skip) if self._skip else frame
            sink.take(kept)
            self._edges.taken(kept)
        self._stats.worked[component.name] = self._stats.worked.get(component.name, 0) + sink.rows
        report = sink.write(component.name, task.index, partial(self._fail, fail))
        if report is not None:
            sync_directory(directory)
            self._rows.append(self._row(wire.OUTPUT, wire.encode_report(report)))

    def _write_state(self, state: StatefulTask, fail: FailureMaker, frames: list[Frame]) -> None:
        try:
            report = state.write(frames, partial(self._fail, fail))
        except ProcessingError as error:
            logger.info("%s: the epoch runs again to find out whose doing it is: %s", state.component, error)
            self._rows.append(self._row(wire.UNSTORABLE, state.component.encode()))
            return
        if report is not None:
            self._rows.append(self._row(wire.STATE, wire.encode_report(report)))

    def _row(self, kind: int, head: bytes, body: bytes = b"") -> wire.Row:
        return self._partition, kind, head, body

    def _report(self) -> None:
        if self._untracked.stray_count:
            _log_strays(self._untracked, ", ".join(self._stage.components))
        for root, blame in self._marker.suspicions.roots.items():
            if root not in self._failures:  # no frame of it came this time
                self._failures[root] = blame.failure(self._plan.tasks[blame.task_id].component)
        entries = self._edges.entries()
        if entries is not None:
            self._rows.append(self._row(wire.LEDGER, b"", wire.pack_entries(entries)))
        self._kept_files.write()
        if self._kept_files.reports:
            entries = combine(self._kept_values, self._kept_roots)
            reports = wire.encode_report(self._kept_files.reports)
            self._rows.append(self._row(wire.KEPT, reports, wire.pack_entries(entries)))
        if self._touched:
            touched = np.unique(np.concatenate(self._touched))
            self._rows.append(self._row(wire.TOUCHED, b"", touched.tobytes()))
        if self._failures:
            failures: dict[int, wire.FailureReport] = {}
            for root, failure in self._failures.items():
                failures.setdefault(id(failure), wire.FailureReport([], failure)).roots.append(root)
            shortened = [
                report if position < MAX_TRACEBACKS else _without_traceback(report)
                for position, report in enumerate(failures.values())
            ]
            self._rows.append(self._row(wire.FAILURES, b"", wire.encode_report(shortened)))
        self._rows.append(self._row(wire.STATS, wire.encode_report(self._stats)))


def _task_of(plan: Plan, component: ComponentSpec, place: TaskPlace, state: StatefulTask | None) -> _Task:
    cell, keys = (state.cell, state.key_functions) if state is not None else (None, None)
    if component.body.style == "arrow":
        return ArrowTask(plan.spec, component, place, cell, keys)
    return (AwaitingBoltTask if component.body.is_async else BoltTask)(component, place, cell, keys)


def _close(bolt: _Task | Holder, component: str) -> None:
    try:
        bolt.close()
    except KeyboardInterrupt:
        raise
    except BaseException:
        logger.exception("closing a task of %s failed; its results stand", component)


def _log_strays(worked: Worked, component: str) -> None:
    """Say once per frame what no verdict will say."""
    logger.warning(
        "%s: %d errors that fail no message (untracked tuples, or tuples settled before), such as %s",
        component,
        worked.stray_count,
        "; ".join(f"{one.error_type} {one.error} on {one.failing_tuple}" for one in worked.strays),
    )


def _without_traceback(report: wire.FailureReport) -> wire.FailureReport:
    return wire.FailureReport(report.roots, msgspec.structs.replace(report.failure, traceback=""))


class _Emitter:
    """Deals what one task emits, one router per stream."""

    def __init__(self, plan: Plan, task: Task, component: ComponentSpec) -> None:
        self._component = component.name
        self._routers = {stream: Router.of(plan, task.task_id, stream) for stream in component.outputs}

    def route(self, output: Output) -> tuple[list[Frame], list[tuple[Root, Any, Exception]]]:
        """(frames without an id, what could not be dealt). A tuple that fails for one target goes to none."""
        router = self._routers[output.stream]
        if isinstance(output, ColumnOutput):
            parts, errors = route_columns(router, output.columns)
            frames: list[Frame] = [ColumnFrame(task, *self._from(output), columns, 0) for task, columns in parts]
        else:
            values, roots, ends = output.values, output.roots, output.ends
            if output.direct_task is not None:
                try:
                    batches, errors = [router.route_direct(output.direct_task, values, roots, ends)], []
                except ProcessingError as error:
                    return [], [(root, part[0], error) for root, part in segments_of(values, roots, ends)]
            else:
                batches, errors = router.route(values, roots, ends)
            frames = [Frame(one.task, *self._from(output), one.values, one.roots, one.ends, 0) for one in batches]
        if not errors:
            return frames, []
        owners = [root for root, part in segments_of(output.values, output.roots, output.ends) for _ in part]
        return frames, [(owners[position], output.values[position], error) for position, error in errors]

    def _from(self, output: Output) -> tuple[str, str]:
        return self._component, output.stream
