"""The Spark runtime without Spark: the same driver, stages and files, with the stages run in this process.

For tests of Tupletree's own code: epochs, settling, recovery, sinks, kept frames. It starts no JVM, so that an epoch
takes milliseconds. Does not replace tests of what only Spark shows: workers that die, shuffles that are lost, calls
that hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec

from tupletree.routing.plan import Plan
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.segments import Taken, TakeRequest
from tupletree.runtimes.spark.format.slices import EpochSlice, rows_of_slice
from tupletree.runtimes.spark.runtime import start
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner, Report
from tupletree.runtimes.spark.settle.traceless_stages import traceless_stages
from tupletree.runtimes.spark.worker.stage import TaskIdentity, run_stage
from tupletree.runtimes.spark.worker.taking import take


class InProcessPlanRunner:
    """See `PlanRunner`: one partition after the other, one stage after the other, in the calling thread."""

    one_host = True

    def __init__(self, plan: Plan, blob: bytes) -> None:
        self._plan = plan
        self._blob = blob
        self._traceless = traceless_stages(plan)
        self._sent: tuple[int, list[list[wire.Row]]] | None = None  # by the traceless stages of an epoch
        self._numbers = count()
        self._is_cancelled = False

    def run(self, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        """See `PlanRunner`."""
        encoded = msgspec.msgpack.encode(control)
        sent, self._sent = self._sent, None
        partitions: list[list[wire.Row]]
        if sent is not None and control.resumes and sent[0] == control.epoch:
            first, partitions = self._traceless, sent[1]
        else:
            first, partitions = 0, [list(rows_of_slice(part)) for part in slices]
        for stage in self._plan.stages[first:]:
            leaving: list[list[wire.Row]] = [[] for _ in partitions]
            for number, rows in enumerate(partitions):
                identity = TaskIdentity(number, 0, next(self._numbers))
                for row in run_stage(self._blob, encoded, stage.index, identity, rows):
                    if self._is_cancelled:
                        raise InterruptedError("the run was cancelled")
                    leaving[row[0] % len(partitions)].append(row)
            partitions = leaving
            if stage.index + 1 == self._traceless:
                sent = control.epoch, partitions
        self._sent = sent if self._traceless else None
        return [(kind, head, body) for rows in partitions for _, kind, head, body in rows]

    def take(self, requests: Sequence[TakeRequest]) -> list[Taken]:
        """See `PlanRunner`."""
        return [
            msgspec.msgpack.decode(take(self._blob, request, next(self._numbers)), type=Taken) for request in requests
        ]

    def cancel(self) -> None:
        """See `PlanRunner`."""
        self._is_cancelled = True


class InProcessBackend:
    """See `Backend`.

    Args:
        partitions: over how many of them a plan is spread.
    """

    def __init__(self, partitions: int = 2) -> None:
        self._partitions = partitions

    def check(self) -> None:
        """See `Backend`: there is nothing that a machine could lack."""

    def open(self) -> int:
        """See `Backend`."""
        return self._partitions

    def runner(self, plan: Plan, blob: bytes, group: str) -> PlanRunner:  # noqa: ARG002 - there are no jobs to name
        """See `Backend`."""
        return InProcessPlanRunner(plan, blob)

    def close(self) -> None:
        """See `Backend`: nothing was acquired."""


def start_in_process(request: RunRequest, partitions: int = 2) -> RunHandle:
    """Start a topology as the Spark runtime does, on a state directory of its format, without Spark.

    Raises what `tupletree.run` raises.
    """
    return start(request, InProcessBackend(partitions))
