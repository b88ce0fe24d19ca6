"""The progress record of an epoch: made from what was settled and from the accounts, when its callbacks are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tupletree.bolts.failures import safe_text
from tupletree.runtimes.progress import ProgressRecord, counts_since, rows_since, slowest
from tupletree.runtimes.spark.driver.epoch_frames import SpoutTask
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.tracking.outages import ShownOutage

POSITION_LENGTH = 200


class EpochProgress:
    """Makes the records of one process's epochs, one after the other."""

    def __init__(self, parts: RunParts, spouts: Iterable[SpoutTask]) -> None:
        self._plan = parts.plan
        self._accounts = accounts = parts.accounts
        self._clock = clock = parts.clock
        self._run_id = parts.directory.run_id
        self._generation = parts.directory.generation
        self._names = {spout.number: f"{spout.name}[{spout.task.index}]" for spout in spouts}
        self._before = accounts.totals
        self._before_s = clock.monotonic()
        self._watermarks: dict[int, int] = {}

    def of(self, record: EpochRecord, outcomes: EpochOutcomes, outages: Sequence[ShownOutage] = ()) -> ProgressRecord:
        """The record of an epoch that is settled and published; called before the next one may be."""
        accounts, now_s = self._accounts, self._clock.monotonic()
        with accounts.lock:
            totals, before = accounts.totals, self._before
            oldest_s = accounts.oldest_first_s()
            pending = sum(
                accounts.open_count(task) + accounts.pending.awaiting_source(task) for task in accounts.spout_of
            )
            open_trees = len(accounts.trees)
        seconds = max(1e-6, now_s - self._before_s)
        self._before, self._before_s = totals, now_s
        states = outcomes.reports.states
        for stats in outcomes.reports.stats:
            self._watermarks.update(stats.watermarks)
        return ProgressRecord(
            topology=self._plan.spec.name,
            runtime="spark",
            run_id=self._run_id,
            epoch=outcomes.epoch,
            generation=self._generation,
            runs=outcomes.runs,
            time_s=self._clock.wall(),
            seconds=seconds,
            **counts_since(before, totals, seconds),
            outputs=rows_since(before.rows, totals.rows),
            step_ms={step: round(ms, 3) for step, ms in record.steps.ms.items()},
            state_rows_read=sum(one.rows_read for one in states),
            state_rows_written=sum(one.file.records for one in states),
            state_bytes_read=sum(one.bytes_read for one in states),
            state_bytes_written=sum(one.file.size_bytes for one in states),
            open_trees=open_trees,
            pending=pending,
            oldest_s=None if oldest_s is None else max(0.0, now_s - oldest_s),
            late=sum(sum(stats.late.values()) for stats in outcomes.reports.stats),
            watermarks=slowest((self._plan.tasks[task].component, at_us) for task, at_us in self._watermarks.items()),
            outages=[*outages],
            holds=[*accounts.holds(now_s, self._clock.wall())],
            positions={
                self._names[task]: safe_text(position, POSITION_LENGTH)
                for task, position in record.header.positions.items()
                if task in self._names
            },
        )
