"""Async bolts with state, collector and classes, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tupletree import (
    AsyncSpout,
    Bolt,
    Collector,
    Emit,
    EndOfInput,
    KeyedState,
    MapState,
    Resource,
    Sink,
    TaskContext,
    TaskState,
    Tick,
    Topology,
    bolt,
    testing,
)
from tupletree.sources import items
from tupletree.testing import TestRun
from tupletree.tracking.outcomes import Outcome


class Job(msgspec.Struct, frozen=True):
    key: str
    seconds: float = 0.0
    note: str = ""


class Done(msgspec.Struct, frozen=True):
    key: str
    count: int = 0


class Nowhere(Sink[Any]):
    def write(self, batch: object) -> None:
        raise AssertionError("the kit writes nowhere")


def run_jobs(body: Any, jobs: list[Any], *, keyed: bool = False, resources: Any = None, **options: Any) -> TestRun:
    t = Topology("jobs", options={"max_attempts": 1, **options})
    made = t.bolt("made", body, resources=resources or {})
    numbers = t.spout("jobs", items([], message_type=Job))
    _ = made.fields(numbers, "key") if keyed else made.shuffle(numbers)
    t.sink("out", Nowhere()).shuffle(made)
    return testing.run(t, {"jobs": jobs})


def errors_of(run: TestRun) -> list[str]:
    return [one.failure.error_type for one in run.messages["jobs"] if one.failure is not None]


def test_calls_of_one_key_come_one_after_the_other_in_order_and_those_of_others_beside_them() -> None:
    story: list[str] = []

    @bolt(concurrency=10, state=int)
    async def count(job: Job, total: KeyedState[int]) -> Done:
        story.append(f"{job.key}{job.note} begins")
        before = total.value
        await asyncio.sleep(job.seconds)
        assert total.value == before
        total.value = before + 1
        assert total.key == job.key
        story.append(f"{job.key}{job.note} ends")
        return Done(job.key, total.value)

    jobs = [Job("a", 3.0, "1"), Job("a", 1.0, "2"), Job("b", 0.5, "1"), Job("a", 0.1, "3"), Job("b", 0.5, "2")]
    run = run_jobs(count, jobs, keyed=True)
    assert [one for one in story if one.startswith("a")] == [
        "a1 begins", "a1 ends", "a2 begins", "a2 ends", "a3 begins", "a3 ends",
    ]  # fmt: skip
    assert story.index("b2 ends") < story.index("a1 ends")
    assert sorted((one.key, one.count) for one in run.outputs["out"]) == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 1),
        ("b", 2),
    ]
    assert run.seconds == pytest.approx(4.1)


def test_a_call_that_fails_leaves_no_trace_in_state_that_is_changed_in_place() -> None:
    @bolt(concurrency=3, state=list)
    async def gather(job: Job, seen: KeyedState[list[str]]) -> Done:
        seen.value.append(job.note)
        await asyncio.sleep(1.0)
        if job.note == "bad":
            raise ValueError(job.note)
        if job.note == "clear":
            seen.clear()
        return Done(job.key, len(seen.value))

    jobs = [Job("a", note=note) for note in ("x", "bad", "y", "clear", "z")]
    run = run_jobs(gather, jobs, keyed=True)
    assert [one.count for one in run.outputs["out"]] == [1, 2, 0, 1]


def test_a_key_or_a_first_value_that_cannot_be_made_fails_its_tuple_and_holds_up_no_other() -> None:
    made: list[int] = []

    def once_bad() -> int:
        made.append(1)
        if len(made) == 2:
            raise OSError("no first value")
        return 0

    @bolt(state=once_bad)
    async def count(job: Job, total: KeyedState[int]) -> Done:
        total.value += 1
        return Done(job.key, total.value)

    run = run_jobs(count, [Job("a"), Job("b"), Job("b"), Job("a")], keyed=True)
    assert errors_of(run) == ["OSError"]
    assert sorted((one.key, one.count) for one in run.outputs["out"]) == [("a", 1), ("a", 2), ("b", 1)]


class Aggregate(Bolt[Job]):
    """Holds tuples, and lets the third of three settle all of them."""

    auto_ack = False
    concurrency = 3

    async def open(self, context: TaskContext) -> None:
        await asyncio.sleep(1.0)
        self.context = context
        self.held: list[Job] = []
        self.closed: list[str] = []

    async def process(self, value: Job, collector: Collector[Done]) -> None:
        assert self.context.attempt == 1
        self.held.append(value)
        if len(self.held) == 3:
            held, self.held = self.held, []
            await asyncio.sleep(value.seconds)
            collector.emit(Done("+".join(one.key for one in held), len(held)), anchors=held)
            for one in held:
                collector.ack(one)


def test_an_async_class_bolt_holds_tuples_and_settles_them_in_a_later_call() -> None:
    run = run_jobs(Aggregate, [Job(key, 2.0) for key in "abcdef"])
    assert {one.key for one in run.outputs["out"]} == {"a+b+c", "d+e+f"}
    assert all(message.acked for message in run.messages["jobs"])
    assert run.seconds == pytest.approx(3.0)  # it opens, then both threes sleep side by side


class Answering(Bolt[Job]):
    """Has no collector: what it gives back is what it emits."""

    concurrency = 2

    async def process(self, value: Job) -> list[Done]:
        await asyncio.sleep(value.seconds)
        return [Done(value.key, one) for one in (1, 2)]


def test_an_async_class_bolt_without_a_collector_emits_what_it_gives_back() -> None:
    run = run_jobs(Answering, [Job(key, 1.0) for key in "abcd"])
    assert [(one.key, one.count) for one in run.outputs["out"]] == [(key, one) for key in "abcd" for one in (1, 2)]
    assert all(message.acked for message in run.messages["jobs"])
    assert run.seconds == pytest.approx(2.0)


def test_what_a_call_emitted_for_its_own_tuple_is_taken_back_when_it_raises_and_comes_in_order_when_not() -> None:
    @bolt(concurrency=2)
    async def both(job: Job, collector: Collector[Done]) -> AsyncIterator[Done]:
        collector.emit(Done(job.key, 1))
        yield Done(job.key, 2)
        await asyncio.sleep(1.0)
        collector.emit(Done(job.key, 3))
        if job.key == "b":
            raise ValueError("too late")

    run = run_jobs(both, [Job("a"), Job("b")])
    assert [(one.key, one.count) for one in run.outputs["out"]] == [("a", 1), ("a", 2), ("a", 3)]
    assert errors_of(run) == ["ValueError"]


def test_the_first_verdict_wins_and_an_emit_after_it_is_an_error_where_it_stands() -> None:
    caught: list[str] = []

    @bolt
    async def hasty(job: Job, collector: Collector[Done]) -> None:
        collector.ack(job)
        await asyncio.sleep(1.0)
        try:
            collector.emit(Done(job.key))
        except Exception as error:  # noqa: BLE001 - which one is asked below
            caught.append(type(error).__name__)
        collector.fail(job, "too late")
        try:
            collector.emit(job)  # type: ignore[arg-type]  # the mistake
        except Exception as error:  # noqa: BLE001 - which one is asked below
            caught.append(type(error).__name__)

    run = run_jobs(hasty, [Job("a")])
    assert run.messages["jobs"][0].acked
    assert caught == ["TupleSettledError", "PermanentError"]


def test_a_collector_and_state_are_of_no_use_when_their_call_is_over() -> None:
    late: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    @bolt(state=int)
    async def leaky(job: Job, total: KeyedState[int], collector: Collector[Done]) -> None:
        async def later() -> None:
            await asyncio.sleep(5.0)
            for use in (lambda: collector.ack(job), lambda: collector.emit(Done("late")), lambda: total.value):
                try:
                    use()
                except Exception as error:  # noqa: BLE001 - which one is asked below
                    late.append(type(error).__name__)

        tasks.append(asyncio.ensure_future(later()))
        await asyncio.gather(*(asyncio.to_thread(collector.emit, Done(job.key, n)) for n in range(3)))

    run = run_jobs(leaky, [Job("a")], keyed=True)
    assert run.messages["jobs"][0].acked
    assert sorted(one.count for one in run.outputs["out"]) == [0, 1, 2]
    assert late == ["ProcessingError"] * 3


def test_a_timeout_that_a_call_resets_starts_anew_while_the_call_goes_on() -> None:
    @bolt(concurrency=2)
    async def long(job: Job, collector: Collector[Done]) -> Done:
        for _ in range(5):
            await asyncio.sleep(20.0)
            if job.note == "resets":
                collector.reset_timeout(job)
        return Done(job.key)

    run = run_jobs(long, [Job("a", note="resets"), Job("b")])
    assert [one.acked for one in run.messages["jobs"]] == [True, False]
    assert [one.key for one in run.outputs["out"]] == ["a"]


RAISED = [asyncio.CancelledError, StopIteration, StopAsyncIteration, SystemExit, GeneratorExit, TimeoutError]


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("way", ["call", "generator", "class", "child task"])
def test_whatever_a_call_raises_fails_its_own_tuple(error: type[BaseException], way: str) -> None:
    @bolt(concurrency=3)
    async def called(job: Job) -> Done:
        await asyncio.sleep(1.0)
        if job.key == "bad":
            raise error
        return Done(job.key)

    @bolt(concurrency=3)
    async def generated(job: Job) -> AsyncIterator[Done]:
        await asyncio.sleep(1.0)
        yield Done(job.key)
        if job.key == "bad":
            raise error

    class Classy(Bolt[Job]):
        concurrency = 3

        async def process(self, value: Job, collector: Collector[Done]) -> Done:
            return await called(value)

    async def raising() -> None:
        raise error

    @bolt(concurrency=3)
    async def parent(job: Job) -> Done:
        if job.key == "bad":
            await asyncio.ensure_future(raising())
        return Done(job.key)

    body: Any = {"call": called, "generator": generated, "class": Classy, "child task": parent}[way]
    run = run_jobs(body, [Job("a"), Job("bad"), Job("c")])
    assert [one.outcome for one in run.messages["jobs"]] == [Outcome.ACKED, Outcome.DEAD, Outcome.ACKED]
    assert sorted(one.key for one in run.outputs["out"]) == ["a", "c"]


def test_a_hundred_calls_that_end_in_random_order_complete_each_tuple_once() -> None:
    chance = random.Random(7)

    @bolt(concurrency=100)
    async def pieces(job: Job) -> AsyncIterator[Done]:
        for number in range(3):
            await asyncio.sleep(job.seconds)
            yield Done(job.key, number)

    run = run_jobs(pieces, [Job(str(n), chance.random()) for n in range(100)])
    assert all(one.acked for one in run.messages["jobs"])
    assert len(run.outputs["out"]) == len({(one.key, one.count) for one in run.outputs["out"]}) == 300
    assert run.seconds < 3.1


def test_an_async_bolt_that_cannot_be_opened_fails_what_waits_and_is_tried_again() -> None:
    opened: list[str] = []

    class Fussy(Bolt[Job]):
        async def open(self, context: TaskContext) -> None:
            await asyncio.sleep(1.0)
            opened.append("no" if not opened else "yes")
            if opened[-1] == "no":
                raise ConnectionError("not yet")

        async def close(self) -> None:
            opened.append("closed")

        async def process(self, value: Job, collector: Collector[Done]) -> Done:
            return Done(value.key)

    run = run_jobs(Fussy, [Job("a"), Job("b")], max_attempts=3, max_spout_pending=128)
    assert all(one.acked and one.attempts == 2 for one in run.messages["jobs"])
    assert opened == ["no", "closed", "yes", "closed"]
    assert any("cannot be opened" in note for note in run.notes)


def test_ticks_take_their_turn_before_the_tuples_that_wait() -> None:
    story: list[str] = []

    class Ticking(Bolt[Job]):
        tick_interval_s = 10.0

        async def process(self, value: Job, collector: Collector[Done]) -> None:
            story.append(f"{value.key} begins")
            await asyncio.sleep(value.seconds)
            story.append(f"{value.key} ends")

        async def tick(self, collector: Collector[Done]) -> None:
            story.append("tick")
            collector.emit(Done("tick"))

    run = run_jobs(Ticking, [Job("a", 25.0), Job("b", 10.0)], message_timeout_s=60.0)
    assert story[:4] == ["a begins", "a ends", "tick", "b begins"]
    assert Done("tick") in run.outputs["out"]


def test_an_async_function_gets_ticks_among_its_tuples_and_resources_and_context_by_name() -> None:
    story: list[Any] = []

    @bolt(tick_interval_s=2.0, state=int)
    async def f(value: Job | Tick, total: KeyedState[int], names: Resource[list[str]], context: TaskContext) -> None:
        if isinstance(value, Tick):
            story.append(("tick", total.key, context.attempt))
        else:
            await asyncio.sleep(3.0)
            total.value += 1
            story.append((value.key, total.value, names, context.attempt))

    t = Topology("ticks")
    t.bolt("f", f, resources={"names": ["n"]}).fields(t.spout("jobs", items([], message_type=Job)), "key")
    run = testing.run(t, {"jobs": [Emit(Job("a"), "first")]}, at_least_s=6.5)
    assert run.messages["jobs"][0].acked
    assert story == [("a", 1, ["n"], 1), *[("tick", None, 1)] * 3]


def test_a_tick_whose_state_cannot_be_made_does_not_end_the_ticks() -> None:
    made: list[str] = []
    ticks: list[int] = []

    def first_value() -> int:
        made.append("asked")
        if len(made) == 1:
            raise ValueError("not yet")
        return 0

    @bolt(tick_interval_s=2.0, state=first_value)
    async def f(value: Job | Tick, total: TaskState[int]) -> None:
        if isinstance(value, Tick):
            total.value += 1
            ticks.append(total.value)

    t = Topology("ticks")
    t.bolt("f", f).shuffle(t.spout("jobs", items([], message_type=Job)))
    testing.run(t, {"jobs": []}, at_least_s=8.5)
    assert ticks == [1, 2, 3]


@pytest.mark.parametrize("seconds", [0.0, 15.0], ids=["a short call", "a call that outlives its key"])
def test_state_expires_some_time_after_the_call_that_changed_it_last(seconds: float) -> None:
    seen: list[tuple[str, list[str]]] = []

    @bolt(concurrency=5, ttl_s=10.0)
    async def remember(job: Job, notes: MapState[str, int]) -> None:
        await asyncio.sleep(job.seconds)
        if job.note:
            notes[job.note] = 1
        seen.append((job.key, sorted(notes)))

    class Paced(AsyncSpout[Job]):
        at = 0

        async def next(self) -> Emit[Job]:
            """A note, a look 5 s after the call, and looks when it has expired, at this key and another."""
            steps = [
                (0.0, Job("a", seconds, "x")), (seconds + 5.0, Job("a")), (3.0, Job("b", 0.0, "y")), (3.0, Job("a")),
                (20.0, Job("b")),
            ]  # fmt: skip
            if self.at == len(steps):
                raise EndOfInput
            pause_s, job = steps[self.at]
            self.at += 1
            await asyncio.sleep(pause_s)
            return Emit(job, self.at)

    t = Topology("expiring")
    t.bolt("remember", remember).fields(t.spout("jobs", Paced()), "key")
    testing.run(t)
    assert seen == [("a", ["x"]), ("a", ["x"]), ("b", ["y"]), ("a", []), ("b", [])]


def test_calls_that_end_together_and_emit_much_all_count_and_one_that_fails_takes_nothing_with_it() -> None:
    @bolt(concurrency=20)
    async def many(job: Job) -> AsyncIterator[Done]:
        await asyncio.sleep(1.0)
        for number in range(100):
            yield Done(job.key, number)
        if job.note == "bad":
            raise ValueError(job.key)

    run = run_jobs(many, [Job(f"{one}", note="bad" if one == 7 else "") for one in range(20)])
    counted = sorted((one.key, one.count) for one in run.outputs["out"])
    assert counted == sorted((f"{one}", number) for one in range(20) if one != 7 for number in range(100))
    assert errors_of(run) == ["ValueError"]
    assert run.seconds == pytest.approx(1.0)
