"""Topologies for the simulator, made up from a number: every grouping and every kind of bolt comes up among them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tupletree import (
    AsyncSpout,
    Bolt,
    Collector,
    Emit,
    KeyedState,
    PermanentError,
    Resource,
    Sink,
    TaskContext,
    Topology,
    Window,
    batch_bolt,
    bolt,
    join_bolt,
    window_bolt,
)
from tupletree.sources import items
from tupletree.topology.builder import SpoutHandle


class Number(msgspec.Struct, frozen=True):
    value: int


class Part(msgspec.Struct, frozen=True):
    value: int
    share: int


class Sum(msgspec.Struct, frozen=True):
    values: tuple[int, ...]


class Waiting(AsyncSpout[Number]):
    async def next(self) -> None:
        raise AssertionError("a script takes its place")


class Nowhere(Sink[Any]):
    def write(self, batch: object) -> None:
        raise AssertionError("the simulator writes nowhere")


@bolt
def pass_on(number: Number) -> Number:
    return Number(number.value)


@bolt
def in_parts(number: Number) -> Iterator[Part]:
    """As many parts as the number says; some of them none."""
    for share in range(number.value % 4):
        yield Part(number.value, share)


@bolt
def part_on(part: Part) -> Part:
    return Part(part.value, part.share)


@bolt
def flaky(number: Number, context: TaskContext) -> Number:
    """Some fail at first, some for good."""
    if number.value % 5 == 1 and context.attempt == 1:
        raise ConnectionError("try again")
    if number.value % 11 == 7:
        raise PermanentError("never", where="here", got="7", expected="anything else")
    return Number(number.value)


@bolt
def half_way(number: Number, context: TaskContext) -> Iterator[Part]:
    """Emits, and then fails at the first attempt."""
    for share in range(3):
        yield Part(number.value, share)
        if number.value % 4 == 1 and context.attempt == 1 and share == 1:
            raise ValueError("half way")


@bolt(state=int)
def counted(part: Part, total: KeyedState[int]) -> Number:
    total.value += 1
    return Number(part.value)


class EveryThird(Bolt[Number]):
    """Keeps tuples, and acks them by three, with one tuple that is anchored to all of them."""

    auto_ack = False

    def open(self, context: TaskContext) -> None:
        self.kept: list[Number] = []

    def process(self, value: Number, collector: Collector[Sum]) -> None:
        self.kept.append(value)
        if len(self.kept) == 3:
            collector.emit(Sum(tuple(one.value for one in self.kept)), anchors=self.kept)
            for one in self.kept:
                collector.ack(one)
            self.kept.clear()


class Early(Bolt[Number]):
    """Emits for a tuple that it keeps, in several calls, and acks it in a later one."""

    auto_ack = False

    def open(self, context: TaskContext) -> None:
        self.kept: list[Number] = []

    def process(self, value: Number, collector: Collector[Part]) -> None:
        self.kept.append(value)
        collector.emit(Part(value.value, 0))
        for one in self.kept:
            collector.emit(Part(one.value, 1), anchors=[one])
        if len(self.kept) == 3:
            collector.ack(self.kept.pop(0))


class Restless(Bolt[Number]):
    """By hand: acks twice, fails after the ack, renews timeouts, keeps one back, emits without anchors."""

    auto_ack = False

    def open(self, context: TaskContext) -> None:
        self.kept: Number | None = None

    def process(self, value: Number, collector: Collector[Part]) -> None:
        collector.reset_timeout(value)
        if value.value % 3 == 0 and self.kept is None:
            self.kept = value
            return
        collector.emit(Part(value.value, 0))
        if self.kept is not None:
            collector.emit(Part(self.kept.value, 1), anchors=[self.kept, value, value])
            collector.ack(self.kept)
            self.kept = None
        collector.emit(Part(value.value, 9), anchors=())
        if value.value % 7 == 3:
            collector.fail(value, "by hand")
            return
        collector.ack(value)
        collector.ack(value)
        collector.fail(value, "too late")


class Targets(msgspec.Struct, frozen=True):
    task_ids: tuple[int, ...]


@bolt
def directed(number: Number, collector: Collector[Part], targets: Resource[Targets]) -> None:
    """Chooses the task itself."""
    for share, target in enumerate(targets.task_ids[: 1 + number.value % 2]):
        collector.emit_direct(target, Part(number.value, share))


@batch_bolt(size=4, max_age_s=0.3)
def by_four(numbers: list[Number]) -> list[Number]:
    """One by one anchored, as there are as many results as members."""
    if any(number.value % 13 == 5 for number in numbers):
        raise ValueError("thirteen")
    return [Number(number.value) for number in numbers]


@batch_bolt(size=3)
def summed(numbers: list[Number]) -> list[Sum]:
    """One result for all of them; without an age, what is left waits for a flush."""
    return [Sum(tuple(number.value for number in numbers))]


@bolt(concurrency=3)
async def slowly(number: Number) -> AsyncIterator[Part]:
    import asyncio

    for share in range(2):
        await asyncio.sleep(0.05)
        yield Part(number.value, share)


@bolt(concurrency=4, state=list)
async def in_turn(part: Part, seen: KeyedState[list[int]]) -> Part:
    """Counts the successful calls of a key, whatever happens to the others meanwhile."""
    import asyncio

    mine = seen.value
    mine.append(part.value)
    await asyncio.sleep(0.01 * (part.value % 5))
    if part.value % 6 == 5:
        raise ValueError("after it touched its state")
    return Part(part.share, len(mine))


class Slowly(Bolt[Number]):
    """By hand, with calls that overlap: some ack what others hold, some renew, fail twice, or fail what they acked."""

    auto_ack = False
    concurrency = 3

    async def open(self, context: TaskContext) -> None:
        self.kept: list[Number] = []

    async def process(self, value: Number, collector: Collector[Part]) -> None:
        import asyncio

        await asyncio.sleep(0.02 * (value.value % 4))
        collector.reset_timeout(value)
        if value.value % 3 == 0:
            self.kept.append(value)
            return
        kept, self.kept = self.kept, []
        collector.emit(Part(value.value, 0), anchors=[*kept, value])
        await asyncio.sleep(0.02)
        for one in kept:
            collector.ack(one)
        if value.value % 7 == 3:
            collector.fail(value, "by hand")
        collector.ack(value)
        if value.value % 5 == 4:
            raise ValueError("after the verdict")


@bolt
def around(number: Number) -> Iterator[Number | Part]:
    """Goes round in a cycle until the value is small."""
    if number.value >= 10:
        yield Number(number.value // 2)
    else:
        yield Part(number.value, 0)


class Half(msgspec.Struct, frozen=True):
    value: int


@window_bolt(
    length_s=5.0, timestamp=lambda number: number.value, late="fail", lag_s=8.0, idle_s=0.3, extend_timeout=True
)
def near_values(window: Window[Number]) -> Iterator[Number]:
    """By event time; what is in no window any more is dead."""
    for number in window:
        yield Number(number.value)


@window_bolt(length_s=0.4, per_key=True)
def per_value(numbers: list[Number]) -> Iterator[Number]:
    for number in numbers:
        yield Number(number.value)


@window_bolt(count=2)
def in_pairs(window: Window[Number]) -> Iterator[Part]:
    for number in window:
        yield Part(number.value, 0)


@bolt
def halved(number: Number) -> Half:
    return Half(number.value // 2)


@join_bolt(within_s=0.5)
def meeting(part: Part | None, half: Half | None) -> Sum:
    return Sum((part.value if part else -1, half.value if half else -1))


def custom(part: Part, tasks: int) -> list[int]:
    return [index for index in range(tasks) if (part.value + index) % 3]


@dataclass(frozen=True)
class Generated:
    """`expected`: value of a message → rows it leaves at the sink `out` once acked; None: depends on the company."""

    name: str
    make: Callable[[], Topology]
    inputs: dict[str, list[Any]]
    expected: Callable[[int], list[Any]] | None


KINDS = (
    "chain", "diamond", "all", "third", "collector", "batch", "async", "cycle", "direct", "untracked", "unanchored",
    "two spouts", "no ackers", "async state", "async by hand", "async spout", "windows", "join",
)  # fmt: skip
Replay = Literal["runtime", "source"]


def generated(number: int) -> Generated:
    """The topology of a number."""
    chance = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    ackers = 0 if kind == "no ackers" else chance.choice((1, 2, 3))
    options = {
        "message_timeout_s": 2.0,
        "timeout_buckets": chance.choice((2, 3, 5)),
        "acker_tasks": ackers,
        "max_spout_pending": chance.choice((2, 7, 50)),
        "high_water_factor": 1.0,
        "max_attempts": chance.choice((1, 3, 8)),
        "backoff_initial_ms": chance.choice((0.0, 20.0)),
    }
    replay: Replay = chance.choice(("runtime", "runtime", "source"))
    spouts, width = chance.choice((1, 2)), chance.choice((1, 2, 3))

    def make() -> Topology:
        t = Topology(kind.replace(" ", "-"), options=options, allow_cycle=kind == "cycle")
        source: Any = Waiting() if kind == "async spout" else items([], message_type=Number)
        numbers = t.spout("numbers", source, parallelism=spouts, replay=replay)
        if kind in ("windows", "join"):
            _build_holding(t, kind, numbers, width)
        else:
            _build(t, kind, numbers, width, ackers)
        return t

    count = chance.choice((6, 15, 30))
    values: list[Any] = [Number(value) for value in range(count)]
    if kind == "untracked":
        values = [Emit(one, None) if one.value % 3 else Emit(one, ("id", one.value)) for one in values]
    inputs = {"numbers": values}
    if kind == "two spouts":
        inputs["more"] = [Number(value) for value in range(100, 100 + count)]
    return Generated(kind, make, inputs, _EXPECTED.get(kind))


def _build(t: Topology, kind: str, numbers: SpoutHandle, width: int, ackers: int) -> None:
    out = t.sink("out", Nowhere(), parallelism=width)
    match kind:
        case "chain" | "untracked" | "no ackers":
            first = t.bolt("first", pass_on, parallelism=width).shuffle(numbers)
            out.shuffle(t.bolt("second", flaky if kind == "chain" else pass_on, parallelism=width).none(first))
        case "async spout":
            out.shuffle(t.bolt("first", flaky, parallelism=width).shuffle(numbers))
        case "diamond":
            parts = t.bolt("parts", in_parts, parallelism=width).shuffle(numbers)
            left = t.bolt("left", part_on, parallelism=width).fields(parts, "value")
            right = t.bolt("right", part_on, parallelism=2).partial_key(parts, "share")
            joined = t.bolt("joined", counted, parallelism=width).fields(left, "value").fields(right, "value")
            out.shuffle(joined)
        case "all":
            copies = t.bolt("copies", flaky, parallelism=2 * width).all(numbers)
            out.all(t.bolt("more", pass_on, parallelism=2).all(copies))
        case "third":
            thirds = t.bolt("thirds", EveryThird, parallelism=1).shuffle(numbers)
            out.global_(thirds)
        case "collector":
            halves = t.bolt("halves", half_way, parallelism=width).shuffle(numbers)
            by_hand = t.bolt("by_hand", Restless, parallelism=width).shuffle(numbers)
            early = t.bolt("early", Early).global_(numbers)
            out.shuffle(halves).shuffle(by_hand).shuffle(early)
        case "batch":
            fours = t.bolt("fours", by_four, parallelism=width).shuffle(numbers)
            out.shuffle(t.bolt("sums", summed).global_(fours)).shuffle(fours)
        case "async":
            out.local_or_shuffle(t.bolt("slow", slowly, parallelism=width).shuffle(numbers))
        case "async state":
            parts = t.bolt("parts", in_parts, parallelism=width).shuffle(numbers)
            out.shuffle(t.bolt("turns", in_turn, parallelism=2).fields(parts, "share"))
        case "async by hand":
            out.shuffle(t.bolt("slow", Slowly, parallelism=width).shuffle(numbers))
        case "cycle":
            ring = t.bolt("ring", around, parallelism=width)
            ring.shuffle(numbers).fields(ring.stream(Number), "value")
            out.shuffle(ring.stream(Part))
        case "direct":
            first_bolt = 1 + ackers  # task ids: the system task, the ackers, then the bolts as they are declared
            targets = {"targets": Targets((first_bolt + 1, first_bolt + 2))}
            chosen = t.bolt("directed", directed, resources=targets).shuffle(numbers)
            out.custom(t.bolt("aimed", part_on, parallelism=2).direct(chosen), custom)
        case "unanchored":
            by_hand = t.bolt("by_hand", Restless).shuffle(numbers)
            out.shuffle(t.bolt("on", part_on, parallelism=width).shuffle(by_hand))
        case "two spouts":
            more = t.spout("more", items([], message_type=Number))
            out.shuffle(t.bolt("thirds", EveryThird).global_(numbers).global_(more))
        case _:
            raise AssertionError(kind)


def _build_holding(t: Topology, kind: str, numbers: SpoutHandle, width: int) -> None:
    out = t.sink("out", Nowhere(), parallelism=width)
    match kind:
        case "windows":
            by_value = t.bolt("by_value", near_values, parallelism=width).shuffle(numbers)
            by_arrival = t.bolt("by_arrival", per_value, parallelism=width).fields(by_value, "value")
            out.shuffle(t.bolt("pairs", in_pairs).global_(by_arrival))
        case "join":
            parts = t.bolt("parts", in_parts, parallelism=width).shuffle(numbers)
            halves = t.bolt("halves", halved, parallelism=width).shuffle(numbers)
            out.shuffle(t.bolt("joined", meeting, parallelism=width).fields(parts, "value").fields(halves, "value"))
        case _:
            raise AssertionError(kind)


def _ring(value: int) -> int:
    while value >= 10:
        value //= 2
    return value


_EXPECTED: dict[str, Callable[[int], list[Any]]] = {
    "chain": lambda value: [Number(value)],
    "async spout": lambda value: [Number(value)],
    "diamond": lambda value: [Number(value)] * (2 * (value % 4)),
    "async": lambda value: [Part(value, 0), Part(value, 1)],
    "cycle": lambda value: [Part(_ring(value), 0)],
    "windows": lambda value: [Part(value, 0)],
}
