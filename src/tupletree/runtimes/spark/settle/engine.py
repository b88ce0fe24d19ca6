"""The engine of a Spark run: runs an epoch until a run counts, commits it, and publishes what the entry names.

It holds no spout and starts no thread: the settling thread gives it epochs and passes its `EpochVerdicts` to the loop.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tupletree.bolts.factory import is_holder
from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.runtimes.api import Redact
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.carryover import carryover_after, files_of
from tupletree.runtimes.spark.format.entries import (
    AckedTree,
    Base,
    Counters,
    DeadEntry,
    FailedAttempt,
    SettleEntry,
    epoch_path,
    write_settle,
)
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.slices import EpochSlice, empty_slices, slices_of
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochDecision
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.open_trees import TreeChanges
from tupletree.runtimes.spark.settle.outages import STATE_DIRECTORY, Outages, outage_in
from tupletree.runtimes.spark.settle.outputs import ChosenOutputs, OutputChooser
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner, Report
from tupletree.runtimes.spark.settle.publish import Publisher, letter_of, remove
from tupletree.runtimes.spark.settle.reports import Reports, Settlement
from tupletree.runtimes.spark.settle.shutdown import first_line, is_final
from tupletree.runtimes.spark.worker.crash_markers import blamed
from tupletree.state.versions import StateFile, version_after
from tupletree.texts import marked_text
from tupletree.tracking.attempt_notes import AttemptNotes
from tupletree.tracking.message_ids import message_key, plain_id
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending_log import PendingChanges
from tupletree.tracking.records import Acked, Died, Retry, SourceRetry

__all__ = ["Engine", "EpochVerdicts"]

logger = logging.getLogger("tupletree.spark")

BROKEN_EXECUTIONS = 4
"""Jobs in a row that fail without a further message being blamed, until the run fails. Where Spark allows a task one
attempt, the third finds what crashes its workers (`crash_markers`)."""

BASE_EPOCHS = 64
BASE_MESSAGES = 500_000
"""A settle entry holds a base after this many epochs or messages, which limits what a restart reads."""


@dataclass
class EpochVerdicts:
    """The callbacks that follow from a settled epoch.

    Of rows that executors read, those that were acked are only counted: `rows`, all of them `rows_latency_s` old.
    """

    epoch: int
    acked: list[Acked] = field(default_factory=list)
    rows: int = 0
    rows_latency_s: float = 0.0
    died: list[Died] = field(default_factory=list)
    source_retries: list[SourceRetry] = field(default_factory=list)
    retried_in_place: int = 0
    wrote_base: bool = False
    drained: bool = False
    shrunk: bool = False
    runs: int = 0
    reports: Reports = field(default_factory=Reports)

    def move_to_died(self, died: list[Died]) -> None:
        """Move messages from the acked to the dead ones: a sink refused them."""
        if died:
            names = {(one.spout_task, message_key(one.message_id)) for one in died}
            before = len(self.acked)
            self.acked = [one for one in self.acked if (one.spout_task, message_key(one.message_id)) not in names]
            self.rows -= len(died) - (before - len(self.acked))
            self.died += died


@dataclass
class _Counted:
    """The run of an epoch that counts, with the files to drop."""

    settlement: Settlement
    reports: Reports
    decision: EpochDecision
    chosen: ChosenOutputs
    dropped: list[Path] = field(default_factory=list)


class Engine:
    """See the module docstring.

    Args:
        plan: the topology laid out.
        runner: runs it.
        wakes: see `slices_of`.
        sink_directories: sink → absolute folder.
        publisher: finishes what an entry names.
        requested_replays: takes the replay requests that are in the accounts but not yet in the journal.
        epochs_since_base: how many settled epochs a restart would have to read now.
        outages: told of bolts and folders that meet one.
    """

    def __init__(
        self,
        plan: Plan,
        runner: PlanRunner,
        options: Options,
        directory: StateDirectory,
        accounts: Accounts,
        clock: Clock,
        sink_directories: dict[str, str],
        publisher: Publisher,
        redact: Redact | None,
        requested_replays: Callable[[], list[str]],
        epochs_since_base: int,
        outages: Outages,
        *,
        wakes: bool,
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._timeout_s = options.message_timeout_s
        self._exact_state = options.state_guarantee == "exactly_once"
        self._processing_timeout_s = options.processing_timeout_s
        self._stage_memory_bytes, self._call_max_bytes = options.stage_memory_bytes, options.call_max_bytes
        self._directory = directory
        self._accounts = accounts
        self._clock = clock
        self._sinks = sink_directories
        self._attempt_notes = AttemptNotes()
        self._publisher = publisher
        self._redact = redact
        self._requested_replays = requested_replays
        self._since_base = (epochs_since_base, 0)
        self._outputs = OutputChooser(plan, sink_directories, directory.run_id)
        self._wakes = wakes
        self._is_closing = threading.Event()
        self._outage_log = outages
        self._met_crashes = False

    # --- one epoch, start to end ------------------------------------------------------------------------------

    def settle(self, record: EpochRecord, before_commit: Callable[[], None]) -> EpochVerdicts:
        """Run an epoch until a run of it counts, commit it, publish.

        Args:
            record: the epoch.
            before_commit: called once the entry is ready; returns when the callbacks of the last epoch are made.

        Raises:
            CheckpointError: another start of this run has settled the epoch; this one must stop at once.
        """
        with record.steps.measure("run"):
            counted = self._run_until_it_counts(record)
        if any(one.kind is FailureKind.POISON for one in counted.settlement.failures.values()):
            self._met_crashes = True
        unsettled = self._read_again(record, counted)
        before_commit()
        with record.steps.measure("settle"), self._accounts.lock:
            self._accounts.settle_rows(record.header, record.rows, unsettled, self._clock)
            entry, verdicts = self._entry(record, counted)
            verdicts.rows = len(record.rows) - len(unsettled)
            entry.counters.acked += verdicts.rows
            superseded = self._superseded(entry)
            self._accounts.gone = entry.gone
            crash_point("settle.before_log")
            if not write_settle(self._directory.settles, entry):
                raise self._directory.taken_over(f"epoch {entry.epoch} is settled already")
            crash_point("settle.after_log")
            self._accounts.settled = entry.epoch
            self._accounts.state = entry.state
            self._accounts.kept = entry.kept
            self._accounts.waiting_names = self._accounts.waiting.names()
            self._accounts.totals = entry.counters
            self._accounts.replays.update(entry.replays)
        with record.steps.measure("publish"):
            _, died = self._publisher.finish(entry)
        verdicts.move_to_died(died)
        crash_point("settle.after_publish")
        remove([*counted.dropped, *counted.chosen.dropped, *superseded])
        return verdicts

    def _read_again(self, record: EpochRecord, counted: _Counted) -> dict[int, Any]:
        """The values of rows that executors read and that this epoch does not finish."""
        accounts, rows = self._accounts, record.rows
        waiting = accounts.waiting.roots() if len(accounts.waiting) else set()
        return rows.read(counted.settlement.unsettled_rows(waiting), accounts.reader_of)

    def close(self) -> None:
        """Note that the loop has ended: a job that fails is not tried again."""
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

    def _run_until_it_counts(self, record: EpochRecord) -> _Counted:
        accounts = self._accounts
        settlement = Settlement.start(record, accounts.trees, exact_state=self._exact_state)
        dropped: list[Path] = []
        slices = slices_of(epoch_path(self._directory.epochs, record.epoch), self._plan, wakes=self._wakes)
        while True:
            reports = Reports.of(self._execute_surely(record, settlement, slices))
            crash_point("settle.after_run")
            if settlement.judge_run(reports, self._outputs.read_sidecar):
                decision = EpochDecision.of(settlement, self._timeout_s, accounts.pending.is_last_attempt)
                version = f"{self._directory.generation:06d}-{record.epoch:08d}-{settlement.runs - 1:03d}"
                chosen = self._outputs.choose(reports.outputs, decision, accounts.waiting, version, record.epoch)
                return _Counted(settlement, reports, decision, chosen, dropped)
            dropped += self._files_of(reports)
            crash_point("settle.before_rerun")

    def _execute_surely(
        self, record: EpochRecord, settlement: Settlement, slices: Sequence[EpochSlice]
    ) -> list[Report]:
        """Execute a run, again if Spark fails: workers crash on messages, shuffles are lost.

        Raises the error after `BROKEN_EXECUTIONS` in a row that blame no further message.
        """
        broken, blamed_before = 0, 0
        while True:
            try:
                rows = self._execute(record, settlement, slices)
            except Exception as error:
                outage = outage_in(error)
                if outage is not None and not self._is_closing.is_set():
                    # No message is the cause: usually a sink's folder that cannot be written now.
                    self._is_closing.wait(self._outage_log.met(self._place_in(str(error)), outage))
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
                for name in (*self._sinks, STATE_DIRECTORY):
                    self._outage_log.over(name)
                return rows

    def _place_in(self, text: str) -> str:
        """The sink whose folder an error names."""
        return next((sink for sink, folder in self._sinks.items() if folder in text), STATE_DIRECTORY)

    def _execute(self, record: EpochRecord, settlement: Settlement, slices: Sequence[EpochSlice]) -> list[Report]:
        accounts, header = self._accounts, record.header
        control = EpochControl(
            run_id=self._directory.run_id,
            epoch=record.epoch,
            run=settlement.runs,
            generation=self._directory.generation,
            time_s=header.time_s,
            left_out=wire.pack_roots(settlement.left_out),
            attempts={**accounts.trees.attempts, **record.attempts},
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
            timeout_s=self._timeout_s,
            processing_timeout_s=self._processing_timeout_s,
            markers_directory=str(self._directory.marks),
            execution=settlement.broken,
            calls=settlement.calls,
            expects_crashes=self._met_crashes and bool(accounts.trees.attempts or record.attempts),
            stage_memory_bytes=self._stage_memory_bytes,
            call_max_bytes=self._call_max_bytes,
            away=self._outage_log.away,
            one_host=self._runner.one_host,
        )
        if not (settlement.has_work or control.has_needs):
            return []
        return self._runner.run(slices, control)

    def _files_of(self, reports: Reports) -> list[Path]:
        """All files of a run that does not count."""
        files = [Path(self._sinks[one.sink]) / name for one in reports.outputs for name in (one.candidate, one.sidecar)]
        files += [self._directory.state / one.component / one.file.name for one in reports.states]
        files += [self._directory.kept / name for name in {one.part.file for one in reports.kept if one.part}]
        return files

    # --- the entry --------------------------------------------------------------------------------------------

    def _entry(self, record: EpochRecord, counted: _Counted) -> tuple[SettleEntry, EpochVerdicts]:
        accounts, settlement, decision = self._accounts, counted.settlement, counted.decision
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        verdicts = EpochVerdicts(
            record.epoch,
            drained=settlement.drains,
            shrunk=not settlement.away.keys() >= set(settlement.put_back),
            runs=settlement.runs,
            reports=counted.reports,
        )
        pause_s = self._note_outages(settlement, counted.reports)
        withheld = {root for root in (*settlement.acked(), *settlement.completed) if accounts.waiting.waits_for(root)}
        withheld.update(record.rows.among(accounts.waiting.roots() - settlement.left_out - settlement.carried.keys()))
        verdicts.acked = accounts.pending.ack_many(
            [root for root in settlement.acked() if root not in withheld] if withheld else settlement.acked(), now_s
        )
        changes = TreeChanges(accounts.trees)
        acked = self._ack_earlier(counted, withheld, now_s, verdicts, changes)
        verdicts.rows_latency_s = accounts.ran_s(now_s) - record.header.ran_s
        # Before this epoch's failures: the source was told of those of earlier epochs, and ended without emitting them
        # again.
        for task in record.header.ended:
            verdicts.died += accounts.pending.give_up(task, now_s, wall_s)
        for tree in decision.what_becomes(accounts.ran_s(now_s), self._timeout_s, withheld, pause_s):
            changes.put(tree)
        expired = [(tree.root, decision.timeout) for tree in decision.expired]
        for root, failure in [*settlement.failures.items(), *expired]:
            self._fail(root, failure, now_s, wall_s, verdicts, changes)
        accounts.trees.resumed(record.header.ran_s)
        self._remember_unconfirmed(record, verdicts)
        for root in settlement.put_back:
            if root not in accounts.trees:
                accounts.pending.put_back(root, now_s + pause_s if root in settlement.away else -math.inf)
        entry = SettleEntry(
            epoch=record.epoch,
            generation=self._directory.generation,
            run=settlement.runs - 1,
            time_s=wall_s,
            failed=_by_reason([*settlement.failures.items(), *expired]),
            put_back=list(settlement.put_back),
            opened=list(changes.opened.values()),
            closed=changes.closed,
            acked=acked,
            gone=sorted(decision.dead),
            dead=[DeadEntry(died.root, died.spout_task, self._letter(died, decision)) for died in verdicts.died],
            outputs=counted.chosen.outputs,
            waiting=counted.chosen.waiting,
            released=counted.chosen.released,
            state=self._state_after(counted.reports),
            state_bytes=(
                sum(one.bytes_read for one in counted.reports.states),
                sum(one.file.size_bytes for one in counted.reports.states),
            ),
            kept=carryover_after(accounts.kept, counted.reports.kept),
            replays=self._requested_replays(),
            counters=self._counters(record, counted, verdicts, len(expired)),
            pending=PendingChanges(),
        )
        self._add_changes(entry, record, verdicts, now_s, wall_s)
        return entry, verdicts

    def _note_outages(self, settlement: Settlement, reports: Reports) -> float:
        """Log outages that began or ended; returns in how many seconds their messages are tried again."""
        components = self._plan.spec.components
        worked = {
            name
            for stats in reports.stats
            for name, tuples in stats.worked.items()
            if tuples
            or (
                components[name].kind == "bolt" and is_holder(components[name])
            )  # it works on what it holds, without a frame
        }
        for name in worked - settlement.outages.keys():
            if name not in self._sinks:
                self._outage_log.over(name)
        return max((self._outage_log.met(name, error) for name, error in settlement.outages.items()), default=0.0)

    def _ack_earlier(
        self, counted: _Counted, withheld: set[int], now_s: float, verdicts: EpochVerdicts, changes: TreeChanges
    ) -> list[AckedTree]:
        """Ack roots of earlier epochs that are complete and none of whose outputs waits."""
        accounts = self._accounts
        complete = [root for root in counted.settlement.completed if root not in withheld]
        for root in counted.chosen.freed:
            tree = accounts.trees.get(root)
            if tree is not None and tree.is_complete and root not in counted.decision.completed:
                complete.append(root)
        named: list[AckedTree] = []
        for root in complete:
            changes.close(root)
            acked = accounts.pending.ack(root, now_s)
            if acked is not None:
                verdicts.acked.append(acked)
                named.append(AckedTree(root, acked.spout_task, plain_id(acked.message_id)))
        return named

    def _remember_unconfirmed(self, record: EpochRecord, verdicts: EpochVerdicts) -> None:
        """Remember settled messages of sources without a position: they may deliver one again until it is confirmed."""
        pending, positions = self._accounts.pending, record.header.positions
        if len(positions) == len(self._accounts.spout_of):
            return
        for acked in verdicts.acked:
            if acked.spout_task not in positions:
                pending.mark_unconfirmed(acked.spout_task, acked.message_id, Outcome.ACKED)
        for died in verdicts.died:
            if died.spout_task not in positions:
                pending.mark_unconfirmed(died.spout_task, died.message_id, Outcome.DEAD)

    def _add_changes(
        self, entry: SettleEntry, record: EpochRecord, verdicts: EpochVerdicts, now_s: float, wall_s: float
    ) -> None:
        accounts = self._accounts
        epochs, messages = self._since_base[0] + 1, self._since_base[1] + record.header.messages
        if epochs >= BASE_EPOCHS or messages >= BASE_MESSAGES:
            pending = accounts.pending.snapshot(accounts.encode_value, now_s, wall_s)
            entry.base = Base(
                pending=pending,
                open=accounts.trees.all(),
                replays=sorted({*accounts.replays, *entry.replays}),
                waiting=accounts.waiting.files(),
                refused=[FailedAttempt([root], failure) for root, failure in accounts.refused.items()],
            )
            verdicts.wrote_base = True
            epochs = messages = 0
        else:
            entry.pending = accounts.pending.take_changes(accounts.encode_value, now_s, wall_s)
        self._since_base = epochs, messages

    def _fail(
        self, root: int, failure: Failure, now_s: float, wall_s: float, verdicts: EpochVerdicts, changes: TreeChanges
    ) -> None:
        """Fail an attempt. What is committed of it stays, and its next attempt starts from its kept frames."""
        tree = self._accounts.trees.get(root)
        in_place = tree is not None and tree.is_committed
        pending = self._accounts.pending
        effect = (pending.fail_in_place if in_place else pending.fail)(root, failure, now_s, wall_s)
        if tree is not None and in_place and isinstance(effect, Retry):
            verdicts.retried_in_place += 1
            resumes_s = self._accounts.ran_s(effect.due_s)
            expires_s = math.inf if self._timeout_s is None else resumes_s + self._timeout_s
            changes.put(replace(tree, attempt=effect.attempt_next, resumes_s=resumes_s, expires_s=expires_s))
        elif tree is not None:
            changes.close(root)
        if isinstance(effect, Died):
            verdicts.died.append(effect)
        elif effect is not None:
            if isinstance(effect, SourceRetry):
                verdicts.source_retries.append(effect)
            told = self._attempt_notes.of(effect.message_id, effect.attempt_next - 1, failure, now_s)
            if told is not None:
                logger.warning("%s: %s", failure.component, told)

    def _letter(self, died: Died, decision: EpochDecision) -> Any:
        stateful = any(getattr(one.body, "state", None) for one in self._plan.spec.components.values())
        verb = "does not" if self._exact_state else "may"
        note = f"keyed state {verb} hold this message" if stateful else ""
        if died.root in decision.dead:
            note = "it failed after a part of it was committed: its earlier effects stay, also on keyed state"
        return letter_of(died, self._accounts, note, self._redact)

    def _state_after(self, reports: Reports) -> dict[str, list[StateFile]]:
        """The version that this epoch leaves."""
        state = dict(self._accounts.state)
        for one in reports.states:
            state[one.component] = version_after(state.get(one.component, ()), one.file, one.merged)
        return state

    def _superseded(self, entry: SettleEntry) -> list[Path]:
        """Files of state and of kept frames that the new version does not need."""
        kept = self._directory.kept
        gone: list[Path] = sorted(files_of(kept, self._accounts.kept) - files_of(kept, entry.kept))
        needed = {(component, file.name) for component, files in entry.state.items() for file in files}
        named = {(component, file.name) for component, files in self._accounts.state.items() for file in files}
        return gone + [self._directory.state / component / name for component, name in named - needed]

    def _counters(self, record: EpochRecord, counted: _Counted, verdicts: EpochVerdicts, expired: int) -> Counters:
        before = self._accounts.totals
        rows = dict(before.rows)
        for output in counted.chosen.outputs:
            rows[output.sink] = rows.get(output.sink, 0) + output.rows
        return Counters(
            emitted=before.emitted + record.header.fresh,
            acked=before.acked + len(verdicts.acked),
            failed=before.failed + len(counted.settlement.failures) + expired,
            retried=before.retried
            + len(record.attempts.keys() - set(counted.settlement.put_back))
            + verdicts.retried_in_place,
            dead=before.dead + len(verdicts.died),
            untracked=before.untracked + record.header.untracked,
            late_verdicts=before.late_verdicts + sum(stats.late_verdicts for stats in counted.reports.stats),
            joined=self._accounts.take_joined(),
            untracked_failed=before.untracked_failed + sum(stats.strays for stats in counted.reports.stats),
            rows=rows,
        )


def _by_reason(failures: list[tuple[int, Failure]]) -> list[FailedAttempt]:
    """Group roots that share one failure object."""
    grouped: dict[int, FailedAttempt] = {}
    for root, failure in failures:
        grouped.setdefault(id(failure), FailedAttempt([], failure)).roots.append(root)
    return list(grouped.values())
