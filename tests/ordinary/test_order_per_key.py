"""O8: with `fields(…, ordered=True)` what comes later for a key waits for what is tried again before it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from tupletree import (
    Collector,
    Emit,
    PermanentError,
    Retry,
    Spout,
    TaskContext,
    Topology,
    Window,
    bolt,
    testing,
    window_bolt,
)
from tupletree.bolts.effects import Worked
from tupletree.bolts.failures import FailureMaker
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.errors import EndOfInput, TopologyError
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan
from tupletree.sinks import foreach, jsonl
from tupletree.sources import items
from tupletree.state.keys import ordered_keys
from tupletree.tasks.in_order import OrderedInput
from tupletree.tasks.upstream.in_order import OrderedInputs
from tupletree.testing.simulator.faults import Faults
from tupletree.tracking.outcomes import Failure


class Event(msgspec.Struct, frozen=True):
    key: str
    number: int
    second_key: str = ""


class Part(msgspec.Struct, frozen=True):
    key: str
    number: int


class Gathered(msgspec.Struct, frozen=True):
    numbers: list[int]


class Tries:
    """Fails the first calls of some tuples, and notes the others."""

    def __init__(self, fails: Mapping[int, int]) -> None:
        self.left = dict(fails)
        self.worked: dict[str, list[int]] = defaultdict(list)  # by key
        self.calls = 0

    def call(self, key: str, number: int) -> None:
        self.calls += 1
        if self.left.get(number, 0) > 0:
            self.left[number] -= 1
            raise ValueError(f"{number} is to fail")
        if number not in self.worked[key]:
            self.worked[key].append(number)


EVENTS = [Event("ab"[number % 2], number) for number in range(12)]


def in_order(tries: Tries) -> bool:
    return all(numbers == sorted(numbers) for numbers in tries.worked.values())


def ordered(tries: Tries, *, is_async: bool = False, **settings: Any) -> Topology:
    """source → work, ordered → sink."""

    @bolt
    def work(event: Event) -> Event:
        tries.call(event.key, event.number)
        return event

    @bolt(concurrency=10)
    async def work_slowly(event: Event) -> Event:
        await asyncio.sleep(0.01 * (1 + event.number * 7 % 5))
        tries.call(event.key, event.number)
        return event

    t = Topology("ordered")
    events = t.spout("events", items(EVENTS))
    worked = t.bolt("work", work_slowly if is_async else work, parallelism=2, **settings)
    t.sink("out", jsonl("never")).shuffle(worked.fields(events, "key", ordered=True))
    return t


@pytest.mark.parametrize("is_async", [False, True])
def test_what_comes_later_for_a_key_waits_for_what_is_tried_again(is_async: bool) -> None:
    tries = Tries({0: 2, 5: 1})
    run = testing.run(ordered(tries, is_async=is_async), {"events": EVENTS})
    assert all(message.acked for message in run.messages["events"])
    assert tries.worked == {"a": [0, 2, 4, 6, 8, 10], "b": [1, 3, 5, 7, 9, 11]}
    attempts = [message.attempts for message in run.messages["events"]]
    assert attempts == [3, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1]  # waiting counts no attempt


def test_without_it_what_is_tried_again_comes_later() -> None:
    tries = Tries({0: 1})

    @bolt
    def work(event: Event) -> None:
        tries.call(event.key, event.number)

    t = Topology("plain")
    t.bolt("work", work).fields(t.spout("events", items(EVENTS)), "key")
    testing.run(t, {"events": EVENTS})
    assert tries.worked["a"] == [2, 4, 6, 8, 10, 0]


def test_a_key_that_waits_does_not_hold_other_keys_and_a_dead_message_releases_its_key() -> None:
    tries = Tries({0: 99})
    order: list[int] = []

    @bolt
    def work(event: Event) -> None:
        tries.call(event.key, event.number)
        order.append(event.number)

    t = Topology("dead")
    t.bolt("work", work).fields(t.spout("events", items(EVENTS)), "key", ordered=True)
    run = testing.run(t, {"events": EVENTS})
    assert [message.dead for message in run.messages["events"]] == [True] + [False] * 11
    assert order == [1, 3, 5, 7, 9, 11, 2, 4, 6, 8, 10]


def test_a_permanent_error_holds_nothing_up() -> None:
    order: list[int] = []

    @bolt
    def work(event: Event) -> None:
        if event.number == 0:
            raise PermanentError("never")
        order.append(event.number)

    t = Topology("permanent")
    t.bolt("work", work).fields(t.spout("events", items(EVENTS)), "key", ordered=True)
    run = testing.run(t, {"events": EVENTS})
    assert run.seconds < 0.5
    assert sorted(order) == list(range(1, 12))


def test_a_message_that_fails_before_the_input_is_waited_for_too() -> None:
    tries, before = Tries({}), Tries({2: 1})

    @bolt
    def parse(event: Event) -> Event:
        before.call(event.key, event.number)
        return event

    @bolt
    def work(event: Event) -> None:
        tries.call(event.key, event.number)

    t = Topology("before")
    parsed = t.bolt("parse", parse, parallelism=3).shuffle(t.spout("events", items(EVENTS)))
    t.bolt("work", work, parallelism=2).fields(parsed, "key", ordered=True)
    run = testing.run(t, {"events": EVENTS})
    assert all(message.acked for message in run.messages["events"])
    assert in_order(tries)
    assert sum(map(len, tries.worked.values())) == 12


def test_a_limit_full_of_messages_that_wait_is_no_deadlock() -> None:
    tries = Tries({0: 3})
    t = ordered(tries)
    one_key = [Event("a", number) for number in range(50)]
    run = testing.run(t, {"events": one_key}, options={"max_spout_pending": 4})
    assert all(message.acked for message in run.messages["events"])
    assert tries.worked["a"] == list(range(50))


def test_waiting_behind_a_key_is_no_timeout() -> None:
    tries = Tries({0: 2})
    options = {"message_timeout_s": 5.0, "backoff_initial_ms": 20_000, "backoff_max_ms": 20_000}
    run = testing.run(ordered(tries), {"events": EVENTS}, options=options)
    assert [message.attempts for message in run.messages["events"]] == [3] + [1] * 11
    assert run.seconds > 30
    assert in_order(tries)


def test_what_failed_behind_an_ordered_input_is_not_waited_for_there() -> None:
    called: list[int] = []

    @bolt
    def one(event: Event) -> Event:
        called.append(event.number)
        return event

    @bolt
    def after(event: Event, context: TaskContext) -> None:
        if event.number == 0 and context.attempt == 1:
            raise ValueError("not yet")

    t = Topology("behind")
    passed = t.bolt("one", one).fields(t.spout("events", items(EVENTS)), "key", ordered=True)
    t.bolt("after", after, retry=Retry(backoff_s=60.0)).shuffle(passed)
    # At two in flight the later ones are emitted when the first has failed.
    events = [Event("a", number) for number in range(5)]
    run = testing.run(t, {"events": events}, options={"max_spout_pending": 2})
    assert [message.attempts for message in run.messages["events"]] == [2, 1, 1, 1, 1]
    assert called == [0, 1, 2, 3, 4, 0]


def test_two_ordered_inputs_one_after_the_other() -> None:
    first, second = Tries({3: 1, 4: 1}), Tries({0: 2, 7: 1})

    @bolt
    def one(event: Event) -> Event:
        first.call(event.key, event.number)
        return event

    @bolt
    def other(event: Event) -> None:
        second.call(event.key, event.number)

    t = Topology("two")
    passed = t.bolt("one", one, parallelism=2).fields(t.spout("events", items(EVENTS)), "key", ordered=True)
    t.bolt("other", other, parallelism=3).fields(passed, "key", ordered=True)
    run = testing.run(t, {"events": EVENTS})
    assert all(message.acked for message in run.messages["events"])
    assert in_order(first)
    assert in_order(second)


def test_a_message_with_tuples_of_two_keys_waits_for_both() -> None:
    tries = Tries({1: 2, 6: 1})
    events = [Event("abc"[number % 3], number, "bca"[number % 3]) for number in range(12)]

    @bolt
    def split(event: Event, out: Collector[Part]) -> None:
        out.emit(Part(event.key, event.number))
        out.emit(Part(event.second_key, event.number))

    @bolt
    def work(part: Part) -> None:
        tries.call(part.key, part.number)

    t = Topology("pairs")
    parts = t.bolt("split", split, parallelism=2).shuffle(t.spout("events", items(events)))
    t.bolt("work", work, parallelism=2).fields(parts, "key", ordered=True)
    run = testing.run(t, {"events": events})
    assert all(message.acked for message in run.messages["events"])
    assert in_order(tries)
    assert sum(map(len, tries.worked.values())) == 24


def test_windows_behind_it_are_no_deadlock() -> None:
    tries = Tries({1: 1})

    @bolt
    def work(event: Event) -> Event:
        tries.call(event.key, event.number)
        return event

    @window_bolt(count=4, per_key=True, extend_timeout=True)
    def gather(window: Window[Event]) -> Gathered:
        return Gathered([one.number for one in window])

    t = Topology("windows", options={"max_spout_pending": 9})
    worked = t.bolt("work", work).fields(t.spout("events", items(EVENTS)), "key", ordered=True)
    t.sink("out", jsonl("never")).shuffle(t.bolt("gather", gather).fields(worked, "key"))
    run = testing.run(t, {"events": EVENTS})
    assert all(message.acked for message in run.messages["events"])
    assert sorted(row.numbers for row in run.outputs["out"]) == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10], [9, 11]]


class GivesOthersFirst(Spout[Event]):
    """What failed comes again after all others."""

    def open(self, context: TaskContext) -> None:
        self.waiting = [Event("a", number) for number in range(40)]

    def next(self) -> Emit[Event]:
        if not self.waiting:
            raise EndOfInput
        return Emit(self.waiting[0], self.waiting.pop(0).number)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.waiting.append(Event("a", int(str(message_id))))


def test_a_source_that_cannot_give_a_message_again_holds_nothing_up_for_ever() -> None:
    tries = Tries({0: 1})

    @bolt
    def work(event: Event) -> None:
        tries.call(event.key, event.number)

    t = Topology("again", options={"max_spout_pending": 4})
    t.bolt("work", work).fields(t.spout("events", GivesOthersFirst(), replay="source"), "key", ordered=True)
    run = testing.run(t)
    assert all(message.acked for message in run.messages["events"])
    assert tries.worked["a"][:3] == [1, 2, 3]
    assert [number for number in tries.worked["a"] if number] == [*range(1, 40)]


def test_calls_of_an_async_bolt_go_on_side_by_side_one_at_a_time_for_each_key() -> None:
    under_way: set[str] = set()
    most = 0

    @bolt(concurrency=10)
    async def work(event: Event) -> None:
        nonlocal most
        assert event.key not in under_way
        under_way.add(event.key)
        most = max(most, len(under_way))
        await asyncio.sleep(1.0)
        under_way.discard(event.key)

    events = [Event("abcd"[number % 4], number) for number in range(12)]
    t = Topology("side-by-side")
    t.bolt("work", work).fields(t.spout("events", items(events)), "key", ordered=True)
    run = testing.run(t, {"events": events})
    assert most == 4
    assert run.seconds < 4.0
    assert [message.attempts for message in run.messages["events"]] == [1] * 12


def test_why_and_status_say_behind_which_key_a_message_waits() -> None:
    """On the machine: what waits behind key a, and what waits until what was emitted before it has come."""
    t = Topology("held")
    events = t.spout("events", items(EVENTS))

    @bolt
    def parse(event: Event) -> Event:
        return event

    @bolt
    def work(event: Event) -> None:
        raise ValueError(event.number)

    parsed = t.bolt("parse", parse).shuffle(events)
    t.bolt("work", work).fields(parsed, "key", ordered=True)
    plan = Plan.of(t.build(), Options())
    (task,) = plan.task_ids_of("work")
    (parse_task,) = plan.task_ids_of("parse")
    inputs = OrderedInputs.of(plan)
    assert inputs is not None
    inputs.register(9, lambda root: root, [])
    component = plan.spec.components["work"]
    in_order = OrderedInput("work", inputs, ordered_keys(plan.spec, component))

    def frame(target: int, source: str, numbers: list[int], edge: int) -> Frame:
        values = [EVENTS[number] for number in numbers]
        return Frame(target, source, "Event", values, [*numbers], [*range(1, len(numbers) + 1)], edge)

    coming, first = frame(parse_task, "events", [7], 1), frame(task, "parse", [2, 4, 5, 9], 2)
    inputs.sent([coming, first])
    inputs.launched(9, [2, 4, 5, 7, 9], [2, 4, 5, 7, 9])
    in_order.add(first)
    assert (now := in_order.next_frame(10)) is not None
    assert now.roots == [2, 4, 5]
    worked = Worked()
    maker = FailureMaker("work", task)
    maker.behind = in_order.behind
    maker.blame(worked, 2, EVENTS[2], ValueError("no"))
    worked.done.append((2, [5]))
    in_order.take_back(worked)
    in_order.settle(worked)
    assert worked.failures.keys() == {2}
    assert in_order.next_frame(10) is None
    assert [str(one) for one in in_order.holds(4)] == ["waiting for a call of work, behind key a"]
    assert [str(one) for one in in_order.holds(9)] == [
        "waiting for a call of work, until what its source emitted before has come there"
    ]
    assert [one.counted() for one in in_order.held_now()] == [
        "1 tuple waiting for a call of work, each behind its key",
        "1 tuple waiting for a call of work, until what was emitted before has come there",
    ]
    inputs.ended(9, [2])
    in_order.purge([2])
    assert (released := in_order.next_frame(10)) is not None
    assert released.roots == [4]


def test_the_longer_nothing_comes_the_rarer_it_is_looked_for() -> None:
    t = Topology("looks")

    @bolt
    def work(event: Event) -> None:
        pass

    t.bolt("work", work).fields(t.spout("events", items(EVENTS)), "key", ordered=True)
    plan = Plan.of(t.build(), Options())
    (task,) = plan.task_ids_of("work")
    inputs = OrderedInputs.of(plan)
    assert inputs is not None
    inputs.register(9, lambda root: root, [1])
    in_order = OrderedInput("work", inputs, ordered_keys(plan.spec, plan.spec.components["work"]))

    now_s = 100.0

    def looks(seconds: float) -> int:
        nonlocal now_s
        end_s, count = now_s + seconds, 0
        while now_s < end_s:
            in_order.look(now_s)
            now_s += in_order.look_in_s
            count += 1
        return count

    in_order.add(Frame(task, "events", "Event", [EVENTS[2]], [2], [1], 7))
    assert in_order.next_frame(1) is None, "message 1 is to be tried again"
    assert in_order.look_in_s == 0.002
    assert looks(30.0) < 400
    assert in_order.look_in_s == 0.1
    in_order.add(Frame(task, "events", "Event", [EVENTS[3]], [3], [1], 8))
    assert in_order.look_in_s == 0.002


def faulty(make: Callable[[Tries], Topology], seed: int, faults: Faults | None = None) -> Tries:
    random = Random(seed)
    tries = Tries({number: random.choice((0, 0, 0, 1, 2)) for number in range(30)})
    events = [Event("abcd"[random.randrange(4)], number) for number in range(30)]
    result = testing.simulate(lambda: make(tries), {"events": events}, seed=seed, faults=faults)
    acked = {
        *result.acked.get("events", ())
    }  # a call that nobody waits for any more may still end, after the message's death
    tries.worked = {key: [number for number in done if number in acked] for key, done in tries.worked.items()}
    return tries


def two_steps(tries: Tries, *, is_async: bool) -> Topology:
    @bolt
    def parse(event: Event) -> Event:
        return event

    @bolt
    def work(event: Event) -> Part:
        tries.call(event.key, event.number)
        return Part(event.key, event.number)

    @bolt(concurrency=4)
    async def work_slowly(event: Event) -> Part:
        await asyncio.sleep(0.01 * (event.number % 3))
        tries.call(event.key, event.number)
        return Part(event.key, event.number)

    t = Topology("random")
    parsed = t.bolt("parse", parse, parallelism=2).shuffle(t.spout("events", items(EVENTS)))
    worked = t.bolt("work", work_slowly if is_async else work, parallelism=2).fields(parsed, "key", ordered=True)
    t.sink("out", foreach(lambda _: None)).shuffle(worked)
    return t


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_order_holds_under_faults(seed: int, is_async: bool) -> None:
    """Everything arrives in any order, is lost, repeated and late; tasks die; messages fail."""
    tries = faulty(lambda tries: two_steps(tries, is_async=is_async), seed, replace(Faults(), crash=0.0))
    assert in_order(tries), tries.worked


def test_what_stands_in_its_way_is_said_before_the_run() -> None:
    @window_bolt(count=2)
    def pair(window: Window[Event]) -> Event:
        return next(iter(window))

    @bolt
    def work(event: Event) -> None: ...

    t = Topology("no")
    events = t.spout("events", items(EVENTS))
    pairs = t.bolt("pair", pair).fields(events, "key", ordered=True)
    t.bolt("work", work).fields(pairs, "key", ordered=True)
    t.sink("out", jsonl("never")).fields(pairs, "key", ordered=True)
    with pytest.raises(TopologyError) as raised:
        t.build()
    text = str(raised.value)
    assert "has no call for each tuple" in text
    assert "bolt 'pair' before it keeps tuples beyond a call" in text
    assert "made=True" in text
