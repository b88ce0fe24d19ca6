"""What one job of an epoch costs, and where: in the driver's Python, in calls of the JVM, in Spark's scheduler, in
workers, and in packing and unpacking.

Epochs of the latency topologies run as they do for users; their jobs are timed from both sides: in this process around
`SparkPlanRunner.run` and each call of the JVM, and in the JVM by its own store of jobs, stages and tasks, whose times
are whole milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.job import JobResult, JobSpec
from benchmarks.tupletree_latency import STATEFUL, stateful_bolt, three_bolts
from tupletree import run as run_topology
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.slices import EpochSlice
from tupletree.runtimes.spark.session import open_session
from tupletree.runtimes.spark.settle.plan_runner import Report, SparkPlanRunner

__all__ = ["run"]

WARM_UP_JOBS = 100
WAITING = "collectAndServe"
"""In the command of the call that waits for the job."""


class Times:
    """What was seen of each job."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, float]] = []
        self.present: dict[str, float] | None = None
        self.thread = 0

    def add(self, what: str, amount: float) -> None:
        """Add to the job in hand; calls of other threads, and those that belong to none, are left out."""
        if self.present is not None and threading.get_ident() == self.thread:
            self.present[what] += amount


def watch(times: Times, context: Any) -> None:
    """Time every job of an epoch and every call of the JVM from now on."""
    run_job, client = SparkPlanRunner.run, context._gateway._gateway_client  # noqa: SLF001 - there is no other way in
    send_command = client.send_command

    def timed_run(self: SparkPlanRunner, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        times.present, times.thread = defaultdict(float), threading.get_ident()
        before_s = time.perf_counter()
        reports = run_job(self, slices, control)
        times.present["job"] = (time.perf_counter() - before_s) * 1000
        times.jobs.append(times.present)
        times.present = None
        return reports

    def timed_command(command: str, *arguments: Any, **named: Any) -> Any:
        before_s = time.perf_counter()
        answer = send_command(command, *arguments, **named)
        spent_ms = (time.perf_counter() - before_s) * 1000
        times.add("waiting call" if WAITING in command else "calls of the JVM", spent_ms)
        times.add("calls", 1)
        return answer

    SparkPlanRunner.run = timed_run  # type: ignore[method-assign]  # to look at it, nothing else
    client.send_command = timed_command


def seen_by_spark(context: Any, jobs: int) -> list[dict[str, float]]:
    """The last jobs, oldest first, as the JVM knows them; in milliseconds."""
    store = context._jsc.sc().statusStore()  # noqa: SLF001 - what the web UI shows
    found = []
    listed = store.jobsList(None)  # newest first
    for position in range(min(jobs, listed.size())):
        job = listed.apply(position)
        whole = float(job.completionTime().get().getTime() - job.submissionTime().get().getTime())
        workers = packing = 0.0
        stages = job.stageIds()
        for number in range(stages.size()):
            tasks = store.taskList(stages.apply(number), 0, 1_000)
            ran: list[tuple[float, float]] = []
            for one in range(tasks.size()):
                metrics = tasks.apply(one).taskMetrics()
                if metrics.isDefined():
                    of = metrics.get()
                    unpacked = float(of.executorDeserializeTime() + of.resultSerializationTime())
                    ran.append((float(of.executorRunTime()), unpacked))
            longest = max(ran, default=(0.0, 0.0))
            workers += longest[0]
            packing += longest[1]
        found.append({"job in the JVM": whole, "workers": workers, "in and out of tasks": packing})
    return found[::-1]


def run(spec: JobSpec) -> JobResult:
    """Run epochs at 100 messages/s, and report the mean of each part over the jobs that were measured."""
    started_s = time.perf_counter()
    session, _ = open_session("tupletree-benchmarks", spec.master)
    times = Times()
    watch(times, session.sparkContext)
    make = stateful_bolt if spec.variant == STATEFUL else three_bolts
    run_topology(make(spec.messages), state_dir=spec.checkpoint, master=spec.master).wait()
    measured = times.jobs[min(WARM_UP_JOBS, len(times.jobs) // 4) :]
    spark = seen_by_spark(session.sparkContext, len(measured))
    numbers = {
        part: sum(job[part] for job in measured) / len(measured) for part in ("job", "calls of the JVM", "calls")
    }
    waiting = sum(job["waiting call"] for job in measured) / len(measured)
    numbers |= {part: sum(job[part] for job in spark) / len(spark) for part in spark[0]}
    numbers["scheduler"] = numbers["job in the JVM"] - numbers["workers"] - numbers["in and out of tasks"]
    numbers["to the job and back"] = waiting - numbers["job in the JVM"]
    numbers["driver's Python"] = numbers["job"] - numbers["calls of the JVM"] - waiting
    return JobResult(
        seconds=time.perf_counter() - started_s, numbers={**numbers, "jobs measured": float(len(measured))}
    )
