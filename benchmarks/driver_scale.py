"""How far one driver goes: what it costs per message and per task, with the stages' own work taken out.

The Spark runtime runs in one process without Spark: its driver, journal and files are the real ones, and the stages run
in the thread that waits for a job otherwise. The CPU time of that is taken out, so what is left is the driver's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.job import JobResult, JobSpec
from tupletree import Emit, EndOfInput, Options, Spout, Topology, bolt
from tupletree.routing.plan import Plan
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.segments import Taken, TakeRequest
from tupletree.runtimes.spark.format.slices import EpochSlice
from tupletree.runtimes.spark.runtime import start
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner, Report
from tupletree.sources import text_lines
from tupletree.sources.text import Line
from tupletree.testing.in_process import InProcessBackend

__all__ = ["EXECUTORS", "run"]

EXECUTORS = "read by executors"


class Note(msgspec.Struct, frozen=True, gc=False):
    """One message."""

    number: int


class Notes(Spout[Note]):
    """So many, an epoch's messages at a time: an epoch would else be cut before it is full."""

    def __init__(self, total: int, per_epoch: int) -> None:
        self.total = total
        self.per_epoch = per_epoch
        self.given = 0

    def next(self) -> list[Emit[Note]]:
        """The next ones."""
        if self.given >= self.total:
            raise EndOfInput
        numbers = range(self.given, min(self.total, self.given + self.per_epoch))
        self.given = numbers.stop
        return [Emit(Note(number), number) for number in numbers]

    def snapshot(self) -> int:
        """How many were given."""
        return self.given

    def restore(self, position: int) -> None:
        """Go on behind those."""
        self.given = position


@bolt
def take(_value: Note) -> None:
    """Take it in."""


@bolt
def take_line(_value: Line) -> None:
    """Take it in."""


class TimedRunner:
    """Another runner, whose CPU time is noted."""

    one_host = True

    def __init__(self, inner: PlanRunner, spent_s: list[float]) -> None:
        self._inner = inner
        self._spent_s = spent_s

    def run(self, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        """See `PlanRunner`."""
        before_s = time.thread_time()
        try:
            return self._inner.run(slices, control)
        finally:
            self._spent_s.append(time.thread_time() - before_s)

    def take(self, requests: Sequence[TakeRequest]) -> list[Taken]:
        """See `PlanRunner`."""
        return self._inner.take(requests)

    def cancel(self) -> None:
        """See `PlanRunner`."""
        self._inner.cancel()


class TimedBackend(InProcessBackend):
    """Stages in this process, timed.

    Attributes:
        spent_s: CPU time of each run of a plan.
    """

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.spent_s: list[float] = []

    def runner(self, plan: Plan, blob: bytes, group: str) -> PlanRunner:
        """See `Backend`."""
        return TimedRunner(super().runner(plan, blob, group), self.spent_s)


def topology(spec: JobSpec, tasks: int) -> Topology:
    """A spout and one bolt of so many tasks."""
    made = Topology("driver-scale")
    if spec.variant == EXECUTORS:
        lines = made.spout("lines", text_lines(sorted(Path(spec.corpus).glob("*.txt"))))
        made.bolt("take", take_line, parallelism=tasks).shuffle(lines)
    else:
        notes = made.spout("notes", Notes(spec.messages * spec.epochs, spec.messages))
        made.bolt("take", take, parallelism=tasks).shuffle(notes)
    return made


def run(spec: JobSpec) -> JobResult:
    """Run so many epochs of `spec.messages` messages over `spec.pending` partitions, with a task in each."""
    partitions = spec.pending
    backend = TimedBackend(partitions)
    options = Options(epoch_max_messages=spec.messages, epoch_max_bytes=2**34)
    request = RunRequest(
        topology(spec, partitions), options, None, spec.checkpoint, append=False, master="", redact=None
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    summary = start(request, backend).wait()
    seconds, spent_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    if not summary.acked or summary.acked != summary.emitted:
        raise AssertionError(f"not every message was acked: {summary}")
    return JobResult(
        seconds=seconds,
        cpu_seconds=spent_s,
        numbers={
            "driver CPU s": spent_s - sum(backend.spent_s),
            "stages CPU s": sum(backend.spent_s),
            "runs": float(len(backend.spent_s)),
            "messages": float(summary.acked),
        },
    )
