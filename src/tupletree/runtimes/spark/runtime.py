"""The Spark runtime: checks and claims what a run needs, recovers its accounts, and starts its two threads.

Owns the run handle. The work is done by the `loop`, in the run's own thread, and the `engine`, in the settling thread.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tupletree.clock import SteadyClock, SystemClock
from tupletree.errors import (
    TupletreeError,
)
from tupletree.runtimes.api import Progress, RunHandle, RunRequest, Summary, is_own_thread
from tupletree.runtimes.control import RunControl
from tupletree.runtimes.dead_guard import DeadGuard
from tupletree.runtimes.letter_delivery import LetterDelivery
from tupletree.runtimes.open_messages import open_messages
from tupletree.runtimes.progress import Reporter, progress_file
from tupletree.runtimes.rates import Rates
from tupletree.runtimes.spark.code_watch import CodeWatch
from tupletree.runtimes.spark.driver.loop import Loop, LoopEvents
from tupletree.runtimes.spark.driver.progress import EpochProgress
from tupletree.runtimes.spark.incarnation import Incarnation, RunSettings, Surroundings, claim
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.outages import STATE_DIRECTORY, outage_in
from tupletree.runtimes.spark.settle.plan_runner import Backend, SparkBackend
from tupletree.runtimes.spark.settle.shutdown import BEYOND_RESTARTS, is_session_lost, reason
from tupletree.tracking.retry import RestartPolicy
from tupletree.tracking.work_done import WorkTotals

logger = logging.getLogger("tupletree.spark")


def start(request: RunRequest, backend: Backend | None = None) -> RunHandle:
    """Check the request, claim the state directory and the sinks' folders, and start. See `runtimes.run.run`.

    Args:
        request: what to run, and how.
        backend: where plans are executed; by default a Spark session.
    """
    spec = request.topology.build()
    backend = backend or SparkBackend(spec.name, request.master)
    run = SparkRun(claim(request, spec, backend, Surroundings(SteadyClock(SystemClock()))))
    run.begin()
    return run


# More than 12 attributes: the handle of a run: one per part that it starts, asks and ends.
class SparkRun(RunHandle):
    """One run on Spark; the handle that `run` returns."""

    def __init__(self, settings: RunSettings) -> None:
        request, spec = settings.request, settings.spec
        self._settings = settings
        self._request = request
        self._options = request.options
        self._spec = spec
        self._directory = settings.directory
        self._sinks = settings.sinks
        self._backend = settings.backend
        self._clock = settings.surroundings.clock
        self._outages = settings.outages
        self._rates = Rates(self._clock)
        self._late: Counter[str] = Counter()
        self._work = WorkTotals()
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
        self._delivery = LetterDelivery(
            spec,
            request.on_dead,
            settings.directory.run_id,
            settings.directory.dead,
            request.options,
            self._clock,
            resumes=True,
        )
        self._dead_guard = DeadGuard(
            spec.name, request.options, lambda: self._hold(self.stop), lambda: self._hold(self.pause)
        )
        self._code = CodeWatch(Path(request.target.search_path) if request.target else None)
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
        return self._directory.path

    def progress(self) -> Progress:
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
            replayed=counters.replayed,
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
            late=dict(self._late),
            work=dict(self._work),
            reason=self._dead_guard.reason,
            holds=self._accounts.holds(self._clock.monotonic(), self._clock.wall()),
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
                self._accounts.counted,
            ),
            reason=self._dead_guard.reason,
        )

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """See `RunHandle.stop`. A later call may only shorten the time."""
        self._end(drain_timeout_s, flush=False)

    def drain(self, drain_timeout_s: float | None = None) -> None:
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
        self._set_active(active=False)

    def resume(self) -> None:
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
            is_restart = False
            while not self._run_once(is_restart=is_restart):
                is_restart = True
            self._delivery.finish(lambda: self._stop_at_s, failed=False)
            self._state = "stopped"
        except BaseException as error:
            self._state = "failed"
            self._fault = reason(error, self._directory.path)
            logger.debug("the run failed", exc_info=error)
        finally:
            try:
                self._delivery.finish(lambda: self._stop_at_s, failed=True)
                self.reports.finish()
                self._run_control.finish(self._fault)
                self._directory.close()
            except Exception as error:
                logger.exception("%s: what the run had could not be released", self._spec.name)
                self._fault = self._fault or reason(error, self._directory.path)
                self._state = "failed"
            finally:
                self._ended.set()

    def _run_once(self, *, is_restart: bool) -> bool:
        """Run until the end or an error; whether this was the end. Raises an error that no restart can fix."""
        try:
            if is_restart:
                self._directory.claim_again()
            self._run(self._backend.open())
        except BaseException as error:  # noqa: BLE001 - it comes out, or is the reason of a restart
            fault = reason(error, self._directory.path)  # also of what a worker raised
            if self._was_up and self._stop_at_s is not None and is_session_lost(error):
                logger.warning(
                    "%s: the Spark session ended while the run was stopping, as by a signal to all processes of a "
                    "service; what was in hand stays open: %s",
                    self._spec.name,
                    fault,
                )
                return True
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
        incarnation = Incarnation(self._settings, partitions, self._delivery.put)
        accounts = incarnation.parts.accounts
        if self._accounts is None:  # what earlier starts have counted is no reason to stop this one
            self._dead_guard.begin(accounts.totals.acked, accounts.totals.dead)
        self._accounts = accounts
        try:
            loop = self._loop = incarnation.open(self._events, active=self._active, may_wait=self._was_up)
            self._run_loop(loop, incarnation)
        finally:
            incarnation.close()
        incarnation.end()

    def _events(self, incarnation: Incarnation) -> LoopEvents:
        epochs = EpochProgress(incarnation.parts, incarnation.spouts)

        def told(record: EpochRecord, outcomes: EpochOutcomes) -> None:
            totals = incarnation.parts.accounts.totals
            self._dead_guard.look(totals.acked, totals.dead)
            self._code.look(self._clock.monotonic())
            for stats in outcomes.reports.stats:
                self._late.update(stats.late)
                for bolt, done in stats.work.items():
                    self._work.add(bolt, done)
            self.reports.report(epochs.of(record, outcomes, self._outages.shown()))

        return LoopEvents(lambda one: self._rates.settled(one.acked, one.acked_rows, one.acked_rows_latency_s), told)

    def _run_loop(self, loop: Loop, incarnation: Incarnation) -> None:
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
            incarnation.leave()
