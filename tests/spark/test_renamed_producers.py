"""A window goes by what each of its inputs has said of time; it knows them when they have other names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.tapped import wait_until
from tests.spark.upgrading import Feed, begin
from tupletree import Topology, Window, join_bolt, window_bolt
from tupletree.bolts.event_time import BEFORE_ALL, Watermark, micros
from tupletree.sinks import jsonl, read_rows

LAG_S = 5.0
IDLE_S = 0.2
START_S = 1_000_000.0


class Line(msgspec.Struct, frozen=True):
    at: float


class Held(msgspec.Struct, frozen=True):
    start: float
    count: int


@window_bolt(length_s=1, timestamp="at", lag_s=0, idle_s=IDLE_S, late="fail")
def idle(window: Window[Line]) -> Held:
    return Held(window.start_s, len(window.tuples))


@window_bolt(length_s=10, timestamp="at", lag_s=LAG_S, late="fail")
def patient(window: Window[Line]) -> Held:
    return Held(window.start_s, len(window.tuples))


class Other(msgspec.Struct, frozen=True):
    at: float


@join_bolt(within_s=0.3, timestamp="at", lag_s=0, late="fail", idle_s=IDLE_S)
def join(line: Line, other: Other | None) -> Held:
    return Held(line.at, 1 if other is None else 2)


def at(number: int) -> Line:
    """All in the first window, in order."""
    return Line(START_S + number / 10)


def windowed(place: Path, bolt: Any, names: dict[str, str], *, end: int = 3, late: int = 0) -> Topology:
    """A window on one source, or on two if `late` numbers of a second one are to come."""
    t = Topology("named")
    sources = [t.spout(names.get("lines", "lines"), Feed(at, end, waits=True))]
    if bolt is join:
        sources.append(t.spout("others", Feed(lambda number: Other(START_S + 1 + number), 1, waits=True)))
    elif late:
        sources.append(t.spout("late", Feed(lambda number: Line(START_S + 2 + number / 100), late, waits=True)))
    held = t.bolt(names.get("held", "held"), bolt)
    for source in sources:
        held.fields(source, "at") if bolt is join else held.shuffle(source)
    t.sink("out", jsonl(place / "out")).shuffle(held)
    return t


def stopped(t: Topology, place: Path, tuples: int, renames: dict[str, str] | None = None) -> None:
    handle = begin(t, place, renames)
    wait_until(handle, lambda now: sum(hold.count for hold in now.holds if hold.kind == "held") == tuples)
    handle.stop(10.0)
    assert handle.wait(30.0).open == tuples


@pytest.mark.parametrize("names", [{"lines": "texts"}, {"lines": "texts", "held": "windows"}], ids=str)
def test_a_silent_source_of_another_name_goes_on_with_the_clock(tmp_path: Path, names: dict[str, str]) -> None:
    """Its window would never be over if what it had said of time were lost."""
    stopped(windowed(tmp_path, idle, {}), tmp_path, 3)
    handle = begin(windowed(tmp_path, idle, names), tmp_path, names)
    wait_until(handle, lambda now: now.acked == 3)
    handle.stop(10.0)
    assert handle.wait(30.0).dead == 0
    assert [(row["start"], row["count"]) for row in read_rows(tmp_path / "out")] == [(START_S, 3)]


def test_names_given_one_after_the_other_before_the_window_has_work_are_all_known(tmp_path: Path) -> None:
    """What the window remembers has the first of them until it has something to do."""
    stopped(windowed(tmp_path, patient, {}), tmp_path, 3)
    for old, new in (("lines", "texts"), ("texts", "rows")):
        stopped(windowed(tmp_path, patient, {"lines": new}), tmp_path, 3, {old: new})
    t = windowed(tmp_path, patient, {"lines": "rows"}, end=3, late=2)
    handle = begin(t, tmp_path)
    wait_until(handle, lambda now: now.emitted == 5 and sum(one.count for one in now.holds if one.kind == "held") == 5)
    (mark_s,) = {one.watermark_s for one in handle.progress().holds if one.kind == "held"}
    assert mark_s == pytest.approx(START_S + 0.3 - LAG_S), "the least of both inputs, not that of the new one alone"
    handle.drain(20.0)
    ended = handle.wait(30.0)
    assert (ended.acked, ended.dead, ended.open) == (5, 0, 0)
    assert [(row["start"], row["count"]) for row in read_rows(tmp_path / "out")] == [(START_S, 5)]


def test_a_join_lets_go_of_tuples_when_a_source_of_another_name_is_silent(tmp_path: Path) -> None:
    stopped(windowed(tmp_path, join, {}), tmp_path, 4)
    handle = begin(windowed(tmp_path, join, {"lines": "texts"}), tmp_path, {"lines": "texts"})
    wait_until(handle, lambda now: now.acked == 4)
    handle.stop(10.0)
    assert Counter(row["count"] for row in read_rows(tmp_path / "out")) == Counter({1: 3})


def test_what_is_remembered_of_an_input_is_that_of_its_name_now() -> None:
    def mark(*names: str) -> Watermark:
        sources = [(name, "Line") for name in names]
        return Watermark(sources, lag_us=0, idle_us=None, hold_us=micros(10.0))

    before = mark("a", "b")
    before.saw(("a", "Line"), micros(100.0), 0)
    before.saw(("b", "Line"), micros(50.0), 0)
    assert before.advance(0, 0) == micros(50.0)
    after = mark("x", "b")
    after.restore(before.memory(), {"a": "x"})
    after.saw(("b", "Line"), micros(120.0), 1)
    assert after.advance(1, 1) == micros(100.0)
    gone = mark("c", "b")
    gone.restore(before.memory(), {"a": "x"})
    assert gone.advance(1, 1) == micros(50.0), "it never goes back"
    assert gone.reaches(micros(60.0), 1, 1) is None
    assert mark("a").advance(0, 0) == BEFORE_ALL
