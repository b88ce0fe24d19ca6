"""Emit to ack on the local runtime, at a steady rate through three stateless bolts, fully tracked.

The clock of a message runs from the moment its spout gives it to the moment its spout hears the ack. In the variant
`blocked` a bolt of another stream stands still all the while, on the thread that `blocking=True` gives it.
"""

from __future__ import annotations

import threading
import time

from benchmarks.job import JobResult, JobSpec
from benchmarks.tupletree_latency import Reading, TimedRate, acked_s, first, given_s, last, second
from tupletree import Options, Topology, bolt
from tupletree import run as run_topology
from tupletree.sources import items

__all__ = ["run"]

PER_SECOND = 1_000.0
WARM_UP_MESSAGES = 500

over = threading.Event()


class Stone(Reading, frozen=True, gc=False):
    """A message that blocks its bolt."""


class LastRate(TimedRate):
    """Lets the blocked bolt go once its last message is acked."""

    def close(self) -> None:
        over.set()


@bolt(blocking=True)
def stand_still(_stone: Stone) -> None:
    """Wait until all the others are done."""
    over.wait()


def run(spec: JobSpec) -> JobResult:
    """Report each message's milliseconds as `epoch_ms`, and the seconds from `run` to the first ack."""
    total = WARM_UP_MESSAGES + spec.messages
    topology = Topology("latency")
    readings = topology.spout("readings", LastRate(total, PER_SECOND, WARM_UP_MESSAGES))
    one = topology.bolt("first", first).shuffle(readings)
    two = topology.bolt("second", second).shuffle(one)
    topology.bolt("last", last).shuffle(two)
    if spec.variant == "blocked":
        stones = topology.spout("stones", items([Stone(1)]))
        topology.bolt("stand_still", stand_still).shuffle(stones)
    options = Options(local_threads=1 if spec.variant == "cooperative" else 2)
    started_s = time.perf_counter()
    handle = run_topology(topology, runtime="local", options=options, state_dir=spec.checkpoint)
    while len(acked_s) < total:
        time.sleep(0.01)
    over.set()
    handle.wait()
    measured = range(WARM_UP_MESSAGES, total)
    return JobResult(
        seconds=time.perf_counter() - started_s,
        epoch_ms=[(acked_s[number] - given_s[number]) * 1000 for number in measured],
        numbers={"first_ack_s": acked_s[0] - started_s},
    )
