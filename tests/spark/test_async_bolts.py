"""Async bolts in a stage: calls of a frame overlap, and each settles its own tuple. No Spark is needed to see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tupletree import Bolt, Collector, Topology, bolt
from tupletree.bolts.effects import IN_HAND, TaskPlace
from tupletree.data.frames import Frame, roots_of
from tupletree.runtimes.spark.worker import async_bolts
from tupletree.runtimes.spark.worker.async_bolts import AsyncBoltTask
from tupletree.runtimes.spark.worker.call_timeout import CallTimeout
from tupletree.runtimes.spark.worker.crash_markers import CrashMarker, MarkedPlace
from tupletree.sources import items
from tupletree.testing.conformance.messages import Item
from tupletree.tracking.outcomes import FailureKind


class Busy:
    """How many calls are out, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def wait(self, turns: int) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(turns):
            await asyncio.sleep(0)
        self.now -= 1


busy = Busy()


@pytest.fixture(autouse=True)
def idle() -> None:
    busy.now = busy.most = 0


def task_of(subject: Any, *, calls: int = 1, limit_s: float | None = None) -> AsyncBoltTask:
    t = Topology("t")
    t.bolt("b", subject, unconsumed=Item).shuffle(t.spout("s", items([Item(1)])))
    component = t.build().components["b"]
    task = AsyncBoltTask(component, TaskPlace("t", "b", 5, 0, 1, calls=calls), limit_s=limit_s)
    task.open()
    return task


def frame_of(*numbers: int) -> Frame:
    count = len(numbers)
    return Frame(5, "s", "Item", [Item(one) for one in numbers], [*range(1, count + 1)], [*range(1, count + 1)], 99)


@bolt(concurrency=4)
async def double(item: Item) -> Item:
    await busy.wait(item.number % 5)
    if item.number % 10 == 7:
        raise ValueError(item.number)
    return Item(2 * item.number)


@bolt(concurrency=4)
async def twice(item: Item) -> AsyncIterator[Item]:
    await busy.wait(item.number % 3)
    yield item
    yield item


def test_calls_of_a_frame_overlap_as_far_as_the_bolt_allows_and_keep_their_order_and_roots() -> None:
    task = task_of(double)
    worked = task.work(frame_of(*range(20)))
    task.close()
    assert busy.most == 4
    assert {root: failure.error for root, failure in worked.failures.items()} == {8: "7", 18: "17"}
    (output,) = worked.outputs
    assert [value.number // 2 for value in output.values] == [one for one in range(20) if one % 10 != 7]
    assert output.roots == [one + 1 for one in range(20) if one % 10 != 7]


def test_an_async_generator_gives_its_tuples_to_the_root_that_it_was_called_for() -> None:
    task = task_of(twice)
    (output,) = task.work(frame_of(3, 1, 2)).outputs
    task.close()
    assert [value.number for value in output.values] == [3, 3, 1, 1, 2, 2]
    assert (output.roots, output.ends) == ([1, 2, 3], [2, 4, 6])


def test_one_object_delivered_twice_is_two_calls() -> None:
    task, item = task_of(double), Item(3)
    worked = task.work(Frame(5, "s", "Item", [item, item], [1, 2], [1, 2], 99))
    task.close()
    assert [value.number for value in worked.outputs[0].values] == [6, 6]


@pytest.mark.parametrize("limit_s", [None, 60.0])
@pytest.mark.parametrize("at_a_time", [1, 3])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_task_that_a_call_starts_and_that_ends_the_program_fails_at_most_its_tuple(
    error: type[BaseException], at_a_time: int, limit_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def ending() -> None:
        raise error

    @bolt(concurrency=at_a_time)
    async def starts(item: Item) -> Item:
        if item.number == 2:
            await asyncio.ensure_future(ending())
        if item.number == 3:
            await asyncio.wait({asyncio.ensure_future(ending())})  # it does not look at what became of it
        await busy.wait(2)
        return item

    task = task_of(starts, limit_s=limit_s)
    worked = task.work(frame_of(1, 2, 3, 4))
    again = task.work(frame_of(5))
    task.close()
    assert [value.number for value in worked.outputs[0].values] == [1, 3, 4]
    assert [value.number for value in again.outputs[0].values] == [5]
    assert [failure.error_type for failure in worked.failures.values()] == [error.__name__]
    assert "the run goes on" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, StopAsyncIteration, TimeoutError])
def test_whatever_a_call_raises_fails_only_its_own_tuple(error: type[BaseException]) -> None:
    @bolt(concurrency=3)
    async def breaking(item: Item) -> Item:
        await busy.wait(1)
        if item.number == 2:
            raise error
        return item

    task = task_of(breaking)
    worked = task.work(frame_of(1, 2, 3))
    again = task.work(frame_of(4))
    task.close()
    assert worked.failures.keys() == {2}
    assert [value.number for value in worked.outputs[0].values] == [1, 3]
    assert [value.number for value in again.outputs[0].values] == [4], "the loop goes on"


class Gentle(Bolt[Item]):
    """Every method waits; calls have a collector in hand, so they come one after the other."""

    concurrency = 4

    async def open(self, context: object) -> None:
        await busy.wait(1)
        self.seen: list[int] = []

    async def process(self, value: Item, collector: Collector[Item]) -> None:
        await busy.wait(2)
        self.seen.append(value.number)
        if value.number == 2:
            collector.fail(value, "not this one")
            return
        collector.emit(Item(len(self.seen)))

    async def close(self) -> None:
        await busy.wait(1)
        busy.now -= len(self.seen)


def test_a_class_waits_in_all_its_methods_and_settles_by_hand() -> None:
    task = task_of(Gentle)
    worked = task.work(frame_of(1, 2, 3))
    assert worked.failures.keys() == {2}
    assert [value.number for value in worked.outputs[0].values] == [1, 3]
    assert busy.most == 1
    task.close()
    assert busy.now == -3, "its close was awaited to the end"


class Returning(Bolt[Item]):
    """Has no collector, so its calls go on side by side."""

    concurrency = 3

    async def open(self, context: object) -> None:
        await busy.wait(1)
        self.factor = 2

    async def process(self, value: Item) -> list[Item]:
        await busy.wait(value.number % 4)
        if value.number == 2:
            raise ValueError("not this one")
        return [Item(self.factor * value.number)] * (value.number % 2 + 1)

    async def close(self) -> None:
        busy.now = -7


def test_calls_of_a_class_without_a_collector_overlap() -> None:
    task = task_of(Returning)
    worked = task.work(frame_of(1, 2, 3, 4))
    assert worked.failures.keys() == {2}
    (output,) = worked.outputs
    assert [value.number for value in output.values] == [2, 2, 6, 6, 8]
    assert output.roots == [1, 3, 4]
    assert busy.most == 3
    task.close()
    assert busy.now == -7, "its close was awaited to the end"


def test_tuples_of_a_root_that_has_failed_are_not_asked_for_and_others_get_their_own_answers() -> None:
    asked: list[int] = []

    @bolt(concurrency=2)
    async def counting(item: Item) -> Item:
        asked.append(item.number)
        number = len(asked)
        await busy.wait(1)
        if item.number == 1:
            raise ValueError("one")
        return Item(number)

    task, shared = task_of(counting), Item(2)
    worked = task.work(Frame(5, "s", "Item", [Item(1), shared, shared, shared], [1, 2], [3, 4], 99))
    task.close()
    assert worked.failures.keys() == {1}
    assert asked == [1, 2, 2], "the second tuple was under way when the first failed, the third was not"
    assert [value.number for value in worked.outputs[0].values] == [3]


class Slotted(Bolt[Item]):
    """Has no room for other methods than its own, and no `close` that is async."""

    __slots__ = ("closed",)

    async def process(self, value: Item, collector: Collector[Item]) -> None:
        await busy.wait(1)
        collector.emit(value)

    def close(self) -> None:
        busy.now = -1


def test_a_class_with_slots_waits_too() -> None:
    task = task_of(Slotted)
    assert [value.number for value in task.work(frame_of(1, 2)).outputs[0].values] == [1, 2]
    task.close()
    assert busy.now == -1


def test_what_calls_log_side_by_side_names_their_own_root() -> None:
    seen: list[tuple[int, Any]] = []

    @bolt(concurrency=3)
    async def telling(item: Item) -> None:
        await busy.wait(item.number)
        place = IN_HAND.get()
        seen.append((item.number, place and (place.component, place.root)))

    t = Topology("t")
    t.bolt("b", telling).shuffle(t.spout("s", items([Item(1)])))
    task = AsyncBoltTask(t.build().components["b"], TaskPlace("t", "b", 5, 0, 1))
    task.open()
    task.work(frame_of(1, 3, 2))
    task.close()
    assert seen == [(1, ("b", 1)), (2, ("b", 3)), (3, ("b", 2))]


def test_what_a_call_leaves_on_the_loop_is_cancelled_when_the_task_closes() -> None:
    ended: list[str] = []
    kept: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.append("cancelled")

    @bolt(concurrency=2)
    async def careless(item: Item) -> Item:
        kept.append(asyncio.create_task(linger()))
        await busy.wait(1)
        return item

    task = task_of(careless)
    task.work(frame_of(1))
    task.close()
    assert ended == ["cancelled"]


stumbles: list[int] = []


@bolt(concurrency=4)
async def stumbling(item: Item) -> Item:
    await busy.wait(1)
    stumbles.append(item.number)
    if stumbles.count(item.number) < 3:
        raise ConnectionError
    return item


@bolt(concurrency=4)
async def stumbling_by_hand(item: Item, out: Collector[Item]) -> None:
    out.emit(item)
    await stumbling(item)


@pytest.mark.parametrize("subject", [stumbling, stumbling_by_hand])
def test_a_call_that_raises_is_made_again_where_the_place_says_so(subject: Any) -> None:
    stumbles.clear()
    task = task_of(subject, calls=3)
    worked = task.work(frame_of(1, 2, 3))
    failed = task.work(Frame(5, "s", "Item", [Item(4)], [0], [1], 99))
    task.close()
    assert not worked.failures
    assert [value.number for value in worked.outputs[0].values] == [1, 2, 3]
    assert (failed.stray_count, stumbles.count(4)) == (1, 1), "no message fails of an untracked tuple"


async def wait_for_ever(item: Item) -> None:
    await asyncio.Event().wait()


async def wait_whatever_happens(item: Item) -> None:
    for _ in range(2):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def wait_in_small_steps(item: Item) -> None:
    while True:  # noqa: ASYNC110 - that is what it does wrong
        await asyncio.sleep(0)


async def keep_the_loop(item: Item) -> None:
    while True:
        time.sleep(0.001)  # noqa: ASYNC251 - that is what it does wrong


async def keep_the_loop_from_a_task(item: Item) -> None:
    await asyncio.create_task(keep_the_loop(item))


LIMIT_S = 0.2


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize(
    "hang",
    [wait_for_ever, wait_whatever_happens, wait_in_small_steps, keep_the_loop, keep_the_loop_from_a_task],
)
def test_a_call_that_takes_too_long_fails_its_tuple_and_no_other(
    hang: Callable[[Item], Awaitable[None]], side_by_side: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_bolts, "PATIENCE_S", 0.05)

    @bolt(concurrency=3 if side_by_side else 1)
    async def hanging(item: Item) -> Item:
        if item.number == 2:
            await hang(item)
        await asyncio.sleep(LIMIT_S / 10)
        return item

    task = task_of(hanging, limit_s=LIMIT_S)
    with CallTimeout(LIMIT_S, 2):
        worked = task.work(frame_of(1, 2, 3, 4))
    task.close()
    assert worked.failures.keys() == {2}
    failure = worked.failures[2]
    assert (failure.kind, failure.error_type) == (FailureKind.TIMEOUT, "tupletree.errors.ProcessingTimeoutError")
    assert hang is wait_whatever_happens or hang.__name__ in failure.traceback
    assert [value.number for value in worked.outputs[0].values] == [1, 3, 4]


def test_of_calls_side_by_side_all_are_named_and_those_that_a_worker_crashed_on_are_called_alone(
    tmp_path: Path,
) -> None:
    in_hand: list[tuple[int, Any]] = []

    @bolt(concurrency=2)
    async def telling(item: Item) -> None:
        await busy.wait(2)
        in_hand.append((item.number, place.root))

    t = Topology("t")
    t.bolt("b", telling).shuffle(t.spout("s", items([Item(1)])))
    dead = CrashMarker(tmp_path, (1, 7, 0, 3), (0, 1))
    dead.__enter__()
    dead.mark(5, (2, 4))
    with CrashMarker(tmp_path, (1, 7, 0, 3), (0, 2)) as marker:
        place = MarkedPlace(marker, topology="t", component="b", task_id=5, task_index=0, parallelism=1)
        task = AsyncBoltTask(t.build().components["b"], place)
        task.open()
        task.work(frame_of(1, 2, 3, 4, 5))
        task.close()
    assert {number: set(roots_of(root)) for number, root in in_hand} == {1: {1, 3}, 3: {3, 5}, 5: {5}, 2: {2}, 4: {4}}
