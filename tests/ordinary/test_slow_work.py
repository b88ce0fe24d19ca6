"""Slow calls: messages do not die of waiting for each other, and nobody's verdict waits for other calls."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.running import HANG_S, begin, run
from tests.tasks.timed import Timed, with_pending
from tests.until import until
from tupletree import Collector, Emit, EndOfInput, Spout, TaskContext, Topology, bolt
from tupletree.config import Options
from tupletree.tasks.pending_limit import HIGHEST
from tupletree.tracking.outcomes import Failure


class Job(msgspec.Struct, frozen=True):
    number: int
    seconds: float = 0.0


class Done(msgspec.Struct, frozen=True):
    number: int


@dataclass
class Jobs(Spout[Job]):
    """Gives jobs one by one, and notes when it heard of each."""

    seconds: list[float]
    acked: dict[int, float] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)
    given: int = 0

    def next(self) -> Emit[Job]:
        if self.given == len(self.seconds):
            raise EndOfInput
        self.given += 1
        return Emit(Job(self.given - 1, self.seconds[self.given - 1]), self.given - 1)

    def ack(self, message_id: Any) -> None:
        self.acked[message_id] = time.monotonic()

    def fail(self, message_id: Any, failure: Failure) -> None:
        self.failed.append((message_id, failure.kind.value))


@bolt
def work(job: Job) -> None:
    """Takes the time that the job says: in `Timed`, virtual time."""


@bolt(blocking=True)
def apart(job: Job) -> None:
    """As `work`, with a thread for each task."""


@bolt
def sleeps(job: Job) -> None:
    time.sleep(job.seconds)  # a call that takes as long by real time: threads are what is tested


@bolt(blocking=True)
def blocks(job: Job) -> None:
    time.sleep(job.seconds)  # as in `sleeps`


def topology_of(jobs: Jobs, slow: Any = work, parallelism: int = 1) -> Topology:
    topology = Topology("slow")
    topology.bolt("slow", slow, parallelism=parallelism).shuffle(topology.spout("jobs", jobs))
    return topology


def job_seconds(_: str, job: Job) -> float:
    return job.seconds


# --- a pace that is measured ----------------------------------------------------------------------------------------


def test_with_all_defaults_a_thousand_messages_through_a_bolt_of_half_a_second_are_acked() -> None:
    jobs = Jobs([0.5] * 1000)
    timed = Timed(topology_of(jobs), Options(), job_seconds)
    timed.to_the_end(600.0)
    assert len(jobs.acked) == 1000
    assert len(timed.calls) == 1000, "no call was made twice"
    assert timed.tallest <= 1 + 30.0 / 4 / 0.5, "the last one waits for less than a quarter of the timeout"
    assert timed.notes == []


def test_two_hundred_calls_that_take_twice_the_timeout_together_are_all_acked(tmp_path: Path) -> None:
    jobs = Jobs([0.01] * 200)
    summary = run(topology_of(jobs, sleeps), tmp_path / "state", message_timeout_s=1.0)
    assert (summary.acked, summary.failed) == (200, 0)
    gaps = [later - earlier for earlier, later in zip(sorted(jobs.acked.values()), sorted(jobs.acked.values())[1:])]
    assert max(gaps) < 0.3, "each is told soon after its call"


def test_calls_that_last_almost_as_long_as_the_timeout_are_made_one_at_a_time() -> None:
    jobs = Jobs([0.95] * 20)
    timed = Timed(topology_of(jobs), Options(message_timeout_s=1.0, max_attempts=1), job_seconds)
    timed.to_the_end(60.0)
    assert len(jobs.acked) == 20
    assert timed.tallest == 1


def test_quick_calls_bring_the_limit_to_its_highest_within_a_few_messages() -> None:
    jobs = Jobs([0.0001] * 1000)
    timed = Timed(topology_of(jobs), Options(), job_seconds)
    timed.to_the_end(60.0)
    assert timed.tallest == 128
    assert timed.calls[-1][2] - timed.calls[0][2] < 0.2


@pytest.mark.parametrize(("seconds", "tallest"), [(2e-6, range(1000, 2501)), (1e-9, range(HIGHEST, HIGHEST + 1))])
def test_the_quicker_the_calls_the_more_messages_are_open(seconds: float, tallest: range) -> None:
    jobs = Jobs([seconds] * 30_000)
    timed = Timed(topology_of(jobs), Options(), job_seconds)
    timed.to_the_end(600.0)
    assert timed.tallest in tallest


def test_a_limit_that_the_user_sets_is_kept_to_and_the_run_says_what_to_change() -> None:
    jobs = Jobs([0.5] * 100)
    timed = Timed(topology_of(jobs), Options(message_timeout_s=5.0, max_spout_pending=100), job_seconds)
    timed.to_the_end(600.0)
    assert timed.tallest == 100
    assert "calls of 'slow' take 0.5 s" in timed.notes[0]
    assert "Lower max_spout_pending to 2 or unset it" in timed.notes[0]


def test_messages_that_died_while_they_waited_are_not_worked() -> None:
    jobs = Jobs([0.5] * 100)
    options = Options(message_timeout_s=5.0, max_spout_pending=100, max_attempts=1)
    timed = Timed(topology_of(jobs), options, job_seconds)
    timed.to_the_end(600.0)
    assert len(timed.calls) < 20
    assert len(jobs.acked) + len(jobs.failed) == 100


@pytest.mark.parametrize("seed", range(40))
def test_whatever_time_calls_take_up_to_a_quarter_of_the_timeout_nothing_dies(seed: int) -> None:
    draw = random.Random(seed)
    timeout_s = draw.choice((1.0, 5.0, 30.0))
    longest_s = timeout_s / 4 * draw.choice((0.01, 0.3, 1.0))
    jobs = Jobs([draw.random() * longest_s for _ in range(draw.choice((10, 100)))])
    slow = draw.choice((work, apart))
    topology = topology_of(jobs, slow, parallelism=draw.choice((1, 2, 4)))
    timed = Timed(topology, Options(message_timeout_s=timeout_s), job_seconds, seed)
    timed.to_the_end(1000 * timeout_s)
    assert len(jobs.acked) == len(jobs.seconds)


@pytest.mark.parametrize("seed", range(60))
def test_a_message_dies_of_its_own_call_or_the_run_says_that_there_is_too_much_work(seed: int) -> None:
    draw = random.Random(seed)
    timeout_s = draw.choice((1.0, 10.0))
    jobs = Jobs([draw.random() * draw.choice((0.1, 1.0, 3.0)) * timeout_s for _ in range(draw.choice((5, 40)))])
    slow = draw.choice((work, apart))
    topology = topology_of(jobs, slow, parallelism=draw.choice((1, 3)))
    options = Options(message_timeout_s=timeout_s, max_attempts=draw.choice((1, 3, 5)))
    pending = draw.choice((None, None, 1, 2, 8, 128))
    timed = Timed(topology, with_pending(options, pending), job_seconds, seed)
    timed.to_the_end(1000 * timeout_s)
    assert len(jobs.acked) + len(jobs.failed) == len(jobs.seconds)
    assert all(kind == "timeout" for _, kind in jobs.failed)
    if jobs.failed:
        assert "timed out" in timed.notes[0]
        assert max(jobs.seconds) >= timeout_s or pending not in {None, 1}, "too much work at once, or a call too long"


class Part(msgspec.Struct, frozen=True):
    number: int
    part: int


@bolt
def in_parts(job: Job) -> Iterator[Part]:
    for part in range(20):
        yield Part(job.number, part)


@bolt
def plain(part: Part) -> None:
    """One call per part."""


@bolt
def collecting(part: Part, collector: Collector[Done]) -> None:
    collector.emit(Done(part.number))


@bolt(auto_ack=False)
def settling(part: Part, collector: Collector[Done]) -> None:
    collector.emit(Done(part.number))
    collector.ack(part)


@bolt
def failing(part: Part) -> None:
    if part.part == 7 and part.number % 2:
        raise RuntimeError("the seventh")


@pytest.mark.parametrize("each", [plain, collecting, settling, failing], ids=lambda one: one.__name__)
def test_a_message_with_many_slow_parts_is_acked_when_all_of_them_are_worked(each: Any) -> None:
    jobs = Jobs([0.0] * 4)
    topology = Topology("parts")
    parts = topology.bolt("in_parts", in_parts).shuffle(topology.spout("jobs", jobs))
    unconsumed = Done if each in (collecting, settling) else ()
    topology.bolt("each", each, parallelism=2, unconsumed=unconsumed).shuffle(parts)
    options = Options(message_timeout_s=100.0, max_spout_pending=4, max_attempts=1)
    timed = Timed(topology, options, lambda name, _: 0.5 if name == "each" else 0.0)
    acked_s: dict[Any, float] = {}
    jobs.ack = lambda message_id: acked_s.update({message_id: timed.now_s})  # type: ignore[method-assign]
    timed.to_the_end(300.0)
    calls = [(part.number, start_s) for name, part, start_s in timed.calls if name == "each"]
    assert set(acked_s) == ({0, 2} if each is failing else {0, 1, 2, 3})
    for number, told_s in acked_s.items():
        starts = [start_s for one, start_s in calls if one == number]
        assert len(starts) == 20
        assert told_s == pytest.approx(max(starts) + 0.5), "not before the last part, and at once after it"
    if each is failing:
        assert all(sum(one == number for one, _ in calls) < 20 for number in (1, 3)), "the rest is left alone"


def test_a_message_object_that_a_bolt_changes_is_changed_for_its_next_attempt(tmp_path: Path) -> None:
    """See "Differences between the runtimes": the local runtime hands objects on as they are."""

    class Loose(msgspec.Struct):
        number: int

    class Once(Spout[Loose]):
        given = False

        def next(self) -> Emit[Loose]:
            if self.given:
                raise EndOfInput
            self.given = True
            return Emit(Loose(1), 0)

    seen: list[int] = []

    @bolt
    def changes(loose: Loose) -> None:
        seen.append(loose.number)
        loose.number += 100
        if len(seen) < 3:
            raise RuntimeError("again")

    topology = Topology("loose")
    topology.bolt("changes", changes).shuffle(topology.spout("jobs", Once()))
    run(topology, tmp_path / "state", backoff_initial_ms=1)
    assert seen == [1, 101, 201]


# --- real threads -----------------------------------------------------------------------------------------------------


def test_reset_timeout_counts_at_once_also_within_one_long_call(tmp_path: Path) -> None:
    @bolt
    def long(job: Job, collector: Collector[Done]) -> None:
        for _ in range(12):
            time.sleep(0.1)  # as in `sleeps`
            collector.reset_timeout(job)

    topology = Topology("long")
    topology.bolt("long", long, unconsumed=Done).shuffle(topology.spout("jobs", Jobs([0.0])))
    summary = run(topology, tmp_path / "state", message_timeout_s=0.6, max_attempts=1)
    assert (summary.acked, summary.failed) == (1, 0)


@pytest.mark.parametrize("settle", ["ack", "fail"])
def test_a_verdict_by_hand_is_told_while_its_call_goes_on(settle: str, tmp_path: Path) -> None:
    told = threading.Event()
    heard: list[bool] = []

    class Hears(Jobs):
        def ack(self, message_id: Any) -> None:
            told.set()

        def fail(self, message_id: Any, failure: Failure) -> None:
            told.set()

    @bolt
    def long(job: Job, collector: Collector[Done]) -> None:
        time.sleep(0.02)  # as in `sleeps`
        collector.emit(Done(job.number))
        (collector.ack if settle == "ack" else collector.fail)(job)
        heard.append(told.wait(5.0))

    topology = Topology("long")
    topology.bolt("long", long, unconsumed=Done).shuffle(topology.spout("jobs", Hears([0.0])))
    run(topology, tmp_path / "state", max_attempts=1)
    assert heard == [True]


def test_acks_by_hand_are_told_one_by_one(tmp_path: Path) -> None:
    @bolt(auto_ack=False)
    def by_hand(job: Job, collector: Collector[Done]) -> None:
        time.sleep(0.05)  # as in `sleeps`
        collector.ack(job)

    jobs = Jobs([0.0] * 6)
    topology = Topology("by-hand")
    topology.bolt("by_hand", by_hand, unconsumed=Done).shuffle(topology.spout("jobs", jobs))
    run(topology, tmp_path / "state", max_spout_pending=6)
    assert jobs.acked[5] - jobs.acked[0] > 0.2


def test_a_stop_waits_for_one_call_and_what_was_worked_before_is_acked(tmp_path: Path) -> None:
    jobs = Jobs([0.1] * 10)
    handle = begin(topology_of(jobs, sleeps), tmp_path / "state", max_spout_pending=10)
    until(lambda: jobs.acked)
    before_s = time.monotonic()
    handle.stop(0.25)
    assert time.monotonic() - before_s < 0.8
    assert 2 <= len(jobs.acked) <= 6
    assert len(jobs.acked) + len(jobs.failed) == 10


def test_calls_are_not_named_as_stuck_because_there_are_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs([0.05] * 40)
    run(topology_of(jobs, sleeps), tmp_path / "state", max_spout_pending=40, processing_timeout_s=0.9)
    assert len(jobs.acked) == 40
    assert "at one step" not in caplog.text


def test_four_tasks_of_a_blocking_bolt_work_side_by_side(tmp_path: Path) -> None:
    jobs = Jobs([0.02] * 80)
    summary = run(topology_of(jobs, blocks, parallelism=4), tmp_path / "state")
    assert summary.acked == 80
    assert summary.seconds < 80 * 0.02 / 2, "a quarter of 1.6 s, and what a busy machine adds"


def test_a_quick_bolt_waits_for_one_slow_call_of_its_neighbour_and_not_for_all(tmp_path: Path) -> None:
    quick_s: list[float] = []

    @bolt
    def quick(job: Job) -> None:
        quick_s.append(time.monotonic())

    slow, fast = Jobs([0.05] * 10), Jobs([0.0] * 3)
    topology = Topology("neighbours")
    topology.bolt("slow", sleeps).shuffle(topology.spout("slow_jobs", slow))
    topology.bolt("quick", quick).shuffle(topology.spout("quick_jobs", fast))
    run(topology, tmp_path / "state", max_spout_pending=10)
    assert max(quick_s) < min(slow.acked.values()) + 0.25, "all slow calls take 0.5 s"


def test_tuples_of_dead_messages_that_go_in_circles_end(tmp_path: Path) -> None:
    @bolt
    def forever(done: Done | Job, collector: Collector[Done]) -> None:
        collector.emit(Done(done.number))

    topology = Topology("circle", allow_cycle=True)
    loop = topology.bolt("loop", forever).shuffle(topology.spout("jobs", Jobs([0.0] * 2)))
    loop.shuffle(loop)
    summary = begin(topology, tmp_path / "state", message_timeout_s=0.2, max_attempts=1).wait(HANG_S)
    assert (summary.dead, summary.open) == (2, 0)


def test_a_call_sees_the_attempt_that_it_belongs_to_also_after_its_message_timed_out(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    @bolt(blocking=True)
    def slow(job: Job, context: TaskContext) -> None:
        before = context.attempt
        time.sleep(0.6 if before == 2 else 0.0)  # as in `sleeps`
        seen.append((before, context.attempt))
        if before < 3:
            raise RuntimeError("again")

    topology = Topology("attempts")
    topology.bolt("slow", slow).shuffle(topology.spout("jobs", Jobs([0.0])))
    run(topology, tmp_path / "state", message_timeout_s=0.2, max_attempts=4, backoff_initial_ms=1, backoff_jitter=0.0)
    assert seen[:2] == [(1, 1), (2, 2)]
    assert all(before == after for before, after in seen)


def test_a_call_that_hangs_does_not_stop_the_messages_behind_it(tmp_path: Path) -> None:
    @bolt(concurrency=4)
    async def waits(job: Job) -> None:
        await asyncio.sleep(3600.0 if job.number == 0 else 0.0)

    jobs = Jobs([0.0] * 50)
    handle = begin(topology_of(jobs, waits), tmp_path / "state")
    until(lambda: len(jobs.acked) >= 49)
    handle.stop(0.1)
    assert len(jobs.acked) == 49
