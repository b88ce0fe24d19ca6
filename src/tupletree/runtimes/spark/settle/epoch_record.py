"""The record of an epoch: what the driver knows of it from the cut to the commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tupletree.runtimes.progress import Steps
from tupletree.runtimes.spark.format.entries import EpochHeader
from tupletree.runtimes.spark.format.epoch_messages import EpochMessages
from tupletree.tracking.ledger import Entries
from tupletree.tracking.outcomes import Failure


@dataclass
class EpochRecord:
    """An epoch in the driver until it is settled.

    Attributes:
        header: of the log.
        inputs: its messages, by the kind of input that they came by.
        attempts: root → attempt, of those beyond the first.
        failures: roots that failed before any bolt saw them (rejected, not routable, not encodable).
        steps: how long its steps took so far, in this process.
    """

    header: EpochHeader
    inputs: Sequence[EpochMessages]
    attempts: dict[int, int] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.header.epoch

    @cached_property
    def openings(self) -> Entries:
        """The openings of all its messages."""
        parts = [one.openings for one in self.inputs]
        return np.concatenate([roots for roots, _ in parts]), np.concatenate([xor for _, xor in parts])

    @property
    def size(self) -> int:
        """How many tracked messages it has."""
        return sum(len(one.roots) for one in self.inputs)

    def among(self, roots: Collection[int]) -> list[int]:
        """Those of these roots that are roots of its messages."""
        return [root for one in self.inputs for root in one.among(roots)]

    def reopen(self, spout_task: int) -> None:
        """Note that this source is to emit something again, so its open messages are not given up in this epoch."""
        self.header.ended = [task for task in self.header.ended if task != spout_task]
