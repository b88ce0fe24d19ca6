"""Scenarios: attempts, retries, errors of every kind, dead letters, and sources that replay by themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from tupletree.errors import PermanentError
from tupletree.testing.conformance.messages import numbered
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Bolt, Collector, Emit, Reject, TaskContext
from tupletree.topology.decorators import bolt
from tupletree.tracking.outcomes import FailureKind


class Order(msgspec.Struct, frozen=True):
    """A message that says how it is to end."""

    name: str


class Done(msgspec.Struct, frozen=True):
    """The result of an order."""

    name: str
    attempt: int


def _orders(*names: str) -> list[Emit[Order]]:
    return [Emit(Order(name), name) for name in names]


@bolt
def carry_out(order: Order, context: TaskContext) -> Done:
    """Do as the order says."""
    if order.name == "never" or (order.name == "third" and context.attempt < 3):
        raise ConnectionError(f"attempt {context.attempt}")
    if order.name == "permanent":
        raise PermanentError("it will never be right")
    return Done(order.name, context.attempt)


class Retries(Scenario):
    """What fails is tried again, up to three times here; then it is dead, and a PermanentError is the last attempt."""

    name = "retries"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Order, _orders("first", "third", "never", "permanent"))
        bench.sink("out").shuffle(bench.bolt("carry", carry_out, parallelism=2).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=["first", "third"], dead=["never", "permanent"])
        seen.expect_equal(seen.tally("out", "name", "attempt"), Counter([("first", 1), ("third", 3)]), "rows")
        never, permanent = (seen.letters("source")[name] for name in ("never", "permanent"))
        seen.expect_equal((never.attempts, never.failure.error), (3, "attempt 3"), "the letter of 'never'")
        seen.expect_equal(never.failure.kind, FailureKind.ERROR, "its kind of failure")
        seen.expect_equal(never.failure.component, "retries-carry", "its component")
        seen.expect_equal(never.failure.error_type, "ConnectionError", "its error")
        seen.expect_equal(never.payload, {"name": "never"}, "its payload")
        seen.expect_equal(permanent.attempts, 1, "attempts of 'permanent'")
        seen.expect(permanent.failure.permanent, "a permanent failure", permanent.failure)


class SourceReplays(Scenario):
    """A source with `replay="source"` is told of each failed attempt, emits again itself, and is told the last one."""

    name = "source-replays"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Order, _orders("first", "third", "never", "permanent"), replay="source")
        bench.sink("out").shuffle(bench.bolt("carry", carry_out).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        heard = seen.heard("source")
        seen.expect_equal(heard.acked, Counter(["first", "third"]), "acks")
        seen.expect_equal(seen.failed("source"), Counter({"third": 2, "never": 3, "permanent": 1}), "fails")
        seen.expect_equal(heard.given, Counter({"first": 1, "third": 3, "never": 3, "permanent": 1}), "emissions")
        last = dict(heard.failed)
        seen.expect(last["never"].permanent and last["permanent"].permanent, "a final failure is permanent", last)
        seen.expect_equal(
            {name: one.attempts for name, one in seen.letters("source").items()},
            {"never": 3, "permanent": 1},
            "attempts of the dead",
        )
        seen.expect_equal(seen.tally("out", "name", "attempt"), Counter([("first", 1), ("third", 3)]), "rows")


class Rejected(Scenario):
    """A record that a source cannot read is a message, dead on arrival; the others go on."""

    name = "rejected"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        messages: list[Any] = [*_orders("before"), Reject(b"\xff\xfe", "torn", "no text"), *_orders("after")]
        source = bench.spout("source", Order, messages)
        bench.sink("out").shuffle(source)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=["before", "after"], dead=["torn"])
        letter = seen.letters("source")["torn"]
        seen.expect_equal((letter.failure.kind, letter.failure.error), (FailureKind.REJECTED, "no text"), "the failure")
        seen.expect_equal(seen.tally("out", "name"), Counter(["before", "after"]), "rows")


@bolt(auto_ack=False, auto_fail=False)
def settle_often(order: Order, context: TaskContext, out: Collector[Done]) -> None:
    """Say more than one verdict; only the first may count."""
    match order.name:
        case "acked":
            out.emit(Done(order.name, context.attempt))
            out.ack(order)
            out.ack(order)
            out.fail(order)
        case "failed":
            out.fail(order, PermanentError("the first word"))
            out.ack(order)
            out.fail(order, "the second word")
        case "late":
            out.ack(order)
            out.emit(Done(order.name, context.attempt))  # raises: it is settled


class FirstVerdictWins(Scenario):
    """A second ack, a fail after the ack, an ack after the fail and an emit after the ack change nothing."""

    name = "first-verdict"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Order, _orders("acked", "failed", "late"))
        bench.sink("out").shuffle(bench.bolt("settle", settle_often).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=["acked", "late"], dead=["failed"])
        seen.expect_equal(seen.letters("source")["failed"].failure.error, "the first word", "the failure")
        seen.expect_equal(seen.tally("out", "name"), Counter(["acked"]), "rows")


class Regrets(Bolt[Order]):
    """Keeps a tuple that was acked when the call returned, and fails it in the next call."""

    output_types = (Done,)

    def __init__(self) -> None:
        self.before: Order | None = None

    def process(self, value: Order, collector: Collector[Done]) -> Done:
        """Fail the one before, which is too late."""
        if self.before is not None:
            collector.fail(self.before, PermanentError("too late"))
            collector.ack(self.before)
        self.before = value
        return Done(value.name, 1)


class FailAfterReturn(Scenario):
    """A fail of a tuple that was acked when its call returned changes nothing."""

    name = "fail-after-return"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Order, _orders(*"abcdef"))
        bench.sink("out").shuffle(bench.bolt("regret", Regrets).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked="abcdef")
        seen.expect_equal(seen.tally("out", "name"), Counter("abcdef"), "rows")


def _odd_errors() -> dict[str, BaseException]:
    from asyncio import CancelledError

    errors = (
        TimeoutError,
        CancelledError,
        StopIteration,
        StopAsyncIteration,
        GeneratorExit,
        SystemExit,
        KeyboardInterrupt,
        MemoryError,
    )
    return {error.__name__: error("on purpose") for error in errors}


@bolt
def raise_as_told(order: Order, context: TaskContext) -> Done:
    """Raise the error of this name, once."""
    error = _odd_errors().get(order.name)
    if error is not None and context.attempt == 1:
        raise error
    return Done(order.name, context.attempt)


class OddErrors(Scenario):
    """What a bolt raises, also what usually ends loops, tasks or processes, fails its message and nothing else."""

    name = "odd-errors"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Order, _orders("fine", *_odd_errors()))
        bench.sink("out").shuffle(bench.bolt("raise", raise_as_told, parallelism=2).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        odd = [*_odd_errors()]
        seen.expect_verdicts("source", acked=["fine", *odd])
        expected = Counter([("fine", 1), *((name, 2) for name in odd)])
        seen.expect_equal(seen.tally("out", "name", "attempt"), expected, "rows")


@bolt(concurrency=4)
async def carry_out_at_leisure(order: Order, context: TaskContext) -> Done:
    """Do as the order says, in a coroutine."""
    return carry_out(order, context)


class AsyncBolts(Scenario):
    """A coroutine's end is the verdict: its result is anchored, what it raises fails the tuple."""

    name = "async-bolts"
    needs = frozenset({Need.ASYNC_BOLTS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        names = [*("first", "third", "never", "permanent"), *(f"more-{number}" for number in range(20))]
        source = bench.spout("source", Order, _orders(*names))
        bench.sink("out").shuffle(bench.bolt("carry", carry_out_at_leisure).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        more = [f"more-{number}" for number in range(20)]
        seen.expect_verdicts("source", acked=["first", "third", *more], dead=["never", "permanent"])
        expected = Counter([("first", 1), ("third", 3), *((name, 1) for name in more)])
        seen.expect_equal(seen.tally("out", "name", "attempt"), expected, "rows")


class ManyIds(Scenario):
    """0, False and the empty text and bytes are ids, all different; ids are compared with their types."""

    name = "many-ids"
    ids = (0, "", b"", "0", b"0", 1, "1", (1, "1"), ("1", 1), ())

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        messages = [Emit(Order(repr(message_id)), message_id) for message_id in self.ids]
        bench.sink("out").shuffle(bench.spout("source", Order, messages))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=self.ids)
        seen.expect_equal(seen.tally("out", "name"), Counter(map(repr, self.ids)), "rows")


class SameNumbers(Scenario):
    """Ids name messages of their own spout: two spouts that use the same ids do not meet."""

    name = "same-numbers"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        out = bench.sink("out", parallelism=1)
        for name, orders in (("one", ["first", "never"]), ("two", ["third", "first"])):
            source = bench.spout(name, Order, numbered([*map(Order, orders)]))
            out.shuffle(bench.bolt(f"carry-{name}", carry_out).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("one", acked=[0], dead=[1])
        seen.expect_verdicts("two", acked=[0, 1])


VERDICTS: tuple[Scenario, ...] = (
    Retries(),
    SourceReplays(),
    Rejected(),
    FirstVerdictWins(),
    FailAfterReturn(),
    OddErrors(),
    AsyncBolts(),
    ManyIds(),
    SameNumbers(),
)
