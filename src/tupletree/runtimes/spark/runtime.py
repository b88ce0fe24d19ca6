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
from tupletree.errors import TupletreeError
from tupletree.runtimes.api import Progress, RunHandle, RunRequest, is_own_thread
from tupletree.runtimes.dead_guard import DeadGuard
from tupletree.runtimes.handle import BaseRun
from tupletree.runtimes.open_messages import OpenMessages, open_messages
from tupletree.runtimes.spark.code_watch import CodeWatch
from tupletree.runtimes.spark.driver.loop import Loop, LoopEvents
from tupletree.runtimes.spark.driver.progress import EpochProgress
from tupletree.runtimes.spark.incarnation import Incarnation, RunSettings, Surroundings, claim
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.outages import OF_NO_COMPONENT, RESTART, is_there, outage_of, place_of
from tupletree.runtimes.spark.settle.plan_runner import Backend, SparkBackend
from tupletree.runtimes.spark.settle.shutdown import BEYOND_RESTARTS, is_session_lost, reason
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
class SparkRun(BaseRun):
    """One run on Spark; the handle that `run` returns."""

    def __init__(self, settings: RunSettings) -> None:
        request, spec, clock = settings.request, settings.spec, settings.surroundings.clock
        super().__init__("spark", request, spec, settings.directory, clock, resumes=True)
        self._settings = settings
        self._directory = settings.directory
        self._sinks = settings.sinks
        self._backend = settings.backend
        self._outages = settings.outages
        self._late: Counter[str] = Counter()
        self._work = WorkTotals()
        self._loop: Loop | None = None
        self._stop_at_s: float | None = None
        self._flushes = False  # the stop is a drain
        self._state = "created"
        self._accounts: Accounts | None = None
        self._active = request.active
        self._stop_asked = threading.Event()
        self._was_up = False
        self._is_looping = False
        self._awaits_epoch = False
        self._dead_guard = DeadGuard(
            spec.name, request.options, lambda: self._hold(self.stop), lambda: self._hold(self.pause)
        )
        self._code = CodeWatch(Path(request.target.search_path) if request.target else None)

    # --- the handle -------------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        accounts = self._accounts
        seconds = self._clock.monotonic() - self._started_s
        outages = self._outages.shown()
        state = self._shown_state()
        state = "waiting" if outages and state in {"processing", "restarting"} else state
        if accounts is None:
            return Progress(seconds=seconds, state=state, outages=outages, outage_counts=self._outages.counts())
        totals, open_now = accounts.totals, self._open_now()
        return Progress(
            # Not the emitted of the totals: these do not count epochs that a stop left unsettled.
            emitted=totals.acked + totals.dead + open_now,
            acked=totals.acked,
            failed=totals.failed,
            retried=totals.retried,
            dead=totals.dead,
            replayed=totals.replayed,
            open=open_now,
            epoch=accounts.settled,
            rate_per_s=self._rates.rate_per_s(),
            latency_p50_ms=self._rates.latency_ms(0.5),
            latency_p95_ms=self._rates.latency_ms(0.95),
            seconds=seconds,
            outputs={name: totals.rows.get(name, 0) for name in self._sinks},
            state=state,
            untracked=totals.untracked,
            untracked_failed=totals.untracked_failed,
            joined=accounts.joined,
            outages=(*outages, *self._delivery.shown()),
            outage_counts=self._outages.counts(),
            late=dict(self._late),
            work=dict(self._work),
            reason=self._dead_guard.reason,
            holds=accounts.holds(self._clock.monotonic(), self._clock.wall()),
        )

    def _left(self) -> OpenMessages:
        assert self._accounts is not None, "a run that has ended without an error had begun"
        accounts = dict.fromkeys(self._accounts.spout_of, self._accounts.pending)
        return open_messages(accounts, self._clock.monotonic(), self._clock.wall(), self._accounts.counted)

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
        self._is_looping = False
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
            is_away = not is_there(self._directory.path)  # then what is missed in it is no damage
            if not self._was_up or self._stop_at_s is not None or (isinstance(fault, BEYOND_RESTARTS) and not is_away):
                raise fault from fault.__cause__
            outage = outage_of(error, self._directory.path)
            if outage is not None:
                self._state = "restarting"
                # What an epoch met is over when one has ended; what kept the run from its loop when it is there.
                self._awaits_epoch = self._awaits_epoch or self._is_looping
                return self._stop_asked.wait(self._outages.met(place_of(outage), outage, RESTART))
            return self._await_restart(fault)
        finally:
            self._loop = None
            self._backend.close()
        return True

    def _end_restart_outages(self) -> None:
        for name in OF_NO_COMPONENT:
            self._outages.over(name, RESTART)

    def _await_restart(self, fault: TupletreeError) -> bool:
        """Wait before a restart; True if a stop was requested meanwhile, which is final."""
        delay_s = self._restart_in_s(fault)
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
            self._awaits_epoch = False
            self._end_restart_outages()
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
            self._was_up = self._is_looping = True
            if not self._awaits_epoch:
                self._end_restart_outages()
            self._policy.started(self._clock.monotonic())
            if self._stop_at_s is not None:  # requested before there was a loop
                loop.stop(self._stop_at_s, flush=self._flushes)
            loop.set_active(active=self._active)
            loop.run()
        finally:
            self._state = "stopping"
            incarnation.leave()
