"""The record of an epoch: what the driver knows of it from the cut to the commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tupletree.runtimes.progress import Steps
from tupletree.runtimes.spark.format.entries import EpochHeader
from tupletree.runtimes.spark.settle.source_rows import NO_ROWS, Rows
from tupletree.tracking.ledger import Entries
from tupletree.tracking.outcomes import Failure

__all__ = ["EpochRecord"]


@dataclass
class EpochRecord:
    """An epoch in the driver until it is settled.

    Attributes:
        header: of the log.
        roots: every tracked root, in order of emission.
        openings: the XOR of the first edges of each root; 0 for rows, because a stage makes their first edges.
        attempts: root → attempt, of those beyond the first.
        failures: roots that failed before any bolt saw them (rejected, not routable, not encodable).
        steps: how long its steps took so far, in this process.
        rows: the messages that executors read; they are not among `roots`.
    """

    header: EpochHeader
    roots: np.ndarray[Any, np.dtype[np.uint64]]
    openings: Entries
    attempts: dict[int, int] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)
    rows: Rows = NO_ROWS

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.header.epoch

    def reopen(self, spout_task: int) -> None:
        """Note that this source is to emit something again, so its open messages are not given up in this epoch."""
        self.header.ended = [task for task in self.header.ended if task != spout_task]
