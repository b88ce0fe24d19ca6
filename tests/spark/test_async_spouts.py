"""Async spouts as the driver's loop sees them: a source that waits delays nothing, and its callbacks come in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tupletree import AsyncSpout, Emit, EndOfInput, Failure
from tupletree.bolts.effects import TaskPlace
from tupletree.ids import MessageId
from tupletree.runtimes.spark.driver.async_spouts import AsyncSpoutAdapter, SpoutLoop
from tupletree.sources import Line
from tupletree.tracking.outcomes import FailureKind

HANG_S = 30.0
FAILED = Failure(kind=FailureKind.ERROR, error="no")


class Queue(AsyncSpout[Line]):
    """Waits for what the test puts into it, and writes down what it hears."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.given = 0
        self.asked = threading.Event()

    async def open(self, context: object) -> None:
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[Any]()
        await asyncio.sleep(0)
        self.story.append("open")

    async def next(self) -> Emit[Line] | None:
        self.story.append("next")
        self.asked.set()
        given = await self.queue.get()
        if isinstance(given, BaseException):
            raise given
        self.given += 1
        return given if given is None else Emit(Line(given), given)

    async def ack(self, message_id: MessageId) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.story.append(f"ack {message_id!s}")

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.story.append(f"fail {message_id!s}: {failure.kind.value}")

    async def activate(self) -> None:
        self.story.append("activate")

    def deactivate(self) -> None:
        self.story.append("deactivate")

    def snapshot(self) -> int:
        return self.given

    def restore(self, position: Any) -> None:
        self.given = position

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.story.append("close")

    def put(self, *what: object) -> None:
        for one in what:
            self.loop.call_soon_threadsafe(self.queue.put_nowait, one)


@pytest.fixture
def opened() -> Iterator[Callable[[Queue], AsyncSpoutAdapter]]:
    """Opens a spout on a loop of its own, which ends with the test."""
    others = set(threading.enumerate())  # a run whose sink is stuck for good may have left its own
    loop = SpoutLoop()

    def open_one(source: Queue) -> AsyncSpoutAdapter:
        spout = AsyncSpoutAdapter(source, loop, 0.0)
        spout.open(TaskPlace("t", "lines", 1, 0, 1, 0.0))
        return spout

    yield open_one
    loop.close()
    assert "tupletree-async" not in {thread.name for thread in threading.enumerate() if thread not in others}


def take(spout: AsyncSpoutAdapter) -> Any:
    """Ask until something is there."""
    given = threading.Event()
    spout.on_given = given.set
    while (one := spout.next()) is None:
        assert given.wait(HANG_S)
        given.clear()
    return one


def test_a_source_that_waits_is_asked_once_and_tells_when_something_is_there(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    assert [spout.next() for _ in range(5)] == [None] * 5
    source.put("a")
    assert take(spout).message_id == "a"
    assert source.story == ["open", "next"]


def test_the_position_is_the_one_after_what_was_returned(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    spout.restore(7)
    assert spout.snapshot() == 7
    there = threading.Event()
    spout.on_given = there.set
    assert spout.next() is None
    source.put("a")
    assert there.wait(HANG_S)
    assert (source.given, spout.snapshot()) == (8, 7)
    assert spout.next().message_id == "a"
    assert spout.snapshot() == 8


def test_its_callbacks_are_made_in_order_before_it_is_asked_again(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    spout.activate()
    source.put("a")
    take(spout)
    spout.ack("a")
    spout.fail("b", FAILED)
    spout.ack("c")
    assert source.story == ["open", "activate", "next"]
    assert spout.next() is None
    assert source.asked.wait(HANG_S)
    spout.ack("d")
    spout.flush()  # while `next` waits
    assert source.story == ["open", "activate", "next", "ack a", "fail b: error", "ack c", "next", "ack d"]


def test_a_flush_returns_when_the_source_has_heard_everything(opened: Any) -> None:
    class Slow(Queue):
        async def ack(self, message_id: MessageId) -> None:
            for _ in range(1_000):
                await asyncio.sleep(0)
            await super().ack(message_id)

    source = Slow()
    spout = opened(source)
    spout.ack("a")
    spout.fail("b", FAILED)
    spout.flush()
    assert source.story == ["open", "ack a", "fail b: error"]


def test_a_source_that_gives_nothing_is_asked_again(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    source.put(None, None, "a")
    assert take(spout).message_id == "a"
    assert source.story == ["open", "next", "next", "next"]


def test_the_end_of_input_comes_out_and_it_may_be_asked_again_after(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    source.put(EndOfInput(), "late")
    with pytest.raises(EndOfInput):
        take(spout)
    assert take(spout).message_id == "late"


def test_an_end_that_came_before_the_source_heard_of_a_failure_is_no_end(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    there = threading.Event()
    spout.on_given = there.set
    assert spout.next() is None
    source.put(EndOfInput())
    assert there.wait(HANG_S)
    spout.fail("a", FAILED)
    source.put("a")
    assert take(spout).message_id == "a"
    assert source.story == ["open", "next", "fail a: error", "next"]
    source.put(EndOfInput())
    spout.fail("a", replace(FAILED, permanent=True))
    with pytest.raises(EndOfInput):
        take(spout)


@pytest.mark.parametrize("error", [ConnectionError("gone"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_comes_out_of_the_next_call_and_the_loop_goes_on(opened: Any, error: BaseException) -> None:
    source = Queue()
    spout = opened(source)
    source.put(error, "a")
    with pytest.raises((ConnectionError, RuntimeError), match=r"gone|raised (SystemExit|KeyboardInterrupt)"):
        take(spout)
    assert take(spout).message_id == "a"


def test_closing_cancels_what_waits_and_gives_back_what_was_not_taken(opened: Any) -> None:
    class Stubborn(Queue):
        async def next(self) -> Emit[Line] | None:
            try:
                return await super().next()
            except asyncio.CancelledError:
                return Emit(Line("late"), "late")

    for source, last in ((Queue(), []), (Stubborn(), ["fail late: stopped"])):
        spout = opened(source)
        spout.next()
        assert source.asked.wait(HANG_S)
        spout.ack("x")
        spout.deactivate()
        spout.close()
        assert source.story == ["open", "next", "ack x", "deactivate", *last, "close"]


def test_what_was_given_but_not_taken_is_given_back(opened: Any) -> None:
    source = Queue()
    spout = opened(source)
    there = threading.Event()
    spout.on_given = there.set
    spout.next()
    source.put("a")
    assert there.wait(HANG_S)
    spout.close()
    assert source.story == ["open", "next", "fail a: stopped", "close"]


def test_it_is_closed_even_if_its_callbacks_fail(opened: Any) -> None:
    class Deaf(Queue):
        async def ack(self, message_id: MessageId) -> None:
            raise ConnectionError("not_told")

    source = Deaf()
    spout = opened(source)
    spout.ack("a")
    with pytest.raises(ConnectionError, match="not_told"):
        spout.close()
    assert source.story == ["open", "close"]
