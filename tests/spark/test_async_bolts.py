"""Async bolts in a stage: calls of a frame overlap, and each settles its own tuple. No Spark is needed to see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tupletree import Bolt, Collector, Topology, bolt
from tupletree.effects import IN_HAND, TaskPlace
from tupletree.frames import Frame
from tupletree.runtimes.spark.awaiting import AwaitingBoltTask
from tupletree.sources import items
from tupletree.testing.conformance.messages import Item


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


def task_of(subject: Any) -> AwaitingBoltTask:
    t = Topology("t")
    t.bolt("b", subject, unconsumed=Item).shuffle(t.spout("s", items([Item(1)])))
    component = t.build().components["b"]
    task = AwaitingBoltTask(component, TaskPlace("t", "b", 5, 0, 1))
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


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, StopAsyncIteration, TimeoutError])
def test_whatever_a_call_raises_fails_its_own_tuple_alone(error: type[BaseException]) -> None:
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
    task = AwaitingBoltTask(t.build().components["b"], TaskPlace("t", "b", 5, 0, 1))
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
