"""What fails and is tried again leaves no trace in windows and joins: the reports of people who lost rows to it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import RunTopology
from tupletree import Spout, TaskContext, Topology, Window, bolt, join_bolt, window_bolt
from tupletree.errors import EndOfInput
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.topology.components import Emit


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
    """Payments of one key, one each `every_s`; those after the last are of another."""

    def __init__(self, count: int, every_s: float) -> None:
        self.count, self.every_s = count, every_s
        self.next_number = 0
        self.due_s = 0.0

    def next(self) -> Emit[Pay] | None:
        if self.next_number == self.count:
            raise EndOfInput
        if time.monotonic() < self.due_s:
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

    @join_bolt(within_s=30, timestamp="at", lag_s=10, extend_timeout=True)
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

    @join_bolt(within_s=2.5, timestamp="at", lag_s=0, retry_hold_s=0.2, extend_timeout=True)
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

    @window_bolt(length_s=60, slide_s=20, timestamp="at", extend_timeout=True)
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

    @window_bolt(length_s=5, timestamp="at", retry_hold_s=60, extend_timeout=True)
    def gather(window: Window[Event]) -> Held:
        return Held(window.start_s, sorted(one.name for one in window))

    events = t.spout("events4", items([Event(f"n{at}", float(at)) for at in range(20)]))
    passed = t.bolt("flaky4", flaky).shuffle(events)
    t.sink("w4", jsonl(folder / "w4.out")).shuffle(t.bolt("gather4", gather).global_(passed))


@pytest.mark.spark
def test_one_failure_around_joins_and_windows_on_spark_changes_no_row(tmp_path: Path, run_topology: RunTopology) -> None:
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
