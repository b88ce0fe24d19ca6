"""The engine of a Spark run: settles epochs, one after the other. Here is the order of settling.

An epoch runs until a run counts (`epoch_runs`); what becomes of it is decided as a value (`decision`); writing its
entry is the commit point; the accounts follow, then what the entry names is published (`publish`), and files that
nothing names any more are removed. It holds no spout and starts no thread: the settling thread gives it epochs and
passes its `EpochOutcomes` to the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.spark.format.carryover import files_of
from tupletree.runtimes.spark.format.entries import SettleEntry, write_settle
from tupletree.runtimes.spark.settle.accounts import RunningEpoch
from tupletree.runtimes.spark.settle.decision import EpochDecider, EpochDecision, EpochOutcomes
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.epoch_runs import EpochRuns
from tupletree.runtimes.spark.settle.publish import Publisher, remove
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.tracking.attempt_notes import AttemptNotes
from tupletree.tracking.pending_decision import PendingDecision, Times
from tupletree.tracking.records import Died

logger = logging.getLogger("tupletree.spark")


class Engine:
    """See the module docstring."""

    def __init__(
        self,
        runs: EpochRuns,
        decider: EpochDecider,
        publisher: Publisher,
        parts: RunParts,
    ) -> None:
        self._runs = runs
        self._decider = decider
        self._publisher = publisher
        self._directory = parts.directory
        self._accounts = parts.accounts
        self._clock = parts.clock
        self._attempt_notes = AttemptNotes()

    def warm_up(self) -> None:
        """Start every worker, which imports the topology."""
        self._runs.warm_up()

    def close(self) -> None:
        """Note that the loop has ended. Any thread may call it."""
        self._runs.close()

    def settle(self, record: EpochRecord, before_commit: Callable[[], None]) -> EpochOutcomes:
        """Run an epoch until a run of it counts, commit it, publish.

        Args:
            record: the epoch.
            before_commit: called once a run counts; returns when the callbacks of the last epoch are made.

        Raises:
            CheckpointError: another start of this run has settled the epoch; this one must stop at once.
        """
        self._accounts.running = RunningEpoch(record.epoch, record.size, self._clock.monotonic())
        try:
            with record.steps.measure("run"):
                counted = self._runs.run(record)
        finally:
            self._accounts.running = None
        before_commit()
        with record.steps.measure("settle"), self._accounts.lock:
            times = Times(self._clock.monotonic(), self._clock.wall())
            decision = self._decider.decide(self._accounts, counted, times)
            superseded = self._superseded(decision.entry)
            self._commit(decision)
        with record.steps.measure("publish"):
            _, died = self._publisher.finish(decision.entry)
        decision.outcomes.move_to_died(died)
        crash_point("settle.after_publish")
        remove([*counted.dropped, *counted.chosen.dropped, *superseded])
        return decision.outcomes

    def _commit(self, decision: EpochDecision) -> None:
        """Write the entry, and then carry out what was decided: nothing is changed before."""
        crash_point("settle.before_log")
        if not write_settle(self._directory.settles, decision.entry):
            raise self._directory.taken_over(f"epoch {decision.entry.epoch} is settled already")
        crash_point("settle.after_log")
        decision.apply(self._accounts)
        self._log_failures(decision.pending)

    def _log_failures(self, pending: PendingDecision) -> None:
        """Attempts that are made again; dead letters have the others."""
        for failed in pending.failed:
            if not isinstance(failed.effect, Died):
                attempt, now_s = failed.effect.attempt_next - 1, pending.times.now_s
                text = self._attempt_notes.of(failed.effect.message_id, attempt, failed.failure, now_s)
                if text is not None:
                    logger.warning("%s: %s", failed.failure.component, text)

    def _superseded(self, entry: SettleEntry) -> list[Path]:
        """Files of state and of kept frames that the new version does not need."""
        kept = self._directory.kept
        gone: list[Path] = sorted(files_of(kept, self._accounts.kept) - files_of(kept, entry.kept))
        needed = {(component, file.name) for component, files in entry.state.items() for file in files}
        named = {(component, file.name) for component, files in self._accounts.state.items() for file in files}
        return gone + [self._directory.state / component / name for component, name in named - needed]
