"""A plan runner under faults: executors are lost, tasks run twice, jobs fail; in this thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any, cast

import msgspec

from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.segments import Taken, TakeRequest
from tupletree.runtimes.spark.format.slices import EpochSlice, rows_of_slice
from tupletree.runtimes.spark.settle.epoch_runs import BROKEN_EXECUTIONS
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner, Report
from tupletree.runtimes.spark.settle.traceless_stages import traceless_stages
from tupletree.runtimes.spark.worker.stage import TaskIdentity, run_stage
from tupletree.runtimes.spark.worker.taking import take
from tupletree.testing.spark_protocol.faults import ProtocolFaults

MAX_LOST = 3
"""A task is run at most this often: Spark ends a run whose tasks fail more often, and that is not looked for here."""


class ExecutorLostError(Exception):
    """In the place of the end of an executor."""


class LateTasks:
    """Tasks of runs that are over, whose executors do not know it yet. They outlive the driver."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._tasks: list[Callable[[], object]] = []

    def add(self, task: Callable[[], object]) -> None:
        """Another one."""
        self._tasks.append(task)

    def run_one(self) -> None:
        """Run one of them, if there is any. What it reads may be gone: it fails then, as executors do."""
        if self._tasks:
            task = self._tasks.pop(self._chance.randrange(len(self._tasks)))
            with suppress(Exception):
                task()


@dataclass
class _Sent:
    """What the traceless stages of an epoch's last run sent: rows by partition, and what the last of them was given."""

    epoch: int
    control: bytes
    given: list[list[wire.Row]]
    rows: dict[int, list[wire.Row]]


class FaultyRunner:
    """See `PlanRunner` and the module docstring.

    Args:
        plan, blob: of the topology.
        faults: how often what goes wrong.
        chance: what decides.
        late: takes tasks that run later.
        between: called between two tasks; may raise.
    """

    one_host = True

    def __init__(
        self,
        plan: Plan,
        blob: bytes,
        faults: ProtocolFaults,
        chance: Random,
        late: LateTasks,
        between: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._blob = blob
        self._faults = faults
        self._chance = chance
        self._late = late
        self._between = between
        self._traceless = traceless_stages(plan)
        self._sent: _Sent | None = None
        self._numbers = count()
        self._lost = 0  # jobs in a row: one more would end the run, and rightly

    def run(self, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        """See `PlanRunner`."""
        encoded = msgspec.msgpack.encode(control)
        sent, self._sent = self._sent, None
        if sent is not None and control.resumes and sent.epoch == control.epoch:
            for number in sorted(sent.rows):  # its shuffle files were on an executor that is lost
                if self._chance.random() < self._faults.executor:
                    sent.rows[number] = self._task(self._traceless - 1, number, sent.given[number], sent.control)
            first, partitions = self._traceless, self._exchanged(sent.rows)
        else:
            first, partitions = 0, [list(rows_of_slice(part)) for part in slices]
        for stage in self._plan.stages[first:]:
            given, leaving = partitions, {}
            for number in self._chance.sample(range(len(partitions)), len(partitions)):
                leaving[number] = self._task(stage.index, number, partitions[number], encoded)
                self._between()
                is_lost = control.epoch >= 0 and self._chance.random() < self._faults.job / len(partitions)
                if is_lost and self._lost < BROKEN_EXECUTIONS - 1:
                    self._lost += 1
                    raise self._aborted("a shuffle was lost")
            partitions = self._exchanged(leaving)
            if stage.index + 1 == self._traceless:
                sent = _Sent(control.epoch, encoded, given, leaving)
        self._sent, self._lost = sent if self._traceless else None, 0
        return [(kind, head, body) for rows in partitions for _, kind, head, body in rows]

    def _exchanged(self, leaving: dict[int, list[wire.Row]]) -> list[list[wire.Row]]:
        partitions: list[list[wire.Row]] = [[] for _ in leaving]
        for number in self._chance.sample(sorted(leaving), len(leaving)):  # in no order
            for row in leaving[number]:
                partitions[row[0] % len(partitions)].append(row)
        return partitions

    @staticmethod
    def _aborted(why: str) -> RuntimeError:
        return RuntimeError(f"Job aborted due to stage failure: {why}")

    def take(self, requests: Sequence[TakeRequest]) -> list[Taken]:
        """See `PlanRunner`: what a lost task, or one that runs twice, has taken is in a segment that nothing names."""
        taken: list[Taken] = []
        for request in self._chance.sample(requests, len(requests)):
            for _ in range(MAX_LOST - 1):
                work = partial(take, self._blob, request, next(self._numbers))
                what = self._chance.random()
                if what < self._faults.executor:
                    work()
                elif what < self._faults.executor + self._faults.twice:
                    self._late.add(work)
                else:
                    break
            report = take(self._blob, request, next(self._numbers))
            taken.append(msgspec.msgpack.decode(report, type=Taken))
            self._between()
        return taken

    def cancel(self) -> None:
        """See `PlanRunner`: runs are not cancelled here."""

    def _task(self, stage: int, number: int, rows: list[wire.Row], control: bytes) -> list[wire.Row]:
        for attempt in count():
            work = partial(
                run_stage, self._blob, control, stage, TaskIdentity(number, attempt, next(self._numbers)), list(rows)
            )
            what = self._chance.random()
            if attempt == MAX_LOST - 1:
                return list(work())
            if what < self._faults.executor:
                self._lose(cast("Generator[wire.Row, Any, Any]", work()))
            elif what < self._faults.executor + self._faults.twice:
                # It is given to another executor, while this one goes on.
                if self._chance.random() < 0.5:
                    self._late.add(lambda work=work: list(work()))  # type: ignore[misc]  # bound at once
                else:
                    list(work())
            else:
                return list(work())
        raise AssertionError

    def _lose(self, running: Generator[wire.Row, Any, Any]) -> None:
        """The executor ends somewhere in the task, or just after it."""
        rows = self._chance.randrange(12)
        for _ in range(rows):
            if next(running, None) is None:
                return
        with suppress(ExecutorLostError, StopIteration):
            running.throw(ExecutorLostError("the executor is lost"))


class FaultyBackend:
    """See `Backend`: as many partitions as it is told, which may change from start to start."""

    def __init__(self, make: Callable[[Plan, bytes], PlanRunner]) -> None:
        self.partitions = 2
        self._make = make

    def check(self) -> None:
        """See `Backend`."""

    def open(self) -> int:
        """See `Backend`."""
        return self.partitions

    def runner(self, plan: Plan, blob: bytes, group: str) -> PlanRunner:  # noqa: ARG002 - there are no jobs to name
        """See `Backend`."""
        return self._make(plan, blob)

    def close(self) -> None:
        """See `Backend`."""
