"""The same topology on one, two and four executors: calls that wait, and calls that compute.

`local-cluster` is Spark's standalone master with its workers, and a process for each executor. Executor k and its
Python workers are pinned to core k modulo the machine's cores. Calls that wait scale on any machine; calls that compute
only as far as there are cores, and the driver's two processes need some of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from benchmarks.driver_scale import Note, Notes
from benchmarks.harness import descendants
from benchmarks.job import JobResult, JobSpec
from tupletree import Options, Topology, bolt
from tupletree import run as run_topology
from tupletree.ids import MessageId
from tupletree.runtimes.spark.session import open_session

__all__ = ["COMPUTING", "WAITING", "run"]

WAITING, COMPUTING = "waiting", "computing"
CALL_S = 0.002
STEPS = 40_000
TASKS = 4
START_S = 120.0

acked_s: list[float] = []
"""When each message was acked; in the module, because the runtime may copy the spout."""


class HeardNotes(Notes):
    """Notes that hear their acks."""

    def ack(self, message_id: MessageId) -> None:  # noqa: ARG002 - only when
        """See `Spout.ack`."""
        acked_s.append(time.perf_counter())


@bolt
def wait(_value: Note) -> None:
    """A call of a service."""
    time.sleep(CALL_S)


@bolt
def compute(value: Note) -> None:
    """Work for a core, about as long."""
    number = value.number
    for _ in range(STEPS):
        number ^= number << 1 & 255


def pin_executors(count: int) -> None:
    """Wait for this many executors, and put each on a core; the Python workers that they start come along."""
    until_s = time.monotonic() + START_S
    while len(found := executors()) < count:
        if time.monotonic() > until_s:
            raise AssertionError(f"{len(found)} executors have started, not {count}")
        time.sleep(0.1)
    cores = sorted(os.sched_getaffinity(0))
    for number, pid in enumerate(sorted(found)):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread that has ended meanwhile
                os.sched_setaffinity(int(thread.name), {cores[number % len(cores)]})


def executors() -> list[int]:
    """Processes of executors that this one has started."""
    return [int(pid) for pid in descendants(str(os.getpid())) if b"CoarseGrainedExecutorBackend" in command_line(pid)]


def command_line(pid: str) -> bytes:
    """Of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def run(spec: JobSpec) -> JobResult:
    """Two epochs to warm up, then four; `seconds` is of those, from ack to ack."""
    open_session("tupletree-benchmarks", spec.master)
    pin_executors(int(re.findall(r"\d+", spec.master)[0]))
    topology = Topology("executors")
    notes = topology.spout("notes", HeardNotes(spec.messages * 6, spec.messages))
    topology.bolt("call", wait if spec.variant == WAITING else compute, parallelism=TASKS).shuffle(notes)
    options = Options(epoch_max_messages=spec.messages, max_spout_pending=spec.messages * 2)
    run_topology(topology, options=options, state_dir=spec.checkpoint, master=spec.master).wait()
    return JobResult(seconds=acked_s[-1] - acked_s[spec.messages * 2 - 1])
