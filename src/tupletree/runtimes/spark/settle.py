"""Settle: what an epoch's run reported becomes verdicts, and verdicts decide whether the run counts.

`Reports` gathers a run's report rows. `decide` looks at one run and says: it counts, or run again without these
roots. `Settlement` holds what the runs of an epoch have established together. No files, no Spark: rows in, decisions
out (the sidecars of shared outputs come in through a function).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from tupletree.errors import InternalError
from tupletree.frames import Root, roots_of
from tupletree.ids import hex_id
from tupletree.runtimes.spark import wire
from tupletree.runtimes.spark.intake import EpochRecord
from tupletree.tracking.ledger import Entries, judge
from tupletree.tracking.outcomes import Failure

__all__ = ["Reports", "Settlement"]

U64 = np.ndarray[Any, np.dtype[np.uint64]]

FULL_RUNS = 2
"""Runs over all that is left; from then on each run takes a quarter of it, so that an epoch always ends (EPOCHS 8)."""

SidecarReader = Callable[[wire.OutputReport], "list[Root]"]

_failures = msgspec.msgpack.Decoder(list[wire.FailureReport])
_output = msgspec.msgpack.Decoder(wire.OutputReport)
_state = msgspec.msgpack.Decoder(wire.StateReport)
_stats = msgspec.msgpack.Decoder(wire.StatsReport)


@dataclass
class Reports:
    """What one run of an epoch reported."""

    deltas: list[Entries] = field(default_factory=list)
    touched: list[U64] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    outputs: list[wire.OutputReport] = field(default_factory=list)
    states: list[wire.StateReport] = field(default_factory=list)
    stats: list[wire.StatsReport] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, bytes, bytes]]) -> Reports:
        """Read (kind, head, body) rows. Raises InternalError for a frame that no stage took."""
        reports = cls()
        for kind, head, body in rows:
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
            elif kind == wire.STATS:
                reports.stats.append(_stats.decode(head))
            else:
                raise InternalError("a frame left the last stage", got=f"row of kind {kind}")
        return reports


@dataclass
class Settlement:
    """The verdicts of an epoch as its runs establish them.

    `failures`, `open` and `put_back` only grow; together they are what the next run leaves out.

    Attributes:
        failures: failed roots of this epoch.
        open: roots whose tree no run can complete any more: some bolt kept a tuple.
        extended: those of `open` whose timeout a bolt renewed.
        put_back: roots that go to a later epoch because this one did not come to an end with them.
        runs: how many runs were judged.
    """

    record: EpochRecord
    failures: dict[int, Failure]
    open: set[int] = field(default_factory=set)
    extended: set[int] = field(default_factory=set)
    put_back: list[int] = field(default_factory=list)
    runs: int = 0

    @classmethod
    def start(cls, record: EpochRecord) -> Settlement:
        """Before the first run: what failed at the spout."""
        return cls(record, dict(record.failures))

    @property
    def left_out(self) -> set[int]:
        """Roots that the next run must not touch."""
        return {*self.failures, *self.open, *self.put_back}

    def remaining(self) -> list[int]:
        """Roots that are still in the run, in order of emission."""
        left_out = self.left_out
        return [root for root in self.record.roots.tolist() if root not in left_out]

    def judge_run(self, reports: Reports, read_sidecar: SidecarReader) -> bool:
        """Take a run's verdicts; True if the run counts, False if the epoch must run again without `left_out`."""
        self.runs += 1
        before = self.left_out
        failed = {root: failure for root, failure in reports.failures.items() if root not in before}
        judgement = judge(
            _without(self.record.openings, before), reports.deltas, np.array(list(failed), dtype=np.uint64)
        )
        self._check(judgement.unknown)
        now_open = set(judgement.open_.tolist())
        self.failures.update(failed)
        self.open |= now_open
        for stats in reports.stats:
            self.extended.update(now_open.intersection(stats.extended))
        bad = failed.keys() | now_open
        if not bad or not self._taints(bad, reports, read_sidecar):
            return True
        if self.runs >= FULL_RUNS:
            # A message that went to nobody is complete whatever runs, and no frame could bring its value back.
            roots, xor = self.record.openings
            complete = set(roots[xor == 0].tolist())
            remaining = [root for root in self.remaining() if root not in complete]
            self.put_back.extend(remaining[max(1, len(remaining) // 4) :])
        return False

    def _taints(self, bad: set[int], reports: Reports, read_sidecar: SidecarReader) -> bool:
        """Whether what the bad roots did cannot be held back by dropping their own output rows."""
        members = np.array(list(bad), dtype=np.uint64)
        if any(bool(np.isin(members, touched).any()) for touched in reports.touched):
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

    def acked(self) -> list[int]:
        """Roots whose tree completed in the run that counts, in order of emission."""
        return self.remaining()


def rows_to_keep(rows: list[Root], bad: set[int]) -> list[bool]:
    """Which rows of a candidate stay: those none of whose roots is bad. Untracked rows stay."""
    return [bad.isdisjoint(roots_of(root)) for root in rows]


def _without(openings: Entries, left_out: set[int]) -> Entries:
    if not left_out:
        return openings
    roots, xor = openings
    keep = ~np.isin(roots, np.array(list(left_out), dtype=np.uint64))
    return roots[keep], xor[keep]
