"""The runs of an epoch: the plan is run over it until a run counts, without what failed in earlier ones.

Owns what is run again, when, and without which roots; and when Spark itself has failed often enough. What counts is
a `CountedRun`, of which `decision` makes an `EpochDecision`; before that the driver learns of outages alone, and the
values of messages that were only counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tupletree.errors import is_outage
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import epoch_path
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.slices import EpochSlice, empty_slices, slices_of
from tupletree.runtimes.spark.settle.call_counts import CallCounts
from tupletree.runtimes.spark.settle.epoch_order import EpochOrder
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.outages import OF_NO_COMPONENT, READING, RESTART, SPARK_DISK, outage_of, place_of
from tupletree.runtimes.spark.settle.outputs import ChosenOutputs, OutputChooser
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner, Report
from tupletree.runtimes.spark.settle.reports import EpochSettlement, Reports
from tupletree.runtimes.spark.settle.root_verdicts import RootVerdicts
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.runtimes.spark.settle.shutdown import first_line, is_final
from tupletree.runtimes.spark.worker.crash_markers import blamed
from tupletree.texts import marked_text
from tupletree.tracking.outcomes import FailureKind
from tupletree.tracking.pending_decision import Adoption

logger = logging.getLogger("tupletree.spark")

BROKEN_EXECUTIONS = 4
"""Jobs in a row that fail without a further message being blamed, until the run fails. Where Spark allows a task one
attempt, the third finds what crashes its workers (`crash_markers`)."""


@dataclass
class CountedRun:
    """The run of an epoch that counts.

    Attributes:
        settlement: what all runs came to.
        reports: what this one reported.
        roots: the verdicts.
        chosen: which rows are published, wait, or go.
        adoptions: messages that were only counted, and that the epoch does not finish.
        pause_s: how long messages wait that met an outage.
        dropped: files of runs that do not count.
    """

    settlement: EpochSettlement
    reports: Reports
    roots: RootVerdicts
    chosen: ChosenOutputs
    adoptions: list[Adoption]
    pause_s: float
    dropped: list[Path]


# More than 12 attributes: a run of an epoch needs most of what a run has, and remembers what the one before met.
class EpochRuns:
    """See the module docstring.

    Args:
        parts: of the run.
        runner: runs the plan.
        wakes: see `slices_of`.
    """

    def __init__(self, parts: RunParts, runner: PlanRunner, *, wakes: bool) -> None:
        self._plan = parts.plan
        self._runner = runner
        self._options = parts.options
        self._directory = parts.directory
        self._accounts = parts.accounts
        self._sinks = parts.sinks
        self._outages = parts.outages
        self._wakes = wakes
        self._outputs = OutputChooser(parts.plan, parts.sinks, parts.directory.run_id)
        self._unread: set[str] = set()
        self._is_closing = threading.Event()
        self._met_crashes = False
        self._call_counts = CallCounts()

    def close(self) -> None:
        """Note that the loop has ended: a job that fails is not tried again. Any thread may call it."""
        self._is_closing.set()

    def warm_up(self) -> None:
        """Run the plan without rows: it starts every worker, which imports the topology."""
        control = EpochControl(
            run_id=self._directory.run_id,
            epoch=-1,
            run=0,
            generation=0,
            time_s=0.0,
            markers_directory=str(self._directory.marks),
        )
        self._runner.run(empty_slices(self._plan), control)
        self._outages.over(SPARK_DISK, RESTART)  # where no message comes, no epoch shows that

    def run(self, record: EpochRecord) -> CountedRun:
        """Run an epoch until a run counts. Raises what makes the run fail."""
        accounts = self._accounts
        order = None if accounts.ordering is None else EpochOrder(accounts.ordering, record, accounts.key_table)
        # What is behind something must leave no trace, so with ordered bolts state is always exact.
        exact_state = order is not None or self._options.state_guarantee == "exactly_once"
        settlement = EpochSettlement.start(record, accounts.trees, exact_state=exact_state, order=order)
        dropped: list[Path] = []
        slices = slices_of(epoch_path(self._directory.epochs, record.epoch), self._plan, wakes=self._wakes)
        while True:
            reports = Reports.of(self._execute_surely(record, settlement, slices), has_ordered_bolts=order is not None)
            if self._awaits_input(reports):
                settlement.broken += 1
                dropped += self._files_of(reports)
                continue
            if settlement.resumes:
                reports.leave_out(settlement.left_out)
            if accounts.released:
                complete = np.array(sorted({*accounts.released} - settlement.left_out), dtype=np.uint64)
                reports.deltas.append((complete, np.zeros(len(complete), dtype=np.uint64)))
            self._call_counts.note(reports.stats)
            crash_point("settle.after_run")
            if settlement.judge_run(reports, self._outputs.read_sidecar):
                return self._counted(settlement, reports, dropped)
            dropped += self._files_of(reports)
            crash_point("settle.before_rerun")

    def _counted(self, settlement: EpochSettlement, reports: Reports, dropped: list[Path]) -> CountedRun:
        accounts, record = self._accounts, settlement.record
        roots = RootVerdicts.of(settlement, self._options.message_timeout_s, accounts.pending.is_last_attempt)
        version = f"{self._directory.generation:06d}-{record.epoch:08d}-{settlement.runs - 1:03d}"
        chosen = self._outputs.choose(reports.outputs, roots, accounts.waiting, version, record.epoch)
        if any(one.kind is FailureKind.POISON for one in settlement.failures.values()):
            self._met_crashes = True
        left_over = settlement.left_over | chosen.rows.roots()
        adoptions = [adoption for one in record.inputs for adoption in one.adoptions(left_over)]
        unread = {root for root, failure in settlement.failures.items() if failure.was_reading}
        values = {root: value for one in record.inputs for root, value in one.apart(left_over, unread).items()}
        if values:
            with accounts.lock:
                accounts.pending.put_values(values)
        pause_s = self._note_outages(settlement, reports)
        return CountedRun(settlement, reports, roots, chosen, adoptions, pause_s, dropped)

    def _awaits_input(self, reports: Reports) -> bool:
        """Wait if a spout's rows cannot be read now, so that no restart is needed; whether the run is to be made again.

        What says that they have changed, or that they crash workers, `judge_run` raises.
        """
        errors = [(one.component, one.error()) for one in reports.unreadable]
        if self._is_closing.is_set() or not all(is_outage(error) for _, error in errors):
            return False
        for spout in self._unread - {spout for spout, _ in errors}:
            self._outages.over(spout, READING)
        self._unread = {spout for spout, _ in errors}
        if errors:
            self._is_closing.wait(max(self._outages.met(spout, error, READING) for spout, error in errors))
        return bool(errors)

    def _note_outages(self, settlement: EpochSettlement, reports: Reports) -> float:
        """Log outages that began or ended; returns in how many seconds their messages are tried again."""
        components = self._plan.spec.components
        worked = {
            name
            for stats in reports.stats
            for name, tuples in stats.worked.items()
            if tuples
            or (
                components[name].kind == "bolt" and components[name].body.is_holder
            )  # it works on what it holds, without a frame
        }
        for name in worked - settlement.outages.keys():
            if name not in self._sinks:
                self._outages.over(name)
        return max((self._outages.met(name, error) for name, error in settlement.outages.items()), default=0.0)

    def _execute_surely(
        self, record: EpochRecord, settlement: EpochSettlement, slices: Sequence[EpochSlice]
    ) -> list[Report]:
        """Execute a run, again if Spark fails: workers crash on messages, shuffles are lost.

        Raises the error after `BROKEN_EXECUTIONS` in a row that blame no further message.
        """
        broken, blamed_before = 0, 0
        while True:
            try:
                rows = self._execute(record, settlement, slices)
            except Exception as error:
                outage = outage_of(error, self._directory.path)
                if outage is not None and not self._is_closing.is_set():
                    # No message is the cause: usually a sink's folder that cannot be written now.
                    self._is_closing.wait(self._outages.met(self._place_in(str(error), outage), outage))
                    settlement.broken += 1
                    continue
                marks, generation = self._directory.marks, self._directory.generation
                blamed_now = len(blamed(marks, generation, record.epoch))
                broken = 1 if blamed_now > blamed_before else broken + 1
                blamed_before = blamed_now
                if self._is_closing.is_set() or broken >= BROKEN_EXECUTIONS or is_final(error):
                    raise
                logger.warning(
                    "epoch %d: Spark could not finish it, so it is run again: %s", record.epoch, first_line(error)
                )
                settlement.broken += 1
            else:
                for name in (*self._sinks, *OF_NO_COMPONENT):
                    self._outages.over(name)
                return rows

    def _place_in(self, text: str, outage: str) -> str:
        """The sink whose folder an error names, or what else it is about."""
        return next((sink for sink, folder in self._sinks.items() if folder in text), place_of(outage))

    def _execute(self, record: EpochRecord, settlement: EpochSettlement, slices: Sequence[EpochSlice]) -> list[Report]:
        accounts, header = self._accounts, record.header
        attempts = {**accounts.trees.attempts, **record.attempts}
        control = EpochControl(
            run_id=self._directory.run_id,
            epoch=record.epoch,
            run=settlement.runs,
            generation=self._directory.generation,
            time_s=header.time_s,
            left_out=wire.pack_roots(settlement.left_out),
            attempts=attempts,
            first_emitted=accounts.first_emitted(attempts),
            again=frozenset(header.again),
            state=accounts.state,
            checked=sorted(settlement.checked),
            state_directory=str(self._directory.state),
            sink_directories={sink: marked_text(folder) for sink, folder in self._sinks.items()},
            kept=accounts.kept,
            carryover_directory=str(self._directory.kept),
            parked=wire.pack_roots(accounts.trees.parked(header.ran_s)),
            gone=wire.pack_roots(accounts.gone),
            ticks=header.ticks,
            drain=settlement.drains,
            retrying_since_s=accounts.retrying_since_s() if accounts.kept else None,
            kept_retrying=accounts.kept_retrying(header.ran_s) if accounts.kept else {},
            retries_run=bool(record.attempts),
            ran_s=header.ran_s,
            timeout_s=self._options.message_timeout_s,
            processing_timeout_s=self._options.processing_timeout_s,
            markers_directory=str(self._directory.marks),
            execution=settlement.broken,
            calls=self._call_counts.of_run(settlement.runs),
            resumes=settlement.resumes,
            more_calls=self._call_counts.of_bolts(settlement.runs),
            expects_crashes=self._met_crashes and bool(accounts.trees.attempts or record.attempts),
            stage_memory_bytes=self._options.stage_memory_bytes,
            call_max_bytes=self._options.call_max_bytes,
            message_max_bytes=self._options.message_max_bytes,
            away=self._outages.away,
            one_host=self._runner.one_host,
            epochs_directory=str(self._directory.epochs),
            renamed=dict(self._directory.upgrades.names),
            first_key=min((one.keys.start for one in record.inputs if one.keys), default=0),
            held={} if settlement.order is None else settlement.order.held(settlement.failures),
        )
        if not (settlement.has_work or control.has_needs):
            return []
        return self._runner.run(slices, control)

    def _files_of(self, reports: Reports) -> list[Path]:
        """All files of a run that does not count."""
        files = [Path(self._sinks[one.sink]) / name for one in reports.outputs for name in (one.candidate, one.sidecar)]
        files += [self._directory.state / one.component / one.file.name for one in reports.states]
        files += [self._directory.kept / name for name in sorted({one.part.file for one in reports.kept if one.part})]
        return files
