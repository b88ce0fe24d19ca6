"""The judged latency: emit to ack at a steady rate, with full tracking.

Once through three stateless bolts: as many partitions as the yardstick has, and no exchange. Once through a bolt, an
exchange and a stateful bolt, which reads and writes its state in every epoch. The clock of a message runs from the
moment it is due, whenever its spout is asked for it, to the moment its spout hears the ack, so it includes the wait for
the epoch that is being run.
"""

from __future__ import annotations

import time

import msgspec

from benchmarks.baseline_job import empty_jobs
from benchmarks.job import JobResult, JobSpec
from tupletree import Emit, EndOfInput, KeyedState, Spout, TaskContext, Topology, bolt
from tupletree import run as run_topology
from tupletree.ids import MessageId
from tupletree.runtimes.spark.session import open_session

__all__ = ["run", "stateful_bolt", "three_bolts"]

STATEFUL = "stateful"
KEYS = 1_000

PER_SECOND = 100.0
WARM_UP_MESSAGES = 600

due_s: dict[MessageId, float] = {}
given_s: dict[MessageId, float] = {}
acked_s: dict[MessageId, float] = {}
"""When each message was due, given and acked; in the module, because the runtime may copy the spout."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One message."""

    number: int


class Keyed(msgspec.Struct, frozen=True, gc=False):
    """A message with the key of the state that counts it."""

    sensor: int
    number: int


class TimedRate(Spout[Reading]):
    """Readings at a steady rate, which do not wait for a slow topology; it notes when each is due,
    given and acked.

    A spout of its own, because sources that executors read hear no acks. The schedule begins again behind the messages
    to warm up, when these are acked: on a busy machine the first epochs take seconds.
    """

    def __init__(self, total: int, per_second: float = PER_SECOND, warm_up: int = WARM_UP_MESSAGES) -> None:
        self.total = total
        self.per_second = per_second
        self.warm_up = warm_up
        self.given = 0
        self.is_warm = False

    def open(self, context: TaskContext) -> None:  # noqa: ARG002 - the spout has one task
        """Start the schedule."""
        self.activate()

    def activate(self) -> None:
        """Start the schedule here: what was not due before is not caught up."""
        self.from_s = time.perf_counter() - self.given / self.per_second

    def next(self) -> list[Emit[Reading]]:
        """What is due by now."""
        if self.given >= self.total:
            raise EndOfInput
        if not self.is_warm and self.given == self.warm_up:
            if len(acked_s) < self.warm_up:
                return []
            self.is_warm = True
            self.activate()
        limit = self.total if self.is_warm else min(self.warm_up, self.total)
        due = min(limit, int((time.perf_counter() - self.from_s) * self.per_second))
        numbers = range(self.given, due)
        self.given = max(self.given, due)
        for number in numbers:
            due_s[number] = self.from_s + (number + 1) / self.per_second
            given_s[number] = time.perf_counter()
        return [Emit(Reading(number), number) for number in numbers]

    def ack(self, message_id: MessageId) -> None:
        """See `Spout.ack`."""
        acked_s[message_id] = time.perf_counter()

    def snapshot(self) -> int:
        """How many were given."""
        return self.given

    def restore(self, position: int) -> None:
        """Go on behind those."""
        self.given = position
        self.activate()


@bolt
def first(value: Reading) -> Reading:
    """Pass it on."""
    return value


@bolt
def second(value: Reading) -> Reading:
    """Pass it on."""
    return value


@bolt
def last(_value: Reading) -> None:
    """Take it in."""


@bolt
def key(value: Reading) -> Keyed:
    """One of many keys."""
    return Keyed(value.number % KEYS, value.number)


@bolt(state=int)
def count(_value: Keyed, seen: KeyedState[int]) -> None:
    """Count it by key."""
    seen.value += 1


def three_bolts(total: int) -> Topology:
    """Spout and three bolts, two tasks each."""
    topology = Topology("latency")
    readings = topology.spout("readings", TimedRate(total))
    one = topology.bolt("first", first, parallelism=2).shuffle(readings)
    two = topology.bolt("second", second, parallelism=2).local_or_shuffle(one)
    topology.bolt("last", last, parallelism=2).local_or_shuffle(two)
    return topology


def stateful_bolt(total: int) -> Topology:
    """Spout, a bolt, an exchange by key and a bolt that counts per key, two tasks each."""
    topology = Topology("latency-stateful")
    readings = topology.spout("readings", TimedRate(total))
    keyed = topology.bolt("key", key, parallelism=2).shuffle(readings)
    topology.bolt("count", count, parallelism=2).fields(keyed, "sensor")
    return topology


def run(spec: JobSpec) -> JobResult:
    """Run five messages for each epoch that is to be measured, and report each one's milliseconds as `epoch_ms`.

    As many empty plain jobs of the same shape follow in the same session: `plain_ms`. The variant "stateful" is the one
    with an exchange and state.
    """
    started_s = time.perf_counter()
    session, _ = open_session("tupletree-benchmarks", spec.master)
    measured = spec.epochs * 5
    make = stateful_bolt if spec.variant == STATEFUL else three_bolts
    run_topology(make(WARM_UP_MESSAGES + measured), state_dir=spec.checkpoint, master=spec.master).wait()
    latencies = [
        (acked_s[number] - due_s[number]) * 1000 for number in range(WARM_UP_MESSAGES, WARM_UP_MESSAGES + measured)
    ]
    return JobResult(
        seconds=acked_s[0] - started_s,
        epoch_ms=latencies,
        plain_ms=empty_jobs(session.sparkContext, spec.epochs, exchange=spec.variant == STATEFUL),
    )
