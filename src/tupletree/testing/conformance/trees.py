"""Scenarios: tuple trees of every shape complete once, and fail as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from tupletree.errors import PermanentError
from tupletree.testing.conformance.messages import Item, Sum, numbered_items
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Need
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Bolt, Collector, TaskContext
from tupletree.topology.decorators import batch_bolt, bolt


class Piece(msgspec.Struct, frozen=True):
    """One of several parts of an item."""

    number: int
    part: int


class Copy(msgspec.Struct, frozen=True):
    """A copy of an item as a task saw it."""

    number: int
    task_index: int
    attempt: int


@bolt
def go_left(item: Item) -> Piece:
    """One way through the diamond."""
    return Piece(item.number, 0)


@bolt
def go_right(item: Item) -> Iterator[Piece]:
    """The other way: two pieces, or none for item 7."""
    if item.number != 7:
        yield Piece(item.number, 1)
        yield Piece(item.number, 2)


@bolt
def join(piece: Piece) -> Piece:
    """Where both ways meet; pieces of item 3 that went right cannot pass."""
    if (piece.number, piece.part) == (3, 2):
        raise PermanentError("the right way is closed for 3")
    return piece


class Diamond(Scenario):
    """A message that takes two ways is acked once, when both have ended; if one fails, nothing of it comes out."""

    name = "diamond"
    count = 50

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(self.count))
        left = bench.bolt("left", go_left, parallelism=2).shuffle(source)
        right = bench.bolt("right", go_right, parallelism=3).shuffle(source)
        joined = bench.bolt("join", join, parallelism=2).fields(left, "number").fields(right, "number")
        bench.sink("out").shuffle(joined)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        living = [number for number in range(self.count) if number != 3]
        seen.expect_verdicts("source", acked=living, dead=[3])
        pieces = Counter((number, part) for number in living for part in (0, 1, 2) if part == 0 or number != 7)
        seen.expect_equal(seen.tally("out", "number", "part"), pieces, "pieces")


class EveryThird(Bolt[Item]):
    """Keeps items; every third time it emits their sum, anchored to all three, and acks them."""

    auto_ack = False
    output_types = (Sum,)

    def __init__(self) -> None:
        self.kept: list[Item] = []

    def process(self, value: Item, collector: Collector[Sum]) -> None:
        """Keep it."""
        self.kept.append(value)
        if len(self.kept) == 3:
            collector.emit(Sum([item.number for item in self.kept]), anchors=self.kept)
            for item in self.kept:
                collector.ack(item)
            self.kept.clear()


@bolt
def refuse_sum_of_four(total: Sum) -> Sum:
    """Fail the sum that item 4 is in."""
    if 4 in total.numbers:
        raise PermanentError("no sum with a 4")
    return total


class Aggregate(Scenario):
    """A sum of three messages belongs to three trees: it completes all of them, or fails all of them."""

    name = "aggregate"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(9))
        sums = bench.bolt("sum", EveryThird).global_(source)
        bench.sink("out").shuffle(bench.bolt("refuse", refuse_sum_of_four).shuffle(sums))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        summed = [row["numbers"] for row in seen.rows("out")]
        living = sorted(number for numbers in summed for number in numbers)
        seen.expect_equal([len(numbers) for numbers in summed], [3, 3], "sums of three that came out")
        seen.expect(len(set(living)) == 6 and 4 not in living, "six items in them, without 4", living)
        seen.expect_verdicts("source", acked=living, dead=[one for one in range(9) if one not in living])


@bolt
def anchor_again_and_again(item: Item, out: Collector[Piece]) -> None:
    """Emit anchored to the tuple in hand, named several times."""
    for part in range(3):
        out.emit(Piece(item.number, part), anchors=[item] * (part + 1))


class Pairs(Bolt[Piece]):
    """Keeps a piece until the next one comes; what it emits is anchored to both, which have the same root."""

    auto_ack = False
    output_types = (Piece,)

    def __init__(self) -> None:
        self.kept: dict[int, list[Piece]] = {}

    def process(self, value: Piece, collector: Collector[Piece]) -> None:
        """Pair it up."""
        pieces = self.kept.setdefault(value.number, [])
        pieces.append(value)
        if len(pieces) == 3:
            collector.emit(Piece(value.number, 99), anchors=[*pieces, *pieces])
            for piece in self.kept.pop(value.number):
                collector.ack(piece)


class SelfAnchored(Scenario):
    """An anchor that is named twice counts once, and so do two anchors of one root: the trees still complete."""

    name = "self-anchored"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(20))
        pieces = bench.bolt("anchor", anchor_again_and_again, parallelism=2).shuffle(source)
        bench.sink("out").shuffle(bench.bolt("pair", Pairs, parallelism=2).fields(pieces, "number"))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(20))
        seen.expect_equal(seen.tally("out", "number", "part"), Counter((one, 99) for one in range(20)), "rows")


@bolt
def copy_but_for_one(item: Item, context: TaskContext) -> Copy:
    """Task 4 fails message 2 for good, and message 3 once."""
    if context.task_index == 4 and item.number == 2:
        raise PermanentError("task 4 cannot take 2")
    if context.task_index == 4 and item.number == 3 and context.attempt == 1:
        raise ConnectionError("task 4 cannot take 3 yet")
    return Copy(item.number, context.task_index, context.attempt)


class AllToSix(Scenario):
    """Six tasks get every message; it is acked when all six are done, and fails when one of them fails."""

    name = "all-to-six"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(10))
        bench.sink("out").shuffle(bench.bolt("copy", copy_but_for_one, parallelism=6).all(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        living = [number for number in range(10) if number != 2]
        seen.expect_verdicts("source", acked=living, dead=[2])
        seen.expect_equal(seen.letters("source")[2].attempts, 1, "attempts of message 2")
        copies = Counter((number, task, 2 if number == 3 else 1) for number in living for task in range(6))
        seen.expect_equal(seen.tally("out", "number", "task_index", "attempt"), copies, "copies")


@bolt
def keep_even(item: Item) -> Item | None:
    """Filter."""
    return item if item.number % 2 == 0 else None


def to_nobody(item: Item, tasks: int) -> list[int]:
    """Choose no task for items that divide by four."""
    return [] if item.number % 4 == 0 else [item.number % tasks]


class Filtered(Scenario):
    """Messages that are filtered, or that a grouping sends to no task, are acked like any other."""

    name = "filtered"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(20))
        even = bench.bolt("even", keep_even, parallelism=2).shuffle(source)
        bench.sink("out", parallelism=2).custom(even, to_nobody)

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(20))
        seen.expect_equal(seen.tally("out", "number"), Counter([2, 6, 10, 14, 18]), "rows")


@bolt(outputs=(Item, Sum))
def count_down(item: Item, out: Collector[Item | Sum]) -> None:
    """Send it round again until it is 0."""
    if item.number:
        out.emit(Item(item.number - 1))
    else:
        out.emit(Sum([0]))


class Cycle(Scenario):
    """A tuple that goes round a cycle belongs to its message all the way: acked once, when the last lap is done."""

    name = "cycle"
    needs = frozenset({Need.CYCLES})
    allow_cycle = True

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(30))
        counter = bench.bolt("count", count_down, parallelism=2).shuffle(source)
        counter.shuffle(counter.stream(Item))
        bench.sink("out").shuffle(counter.stream(Sum))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(30))
        seen.expect_equal(len(seen.rows("out")), 30, "rows")


@batch_bolt(size=3, max_age_s=0.05)
def total(items: list[Item]) -> Sum:
    """Emit one sum for a whole batch."""
    return Sum([item.number for item in items])


class Batches(Scenario):
    """Seven messages in batches of three are all done: the last one goes out by its age."""

    name = "batches"
    needs = frozenset({Need.BATCH_BOLTS})

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(7))
        bench.sink("out").shuffle(bench.bolt("total", total).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(7))
        sums = [row["numbers"] for row in seen.rows("out")]
        seen.expect_equal(sorted(number for numbers in sums for number in numbers), [*range(7)], "items in sums")
        seen.expect(all(len(numbers) <= 3 for numbers in sums), "at most three in a sum", sums)


TREES: tuple[Scenario, ...] = (
    Diamond(),
    Aggregate(),
    SelfAnchored(),
    AllToSix(),
    Filtered(),
    Cycle(),
    Batches(),
)
