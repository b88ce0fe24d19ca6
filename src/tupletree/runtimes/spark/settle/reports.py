"""Reports: what an epoch's run reported becomes verdicts, and verdicts decide whether the run counts.

`Reports` gathers a run's report rows. `EpochSettlement` holds the verdicts of all runs of an epoch; its `judge_run`
decides about one run: it counts, or the epoch runs again without some roots. No files, no Spark: rows in, decisions out
(the sidecars of shared outputs come in through a function).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from tupletree.data.frames import Root
from tupletree.errors import InternalError
from tupletree.ids import hex_id
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.carryover import CarryOverReport
from tupletree.runtimes.spark.settle.epoch_order import Arrived, EpochOrder
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.open_trees import OpenTrees
from tupletree.tracking.ledger import Entries, judge
from tupletree.tracking.outcomes import Failure

U64 = np.ndarray[Any, np.dtype[np.uint64]]

FULL_RUNS = 3
"""Runs over everything that is left; each further run takes a quarter of it, so that an epoch always ends."""

SidecarReader = Callable[[wire.OutputReport], "list[Root]"]

_failures = msgspec.msgpack.Decoder(list[wire.FailureReport])
_output = msgspec.msgpack.Decoder(wire.OutputReport)
_state = msgspec.msgpack.Decoder(wire.StateReport)
_stats = msgspec.msgpack.Decoder(wire.StatsReport)
_unreadable = msgspec.msgpack.Decoder(wire.Unreadable)
_kept = msgspec.msgpack.Decoder(list[CarryOverReport])


@dataclass
class Reports:
    """What one run of an epoch reported; `arrived` is filled where a topology has ordered bolts."""

    deltas: list[Entries] = field(default_factory=list)
    touched: list[U64] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    outputs: list[wire.OutputReport] = field(default_factory=list)
    states: list[wire.StateReport] = field(default_factory=list)
    unstorable: list[str] = field(default_factory=list)
    stats: list[wire.StatsReport] = field(default_factory=list)
    kept: list[CarryOverReport] = field(default_factory=list)
    carryover_edges: list[Entries] = field(default_factory=list)
    unreadable: list[wire.Unreadable] = field(default_factory=list)
    arrived: Arrived = field(default_factory=Arrived)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, bytes, bytes]], *, has_ordered_bolts: bool = False) -> Reports:
        """Read (kind, head, body) rows. Raises InternalError for a frame that no stage took."""
        reports = cls()
        for kind, head, body in rows:
            if has_ordered_bolts:
                reports.arrived.note(kind, head, body)
            if kind == wire.LEDGER:
                reports.deltas.append(wire.unpack_entries(body))
            elif kind == wire.TOUCHED:
                reports.touched.append(wire.unpack_roots(body))
            elif kind == wire.FAILURES:
                for report in _failures.decode(body):
                    for root in report.roots:
                        reports.failures.setdefault(root, report.failure)
            elif kind == wire.OUTPUT:
                reports.outputs.append(_output.decode(head))
            elif kind == wire.STATE:
                reports.states.append(_state.decode(head))
            elif kind == wire.UNSTORABLE:
                reports.unstorable.append(bytes(head).decode())
            elif kind == wire.STATS:
                reports.stats.append(_stats.decode(head))
            elif kind == wire.KEPT:
                reports.kept += _kept.decode(head)
                reports.carryover_edges.append(wire.unpack_entries(body))
            elif kind == wire.UNREADABLE:
                reports.unreadable.append(_unreadable.decode(head))
            elif kind in (wire.WAKE, wire.ARRIVED, wire.BEHIND):
                pass
            else:
                raise InternalError("a frame left the last stage", got=f"row of kind {kind}")
        return reports

    def leave_out(self, roots: Collection[int]) -> None:
        """Drop deltas of roots that the run left out: its first stage may be that of an earlier run, with them."""
        if roots:
            without = {*roots}
            self.deltas = [_without(entries, without) for entries in self.deltas]


# More than 12 attributes: one set of roots for each thing that may become of them in a run.
@dataclass
class EpochSettlement:
    """What all runs of an epoch so far say of its messages.

    `failures`, `open`, `put_back`, `away` and `behind` only grow; the first three are what the next run leaves out. A
    root of an earlier epoch that is left out stays unchanged.

    Attributes:
        trees: the trees of earlier epochs.
        failures: failed roots of this epoch, and of earlier ones whose frames it worked on.
        open: roots whose tree no run can complete any more: some bolt kept a tuple by hand.
        extended: roots whose timeout a bolt renewed.
        put_back: roots that go to a later epoch because this one did not finish them.
        away: those of `put_back` that a component could not work on because of an outage → the component.
        behind: those of `put_back` that wait for something earlier for a key of theirs, at an ordered bolt.
        outages: component → what its last call raised.
        runs: how many runs reported.
        carried: root → what is left of its tree, where that is in frames that are kept for later epochs.
        completed: roots of earlier epochs whose tree completed in the last run.
        broken: how often a run failed in Spark.
        exact_state: what a failed root did to state is undone.
        checked: components whose values are checked after each tuple from now on: one of them could not be stored, and
            a run without these checks does not know which message did it.
        order: where the topology has ordered bolts.
    """

    record: EpochRecord
    trees: OpenTrees
    failures: dict[int, Failure]
    order: EpochOrder | None = None
    open: set[int] = field(default_factory=set)
    extended: set[int] = field(default_factory=set)
    put_back: list[int] = field(default_factory=list)
    away: dict[int, str] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    outages: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    carried: dict[int, int] = field(default_factory=dict)
    completed: list[int] = field(default_factory=list)
    broken: int = 0
    exact_state: bool = True
    checked: set[str] = field(default_factory=set)

    @classmethod
    def start(
        cls, record: EpochRecord, trees: OpenTrees, *, exact_state: bool = True, order: EpochOrder | None = None
    ) -> EpochSettlement:
        """Start before the first run, with the failures at the spout."""
        return cls(record, trees, dict(record.failures), order, exact_state=exact_state)

    @property
    def resumes(self) -> bool:
        """Whether the next run may start from what stages without a trace sent in the last one. A tick is a trace."""
        return self.runs > 0 and not self.record.header.ticks

    @property
    def left_out(self) -> set[int]:
        """Roots that the next run must not touch."""
        return {*self.failures, *self.open, *self.put_back}

    @property
    def drains(self) -> bool:
        """Whether holders flush in the next run: nothing else will come, unless what failed here comes again."""
        return self.record.header.drain and not (self.left_out - self.record.failures.keys())

    @property
    def left_over(self) -> set[int]:
        """Roots of this epoch, and of earlier ones, that the last run did not complete."""
        return {*self.left_out, *self.carried}

    @property
    def has_work(self) -> bool:
        """Whether the next run has anything of this epoch to do."""
        left_out = self.left_out
        return any(one.has_work(left_out) for one in self.record.inputs)

    def judge_run(self, reports: Reports, read_sidecar: SidecarReader) -> bool:
        """Take a run's verdicts; True if the run counts, False if the epoch must run again without `left_out`."""
        self._check_read(reports)
        self.runs += 1
        drained, before = self.drains, self.left_out
        failed = {root: failure for root, failure in reports.failures.items() if root not in before}
        away = self._away(reports, {*before, *failed})
        behind = self._behind(reports, before, failed, away)
        judgement = judge(
            _without(self.record.openings, before),
            reports.deltas,
            np.array([*failed, *away, *behind], dtype=np.uint64),
            kept=reports.carryover_edges,
            left_before=lambda root: None if root in before else self.trees.left_of(root),
        )
        self._check(judgement.unknown)
        lost = set(judgement.unexplained.tolist())  # some bolt keeps a tuple itself
        left = zip(judgement.open_.tolist(), judgement.open_xor.tolist(), strict=True)
        self.carried = {root: xor for root, xor in left if root not in lost}
        self.completed = judgement.complete[np.isin(judgement.complete, judgement.earlier)].tolist()
        self.failures.update(failed)
        self.open |= lost
        for stats in reports.stats:
            self.extended.update(stats.extended)
        self.away.update(away)
        self.put_back.extend([*away, *behind])
        bad = failed.keys() | lost | away.keys() | behind
        # What holders let go of at the end of the input would be missing when what failed comes again.
        counts = not reports.unstorable and not (bad and (drained or self._taints(bad, reports, read_sidecar)))
        if counts:
            self._leave_out(before)
            return True
        self.checked.update(reports.unstorable)
        if not reports.unstorable and self.runs >= FULL_RUNS + bool(self.checked):
            # A message that went to no task is complete in any run, and no frame has its value.
            left_out = self.left_out
            remaining = [root for one in self.record.inputs for root in one.worked(left_out)]
            remaining += [root for root in judgement.earlier.tolist() if root not in bad]
            self.put_back.extend(remaining[max(1, len(remaining) // 4) :])
        self._leave_out(before)
        return False

    def _behind(self, reports: Reports, before: set[int], failed: dict[int, Failure], away: dict[int, str]) -> set[int]:
        """Roots behind something at an ordered bolt; a failure of one of them counts for nothing: it is removed."""
        if self.order is None:
            return set()
        behind = self.order.behind(reports.arrived, before, self.failures, failed, away)
        for root in behind:
            failed.pop(root, None)
        self.behind |= behind
        return behind

    def _leave_out(self, before: set[int]) -> None:
        if self.order is not None and (gone := self.left_out - before):
            self.order.leave_out(gone, self.failures)

    def _away(self, reports: Reports, others: Collection[int]) -> dict[int, str]:
        """Roots that a component could not work on because of an outage."""
        away: dict[int, str] = {}
        for stats in reports.stats:
            for component, (roots, error) in stats.outages.items():
                self.outages[component] = error
                away.update((root, component) for root in roots if root not in others)
        return away

    def _taints(self, bad: set[int], reports: Reports, read_sidecar: SidecarReader) -> bool:
        """Whether dropping the output rows of the bad roots does not undo everything that they did."""
        if any(root in self.trees for root in bad):
            return True  # this run used what was kept of it; in a run without it that stays kept
        members = np.array(list(bad), dtype=np.uint64)
        if self.exact_state and any(bool(np.isin(members, touched).any()) for touched in reports.touched):
            return True
        if any(bool(np.isin(members, edges[0]).any()) for edges in reports.carryover_edges):
            return True
        return any(
            isinstance(root, tuple) and not bad.isdisjoint(root) and not bad.issuperset(root)
            for output in reports.outputs
            for root in set(read_sidecar(output))
        )

    @staticmethod
    def _check(unknown: U64) -> None:
        if len(unknown):
            raise InternalError(
                "a stage reported on a root that is not in this epoch",
                got=hex_id(int(unknown[0])),
                expected="a root of the epoch's log",
            )

    def _check_read(self, reports: Reports) -> None:
        """Raise if a part of the input could not be read, or was not read: its messages would look complete."""
        if reports.unreadable:
            raise reports.unreadable[0].error()
        if self.has_work:
            read = {ordinal for stats in reports.stats for ordinal in stats.read}
            for one in self.record.inputs:
                one.check_read(read)


def _without(openings: Entries, left_out: set[int]) -> Entries:
    if not left_out:
        return openings
    roots, xor = openings
    keep = ~np.isin(roots, np.array(list(left_out), dtype=np.uint64))
    return roots[keep], xor[keep]
