"""The engine of a Spark run: runs an epoch as often as it takes, commits it, and finishes what the commit named.

`Engine.settle` is what `foreachBatch` calls. It holds no spout and starts no thread: the loop (`runtime`) feeds it
epochs and takes its `Verdicts` back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.durable import sync_directory
from tupletree.errors import CheckpointError
from tupletree.plan import Plan
from tupletree.runtimes.base import Redact
from tupletree.runtimes.crash import crash_point
from tupletree.runtimes.spark import wire
from tupletree.runtimes.spark.accounts import Accounts
from tupletree.runtimes.spark.intake import EpochRecord
from tupletree.runtimes.spark.journal import (
    Base,
    Counters,
    DeadEntry,
    FailedAttempt,
    OpenTree,
    OutputFile,
    SettleEntry,
    write_settle,
)
from tupletree.runtimes.spark.program import Control, control_bytes
from tupletree.runtimes.spark.publishing import Publisher, final_name, letter_of, remove
from tupletree.runtimes.spark.settle import Reports, Settlement, rows_to_keep
from tupletree.runtimes.spark.sinking import read_sidecar, sidecar_of, write_sidecar
from tupletree.runtimes.spark.spooling import Spool, file_sink_of
from tupletree.runtimes.spark.stage import run_stage
from tupletree.runtimes.spark.statedir import StateDirectory
from tupletree.state.versions import StateFile, version_after
from tupletree.tracking.identity import message_key
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending_log import PendingChanges
from tupletree.tracking.verdicts import Acked, Died, Retry, SourceRetry

__all__ = ["Engine", "Verdicts"]

BASE_EPOCHS = 64
BASE_MESSAGES = 500_000
"""A settle entry holds a base after this many epochs or messages: what a restart reads, and what a sweep removes."""


@dataclass
class Verdicts:
    """What the spouts have to hear about a settled epoch."""

    epoch: int
    acked: list[Acked] = field(default_factory=list)
    died: list[Died] = field(default_factory=list)
    source_retries: list[SourceRetry] = field(default_factory=list)
    wrote_base: bool = False
    shrunk: bool = False

    def bury(self, died: list[Died]) -> None:
        """Messages that were to be acked died of a sink that refused them."""
        if died:
            names = {(one.spout_task, message_key(one.message_id)) for one in died}
            self.acked = [one for one in self.acked if (one.spout_task, message_key(one.message_id)) not in names]
            self.died += died


@dataclass
class _Counted:
    """The run of an epoch that counts, with the files to drop."""

    settlement: Settlement
    reports: Reports
    outputs: list[OutputFile] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)


class Engine:
    """See the module docstring.

    Args:
        plan, blob: the topology laid out, and packed for the workers.
        sink_directories: sink → absolute folder.
        publisher: finishes what an entry names.
        requested_replays: takes the replay requests that are in the accounts but not yet in the journal.
        epochs_since_base: how many settled epochs a restart would have to read now.
    """

    def __init__(
        self,
        plan: Plan,
        blob: bytes,
        options: Options,
        directory: StateDirectory,
        accounts: Accounts,
        clock: Clock,
        sink_directories: dict[str, str],
        publisher: Publisher,
        redact: Redact | None,
        requested_replays: Callable[[], list[str]],
        epochs_since_base: int,
    ) -> None:
        self._plan = plan
        self._blob = blob
        self._timeout_s = options.message_timeout_s
        self._directory = directory
        self._accounts = accounts
        self._clock = clock
        self._sinks = sink_directories
        self._publisher = publisher
        self._redact = redact
        self._requested_replays = requested_replays
        self._since_base = (epochs_since_base, 0)

    # --- one epoch, start to end ------------------------------------------------------------------------------

    def settle(self, record: EpochRecord, frame: Any, before_commit: Callable[[], None]) -> Verdicts:
        """Run an epoch until a run of it counts, commit it, publish.

        Args:
            record: the epoch.
            frame: Spark's data frame of the epoch's rows.
            before_commit: called once the entry is ready; returns when the callbacks of the epoch before are made.

        Raises:
            CheckpointError: another start of this run has settled the epoch; this one must stop at once.
        """
        counted = self._run_until_it_counts(record, frame)
        before_commit()
        with self._accounts.lock:
            entry, verdicts = self._entry(record, counted)
            superseded = self._superseded(entry)
            crash_point("settle.before_log")
            if not write_settle(self._directory.settles, entry):
                raise CheckpointError(
                    "another start of this run has taken over; this one stops",
                    where=str(self._directory.path),
                    got=f"epoch {entry.epoch} is settled already",
                    next_step="stop one of the two processes",
                )
            crash_point("settle.after_log")
            self._accounts.settled = entry.epoch
            self._accounts.state = entry.state
            self._accounts.totals = entry.counters
            self._accounts.replays.update(entry.replays)
        _, died = self._publisher.finish(entry)
        verdicts.bury(died)
        crash_point("settle.after_publish")
        remove([*counted.dropped, *superseded])
        return verdicts

    def rehearse(self, frame: Any) -> None:
        """Run the plan over nothing: every worker is started, has imported the topology, and Spark has compiled."""
        control = Control(run_id=self._directory.run_id, epoch=-1, run=0, generation=0, time_s=0.0)
        self._run_plan(frame, control)

    def _run_until_it_counts(self, record: EpochRecord, frame: Any) -> _Counted:
        settlement = Settlement.start(record)
        dropped: list[Path] = []
        while True:
            has_work = bool(record.header.frames) and (settlement.remaining() or record.header.untracked)
            rows = self._execute(record, settlement, frame) if has_work else []
            reports = Reports.of(rows)
            crash_point("settle.after_run")
            if settlement.judge_run(reports, self._read_sidecar):
                counted = _Counted(settlement, reports, dropped=dropped)
                self._choose_outputs(record, counted)
                return counted
            dropped += self._files_of(reports)
            crash_point("settle.before_rerun")

    def _execute(self, record: EpochRecord, settlement: Settlement, frame: Any) -> list[tuple[int, bytes, bytes]]:
        return self._run_plan(
            frame,
            Control(
                run_id=self._directory.run_id,
                epoch=record.epoch,
                run=settlement.runs,
                generation=self._directory.generation,
                time_s=record.header.time_s,
                left_out=wire.pack_roots(settlement.left_out),
                attempts=record.attempts,
                state=self._accounts.state,
                state_directory=str(self._directory.state),
                sink_directories=self._sinks,
            ),
        )

    def _run_plan(self, frame: Any, control: Control) -> list[tuple[int, bytes, bytes]]:
        """The whole plan as one Spark job with one action: a second action could mix two executions."""
        encoded = control_bytes(control)
        rows = frame
        for stage in self._plan.stages:
            if stage.index:
                rows = rows.repartitionById(self._plan.partitions, "place")
            rows = rows.mapInArrow(_stage_function(self._blob, encoded, stage.index), wire.SPARK_SCHEMA)
        table: pa.Table = rows.toArrow()
        columns: list[list[Any]] = [table.column(name).to_pylist() for name in ("kind", "head", "body")]
        return list(zip(*columns, strict=True))

    # --- outputs ----------------------------------------------------------------------------------------------

    def _read_sidecar(self, output: wire.OutputReport) -> list[Any]:
        return read_sidecar(Path(self._sinks[output.sink]) / output.sidecar, output.rows)

    def _choose_outputs(self, record: EpochRecord, counted: _Counted) -> None:
        """Which candidates count; where rows of a bad root are among them, a filtered copy does."""
        bad = {*counted.reports.failures, *counted.settlement.open}
        changed: set[Path] = set()
        for output in counted.reports.outputs:
            folder = Path(self._sinks[output.sink])
            sink = file_sink_of(self._plan.spec, self._plan.spec.components[output.sink])
            is_called = isinstance(sink, Spool)
            name, rows = output.candidate, output.rows
            if not is_called:
                counted.dropped.append(folder / output.sidecar)
            if bad:
                roots = self._read_sidecar(output)
                keep = rows_to_keep(roots, bad)
                if not all(keep):
                    counted.dropped += [folder / name, folder / output.sidecar]
                    if not any(keep):
                        continue
                    name = f"{Path(name).stem}-kept{sink.suffix}"
                    rows = sink.filter_candidate(folder / output.candidate, folder / name, keep)
                    if is_called:
                        kept = list(compress(roots, keep))
                        layout = wire.pack_layout(kept, range(1, rows + 1))
                        write_sidecar(sidecar_of(folder / name), layout, lasting=True)
                    changed.add(folder)
            final = (
                "" if is_called else final_name(self._directory.run_id, record.epoch, output.task_index, sink.suffix)
            )
            counted.outputs.append(OutputFile(output.sink, name, final, rows, output.task_index))
        for folder in changed:
            sync_directory(folder)

    def _files_of(self, reports: Reports) -> list[Path]:
        """Everything a run that does not count has written."""
        files = [Path(self._sinks[one.sink]) / name for one in reports.outputs for name in (one.candidate, one.sidecar)]
        files += [self._directory.state / one.component / one.file.name for one in reports.states]
        return files

    # --- the entry --------------------------------------------------------------------------------------------

    def _entry(self, record: EpochRecord, counted: _Counted) -> tuple[SettleEntry, Verdicts]:
        accounts, settlement = self._accounts, counted.settlement
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        verdicts = Verdicts(record.epoch, shrunk=bool(settlement.put_back))
        verdicts.acked = accounts.pending.ack_many(settlement.acked(), now_s)
        # Before this epoch's failures: the source has been told of those of earlier epochs, and ended all the same.
        for task in record.header.ended:
            verdicts.died += accounts.pending.give_up(task, now_s, wall_s)
        expired = self._expired(record.header.time_s)
        for root, failure in [*settlement.failures.items(), *expired]:
            self._fail(root, failure, now_s, wall_s, verdicts)
        self._remember_unconfirmed(record, verdicts)
        for root in settlement.put_back:
            accounts.pending.put_back(root)
        for root, _ in expired:
            del accounts.open[root]
        opened = self._opened(record, settlement, wall_s)
        accounts.open.update({tree.root: tree for tree in opened})
        replays = self._requested_replays()
        entry = SettleEntry(
            epoch=record.epoch,
            generation=self._directory.generation,
            run=settlement.runs - 1,
            time_s=wall_s,
            failed=_by_reason([*settlement.failures.items(), *expired]),
            put_back=list(settlement.put_back),
            opened=opened,
            closed=[root for root, _ in expired],
            dead=[DeadEntry(died.root, died.spout_task, self._letter(died)) for died in verdicts.died],
            outputs=counted.outputs,
            state=self._state_after(counted.reports),
            state_bytes=(
                sum(one.bytes_read for one in counted.reports.states),
                sum(one.file.size_bytes for one in counted.reports.states),
            ),
            replays=replays,
            counters=self._counters(record, counted, verdicts, len(expired)),
            pending=PendingChanges(),
        )
        self._add_changes(entry, record, verdicts, now_s, wall_s)
        return entry, verdicts

    def _remember_unconfirmed(self, record: EpochRecord, verdicts: Verdicts) -> None:
        """A source without a position may deliver a settled message again until it has heard of it (EPOCHS 1)."""
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
        self, entry: SettleEntry, record: EpochRecord, verdicts: Verdicts, now_s: float, wall_s: float
    ) -> None:
        accounts = self._accounts
        epochs, messages = self._since_base[0] + 1, self._since_base[1] + record.header.messages
        if epochs >= BASE_EPOCHS or messages >= BASE_MESSAGES:
            pending = accounts.pending.snapshot(accounts.encode_value, now_s, wall_s)
            entry.base = Base(
                pending=pending, open=list(accounts.open.values()), replays=sorted({*accounts.replays, *entry.replays})
            )
            verdicts.wrote_base = True
            epochs = messages = 0
        else:
            entry.pending = accounts.pending.take_changes(accounts.encode_value, now_s, wall_s)
        self._since_base = epochs, messages

    def _expired(self, time_s: float) -> list[tuple[int, Failure]]:
        """Open trees whose time is up at the start of the epoch."""
        failure = Failure(
            kind=FailureKind.TIMEOUT,
            error=f"not settled within the message timeout of {self._timeout_s} s: a bolt neither acked nor failed it",
        )
        return [(root, failure) for root, tree in self._accounts.open.items() if tree.deadline_s <= time_s]

    def _opened(self, record: EpochRecord, settlement: Settlement, wall_s: float) -> list[OpenTree]:
        if self._timeout_s is None:
            return [OpenTree(root, record.epoch, float("inf")) for root in sorted(settlement.open)]
        return [
            OpenTree(
                root,
                record.epoch,
                (wall_s if root in settlement.extended else record.header.time_s) + self._timeout_s,
            )
            for root in sorted(settlement.open)
        ]

    def _fail(self, root: int, failure: Failure, now_s: float, wall_s: float, verdicts: Verdicts) -> None:
        effect = self._accounts.pending.fail(root, failure, now_s, wall_s)
        match effect:
            case Died():
                verdicts.died.append(effect)
            case SourceRetry():
                verdicts.source_retries.append(effect)
            case Retry() | None:
                pass

    def _letter(self, died: Died) -> Any:
        stateful = any(getattr(one.body, "state", None) for one in self._plan.spec.components.values())
        note = "keyed state does not hold this message" if stateful else ""
        return letter_of(died, self._accounts, note, self._redact)

    def _state_after(self, reports: Reports) -> dict[str, list[StateFile]]:
        """The version that this epoch leaves."""
        state = dict(self._accounts.state)
        for one in reports.states:
            state[one.component] = version_after(state.get(one.component, ()), one.file, one.merged)
        return state

    def _superseded(self, entry: SettleEntry) -> list[Path]:
        """State files that the new version does not need."""
        kept = {(component, file.name) for component, files in entry.state.items() for file in files}
        named = {(component, file.name) for component, files in self._accounts.state.items() for file in files}
        return [self._directory.state / component / name for component, name in named - kept]

    def _counters(self, record: EpochRecord, counted: _Counted, verdicts: Verdicts, expired: int) -> Counters:
        before = self._accounts.totals
        rows = dict(before.rows)
        for output in counted.outputs:
            rows[output.sink] = rows.get(output.sink, 0) + output.rows
        return Counters(
            emitted=before.emitted + record.header.fresh,
            acked=before.acked + len(verdicts.acked),
            failed=before.failed + len(counted.settlement.failures) + expired,
            retried=before.retried + len(record.attempts.keys() - set(counted.settlement.put_back)),
            dead=before.dead + len(verdicts.died),
            untracked=before.untracked + record.header.untracked,
            late_verdicts=before.late_verdicts + sum(stats.late_verdicts for stats in counted.reports.stats),
            rows=rows,
        )


def _stage_function(blob: bytes, control: bytes, index: int) -> Callable[[Any], Any]:
    def stage(batches: Any) -> Any:
        return run_stage(blob, control, index, batches)

    return stage


def _by_reason(failures: list[tuple[int, Failure]]) -> list[FailedAttempt]:
    """Roots that share one failure object stand together."""
    grouped: dict[int, FailedAttempt] = {}
    for root, failure in failures:
        grouped.setdefault(id(failure), FailedAttempt([], failure)).roots.append(root)
    return list(grouped.values())
