"""Progress records of a local run: what changed since the last record, read from its machines while they work.

Numbers that threads are changing may be a moment old, and those of one record need not be of the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tupletree.clock import Clock
from tupletree.runtimes.local.assembly import Assembly
from tupletree.runtimes.local.whereabouts import all_holds
from tupletree.runtimes.progress import ProgressRecord, counts_since, rows_since, slowest
from tupletree.tasks.bolt import BoltMachine
from tupletree.tracking.outages import ShownOutage
from tupletree.tracking.records import PendingCounters

TRIES = 3
"""How often a reading is tried: it fails when a thread changes a collection meanwhile."""


@dataclass
class ProgressSampler:
    """Makes a run's records, one after the other, on one thread.

    Attributes:
        topology, run_id: which run.
        totals: counters over the life of the run, and the messages that are open.
        rows: rows written by sink, likewise.
        assembly: that of the present life; None between lives.
        outages: what waits for something outside.
    """

    topology: str
    run_id: str
    clock: Clock
    totals: Callable[[], tuple[PendingCounters, int]]
    rows: Callable[[], Mapping[str, int]]
    assembly: Callable[[], Assembly | None]
    outages: Callable[[], Sequence[ShownOutage]] = tuple
    _before: PendingCounters = field(default_factory=PendingCounters)
    _rows_before: Mapping[str, int] = field(default_factory=dict)
    _late_before: int = 0
    _before_s: float = 0.0

    def __post_init__(self) -> None:
        self._before_s = self.clock.monotonic()

    def sample(self) -> ProgressRecord:
        """The record of the time since the last one."""
        now_s = self.clock.monotonic()
        seconds = max(1e-6, now_s - self._before_s)
        totals, open_now = self.totals()
        rows = dict(self.rows())
        assembly = self.assembly()
        bolts = [one for one in assembly.machines.values() if isinstance(one, BoltMachine)] if assembly else []
        late = sum(bolt.late for bolt in bolts)
        before, rows_before, late_before = self._before, self._rows_before, self._late_before
        self._before, self._rows_before, self._late_before, self._before_s = totals, rows, late, now_s
        return ProgressRecord(
            topology=self.topology,
            runtime="local",
            run_id=self.run_id,
            time_s=self.clock.wall(),
            seconds=seconds,
            **counts_since(before, totals, seconds),
            outputs=rows_since(rows_before, rows),
            open_trees=open_now,
            pending=open_now,
            oldest_s=_oldest_s(assembly, now_s),
            outages=[*self.outages()],
            holds=[*all_holds(assembly)] if assembly is not None else [],
            late=max(0, late - late_before),  # a new life counts from 0
            watermarks=slowest(
                (bolt.task.component, at_us) for bolt in bolts if (at_us := bolt.watermark_us) is not None
            ),
        )


def _oldest_s(assembly: Assembly | None, now_s: float) -> float | None:
    oldest: list[float] = []
    for spout in assembly.spouts() if assembly else ():
        for _ in range(TRIES):
            try:
                first_s = spout.pending.oldest_first_s()
            except RuntimeError:
                continue
            oldest += [] if first_s is None else [first_s]
            break
    return max(0.0, now_s - min(oldest)) if oldest else None
