"""The loop of a Spark run: pulls from the spouts, cuts epochs, and makes the callbacks of what was settled.

It runs in the run's own thread, which is the only one that calls a spout. Epochs are settled in another
(`settling_thread`). At most one epoch is being run and one more is logged ahead of it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.errors import ConnectorError, is_outage
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.progress import Steps
from tupletree.runtimes.rates import Rates
from tupletree.runtimes.spark.driver.async_spouts import AsyncSpoutAdapter
from tupletree.runtimes.spark.driver.epoch_frames import SpoutTask
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.runtimes.spark.driver.replays import Replays
from tupletree.runtimes.spark.driver.retention import sweep_epochs, sweep_orphans
from tupletree.runtimes.spark.driver.settling_thread import SettlingThread
from tupletree.runtimes.spark.driver.ticks import TickSchedule
from tupletree.runtimes.spark.format.entries import write_epoch
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochVerdicts
from tupletree.runtimes.spark.settle.engine import Engine
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.outages import Outages
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner
from tupletree.runtimes.spark.settle.shutdown import Closing
from tupletree.topology.components import Spout
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.records import Acked, AlreadySettled, Died

__all__ = ["Loop"]

logger = logging.getLogger("tupletree.spark")

BUSY_POLL_S = 0.002
"""Pause of the loop while messages come: a source without a blocking wait is asked this often."""


class Loop:
    """See the module docstring.

    Args:
        intake, accounts, engine, runner, replays, ticking, rates, directory, options, clock, outages: of the run.
        spouts: opened, in their positions.
        records: epochs that were logged but not settled by an earlier start.
        next_epoch: number of the next epoch to cut.
        sinks: sink → absolute folder.
        report: takes an epoch whose callbacks are made, for its progress record.
    """

    def __init__(
        self,
        intake: Intake,
        accounts: Accounts,
        engine: Engine,
        runner: PlanRunner,
        replays: Replays,
        ticking: TickSchedule,
        rates: Rates,
        spouts: Sequence[SpoutTask],
        records: Sequence[EpochRecord],
        next_epoch: int,
        directory: StateDirectory,
        sinks: dict[str, str],
        options: Options,
        clock: Clock,
        retold: deque[AlreadySettled],
        report: Callable[[EpochRecord, EpochVerdicts], None],
        outages: Outages,
        *,
        active: bool,
    ) -> None:
        self._intake = intake
        self._accounts = accounts
        self._engine = engine
        self._replays = replays
        self._rates = rates
        self._spouts = {spout.number: spout for spout in spouts}
        self._hears_acks = any(type(spout.spout).ack is not Spout.ack for spout in spouts)
        self._records = {record.epoch: record for record in records}
        self._next_epoch = next_epoch
        self._directory = directory
        self._sinks = sinks
        self._options = options
        self._clock = clock
        self._verdicts: deque[EpochVerdicts] = deque()
        self._retold = retold
        self._report = report
        self._outages = outages
        self._pulling = Steps()  # since the last epoch was cut
        self._wake = threading.Event()
        self._awaited = [spout.spout for spout in spouts if isinstance(spout.spout, AsyncSpoutAdapter)]
        for spout in self._awaited:
            spout.on_given = self._wake.set
        self._settling = SettlingThread(engine, runner, accounts.settled, self._settled, self._wake.set)
        for record in records:
            self._settling.put(record)
        self._ticking = ticking
        self._last_drained = False
        self._look_ahead()
        self._stop_at_s: float | None = None
        self._flushes = self._holds_buffer = False
        self._active = self._wanted_active = active

    # --- from other threads -----------------------------------------------------------------------------------

    def stop(self, at_s: float, *, flush: bool = False) -> None:
        """Pull no more, and end when what is in flight is settled, or at this time (monotonic).

        Args:
            at_s: when to end at the latest.
            flush: go on until no message is open: holders flush, as at the end of the input, and retries go on.
        """
        self._flushes = flush
        self._stop_at_s = at_s
        self._wake.set()

    def set_active(self, *, active: bool) -> None:
        """Activate or pause spouts and retries; what is pulled already goes on."""
        self._wanted_active = active
        self._holds_buffer = self._holds_buffer and not active
        self._wake.set()

    def hold_buffer(self) -> None:
        """Give what is pulled to no epoch until `set_active`. A stop leaves it to the next start, if possible."""
        self._holds_buffer = True

    def _settled(self, verdicts: EpochVerdicts) -> None:
        """An epoch is committed; called by the settling thread."""
        self._rates.settled(verdicts.acked, verdicts.rows, verdicts.rows_latency_s)
        self._verdicts.append(verdicts)

    # --- the loop itself --------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the settling thread: an epoch that is not committed now runs again at the next start."""
        self._settling.close()

    def join_settling(self) -> None:
        """Wait until the settling thread has ended: it may still publish."""
        self._settling.join()

    def sweep_orphans(self) -> None:
        """Remove files that no entry names any more."""
        accounts = self._accounts
        with accounts.lock:
            state, kept, waiting = accounts.state, accounts.kept, accounts.waiting_names
        sweep_orphans(self._directory, self._sinks, self._settling.called_back, state, kept, waiting)

    def run(self) -> None:
        """Run until all input is settled, or a stop is done. Raises what makes the run fail."""
        self._settling.start()
        accounts, intake = self._accounts, self._intake
        last_useful_s = self._clock.monotonic()
        idle_s = self._options.spout_idle_wait_ms / 1000.0
        while True:
            self._wake.clear()
            try:
                useful = self._call_back()
            except Closing:
                logger.warning(
                    "the drain timed out: callbacks of epoch %d are made again at the next start", accounts.settled
                )
                return
            if self._settling.fault is not None:
                raise self._settling.fault
            now_s = self._clock.monotonic()
            ending = self._stop_at_s is not None
            stopping = ending and not self._flushes
            if not ending and self._settling.is_warm:
                self._activate()
                useful = self._replays.read_inbox() or useful
                useful = (self._active and self._pull()) or useful
            ahead = self._next_epoch - 1 - accounts.settled
            if self._should_cut(ahead, now_s, stopping=stopping):
                self._cut()
                useful = True
            elif ahead == 0 and self._is_finished(stopping=stopping):
                return
            if ending and now_s >= (self._stop_at_s or 0.0):
                logger.warning("the drain timed out: epoch %d stays open and runs again", accounts.settled + 1)
                return
            if useful:
                last_useful_s = now_s
            else:
                can_pull = self._active and not (intake.has_ended or intake.is_full)
                busy = can_pull and (ahead > 0 or now_s - last_useful_s < 1.0)
                next_s = min(idle_s, self._due_in_s(now_s), self._ticking.next_s - now_s)
                self._wake.wait(BUSY_POLL_S if busy else max(BUSY_POLL_S, next_s))

    def _pull(self) -> bool:
        with self._pulling.measure("intake"):
            return self._intake.pull()

    def _activate(self) -> None:
        """Activate or deactivate the spouts, as `set_active` requested."""
        if self._active is not self._wanted_active:
            self._active = self._wanted_active
            for spout in self._spouts.values():
                (spout.spout.activate if self._active else spout.spout.deactivate)()

    def _should_cut(self, ahead: int, now_s: float, *, stopping: bool) -> bool:
        intake = self._intake
        if ahead >= 2 or self._settling.fault is not None:
            return False
        if ahead == 1:
            is_wanted = self._may_cut_buffer(stopping=stopping) and not stopping
            return is_wanted and (intake.is_full or intake.has_ended)
        if not stopping and (self._active or self._flushes):
            intake.add_due(now_s)
        # Until its callbacks are made, the loop does not know what the last epoch left.
        is_known = self._settling.called_back == self._accounts.settled
        gave_up = is_known and not stopping and self._active and intake.give_up_blocked(now_s)
        if gave_up or self._may_cut_buffer(stopping=stopping):
            return True
        if stopping:
            return False
        return (
            (is_known and (self._due_in_s(now_s) <= 0.0 or self._must_drain()))
            or (self._ticking.next_s <= now_s and not self._is_finished(stopping=False))
            or self._replays.has_accepted
            or intake.must_give_up
            or (intake.ended_unlogged and intake.has_ended)
        )

    def _may_cut_buffer(self, *, stopping: bool) -> bool:
        """Whether anything is pulled that an epoch may have."""
        intake = self._intake
        return intake.buffered > 0 and not (self._holds_buffer and (not stopping or intake.is_repeatable))

    def _look_ahead(self) -> None:
        """Read when the accounts need an epoch next: it changes with each settled epoch."""
        accounts = self._accounts
        with accounts.lock:
            self._next_tree_s = accounts.trees.next_s()
            self._carryover_due_s = accounts.carryover_due_s()
            self._has_parked = any(kept.waits for tasks in accounts.kept.values() for kept in tasks.values())

    def _due_in_s(self, now_s: float) -> float:
        """In how many seconds an epoch is due for what is open or kept, with or without new messages."""
        due_in_s = min(self._next_tree_s - self._accounts.ran_s(now_s), self._carryover_due_s - self._clock.wall())
        return max(due_in_s, self._outages.pause_s)

    def _must_drain(self) -> bool:
        """Whether holders are to flush: nothing else will come, and they have not flushed since the last message."""
        accounts = self._accounts
        is_under_way = self._has_parked or self._carryover_due_s == -math.inf
        may_come = not (self._intake.has_ended or self._flushes)
        if not accounts.kept or self._last_drained or is_under_way or may_come:
            return False
        with accounts.lock:
            ran_s = accounts.ran_s(self._clock.monotonic())
            if accounts.trees.parked(ran_s) or accounts.trees.resuming(ran_s):
                return False
            return accounts.pending.next_due_s() is None and not any(
                accounts.pending.awaiting_source(task) for task in accounts.spout_of
            )

    def _is_finished(self, *, stopping: bool) -> bool:
        accounts, intake = self._accounts, self._intake
        # The last settled epoch may still be publishing, and its callbacks come later.
        if self._settling.called_back < accounts.settled:
            return False
        if stopping:
            return not self._may_cut_buffer(stopping=True)
        if intake.buffered:
            return False
        nothing_comes = intake.has_ended or self._flushes
        return nothing_comes and accounts.is_idle() and not self._replays.has_accepted

    def _cut(self) -> None:
        epoch = self._next_epoch
        intake = self._intake
        self._last_drained = not intake.buffered and epoch - 1 == self._accounts.settled and self._must_drain()
        ticks = self._ticking.take(self._clock.monotonic())
        steps, self._pulling = self._pulling, Steps()
        with steps.measure("intake"):
            record, sections = intake.cut(epoch, self._directory.generation, ticks=ticks, drain=self._last_drained)
        record.steps = steps
        crash_point("epoch.before_log")
        with steps.measure("log"):
            if not write_epoch(self._directory.epochs, record.header, sections):
                raise self._directory.taken_over(f"epoch {epoch} is logged already")
        self._records[epoch] = record
        self._settling.put(record)
        self._next_epoch += 1
        crash_point("epoch.after_log")

    def _call_back(self) -> bool:
        """Make the callbacks of what was settled; whether there were any."""
        told = bool(self._retold or self._verdicts)
        while self._retold:
            settled = self._retold.popleft()
            _tell_outcome(self._spouts[settled.spout_task], settled)
            if self._intake.can_hear(settled.spout_task, settled.message_id):
                with self._accounts.lock:
                    self._accounts.pending.confirm(settled.spout_task, settled.message_id)
        self._flush()
        while self._verdicts:
            verdicts = self._verdicts.popleft()
            record = self._records[verdicts.epoch]
            crash_point("callbacks.before")
            with record.steps.measure("callbacks"):
                self._tell(verdicts)
                self._flush()
            crash_point("callbacks.after")
            self._report(record, verdicts)
            if record.header.drain:
                self._last_drained = verdicts.drained
            del self._records[verdicts.epoch]
            messages = record.header.messages + len(record.rows)
            self._intake.size.settled(messages, record.steps.ms.get("run", 0.0) / 1000.0, shrunk=verdicts.shrunk)
            self._look_ahead()
            self._settling.calls_made(verdicts.epoch)
            if verdicts.wrote_base:
                self._sweep(verdicts.epoch)
        return told

    def _flush(self) -> None:
        """Wait until the callbacks of async spouts are made."""
        for spout in self._awaited:
            spout.flush()

    def _tell(self, verdicts: EpochVerdicts) -> None:
        """Make the callbacks of one epoch; then its messages are confirmed by their sources."""
        spouts = self._spouts
        if self._hears_acks:
            for acked in verdicts.acked:
                spout = spouts[acked.spout_task]
                self._hear(spout, spout.spout.ack, acked.message_id)
        for died in verdicts.died:
            # Final: a source that retries by itself must not emit this message again.
            self._hear(
                spouts[died.spout_task],
                spouts[died.spout_task].spout.fail,
                died.message_id,
                replace(died.failure, permanent=True),
            )
        for retry in verdicts.source_retries:
            spout = spouts[retry.spout_task]
            self._hear(spout, spout.spout.fail, retry.message_id, retry.failure)
            self._intake.ask_again(retry.spout_task)
            for record in self._records.values():  # the next epoch may be cut already, when the input is over
                record.reopen(retry.spout_task)
        if any(spout.position is None for spout in spouts.values()):
            heard: list[Acked | Died] = [*verdicts.acked, *verdicts.died]
            with self._accounts.lock:
                for one in heard:
                    if self._intake.can_hear(one.spout_task, one.message_id):
                        self._accounts.pending.confirm(one.spout_task, one.message_id)

    def _hear(self, spout: SpoutTask, callback: Callable[..., None], *what: Any) -> None:
        """Make a callback, again while its source is not available: the next epoch is not committed without it."""
        while True:
            try:
                callback(*what)
            except ConnectorError as error:
                if not is_outage(error):
                    raise
                pause_s = self._outages.met(spout.name, error)
                if self._stop_at_s is not None and self._clock.monotonic() + pause_s >= self._stop_at_s:
                    raise Closing from error
                time.sleep(pause_s)
            else:
                self._outages.over(spout.name)
                return

    def _sweep(self, base: int) -> None:
        with self._accounts.lock:
            needed = {tree.epoch for tree in self._accounts.trees.all()}
        sweep_epochs(self._directory, base, needed, self._options.history_max_bytes)
        self.sweep_orphans()


def _tell_outcome(spout: SpoutTask, settled: AlreadySettled) -> None:
    if settled.outcome is Outcome.ACKED:
        spout.spout.ack(settled.message_id)
    else:
        text = "dead: see the dead letters"
        failure = Failure(kind=FailureKind.ERROR, error=text, component=spout.name, permanent=True)
        spout.spout.fail(settled.message_id, failure)
