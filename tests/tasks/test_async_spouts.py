"""Async spouts on virtual time: what they are asked and told, in which order."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from tests.places import Place
from tupletree import AsyncSpout, Emit, EndOfInput, Failure, Reject, Spout, Topology, bolt, testing
from tupletree.errors import ConnectorError, TopologyError, UnavailableAtStartError
from tupletree.ids import MessageId
from tupletree.tasks.async_spout import _Acks, _SpoutCalls
from tupletree.testing import TestRun


class Job(msgspec.Struct, frozen=True):
    name: str


def jobs(*names: str) -> list[Emit[Job]]:
    return [Emit(Job(name), name) for name in names]


Step = float | Exception | Emit[Job] | Reject | Sequence[Emit[Job] | Reject] | None


class Source(AsyncSpout[Job]):
    """Does as it is told, and says what it goes through: waits (numbers), raises, gives."""

    def __init__(self, steps: Iterable[Step] = (), slow_s: Callable[[str], float] = lambda _: 0.0) -> None:
        self.steps = deque(steps)
        self.story: list[str] = []
        self.slow_s = slow_s
        self.asked = 0

    async def _pass(self, what: str) -> None:
        self.story.append(what)
        if self.slow_s(what):
            await asyncio.sleep(self.slow_s(what))
            self.story.append(f"{what}.")

    async def open(self, context: object) -> None:
        await self._pass("open")

    async def next(self) -> Emit[Job] | Reject | Sequence[Emit[Job] | Reject] | None:
        self.asked += 1
        assert self.asked == 1, "two calls of `next` at a time"
        try:
            if self.steps and isinstance(self.steps[0], float):
                seconds = self.steps.popleft()
                assert isinstance(seconds, float)
                await asyncio.sleep(seconds)
            if not self.steps:
                raise EndOfInput
            step = self.steps.popleft()
            if isinstance(step, BaseException):
                raise step
            assert not isinstance(step, float)
            return step
        finally:
            self.asked -= 1

    async def ack(self, message_id: MessageId) -> None:
        await self._pass(f"ack {message_id!s}")

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        await self._pass(f"fail {message_id!s}")

    async def activate(self) -> None:
        await self._pass("activate")

    def deactivate(self) -> None:
        self.story.append("deactivate")

    async def close(self) -> None:
        await self._pass("close")


@bolt
def work(job: Job) -> None:
    if job.name.startswith("bad"):
        raise ValueError(job.name)


def run_source(source: Any, *, replay: Any = "runtime", **options: Any) -> TestRun:
    t = Topology("sourced", options={"max_attempts": 1, **options})
    t.bolt("work", work).shuffle(t.spout("jobs", source, replay=replay))
    return testing.run(t)


def test_a_source_waits_and_is_told_of_everything_before_it_is_closed() -> None:
    source = Source([5.0, jobs("a"), 2.0, jobs("b", "bad")])
    run = run_source(source)
    assert run.seconds == pytest.approx(7.0)
    assert source.story[:3] == ["open", "activate", "ack a"]
    assert sorted(source.story[3:5]) == ["ack b", "fail bad"]
    assert source.story[5:] == ["deactivate", "close"]


def test_callbacks_are_awaited_one_after_the_other_beside_next_and_before_close() -> None:
    source = Source([jobs("a", "b", "c"), 1.0, jobs("d")], slow_s=lambda what: 2.0 if what.startswith("ack") else 0.0)
    run = run_source(source)
    told = source.story[2:]
    assert told == [
        "ack a", "ack a.", "ack b", "ack b.", "ack c", "ack c.", "ack d", "ack d.", "deactivate", "close",
    ]  # fmt: skip
    assert run.seconds == pytest.approx(8.0)


def test_nothing_is_asked_for_before_it_is_open() -> None:
    source = Source([jobs("a")], slow_s=lambda what: {"open": 3.0, "activate": 1.0}.get(what, 0.0))
    run_source(source)
    assert source.story[:5] == ["open", "open.", "activate", "activate.", "ack a"]


def test_nothing_to_give_asks_to_be_asked_after_the_idle_wait() -> None:
    source = Source([None, None, [], jobs("a")])  # after the first one it is asked at once
    run = run_source(source, spout_idle_wait_ms=200.0)
    assert run.seconds == pytest.approx(0.4, abs=0.05)
    assert "ack a" in source.story


@pytest.mark.parametrize("awaits", [False, True])
def test_acks_that_come_together_go_on_after_an_outage_with_the_one_that_met_it(awaits: bool) -> None:
    class Away(Source):
        def ack(self, message_id: MessageId) -> Awaitable[None] | None:  # type: ignore[override]  # `Source` has it async
            self.story.append(f"ack {message_id!s}")
            if message_id == "b" and self.story.count("ack b") < 3:
                raise ConnectorError("the broker is away", where="broker:1")
            return asyncio.sleep(1.0) if awaits else None

    source = Away([jobs("a", "b", "c")])
    run_source(source, max_spout_pending=10)
    assert source.story[2:] == ["ack a", "ack b", "ack b", "ack b", "ack c", "deactivate", "close"]


@pytest.mark.parametrize("waits_s", [0.0, 59.0, 61.0])
def test_a_source_that_has_waited_for_its_first_message_is_no_longer_at_the_start(waits_s: float) -> None:
    source = Source([waits_s, ConnectorError("the broker is away", where="broker:1"), jobs("a")])
    if waits_s < 60.0:
        with pytest.raises(UnavailableAtStartError):
            run_source(source)
    else:
        run_source(source)
        assert "ack a" in source.story


class Requeue(Source):
    """Gives again what failed, once, and takes its time to do so."""

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        await asyncio.sleep(3.0)
        await super().fail(message_id, failure)
        if not failure.permanent:
            self.steps.append(Emit(Job("good"), message_id))


@pytest.mark.parametrize("at_first", [0.0, 1.0, 10.0])
def test_a_source_that_hears_fail_is_asked_again_although_it_had_ended(at_first: float) -> None:
    """Whether the end was said before the failure, or by a `next` that was out when it came."""
    source = Requeue([jobs("bad"), at_first])
    run = run_source(source, replay="source", max_attempts=3)
    assert source.story.count("fail bad") == 1
    assert "ack bad" in source.story
    assert run.seconds >= 3.0


def test_messages_that_cannot_be_read_and_untracked_ones_go_the_usual_way() -> None:
    source = Source([[Reject(b"?", "r", "garbage"), Emit(Job("u"), None), Emit(Job("a"), "a")]])
    run_source(source)
    assert sorted(source.story[2:4]) == ["ack a", "fail r"]


RAISED = [ValueError("v"), asyncio.CancelledError(), StopIteration(), SystemExit(2), GeneratorExit(), TimeoutError()]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["open", "activate", "next", "ack", "fail"])
def test_whatever_a_source_raises_brings_the_topology_down_and_closes_it(error: BaseException, place: str) -> None:
    class Broken(Source):
        async def _pass(self, what: str) -> None:
            await super()._pass(what)
            if what.startswith(place):
                raise error

        async def next(self) -> Any:
            if place == "next":
                raise error
            return await super().next()

    source = Broken([jobs("a", "bad")])
    with pytest.raises((ConnectorError, type(error), RuntimeError) if isinstance(error, Exception) else ConnectorError):
        run_source(source)
    assert source.story[-1] == "close"
    assert ("deactivate" in source.story) is (place != "open")


def test_a_position_is_that_behind_the_messages_that_were_given() -> None:
    class Positioned(Source):
        async def next(self) -> Any:
            given = await super().next()
            self.story.append("given")
            return given

        def snapshot(self) -> Any:
            self.story.append("snapshot")
            return len(self.steps)

    source = Positioned([jobs("a"), jobs("b")])
    run_source(source)
    asked = [one for one in source.story if one in {"given", "snapshot"}]
    assert asked == ["given", "snapshot"] * 2


def test_the_wrong_kind_of_next_is_a_fault_when_the_topology_is_built() -> None:
    class PlainInAsync(AsyncSpout[Job]):
        def next(self) -> Any:
            """Not async."""

    class AsyncInPlain(Spout[Job]):
        async def next(self) -> Any:  # type: ignore[override]  # the fault
            """Async."""

    class Nothing(AsyncSpout[Job]):
        pass

    faults: dict[Any, str] = {
        PlainInAsync: "`next` of an AsyncSpout is async",
        AsyncInPlain: "`next` of a Spout is plain",
    }
    for cls, fault in faults.items():
        t = Topology("wrong")
        t.bolt("work", work).shuffle(t.spout("jobs", cls()))
        with pytest.raises(TopologyError) as caught:
            t.build()
        assert [one.what for one in caught.value.findings] == [fault]
    t = Topology("wrong")
    t.spout("jobs", Nothing())  # type: ignore[abstract]  # the fault
    with pytest.raises(TopologyError, match="no `next`"):
        t.build()


def test_a_run_that_is_cut_short_fails_what_is_open_to_its_source_and_closes_it() -> None:
    @bolt(auto_ack=False)
    def keep(job: Job) -> None:
        """Never say what became of it."""

    source = Source([jobs("a"), 1000.0])
    t = Topology("kept", options={"message_timeout_s": None})
    t.bolt("keep", keep).shuffle(t.spout("jobs", source))
    testing.run(t, at_most_s=10.0)
    assert source.story[2:] == ["fail a", "deactivate", "close"]


def test_messages_of_a_test_take_the_place_of_a_source_that_waits() -> None:
    t = Topology("replaced")
    t.bolt("work", work).shuffle(t.spout("jobs", Source([1000.0])))
    run = testing.run(t, {"jobs": [Job("a"), Job("bad")]}, options={"max_attempts": 1})
    assert [one.acked for one in run.messages["jobs"]] == [True, False]
    assert run.seconds == 0.0


def test_a_fresh_source_can_be_tested_by_hand() -> None:
    source = Source([jobs("a")])

    async def use() -> Any:
        await source.open(Place())
        return await source.next()

    assert asyncio.run(use()) == jobs("a")


class Acked(AsyncSpout[Job]):
    """Calls something at each ack."""

    def __init__(self, at_ack: Callable[[], object]) -> None:
        self.at_ack = at_ack
        self.acked: list[MessageId] = []

    async def next(self) -> None:
        raise AssertionError("it is not asked")

    def ack(self, message_id: MessageId) -> None:
        self.acked.append(message_id)
        self.at_ack()


def test_acks_that_were_handed_to_another_spout_are_not_told_to_this_one() -> None:
    handed: list[tuple[MessageId, Failure | None]] = []
    spout = Acked(lambda: handed.extend(calls.give_back()))
    calls = _SpoutCalls(spout, "jobs")
    calls.ack_all(["a", "b", "c"])
    asyncio.run(calls.run_due())
    assert spout.acked == ["a"]
    assert handed == [("a", None), ("b", None), ("c", None)]  # "a" had not returned
    assert [one.message_ids for one in calls.due if isinstance(one, _Acks)] == [deque("bc")]


def test_acks_can_be_handed_over_while_they_are_told() -> None:
    count = 200_000
    began = threading.Event()
    spout = Acked(began.set)
    calls = _SpoutCalls(spout, "jobs")
    calls.ack_all(range(count))
    telling = threading.Thread(target=lambda: asyncio.run(calls.run_due()))
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        telling.start()
        assert began.wait(60)
        handed = calls.give_back()
        telling.join(60)
    finally:
        sys.setswitchinterval(interval_s)
    assert count <= len(handed) + len(spout.acked) <= count + 1
    assert {*spout.acked, *(message_id for message_id, _ in handed)} == {*range(count)}
