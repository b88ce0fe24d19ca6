"""Plan runners: the seam between `epoch_runs`, which decides what is run, and Spark, which runs it.

`PlanRunner` is all that it knows of Spark: slices of an epoch and the control of one run go in, report rows come out.
`SparkPlanRunner` makes one Spark job of it, with one action: a second action could mix two executions of an epoch.
Its job is an RDD of bytes: Spark moves rows, and does not know what is in them. `testing.in_process` has a
runner without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tupletree.routing.plan import Plan
from tupletree.runtimes.java import find_java
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.segments import Taken, TakeRequest
from tupletree.runtimes.spark.format.slices import EpochSlice
from tupletree.runtimes.spark.session import partitions_of, refuse_unsuited
from tupletree.runtimes.spark.settle.spark_job import SparkJobs
from tupletree.runtimes.spark.settle.traceless_stages import traceless_stages
from tupletree.runtimes.spark.shared_session import SESSIONS
from tupletree.runtimes.spark.worker.stage_function import StageFunction, TakeFunction

Report = tuple[int, Any, Any]
"""(kind, head, body) of a row that left the last stage."""


class PlanRunner(Protocol):
    """Runs the whole plan of a topology over one epoch, once. `run` is for one thread, `take` for another one."""

    @property
    def one_host(self) -> bool:
        """Whether all stages run on this host, so that crash markers reach every attempt."""

    def run(self, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        """Run every stage over these slices, one of them for each partition of the plan.

        Returns the rows of the last stage. An exception means that this execution failed, not a message.
        All that comes back is from one execution of each stage, never a mixture of two. Where the control says that it
        resumes, `traceless_stages` need not be executed again after the last run of the same epoch.
        """

    def take(self, requests: Sequence[TakeRequest]) -> list[Taken]:
        """Have executors take messages from brokers, one task for each request; also while an epoch is run.

        An exception means that a task was lost too often: what it took is delivered again.
        """

    def cancel(self) -> None:
        """Cancel what is under way; it raises. Of any thread."""


class Backend(Protocol):
    """Where the plans of a run are executed, over all starts of the topology. Called by the run's own thread."""

    def check(self) -> None:
        """Raise RuntimeUnavailableError if this machine cannot run it; called before anything is claimed."""

    def open(self) -> int:
        """Start it, also again after `close`; returns the number of partitions of a plan."""

    def runner(self, plan: Plan, blob: bytes, group: str) -> PlanRunner:
        """A runner of this plan; `blob` as `pack_program` made it, `group` a name for its jobs."""

    def close(self) -> None:
        """Stop what `open` started, if this backend started it."""


class SparkBackend(Backend):
    """See `Backend`: a Spark session, started here, shared with other runs of this process, or found.

    Args:
        name: of the topology.
        master: used if there is no session yet.
    """

    def __init__(self, name: str, master: str) -> None:
        self._name = name
        self._master = master
        self._session: Any = None

    def check(self) -> None:
        refuse_unsuited()
        find_java()

    def open(self) -> int:
        self._session = SESSIONS.enter(self._name, self._master)
        return partitions_of(self._session)

    def runner(self, plan: Plan, blob: bytes, group: str) -> PlanRunner:
        return SparkPlanRunner(self._session, plan, blob, group)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            SESSIONS.leave(session)


class SparkPlanRunner(PlanRunner):
    """See `PlanRunner`. It has its own job group: cancelling it cancels no other job of the session.

    Args:
        session: a SparkSession.
        plan: the topology laid out.
        blob: the program, as `pack_program` made it.
        group: of the jobs, in the UI too.
    """

    def __init__(self, session: Any, plan: Plan, blob: bytes, group: str) -> None:
        self._context = session.sparkContext
        self._plan = plan
        self._blob = blob
        self._group = group
        self._jobs: SparkJobs | None = None
        self._traceless = traceless_stages(plan)
        self._sent: tuple[int, Any] | None = None  # by the traceless stages of an epoch

    @property
    def one_host(self) -> bool:
        return bool(self._context.master.startswith("local"))

    def run(self, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        what = f"epoch {control.epoch}, run {control.run}" if control.epoch >= 0 else "warm-up"
        jobs = self._jobs or self._first(control.generation)
        self._context.setJobGroup(self._group, f"{self._plan.spec.name}: {what}", interruptOnCancel=True)
        partitions, encoded = self._plan.partitions, msgspec.msgpack.encode(control)
        sent, self._sent = self._sent, None
        if sent is not None and control.resumes and sent[0] == control.epoch:
            # Spark does not run stages whose shuffle files it has; where some are lost, it runs these tasks again.
            first, rows = self._traceless, sent[1]
        else:
            first, rows = 0, jobs.no_items
        for stage in self._plan.stages[first:]:
            given = () if stage.index else slices
            is_last = stage is self._plan.stages[-1]
            function = StageFunction(self._blob, encoded, stage.index, given, partitions, is_last=is_last)
            rows = jobs.stage(rows, function)
            if not is_last:
                rows = jobs.exchanged(rows)
            if stage.index + 1 == self._traceless:
                sent = control.epoch, rows
        collected = jobs.collect(rows)
        self._sent = sent if self._traceless else None
        return [(kind, head, body) for _, kind, head, body in map(wire.unpack_row, collected)]

    def _first(self, generation: int) -> SparkJobs:
        """Prepare the jobs, and name in the UI what they all run; it holds for the thread that calls."""
        name, stages = self._plan.spec.name, self._plan.stages
        lines = [
            f"{name}: generation {generation}",
            *(f"stage {one.index}: {', '.join(one.components)}" for one in stages),
        ]
        # Both are set: Spark would look through the stack of its threads for the other one, for each RDD.
        self._context.setLocalProperty("callSite.short", name)
        self._context.setLocalProperty("callSite.long", "\n".join(lines))
        self._jobs = SparkJobs(self._context, self._plan.partitions)
        return self._jobs

    def take(self, requests: Sequence[TakeRequest]) -> list[Taken]:
        context = self._context
        context.setJobGroup(self._group, f"{self._plan.spec.name}: taking messages", interruptOnCancel=True)
        packed = [msgspec.msgpack.encode(one) for one in requests]
        rows = context.parallelize(packed, len(packed)).mapPartitions(TakeFunction(self._blob))
        return [msgspec.msgpack.decode(one, type=Taken) for one in rows.collect()]

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)
