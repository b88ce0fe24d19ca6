"""The loop of a Spark run: pulls from the spouts, cuts epochs, and has the callbacks of what was settled made.

It runs in the run's own thread, which is the only one that calls a spout. Epochs are settled in another
(`settling_thread`). At most one epoch is being run and one more is logged ahead of it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.progress import Steps
from tupletree.runtimes.spark.driver.callbacks import Callbacks
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.runtimes.spark.driver.recovery import Recovered
from tupletree.runtimes.spark.driver.replays import Replays
from tupletree.runtimes.spark.driver.retention import sweep_epochs, sweep_orphans
from tupletree.runtimes.spark.driver.settling_thread import Settling
from tupletree.runtimes.spark.driver.ticks import TickSchedule
from tupletree.runtimes.spark.format.entries import write_epoch
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.runtimes.spark.settle.shutdown import Closing

logger = logging.getLogger("tupletree.spark")

BUSY_POLL_S = 0.002
"""Pause of the loop while messages come and no epoch is run: a source without a blocking wait is asked this often."""

AHEAD_POLL_S = 0.01
"""The same while an epoch is run: what comes waits for its end, which wakes the loop, and each time the source is asked
takes processor time from the epoch."""


@dataclass(frozen=True)
class LoopEvents:
    """What others hear of.

    Attributes:
        settled: an epoch is committed; called by the settling thread.
        told: its callbacks are made, for its progress record.
    """

    settled: Callable[[EpochOutcomes], None] = lambda _: None
    told: Callable[[EpochRecord, EpochOutcomes], None] = lambda _, __: None


@dataclass
class _NextTimes:
    """When the accounts need an epoch next; `parked`: frames wait for another attempt."""

    tree_s: float = math.inf
    carryover_s: float = math.inf
    parked: bool = False


# More than 12 attributes: one thread: the parts that it calls in turn, and what has been asked of it.
class Loop:
    """See the module docstring. Call `run`, or `begin` and then `step` until it returns None.

    Args:
        parts: of the run.
        intake: pulls messages and cuts epochs.
        settling: settles them.
        callbacks: tells the spouts.
        replays: more that epochs are cut for.
        recovered: epochs that were logged but not settled by an earlier start, and the number of the next one.
        events: what others hear of.
        active: whether the spouts are active.
    """

    def __init__(
        self,
        parts: RunParts,
        intake: Intake,
        settling: Settling,
        callbacks: Callbacks,
        replays: Replays,
        recovered: Recovered,
        events: LoopEvents,
        *,
        active: bool,
    ) -> None:
        self._parts = parts
        self._intake = intake
        self._settling = settling
        self._callbacks = callbacks
        self._replays = replays
        self._ticking = TickSchedule(parts.plan.spec, parts.options, parts.clock.monotonic())
        self._records = {record.epoch: record for record in recovered.records}
        self._next_epoch = recovered.next_epoch
        self._events = events
        self._outcomes: deque[EpochOutcomes] = deque()
        self._pulling = Steps()  # since the last epoch was cut
        self._wake = threading.Event()
        self._last_drained = False
        self._next = _NextTimes()
        self._stop_at_s: float | None = None
        self._flushes = self._holds_buffer = False
        self._active = self._wanted_active = active
        self._last_useful_s = 0.0
        for spout in callbacks.awaited:
            spout.on_given = self._wake.set
        settling.listen(self._settled, self._wake.set)
        for record in recovered.records:
            settling.put(record)
        self._look_ahead()

    # --- from other threads -----------------------------------------------------------------------------------

    def stop(self, at_s: float, *, flush: bool = False) -> None:
        """Pull no more, and end when what is in flight is settled, or at this time (monotonic).

        Args:
            at_s: when to end at the latest.
            flush: go on until no message is open: holders flush, as at the end of the input, and retries go on.
        """
        self._flushes = flush
        self._stop_at_s = self._callbacks.stop_at_s = at_s
        self._wake.set()

    def set_active(self, *, active: bool) -> None:
        """Activate or pause spouts and retries; what is pulled already goes on."""
        self._wanted_active = active
        self._holds_buffer = self._holds_buffer and not active
        self._wake.set()

    def hold_buffer(self) -> None:
        """Give what is pulled to no epoch until `set_active`. A stop leaves it to the next start, if possible."""
        self._holds_buffer = True

    def _settled(self, outcomes: EpochOutcomes) -> None:
        """An epoch is committed; called by the settling thread."""
        self._events.settled(outcomes)
        self._outcomes.append(outcomes)

    # --- the loop itself --------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the settling thread: an epoch that is not committed now runs again at the next start."""
        self._settling.close()

    def sweep_orphans(self) -> None:
        """Remove files that no entry names any more."""
        parts, accounts = self._parts, self._parts.accounts
        with accounts.lock:
            state = {**accounts.dropped.state, **accounts.state}
            kept = {**accounts.dropped.kept, **accounts.kept}
            waiting = accounts.waiting_names | accounts.dropped.waiting
        sweep_orphans(parts.directory, parts.sinks, self._settling.called_back, state, kept, waiting)

    def run(self) -> None:
        """Run until all input is settled, or a stop is done. Raises what makes the run fail."""
        self.begin()
        while (pause_s := self.step()) is not None:
            if pause_s:
                self._wake.wait(pause_s)

    def begin(self) -> None:
        """Before the first `step`."""
        self._settling.start()
        self._last_useful_s = self._parts.clock.monotonic()

    def step(self) -> float | None:
        """Do what is to be done now. Raises what makes the run fail.

        Returns:
            In how many seconds the next step is due, unless an epoch is settled earlier; None: the run is over.
        """
        accounts, intake = self._parts.accounts, self._intake
        self._wake.clear()
        try:
            useful = self._call_back()
        except Closing:
            logger.warning(
                "the drain timed out: callbacks of epoch %d are made again at the next start", accounts.settled
            )
            return None
        if self._settling.fault is not None:
            raise self._settling.fault
        now_s = self._parts.clock.monotonic()
        ending = self._stop_at_s is not None
        stopping = ending and not self._flushes
        if not ending and self._settling.is_warm:
            self._activate()
            if not self._active:
                intake.hear_taken()
            useful = self._replays.read_inbox() or useful
            useful = (self._active and self._pull()) or useful
        elif ending:
            self._callbacks.deactivate()
            self._intake.take_waiting()
        ahead = self._next_epoch - 1 - accounts.settled
        if self._should_cut(ahead, now_s, stopping=stopping):
            self._cut()
            useful = True
        elif ahead == 0 and self._is_finished(stopping=stopping):
            return None
        if ending and now_s >= (self._stop_at_s or 0.0):
            logger.warning("the drain timed out: epoch %d stays open and runs again", accounts.settled + 1)
            return None
        if useful:
            self._last_useful_s = now_s
            return 0.0
        can_pull = self._active and not (intake.has_ended or intake.is_full)
        busy = can_pull and (ahead > 0 or now_s - self._last_useful_s < 1.0)
        idle_s = self._parts.options.spout_idle_wait_ms / 1000.0
        next_s = min(idle_s, self._due_in_s(now_s), self._ticking.next_s - now_s)
        if busy and ahead == 0:
            return BUSY_POLL_S
        return max(BUSY_POLL_S, min(AHEAD_POLL_S, next_s) if busy else next_s)

    def _pull(self) -> bool:
        with self._pulling.measure("intake"):
            return self._intake.pull(self._next_epoch)

    def _activate(self) -> None:
        """Activate or deactivate the spouts, as `set_active` requested."""
        if self._active is not self._wanted_active:
            self._active = self._wanted_active
            self._callbacks.activate(active=self._active)

    def _should_cut(self, ahead: int, now_s: float, *, stopping: bool) -> bool:
        intake = self._intake
        if ahead >= 2 or self._settling.fault is not None:
            return False
        if ahead == 1:
            is_wanted = self._may_cut_buffer(stopping=stopping) and not stopping
            return is_wanted and (intake.is_full or intake.has_ended)
        # An entry names a request before a log has letters of it: otherwise it would be accepted again after a kill.
        if not stopping and (self._active or self._flushes) and not self._replays.has_accepted:
            intake.add_due(now_s)
        # Until its callbacks are made, the loop does not know what the last epoch left.
        is_known = self._settling.called_back == self._parts.accounts.settled
        gave_up = is_known and not stopping and self._active and intake.give_up_blocked(now_s)
        if gave_up or self._may_cut_buffer(stopping=stopping):
            return True
        if now_s < (self._stop_at_s or 0.0) and self._is_finished(stopping=stopping) and self._has_confirmed():
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

    def _has_confirmed(self) -> bool:
        """Whether an epoch is to say which messages their sources know to be over, because no other one will.

        The next start would tell their sources again: of one that a person has moved back to work meanwhile, too.
        """
        with self._parts.accounts.lock:
            return self._parts.accounts.pending.has_confirmed

    def _may_cut_buffer(self, *, stopping: bool) -> bool:
        """Whether anything is pulled that an epoch may have."""
        intake = self._intake
        return intake.buffered > 0 and not (self._holds_buffer and (not stopping or intake.is_repeatable))

    def _look_ahead(self) -> None:
        """Read when the accounts need an epoch next: it changes with each settled epoch."""
        accounts = self._parts.accounts
        with accounts.lock:
            parked = any(kept.waits for tasks in accounts.kept.values() for kept in tasks.values())
            self._next = _NextTimes(accounts.trees.next_s(), accounts.carryover_due_s(), parked)

    def _due_in_s(self, now_s: float) -> float:
        """In how many seconds an epoch is due for what is open or kept, with or without new messages."""
        parts, due = self._parts, self._next
        due_in_s = min(due.tree_s - parts.accounts.ran_s(now_s), due.carryover_s - parts.clock.wall())
        return max(due_in_s, parts.outages.pause_s)

    def _must_drain(self) -> bool:
        """Whether holders are to flush: nothing else will come, and they have not flushed since the last message."""
        accounts = self._parts.accounts
        is_under_way = self._next.parked or self._next.carryover_s == -math.inf
        may_come = not (self._intake.has_ended or self._flushes)
        if not accounts.kept or self._last_drained or is_under_way or may_come:
            return False
        with accounts.lock:
            ran_s = accounts.ran_s(self._parts.clock.monotonic())
            if accounts.trees.parked(ran_s) or accounts.trees.resuming(ran_s):
                return False
            return accounts.pending.next_due_s() is None and not any(
                accounts.pending.awaiting_source(task) for task in accounts.spout_of
            )

    def _is_finished(self, *, stopping: bool) -> bool:
        accounts, intake = self._parts.accounts, self._intake
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
        intake, directory = self._intake, self._parts.directory
        self._last_drained = not intake.buffered and epoch - 1 == self._parts.accounts.settled and self._must_drain()
        ticks = self._ticking.take(self._parts.clock.monotonic())
        steps, self._pulling = self._pulling, Steps()
        with steps.measure("intake"):
            record, sections = intake.cut(
                epoch, self._parts.directory.generation, ticks=ticks, drain=self._last_drained
            )
        record.steps = steps
        crash_point("epoch.before_log")
        with steps.measure("log"):
            if not write_epoch(directory.epochs, record.header, sections):
                raise directory.taken_over(f"epoch {epoch} is logged already")
        with self._parts.accounts.lock:
            self._parts.accounts.pending.note_logged([*record.attempts, *record.header.again])
        self._records[epoch] = record
        self._settling.put(record)
        self._next_epoch += 1
        crash_point("epoch.after_log")

    def _call_back(self) -> bool:
        """Make the callbacks of what was settled; whether there were any."""
        told = self._callbacks.tell_again() or bool(self._outcomes)
        self._callbacks.flush()
        while self._outcomes:
            outcomes = self._outcomes.popleft()
            record = self._records[outcomes.epoch]
            crash_point("callbacks.before")
            with record.steps.measure("callbacks"):
                asked = self._callbacks.tell(outcomes)
            for task in asked:
                for ahead in self._records.values():  # the next epoch may be cut already, when the input is over
                    ahead.reopen(task)
            crash_point("callbacks.after")
            self._events.told(record, outcomes)
            if record.header.drain:
                self._last_drained = outcomes.drained
            del self._records[outcomes.epoch]
            messages = record.size
            self._intake.size.settled(messages, record.steps.ms.get("run", 0.0) / 1000.0, was_split=outcomes.was_split)
            self._look_ahead()
            self._settling.calls_made(outcomes.epoch)
            if outcomes.wrote_base:
                self._sweep(outcomes.epoch)
        return told

    def _sweep(self, base: int) -> None:
        with self._parts.accounts.lock:
            needed = {tree.epoch for tree in self._parts.accounts.trees.all()}
        sweep_epochs(
            self._parts.directory,
            base,
            needed,
            self._parts.options.history_max_bytes,
            self._intake.oldest_segment,
        )
        self.sweep_orphans()
