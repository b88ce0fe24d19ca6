"""The local runtime: the handle of a run, and the services that its executors call.

A supervising thread runs one `Life` after the other: an error of a component ends a life, and after a pause the next
one continues with its messages. What a bolt raises ends no life: it fails a message.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from random import Random, SystemRandom
from typing import Any

from tupletree.clock import Clock, SteadyClock, SystemClock
from tupletree.data.payloads import to_jsonable
from tupletree.errors import (
    CheckpointError,
    ConnectorError,
    OutageLimitError,
    SpoutCodeError,
    UnavailableAtStartError,
)
from tupletree.routing.plan import Plan
from tupletree.runtimes.api import Progress, RunHandle, RunRequest, is_own_thread
from tupletree.runtimes.dead_guard import DeadGuard
from tupletree.runtimes.deadletters import write_letters
from tupletree.runtimes.handle import BaseRun
from tupletree.runtimes.letter_delivery import refuse_columns
from tupletree.runtimes.local.assembly import Assembly, CarriedOver, assemble
from tupletree.runtimes.local.counts import RunCounts
from tupletree.runtimes.local.durable.durability import Durability, open_state
from tupletree.runtimes.local.ending import name_left, save_state
from tupletree.runtimes.local.event_loop import CallRunner
from tupletree.runtimes.local.executor import Executor, Hub
from tupletree.runtimes.local.faults import fault_of
from tupletree.runtimes.local.gc import rarer_collections
from tupletree.runtimes.local.history import HISTORY, LocalHistory
from tupletree.runtimes.local.life import Life, RunSignals
from tupletree.runtimes.local.progress import ProgressSampler
from tupletree.runtimes.local.statedir import LocalStateDirectory
from tupletree.runtimes.local.supported import refuse_unsupported
from tupletree.runtimes.local.whereabouts import whereabouts
from tupletree.runtimes.open_messages import NOTHING_OPEN, OpenMessages
from tupletree.runtimes.progress import ProgressRecord
from tupletree.state.cells import ValueCell
from tupletree.tasks.async_spout import OpeningError
from tupletree.tasks.mail import Finished
from tupletree.tasks.outbox import AsyncCall
from tupletree.tasks.spout import DEFAULT_MAX_PENDING, SpoutMachine
from tupletree.topology.limits import refuse_stuck
from tupletree.tracking.facts import Fact
from tupletree.tracking.records import Acked, Died

logger = logging.getLogger("tupletree.local")

ANSWER_TIMEOUT_S = 5.0
STOP_MARGIN_S = 20.0
"""How long `stop` waits beyond the drain: tasks that hang are given up one after the other."""


def start(request: RunRequest) -> RunHandle:
    """Check the request, claim the sinks' folders and the state directory, and start. See `runtimes.run.run`."""
    spec = request.topology.build()
    refuse_unsupported(spec)
    refuse_columns(spec)
    refuse_stuck(spec, request.options, DEFAULT_MAX_PENDING)
    plan = Plan.of(spec, request.options, deputies=True)
    cells: dict[int, ValueCell[Any]] = {}
    if request.state_snapshot is not None:
        from tupletree.runtimes.local.snapshot import load_snapshot  # it needs PyArrow, which takes a while to import

        cells = load_snapshot(request.state_snapshot, plan, SystemClock().wall(), request.words)
    clock = SteadyClock(SystemClock())
    directory, durability = open_state(request, plan, clock)
    carried_over = CarriedOver(cells=cells) if durability is None else durability.carried_over
    carried_over.active = request.active
    run = LocalRun(request, plan, directory, carried_over, clock, durability)
    run.begin()
    return run


# More than 12 attributes: the handle of a run: one per part that it starts, asks and ends.
class LocalRun(BaseRun, Hub):
    """One run in this process; the handle that `run` returns. It is the `Hub` of its executors."""

    def __init__(
        self,
        request: RunRequest,
        plan: Plan,
        directory: LocalStateDirectory,
        carried_over: CarriedOver,
        clock: Clock,
        durability: Durability | None = None,
    ) -> None:
        self._carried_over = carried_over
        self._assembly: Assembly | None = None
        self._counts = RunCounts(plan.spec, carried_over, clock, lambda: self._assembly)
        self._history = LocalHistory(directory.path / HISTORY, request.options.history_max_bytes)
        sampler = ProgressSampler(
            plan.spec.name,
            directory.run_id,
            clock,
            self._counts.totals,
            self._counts.rows,
            lambda: self._assembly,
            self._counts.outages,
        )

        def sample() -> ProgressRecord:
            self._history.write()
            return sampler.sample()

        resumes = durability is not None
        super().__init__("local", request, plan.spec, directory, clock, resumes=resumes, sample=sample)
        self._directory = directory
        self._plan = plan
        self._durability = durability
        self._calls = CallRunner()
        self._activating = threading.Lock()
        self._random = Random(SystemRandom().getrandbits(128))
        self._control = RunSignals()
        self._dead_guard = DeadGuard(plan.spec.name, request.options, self._stop_at_once, self.pause)
        self._storing_letters = threading.Lock()
        self._letters = 0 if durability is None else durability.letters
        self._hung = False
        self._seconds: float | None = None
        if durability is not None:
            durability.connect(lambda: self._assembly, self._counts.rows, lambda: self._letters, self._end_by)

    # --- the handle -------------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        totals, open_now = self._counts.totals()
        waits = self._counts.outages()
        if self._durability is not None:
            waits += self._durability.shown()
        return Progress(
            emitted=totals.acked + totals.dead + open_now,
            acked=totals.acked,
            failed=totals.failed,
            retried=totals.retried,
            dead=totals.dead,
            replayed=totals.replayed,
            open=open_now,
            rate_per_s=self._rates.rate_per_s(),
            latency_p50_ms=self._rates.latency_ms(0.5),
            latency_p95_ms=self._rates.latency_ms(0.95),
            seconds=self._seconds if self._seconds is not None else self._clock.monotonic() - self._started_s,
            outputs=self._counts.rows(),
            state=self._state(waits=bool(waits)),
            outages=(*waits, *self._delivery.shown()),
            outage_counts=self._counts.outage_counts(),
            untracked=totals.untracked,
            untracked_failed=self._counts.strays(),
            joined=totals.joined,
            reason=self._dead_guard.reason,
            holds=self._counts.holds(),
            late=self._counts.late(),
            work=self._counts.work(),
        )

    def _left(self) -> OpenMessages:
        return (self._counts.left or NOTHING_OPEN).of_all(self._counts.totals()[1])

    def _state(self, *, waits: bool) -> str:
        state = self._control.state
        if state != "processing":
            return state
        if not self._carried_over.active:
            return "paused"
        return "waiting" if waits else state

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """See `RunHandle.stop`. A later call may only shorten the time."""
        limit_s = self._options.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        at_s = self._clock.monotonic() + limit_s
        control = self._control
        away = {outage.component for outage in self._counts.outages()}
        if away and not control.stop_asked():
            names = ", ".join(sorted(away))
            logger.warning("%s: stopping, for %g s at most: messages wait for %s", self._spec.name, limit_s, names)
        control.stop_at_s = at_s if control.stop_at_s is None else min(at_s, control.stop_at_s)
        control.wake.set()
        if not is_own_thread():
            self._ended.wait(min(limit_s + STOP_MARGIN_S, threading.TIMEOUT_MAX))

    def _stop_at_once(self) -> None:
        """Stop, and emit nothing more of what the spouts have given already."""
        self._control.leaves_buffer = True
        self.stop()

    def resume(self) -> None:
        if not self._control.stop_asked():
            totals, still_open = self._counts.totals()
            self._dead_guard.begin(totals.acked, totals.dead, still_open)
            self._set_active(active=True)

    def whereabouts(self, message: str) -> list[Fact]:
        assembly = self._assembly
        return [] if assembly is None else whereabouts(assembly, message, self._clock)

    def describe(self) -> str:
        """Tasks, executors and rings as text, one line each."""
        lines = [f"{self._spec.name}: {self._control.state}"]
        assembly = self._assembly
        for executor in assembly.executors if assembly else ():
            ring = executor.ring
            lines.append(f"  executor {executor.name}: {ring.depth} of {ring.capacity} tuples in its ring")
            for task_id in sorted(executor.machines):
                task = self._plan.tasks[task_id]
                in_hand = ", at work" if executor.in_hand == task_id else ""
                lines.append(f"    task {task_id} {task.component}[{task.index}]{in_hand}")
        return "\n".join(lines)

    def _set_active(self, *, active: bool) -> None:
        with self._activating:
            self._carried_over.active = active
            assembly = self._assembly
        if assembly is None:
            return
        for spout in assembly.spouts():
            with suppress(CancelledError):  # its life has ended; the next one sets it
                self._set_spout(assembly.owners[spout.task.task_id], spout, active=active)

    @staticmethod
    def _set_spout(executor: Executor, spout: SpoutMachine, *, active: bool) -> None:
        action = spout.resume if active else spout.pause
        done = executor.submit(lambda _, __: action())
        if not is_own_thread():  # the caller may be on that executor's thread
            done.result(ANSWER_TIMEOUT_S)

    # --- called by executors, on their threads ---------------------------------------------------------------

    @property
    def ending(self) -> bool:
        return self._control.ending

    def store_letters(self, died: Sequence[Died]) -> None:
        if not died:
            return
        letters = [one.letter(self._spec.name, to_jsonable(one.value), type(one.value).__qualname__) for one in died]
        redact = self._request.redact
        with self._storing_letters:
            letters = [redact(one) for one in letters] if redact else letters
            try:
                write_letters(self._directory.dead, self._letters, letters)
            except OSError as error:
                raise ConnectorError(
                    "dead letters cannot be stored",
                    where=str(self._directory.dead),
                    got=f"{type(error).__name__}: {error}",
                    next_step="make room there, or fix the folder; until then no source is told of its dead messages",
                ) from error
            self._delivery.put(self._letters)
            self._letters += 1
        totals, _ = self._counts.totals()
        self._dead_guard.look(totals.acked, totals.dead)

    def acked(self, acked: list[Acked]) -> None:
        self._rates.settled(acked)

    def note(self, facts: list[Fact]) -> None:
        self._history.put(facts)

    def call(self, task: int, number: int, call: AsyncCall) -> None:
        assert self._assembly is not None
        ring = self._assembly.owners[task].ring

        def tell(finished: Finished) -> None:
            ring.send((task, finished))

        self._calls.run(task, number, call, tell)

    def cancel(self, task: int, numbers: Sequence[int]) -> None:
        self._calls.cancel(task, numbers)

    def end(self, task: int, numbers: Sequence[int], call: AsyncCall) -> None:
        self._calls.end(task, numbers, call)

    def idle(self, executor: Executor) -> None:
        """See `Hub.idle`. Spouts are read on their own threads only: during a step they are inconsistent."""
        name, spouts, control, assembly = executor.name, executor.spouts, self._control, self._assembly
        if not spouts or assembly is None:
            return
        places = assembly.spout_places
        ended = control.all_ended.note(name, all(spout.ended for spout in spouts), places)
        if (control.draining or ended) and not control.ending:
            control.ending = True
            for other in assembly.executors:
                other.nudge()
        finished = control.all_finished.note(name, all(spout.is_finished for spout in spouts), places)
        if finished and not control.finished:
            control.finished = True
            control.wake.set()
        if not control.draining:
            return
        drained = control.all_drained.note(name, all(spout.is_drained for spout in spouts), places)
        if drained and not control.drained:
            control.drained = True
            control.wake.set()

    def failed(self, executor: Executor, error: BaseException) -> None:
        """See `Hub.failed`. Several errors at a time cause one restart: the first one is its reason."""
        if self._control.fault is None:
            self._control.fault = fault_of(self._plan, executor, error)
        self._control.wake.set()

    def _end_by(self, error: BaseException) -> None:
        """End the run: checkpoints cannot go on."""
        self._control.fault = error
        self._control.wake.set()

    # --- the supervising thread -----------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._delivery.begin()
            with rarer_collections(self._options.local_gc_threshold):
                while not self._run_one_life():
                    pass
            file, wall_s = self._request.state_snapshot, self._clock.wall()
            save_state(file, self._plan, self._carried_over, wall_s, hung=self._hung)
            self._delivery.finish(lambda: self._control.stop_at_s, failed=False)
            self._control.state = "stopped"
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._fault, self._control.state = error, "failed"
        finally:
            try:
                if self._counts.left is None:
                    self._counts.note_left()
                name_left(self._plan, self._carried_over.spout_checkpoints)
                self._calls.close()
                if self._durability is not None:
                    self._durability.close()
                self._delivery.finish(lambda: self._control.stop_at_s, failed=True)
                self._seconds = self._clock.monotonic() - self._started_s
                self.reports.finish()
                self._history.write()
                self._run_control.finish(self._fault)
                self._directory.close()
            except Exception as error:  # noqa: BLE001 - raised by `wait`
                self._fault, self._control.state = self._fault or error, "failed"
            finally:
                self._ended.set()

    def _run_one_life(self) -> bool:
        """Run one life; whether it was the last one. Raises an error that no restart can fix."""
        control = self._control
        control.begin_life()
        if self._durability is not None:
            self._durability.begin()
        with self._activating:
            assembly = self._assembly = assemble(
                self._plan,
                self._options,
                clock=self._clock,
                hub=self,
                run_id=self._directory.run_id,
                carried_over=self._carried_over,
                random=self._random,
            )
        life = Life(assembly, self._options, self._clock, control, self._calls)
        try:
            life.activate()
            self._policy.started(self._clock.monotonic())
            life.process()
            if self._durability is not None:
                self._durability.finish(assembly, lambda: control.stop_at_s, lambda: control.fault is not None)
            self._counts.note_left()
            life.shut_down()
        except BaseException as error:  # noqa: BLE001 - judged below, when everything has ended
            control.fault = control.fault or error
        finally:
            life.halt()
            self._calls.settle()  # before the next life opens what this one closes
        fault = control.fault
        if fault is None:
            self._hung = bool(life.hung)
            return True
        self._inherit(assembly)
        cannot_open = life.cannot_open or isinstance(fault, OpeningError)
        if (
            life.hung
            or isinstance(fault, (OutageLimitError, UnavailableAtStartError, SpoutCodeError, CheckpointError))
            or (cannot_open and not self._carried_over.was_open)
        ):
            raise fault  # a restart is impossible, or the error was there at the first start
        return self._await_restart(fault)

    def _inherit(self, assembly: Assembly) -> None:
        for executor in assembly.executors:
            self._carried_over.spout_checkpoints.update(executor.spout_checkpoints)
        self._carried_over.strays += sum(machine.strays for machine in assembly.machines.values())
        for sink in assembly.sinks():
            rows = self._carried_over.rows
            rows[sink.task.component] = rows.get(sink.task.component, 0) + sink.rows_written
        self._carried_over.outages = Counter(self._counts.outage_counts())
        self._carried_over.late = Counter(self._counts.late())
        self._carried_over.work = self._counts.work()
        self._assembly = None

    def _await_restart(self, fault: BaseException) -> bool:
        """Wait before the next life; True if a stop was requested meanwhile, which is final."""
        control = self._control
        if control.stop_asked():
            logger.error("%s failed while it was being stopped: %s", self._spec.name, fault)
            return True
        restart_at_s = self._clock.monotonic() + self._restart_in_s(fault)
        control.state = "restarting"
        while not control.stop_asked():
            left_s = restart_at_s - self._clock.monotonic()
            if left_s <= 0:
                return False
            control.wake.wait(left_s)
            control.wake.clear()
        return True
