"""The Spark runtime: checks and claims what a run needs, recovers its accounts, and starts its two threads.

Owns the run handle. The work is done by the `loop`, in the run's own thread, and the `engine`, in the settling thread.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import SystemRandom

import msgspec

from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.factory import is_holder
from tupletree.clock import SteadyClock, SystemClock
from tupletree.config import Options
from tupletree.durable import private_folder
from tupletree.errors import (
    TupletreeError,
)
from tupletree.routing.plan import Plan
from tupletree.runtimes.api import Progress, RunHandle, RunRequest, Summary, is_own_thread
from tupletree.runtimes.control import RunControl
from tupletree.runtimes.dead_guard import DeadGuard
from tupletree.runtimes.instances import own_instance
from tupletree.runtimes.letter_delivery import LetterDelivery, refuse_columns
from tupletree.runtimes.open_messages import open_messages
from tupletree.runtimes.progress import Reporter, progress_file
from tupletree.runtimes.rates import Rates
from tupletree.runtimes.spark.driver.async_spouts import AsyncSpoutAdapter, SpoutLoop
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker, SpoutTask
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.runtimes.spark.driver.loop import Loop
from tupletree.runtimes.spark.driver.progress import EpochProgress
from tupletree.runtimes.spark.driver.recovery import Recovered, adopt_open_trees, newest_time_s, recover
from tupletree.runtimes.spark.driver.replays import Replays
from tupletree.runtimes.spark.driver.rescale import Rescaler
from tupletree.runtimes.spark.driver.retention import sweep_drafts
from tupletree.runtimes.spark.driver.ticks import TickSchedule
from tupletree.runtimes.spark.format.entries import SettleEntry
from tupletree.runtimes.spark.format.program import codecs_of, pack_program
from tupletree.runtimes.spark.format.spool import lasting_fingerprint, make_spools
from tupletree.runtimes.spark.format.statedir import StateDirectory, fresh_state_dir, unusable
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochDecider, EpochVerdicts
from tupletree.runtimes.spark.settle.engine import Engine
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.epoch_runs import EpochRuns
from tupletree.runtimes.spark.settle.logged import acked_in
from tupletree.runtimes.spark.settle.outages import STATE_DIRECTORY, Outages, outage_in
from tupletree.runtimes.spark.settle.plan_runner import Backend, PlanRunner, SparkBackend
from tupletree.runtimes.spark.settle.publish import Publisher
from tupletree.runtimes.spark.settle.shutdown import BEYOND_RESTARTS, reason
from tupletree.runtimes.spark.settle.sink_delivery import SinkDelivery
from tupletree.runtimes.spark.start_folder import refuse_other_folder
from tupletree.runtimes.spark.supported import refuse_unnameable, refuse_unsupported
from tupletree.sinks.files import claim_directories
from tupletree.topology.components import AsyncSpout
from tupletree.topology.model import TopologySpec
from tupletree.topology.window_check import max_pending, refuse_stuck
from tupletree.tracking.message_ids import id_from_plain
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import AlreadySettled
from tupletree.tracking.retry import RestartPolicy, RetryPolicy

__all__ = ["SparkRun", "start"]

logger = logging.getLogger("tupletree.spark")


def start(request: RunRequest, backend: Backend | None = None) -> RunHandle:
    """Check the request, claim the state directory and the sinks' folders, and start. See `runtimes.run.run`.

    Args:
        request: what to run, and how.
        backend: where plans are executed; by default a Spark session.
    """
    spec = request.topology.build()
    backend = backend or SparkBackend(spec.name, request.master)
    refuse_unsupported(spec)
    refuse_columns(spec)
    refuse_stuck(spec, request.options, max_pending(spec, request.options, 2 * request.options.epoch_max_messages))
    backend.check()
    path = request.state_dir or fresh_state_dir(spec.name)
    refuse_unnameable(path)
    directory = StateDirectory.open(path, spec.name, lasting_fingerprint(spec))
    try:
        refuse_other_folder(directory.path, spec, request.options)
        folders = {
            **claim_directories(spec, directory.run_id, append=request.append),
            **make_spools(directory.spools, spec),
        }
        sinks = {name: folders[name] for name in spec.components if name in folders}
        for component in spec.components:
            private_folder(directory.state / component)
    except BaseException as error:
        directory.close()
        if isinstance(error, OSError):
            raise unusable(directory.path, error) from error
        if request.state_dir is None:  # a start that was refused is no run, and must not be taken for the latest one
            shutil.rmtree(directory.path, ignore_errors=True)
        raise
    run = SparkRun(request, spec, directory, sinks, backend)
    run.begin()
    return run


class SparkRun(RunHandle):
    """One run on Spark; the handle that `run` returns."""

    def __init__(
        self,
        request: RunRequest,
        spec: TopologySpec,
        directory: StateDirectory,
        sinks: dict[str, str],
        backend: Backend,
    ) -> None:
        self._request = request
        self._options = request.options
        self._spec = spec
        self._directory = directory
        self._sinks = sinks
        self._backend = backend
        self._clock = SteadyClock(SystemClock())
        self._rates = Rates(self._clock)
        self._loop: Loop | None = None
        self._stop_at_s: float | None = None
        self._flushes = False  # the stop is a drain
        self._fault: BaseException | None = None
        self._ended = threading.Event()
        self._state = "created"
        self._started_s = self._clock.monotonic()
        self._thread = threading.Thread(target=self._main, name=f"tupletree-{spec.name}", daemon=True)
        self._accounts: Accounts | None = None
        self._active = request.active
        self._policy = RestartPolicy(max_restarts=request.options.max_restarts)
        self._stop_asked = threading.Event()
        self._was_up = False
        self._answered: set[int] = set()  # spouts, in any life of this start
        self._outages = Outages(self._clock, request.options.outage_limit_s)
        self._delivery = LetterDelivery(
            spec, request.on_dead, directory.run_id, directory.dead, request.options, self._clock, resumes=True
        )
        self._dead_guard = DeadGuard(
            spec.name, request.options, lambda: self._hold(self.stop), lambda: self._hold(self.pause)
        )
        super().__init__(Reporter(spec.name, progress_file(request.options)))
        self._run_control = RunControl(self, spec.name, "spark")

    # --- the handle -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the loop's thread."""
        self._run_control.begin()
        self.reports.begin()
        self._thread.start()

    @property
    def state_dir(self) -> Path:
        """See `RunHandle.state_dir`."""
        return self._directory.path

    def progress(self) -> Progress:
        """See `RunHandle.progress`."""
        counters = self._accounts.totals if self._accounts is not None else None
        seconds = self._clock.monotonic() - self._started_s
        outages = self._outages.shown()
        state = self._shown_state()
        state = "waiting" if outages and state in {"processing", "restarting"} else state
        if counters is None or self._accounts is None:
            return Progress(seconds=seconds, state=state, outages=outages, outage_counts=self._outages.counts())
        open_now = self._open_now()
        return Progress(
            emitted=counters.acked + counters.dead + open_now,
            acked=counters.acked,
            failed=counters.failed,
            retried=counters.retried,
            dead=counters.dead,
            open=open_now,
            epoch=self._accounts.settled,
            rate_per_s=self._rates.rate_per_s(),
            latency_p50_ms=self._rates.latency_ms(0.5),
            latency_p95_ms=self._rates.latency_ms(0.95),
            seconds=seconds,
            outputs={name: counters.rows.get(name, 0) for name in self._sinks},
            state=state,
            untracked=counters.untracked,
            untracked_failed=counters.untracked_failed,
            joined=self._accounts.joined,
            outages=(*outages, *self._delivery.shown()),
            outage_counts=self._outages.counts(),
            reason=self._dead_guard.reason,
        )

    def _shown_state(self) -> str:
        if self._state != "processing":
            return self._state
        if self._stop_at_s is not None:
            return "draining"
        return self._state if self._active else "paused"

    def _open_now(self) -> int:
        accounts = self._accounts
        assert accounts is not None
        pending = accounts.pending
        return sum(accounts.open_count(task) + pending.awaiting_source(task) for task in accounts.spout_of)

    def wait(self, timeout_s: float | None = None) -> Summary:
        """See `RunHandle.wait`."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError
        if self._fault is not None:
            raise self._fault
        assert self._accounts is not None
        totals = self._accounts.totals
        # Not the emitted of the totals: these do not count epochs that a stop left unsettled.
        open_now = self._open_now()
        return Summary(
            topology=self._spec.name,
            runtime="spark",
            emitted=totals.acked + totals.dead + open_now,
            acked=totals.acked,
            failed=totals.failed,
            retried=totals.retried,
            dead=totals.dead,
            open=open_now,
            seconds=self._clock.monotonic() - self._started_s,
            state_dir=self._directory.path,
            outputs={name: totals.rows.get(name, 0) for name in self._sinks},
            untracked=totals.untracked,
            untracked_failed=totals.untracked_failed,
            joined=self._accounts.joined,
            left=open_messages(
                dict.fromkeys(self._accounts.spout_of, self._accounts.pending),
                self._clock.monotonic(),
                self._clock.wall(),
                self._accounts.reading,
            ),
            reason=self._dead_guard.reason,
        )

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """See `RunHandle.stop`. A later call may only shorten the time."""
        self._end(drain_timeout_s, flush=False)

    def drain(self, drain_timeout_s: float | None = None) -> None:
        """See `RunHandle.drain`."""
        self._end(drain_timeout_s, flush=True)

    def _end(self, drain_timeout_s: float | None, *, flush: bool) -> None:
        limit_s = self._options.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        at_s = self._clock.monotonic() + limit_s
        self._flushes = flush and (self._stop_at_s is None or self._flushes)
        self._stop_at_s = at_s if self._stop_at_s is None else min(at_s, self._stop_at_s)
        self._stop_asked.set()
        loop = self._loop
        if loop is not None:
            loop.stop(self._stop_at_s, flush=self._flushes)
        if not is_own_thread():
            self._ended.wait(min(limit_s + 10.0, threading.TIMEOUT_MAX))

    def pause(self) -> None:
        """See `RunHandle.pause`."""
        self._set_active(active=False)

    def resume(self) -> None:
        """See `RunHandle.resume`."""
        if self._accounts is not None:
            self._dead_guard.begin(self._accounts.totals.acked, self._accounts.totals.dead, self._open_now())
        self._set_active(active=True)

    def _hold(self, act: Callable[[], None]) -> None:
        """Stop or pause, and give what is pulled already to no epoch."""
        if self._loop is not None:
            self._loop.hold_buffer()
        act()

    def _set_active(self, *, active: bool) -> None:
        self._active = active
        loop = self._loop
        if loop is not None:
            loop.set_active(active=active)

    # --- the thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._delivery.begin()
            while not self._run_once():
                self._directory.claim_again()
            self._delivery.finish(lambda: self._stop_at_s, failed=False)
            self._state = "stopped"
        except BaseException as error:
            self._state = "failed"
            self._fault = reason(error, self._directory.path)
            logger.debug("the run failed", exc_info=error)
        finally:
            self._delivery.finish(lambda: self._stop_at_s, failed=True)
            self.reports.finish()
            self._run_control.finish(self._fault)
            self._directory.close()
            self._ended.set()

    def _run_once(self) -> bool:
        """Run until the end or an error; whether this was the end. Raises an error that no restart can fix."""
        try:
            self._run(self._backend.open())
        except BaseException as error:  # noqa: BLE001 - it comes out, or is the reason of a restart
            fault = reason(error, self._directory.path)  # also of what a worker raised
            if not self._was_up or isinstance(fault, BEYOND_RESTARTS) or self._stop_at_s is not None:
                raise fault from fault.__cause__
            outage = outage_in(error)
            if outage is not None:
                self._state = "restarting"
                return self._stop_asked.wait(self._outages.met(STATE_DIRECTORY, outage))
            return self._await_restart(fault)
        finally:
            self._loop = None
            self._backend.close()
        return True

    def _await_restart(self, fault: TupletreeError) -> bool:
        """Wait before a restart; True if a stop was requested meanwhile, which is final."""
        delay_s = self._policy.failed(self._clock.monotonic())
        if delay_s is None:
            raise fault
        logger.warning("%s: restart %d in %.0f s: %s", self._spec.name, self._policy.restarts, delay_s, fault)
        self._state = "restarting"
        return self._stop_asked.wait(delay_s)

    def _run(self, partitions: int) -> None:
        plan = Plan.of(self._spec, self._options, partitions)
        spout_loop = SpoutLoop()
        spouts = self._make_spouts(plan, spout_loop)
        accounts = self._make_accounts(spouts)
        codecs = codecs_of(plan)
        frame_maker = EpochFrameMaker(plan, spouts)
        rescaler = Rescaler(self._directory, plan, frame_maker, spouts, codecs)
        recovered = recover(self._directory, accounts, codecs, self._sinks, self._clock, rescaler)
        adopt_open_trees(self._directory, accounts, codecs, self._clock)
        if self._accounts is None:  # what earlier starts have counted is no reason to stop this one
            self._dead_guard.begin(accounts.totals.acked, accounts.totals.dead)
        self._accounts = accounts
        replays = Replays(self._directory.path, accounts, self._clock)
        retry_policy = RetryPolicy.from_options(self._options)
        slow_s = self._options.processing_timeout_s
        spools, outages = self._directory.spools, self._outages
        called = SinkDelivery(plan, self._directory.run_id, spools, retry_policy, slow_s, outages)
        redact, stored = self._request.redact, self._delivery.put
        publisher = Publisher(self._directory, accounts, codecs, self._clock, self._sinks, called, redact, stored)
        search_path = [self._request.target.search_path] if self._request.target else []
        group = f"tupletree-{self._directory.run_id[:8]}-{self._directory.generation}"
        runner = self._backend.runner(plan, pack_program(plan, search_path), group)
        engine = self._make_engine(plan, runner, accounts, publisher)
        opened: list[SpoutTask] = []
        active = self._active
        try:
            for spout in spouts:
                opened.append(spout)
                self._open(spout, plan, accounts)
                if active:
                    spout.spout.activate()
            called.open(self._clock.wall(), may_wait=self._was_up)
            self._finish_last(recovered, publisher, spouts)
            self._ask_again(recovered, spouts)
            retold: deque[AlreadySettled] = deque()
            self._answered |= _answered_before(spouts, accounts, has_epochs=recovered.next_epoch > 0)
            intake = Intake(
                frame_maker, self._options, accounts, spouts, self._clock, retold.append, outages, self._answered
            )
            generation, run_id = self._directory.generation, self._directory.run_id
            epochs = EpochProgress(plan, accounts, self._clock, run_id, generation, spouts)
            loop = self._loop = Loop(
                intake,
                accounts,
                engine,
                runner,
                replays,
                TickSchedule(self._spec, self._options, self._clock.monotonic()),
                self._rates,
                spouts,
                recovered.records,
                recovered.next_epoch,
                self._directory,
                self._sinks,
                self._options,
                self._clock,
                retold,
                lambda record, verdicts: self._note_called_back(epochs, record, verdicts),
                self._outages,
                active=active,
            )
            self._run_loop(loop, called)
        finally:
            called.close()
            _close_all(opened)
            spout_loop.close()
        replays.clear_inbox()
        loop.sweep_orphans()

    def _note_called_back(self, epochs: EpochProgress, record: EpochRecord, verdicts: EpochVerdicts) -> None:
        """An epoch is settled, and its sources know."""
        assert self._accounts is not None
        self._dead_guard.look(self._accounts.totals.acked, self._accounts.totals.dead)
        self.reports.report(epochs.of(record, verdicts, self._outages.shown()))

    def _make_engine(self, plan: Plan, runner: PlanRunner, accounts: Accounts, publisher: Publisher) -> Engine:
        directory, options = self._directory, self._options
        wakes = _outlives_epochs(plan, options)
        runs = EpochRuns(plan, runner, options, directory, accounts, self._sinks, self._outages, wakes=wakes)
        decider = EpochDecider(self._spec, options, directory.generation, self._request.redact)
        return Engine(runs, decider, publisher, directory, accounts, self._clock)

    def _run_loop(self, loop: Loop, called: SinkDelivery) -> None:
        try:
            loop.sweep_orphans()
            self._state = "processing"
            self._was_up = True
            self._outages.over(STATE_DIRECTORY)
            self._policy.started(self._clock.monotonic())
            if self._stop_at_s is not None:  # requested before there was a loop
                loop.stop(self._stop_at_s, flush=self._flushes)
            loop.set_active(active=self._active)
            loop.run()
        finally:
            self._state = "stopping"
            loop.close()
            called.leave()
            loop.join_settling()

    def _make_spouts(self, plan: Plan, loop: SpoutLoop) -> list[SpoutTask]:
        spouts: list[SpoutTask] = []
        for component in self._spec.components.values():
            if component.kind == "spout":
                (stream,) = component.outputs
                shared = plan.parallelism(component.name) == 1
                for task in plan.tasks_of(component.name):
                    spout = own_instance(component, shared=shared)
                    if isinstance(spout, AsyncSpout):
                        spout = AsyncSpoutAdapter(spout, loop, self._options.spout_idle_wait_ms / 1000.0)
                    spouts.append(SpoutTask(task, component.name, stream, spout))
        numbers = self._directory.number_spouts([(spout.task.task_id, spout.name) for spout in spouts])
        for spout, number in zip(spouts, numbers, strict=True):
            spout.number = number
        return spouts

    def _make_accounts(self, spouts: list[SpoutTask]) -> Accounts:
        randomness = SystemRandom()
        policy = RetryPolicy.from_options(self._options)

        def draw_roots(bits: int) -> int:
            return accounts.draw_roots(bits)

        pending = Pending(policy, draw_roots, randomness.random, record_changes=True)
        for spout in spouts:
            pending.register(spout.number, spout.name, self._spec.components[spout.name].replay)
        accounts = Accounts(self._spec, pending, {spout.number: spout.name for spout in spouts})
        # Due times and epoch time continue from the journal, even if the machine's clock was changed.
        self._clock.not_before(newest_time_s(self._directory))
        return accounts

    def _open(self, spout: SpoutTask, plan: Plan, accounts: Accounts) -> None:
        task = spout.task
        place = TaskPlace(
            self._spec.name,
            spout.name,
            task.task_id,
            task.index,
            plan.parallelism(spout.name),
            self._clock.wall(),
            component_tasks=plan.component_tasks,
        )
        spout.spout.open(place)
        if spout.number in accounts.positions:
            # Its input may have grown since it ended: it continues from its position, and ends at once if there is
            # nothing.
            spout.position = accounts.positions[spout.number]
            spout.spout.restore(spout.position)
        else:
            spout.ended = spout.number in accounts.ended

    def _finish_last(self, recovered: Recovered, publisher: Publisher, spouts: list[SpoutTask]) -> None:
        """Finish what the last settled epoch left undone, and remove what killed starts left."""
        entry = recovered.last
        if entry is not None:
            entry, _ = publisher.finish(entry)
            self._tell_again(entry, {spout.number: spout for spout in spouts})
        sweep_drafts(self._directory)

    def _tell_again(self, entry: SettleEntry, spouts: dict[int, SpoutTask]) -> None:
        for message in acked_in(self._directory, entry):
            spouts[message.task].spout.ack(message.message_id)
        for acked in entry.acked:
            spouts[acked.task].spout.ack(id_from_plain(acked.message_id))
        for dead in entry.dead:  # some of them are in the log of an earlier epoch: they expired, or were given up
            final = msgspec.structs.replace(dead.letter.failure, permanent=True)
            spouts[dead.task].spout.fail(id_from_plain(dead.letter.message_id), final)

    def _ask_again(self, recovered: Recovered, spouts: list[SpoutTask]) -> None:
        """Ask sources again for messages that they are to emit again: they may have forgotten it with the process.

        Until a source says so again, its input is not over.
        """
        accounts = self._accounts
        assert accounts is not None
        for spout in spouts:
            task = spout.number
            for message_id, failure in accounts.pending.awaited(task):
                spout.spout.fail(message_id, failure)
                spout.ended = False
                accounts.ended.discard(task)
                for record in recovered.records:
                    record.reopen(task)


def _close_all(spouts: list[SpoutTask]) -> None:
    for spout in spouts:
        for leave in (spout.spout.deactivate, spout.spout.close):
            try:
                leave()
            except Exception:
                logger.exception("closing spout %s failed", spout.name)


def _outlives_epochs(plan: Plan, options: Options) -> bool:
    """Whether a task may have work in an epoch that has no frame for it."""
    components = plan.spec.components.values()
    holds = any(component.kind == "bolt" and is_holder(component) for component in components)
    return holds or any(link.carried for link in plan.links) or bool(TickSchedule(plan.spec, options, 0.0))


def _answered_before(spouts: Sequence[SpoutTask], accounts: Accounts, *, has_epochs: bool) -> set[int]:
    """The spouts that earlier starts on this state directory had an answer of."""
    known = accounts.positions.keys() | accounts.ended
    return {
        spout.number
        for spout in spouts
        if spout.number in known or (has_epochs and spout.spout.snapshot() is None)  # without a position nothing tells
    }
