"""What fails and is tried again leaves no trace in windows and joins: the reports of people who lost rows to it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import begin_in_process
from tests.spark.conftest import RunTopology
from tests.spark.tapped import HANG_S, wait_until
from tupletree import Spout, TaskContext, Topology, Window, bolt, join_bolt, testing, window_bolt
from tupletree.clock import SystemClock
from tupletree.errors import CheckpointError, EndOfInput
from tupletree.runtimes.spark import runtime
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Outcome


class Order(msgspec.Struct, frozen=True):
    n: int
    key: str
    at: float


class Pay(msgspec.Struct, frozen=True):
    m: int
    key: str
    at: float


class Pair(msgspec.Struct, frozen=True):
    order: int
    pay: int | None


class Event(msgspec.Struct, frozen=True):
    name: str
    at: float


class Held(msgspec.Struct, frozen=True):
    start: float
    names: list[str]


class Pays(Spout[Pay]):
    """Payments of one key, one each `every_s`; `ends`: with the last the input is over."""

    def __init__(self, count: int, every_s: float, *, ends: bool = True) -> None:
        self.count, self.every_s, self.ends = count, every_s, ends
        self.next_number = 0
        self.due_s = 0.0

    def next(self) -> Emit[Pay] | None:
        if self.next_number == self.count and self.ends:
            raise EndOfInput
        if self.next_number == self.count or time.monotonic() < self.due_s:
            return None
        self.due_s = time.monotonic() + self.every_s
        m = self.next_number
        self.next_number += 1
        return Emit(Pay(m, "a", 10.0 + m), m)

    def snapshot(self) -> Any:
        return self.next_number

    def restore(self, position: Any) -> None:
        self.next_number = position


def once(flag: Path) -> bool:
    """Whether this is the first time, in whatever process."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def joined(t: Topology, folder: Path) -> None:
    """W1: a bolt behind the join raises once; the order waits for its next attempt while payments come."""

    @join_bolt(within_s=30, timestamp="at", late="fail", lag_s=10, extend_timeout=True)
    def join(order: Order, pay: Pay) -> Pair:
        return Pair(order.n, pay.m)

    @bolt
    def after(pair: Pair) -> Pair:
        if pair.pay == 1 and once(folder / "w1"):
            raise RuntimeError("once")
        return pair

    orders = t.spout("orders1", items([Order(1, "a", 10.0)]))
    pays = t.spout("pays1", Pays(8, 0.4))
    pairs = t.bolt("join1", join).fields(orders, "key").fields(pays, "key")
    t.sink("w1", jsonl(folder / "w1.out")).shuffle(t.bolt("after1", after).shuffle(pairs))


def joined_outer(t: Topology, folder: Path) -> None:
    """W2: an outer join, whose order fails when it was matched, and is of no more use while it waits."""

    @join_bolt(within_s=2.5, timestamp="at", late="fail", lag_s=0, retry_hold_s=0.2, extend_timeout=True)
    def join(order: Order, pay: Pay | None) -> Pair:
        return Pair(order.n, pay.m if pay else None)

    @bolt
    def after(pair: Pair) -> Pair:
        if pair.pay == 1 and once(folder / "w2"):
            raise RuntimeError("once")
        return pair

    orders = t.spout("orders2", items([Order(1, "a", 10.0)]))
    pays = t.spout("pays2", Pays(7, 0.5))
    pairs = t.bolt("join2", join).fields(orders, "key").fields(pays, "key")
    t.sink("w2", jsonl(folder / "w2.out")).shuffle(t.bolt("after2", after).shuffle(pairs))


def sliding(t: Topology, folder: Path) -> None:
    """W3: the function of a sliding window raises once."""

    @window_bolt(length_s=60, slide_s=20, timestamp="at", late="fail", extend_timeout=True)
    def gather(window: Window[Event]) -> Held:
        if window.start_s == 20 and once(folder / "w3"):
            raise RuntimeError("once")
        return Held(window.start_s, sorted(one.name for one in window))

    names = zip("ambzy", (10.0, 30.0, 70.0, 300.0, 301.0), strict=True)
    events = t.spout("events3", items([Event(name, at) for name, at in names]))
    t.sink("w3", jsonl(folder / "w3.out")).shuffle(t.bolt("gather3", gather).global_(events))


def failing_before(t: Topology, folder: Path) -> None:
    """W4: a message fails twice before it comes to its window."""

    @bolt
    def flaky(event: Event, context: TaskContext) -> Event:
        if event.name == "n3" and context.attempt <= 2:
            raise RuntimeError("twice")
        return event

    @window_bolt(length_s=5, timestamp="at", late="fail", retry_hold_s=60, extend_timeout=True)
    def gather(window: Window[Event]) -> Held:
        return Held(window.start_s, sorted(one.name for one in window))

    events = t.spout("events4", items([Event(f"n{at}", float(at)) for at in range(20)]))
    passed = t.bolt("flaky4", flaky).shuffle(events)
    t.sink("w4", jsonl(folder / "w4.out")).shuffle(t.bolt("gather4", gather).global_(passed))


def scripted(name: str, count: int, **settings: Any) -> Topology:
    """Events 0.1 s apart, in windows whose function raises `count` times, each for another window."""
    raised: set[float] = set()

    @window_bolt(timestamp="at", late="fail", extend_timeout=True, **settings)
    def gather(window: Window[Event]) -> Held:
        if window.start_s % 700 < 60 and window.start_s not in raised and len(raised) < count:
            raised.add(window.start_s)
            raise RuntimeError("once")
        return Held(window.start_s, sorted(one.name for one in window))

    t = Topology(name)
    t.sink("out", jsonl("never")).shuffle(t.bolt("gather", gather).global_(t.spout("events", items([Event("", 0.0)]))))
    return t


def in_windows(events: list[Event], length: int, slide: int) -> set[tuple[float, str]]:
    """(window, event) of every window that holds an event."""
    return {
        (float(start), event.name)
        for event in events
        for start in range(int(event.at) // slide * slide, int(event.at) - length, -slide)
    }


def test_a_window_function_that_raises_once_kills_none_of_its_messages() -> None:
    events = [Event(name, at) for name, at in zip("abcd", (10.0, 30.0, 70.0, 300.0), strict=True)]
    run = testing.run(scripted("w6", 1, length_s=60, retry_hold_s=60), {"events": events})
    assert [one.outcome for one in run.messages["events"]] == [Outcome.ACKED] * 4
    assert {row.start: row.names for row in run.outputs["out"]} == {0.0: ["a", "b"], 60.0: ["c"], 300.0: ["d"]}
    assert len(run.outputs["out"]) == 3, "the window is called again for all that it held"


@pytest.mark.parametrize("slide", [60, 20])
def test_windows_that_raise_lose_no_message_of_many(slide: int) -> None:
    events = [Event(f"e{number}", float(number)) for number in range(3000)]
    run = testing.run(scripted("w6-many", 5, length_s=60, slide_s=slide), {"events": events})
    assert all(one.outcome is Outcome.ACKED for one in run.messages["events"])
    pairs = [(row.start, name) for row in run.outputs["out"] for name in row.names]
    assert {*pairs} == in_windows(events, 60, slide)
    if slide == 60:
        assert len(pairs) == len({*pairs})


@pytest.mark.parametrize("style", ["tumbling", "sliding"])
def test_a_failure_behind_a_window_loses_none_of_its_messages(style: str) -> None:
    failed: list[float] = []

    @window_bolt(
        length_s=60, slide_s=60 if style == "tumbling" else 20, timestamp="at", late="fail", extend_timeout=True
    )
    def gather(window: Window[Event]) -> Held:
        return Held(window.start_s, sorted(one.name for one in window))

    @bolt
    def after(held: Held) -> Held:
        if held.start % 700 < 60 and held.start not in failed and len(failed) < 4:
            failed.append(held.start)
            raise RuntimeError("once")
        return held

    t = Topology("behind")
    source = t.spout("events", items([Event("", 0.0)]))
    passed = t.bolt("after", after).shuffle(t.bolt("gather", gather).global_(source))
    t.sink("out", jsonl("never")).shuffle(passed)
    events = [Event(f"e{number}", float(number)) for number in range(1500)]
    run = testing.run(t, {"events": events})
    assert all(one.outcome is Outcome.ACKED for one in run.messages["events"])
    pairs = {(row.start, name) for row in run.outputs["out"] for name in row.names}
    assert pairs == in_windows(events, 60, 60 if style == "tumbling" else 20)


def test_failures_behind_a_join_lose_no_pair_on_the_local_runtime() -> None:
    failed: set[tuple[int, int | None]] = set()

    @join_bolt(within_s=7, timestamp="at", late="fail", extend_timeout=True)
    def join(order: Order, pay: Pay) -> Pair:
        return Pair(order.n, pay.m)

    @bolt
    def after(pair: Pair) -> Pair:
        if pair.order % 10 == 0 and (pair.order, pair.pay) not in failed:
            failed.add((pair.order, pair.pay))
            raise RuntimeError("once")
        return pair

    t = Topology("behind-join", options={"max_attempts": 20})
    orders, pays = t.spout("orders", items([Order(0, "", 0.0)])), t.spout("pays", items([Pay(0, "", 0.0)]))
    pairs = t.bolt("join", join).fields(orders, "key").fields(pays, "key")
    t.sink("out", jsonl("never")).shuffle(t.bolt("after", after).shuffle(pairs))
    given: dict[str, list[Any]] = {
        "orders": [Order(n, f"k{n % 5}", n / 2) for n in range(400)],
        "pays": [Pay(m, f"k{m % 5}", m / 2) for m in range(400)],
    }
    run = testing.run(t, given)
    assert all(one.outcome is Outcome.ACKED for name in given for one in run.messages[name])
    published = {(row.order, row.pay) for row in run.outputs["out"]}
    assert published == {(n, m) for n in range(400) for m in range(400) if n % 5 == m % 5 and abs(n - m) <= 14}


@pytest.mark.spark
def test_one_failure_around_joins_and_windows_on_spark_changes_no_row(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    t = Topology("under-failures")
    for part in (joined, joined_outer, sliding, failing_before):
        part(t, tmp_path)
    summary = run_topology(t, tmp_path / "state", backoff_initial_ms=1000.0, backoff_max_ms=1500.0)
    assert summary.dead == 0
    rows = {name: [*read_rows(tmp_path / f"{name}.out")] for name in ("w1", "w2", "w3", "w4")}
    assert sorted(row["pay"] for row in rows["w1"]) == [*range(8)]
    assert sorted(row["pay"] for row in rows["w2"]) == [0, 1, 2], "nothing is lost, and it is not called unmatched"
    assert {row["start"]: row["names"] for row in rows["w3"] if row["start"] <= 100} == {
        -40.0: ["a"], -20.0: ["a", "m"], 0.0: ["a", "m"], 20.0: ["b", "m"], 40.0: ["b"], 60.0: ["b"],
    }  # fmt: skip
    assert Counter(row["start"] for row in rows["w3"]) == Counter({row["start"]: 1 for row in rows["w3"]})
    expected = {float(start): sorted(f"n{at}" for at in range(start, start + 5)) for start in range(0, 20, 5)}
    assert {row["start"]: row["names"] for row in rows["w4"]} == expected


class Stepped(SystemClock):
    """The machine's clock, after somebody set it."""

    by_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.by_s


def test_neither_a_stop_in_the_middle_of_retries_nor_a_clock_that_was_set_back_changes_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W5 and W8: a message waits for its next attempt while nothing runs for an hour; then the clock is set back."""
    monkeypatch.setattr(runtime, "SystemClock", Stepped)

    @bolt
    def flaky(pay: Pay, context: TaskContext) -> Pay:
        if pay.m == 3 and context.attempt <= 2:
            raise RuntimeError("twice")
        return pay

    @window_bolt(length_s=5, timestamp="at", late="fail", retry_hold_s=60.0, extend_timeout=True)
    def gather(window: Window[Pay]) -> Held:
        return Held(window.start_s, [str(one.m) for one in window])

    def topology() -> Topology:
        t = Topology("stopped")
        passed = t.bolt("flaky", flaky).shuffle(t.spout("pays", Pays(20, 0.1)))
        t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("gather", gather).global_(passed))
        return t

    options = {"backoff_initial_ms": 1500.0, "backoff_max_ms": 1500.0, "message_timeout_s": 6.0}
    first = begin_in_process(topology(), tmp_path / "state", **options)
    wait_until(first, lambda progress: progress.failed >= 1)
    first.stop(10.0)
    first.wait(HANG_S)
    monkeypatch.setattr(Stepped, "by_s", 3600.0)
    second = begin_in_process(topology(), tmp_path / "state", **options)
    wait_until(second, lambda progress: progress.state == "processing")
    monkeypatch.setattr(Stepped, "by_s", -3600.0)
    summary = second.wait(HANG_S)
    assert (summary.acked, summary.failed, summary.dead) == (20, 2, 0)
    rows = [(row["start"], row["names"]) for row in read_rows(tmp_path / "out")]
    assert sorted(rows) == [
        (float(start), [str(m) for m in range(start - 10, start - 5)]) for start in range(10, 30, 5)
    ]


def test_a_drain_on_spark_ends_windows_and_another_parallelism_may_follow(tmp_path: Path) -> None:
    """W7: a stop keeps what windows hold, for the next start; a drain leaves nothing open."""

    @window_bolt(length_s=100, timestamp="at", late="fail", extend_timeout=True)
    def gather(window: Window[Pay]) -> Held:
        return Held(window.start_s, [str(one.m) for one in window])

    def topology(parallelism: int) -> Topology:
        t = Topology("drained")
        pays = t.spout("pays", Pays(6, 0.0, ends=False))
        t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("gather", gather, parallelism=parallelism).shuffle(pays))
        return t

    first = begin_in_process(topology(2), tmp_path / "state")
    wait_until(first, lambda progress: progress.open == 6 and progress.epoch >= 0)
    first.stop(10.0)
    assert first.wait(HANG_S).acked == 0
    with pytest.raises(CheckpointError, match="tupletree drain"):
        begin_in_process(topology(1), tmp_path / "state").wait(HANG_S)
    second = begin_in_process(topology(2), tmp_path / "state")
    wait_until(second, lambda progress: progress.state == "processing")
    second.drain(30.0)
    summary = second.wait(HANG_S)
    assert (summary.acked, summary.open) == (6, 0)
    assert sorted(name for row in read_rows(tmp_path / "out") for name in row["names"]) == [str(m) for m in range(6)]
    third = begin_in_process(topology(1), tmp_path / "state")
    wait_until(third, lambda progress: progress.state == "processing")
    third.stop(1.0)
    assert third.wait(HANG_S).dead == 0
