"""Session windows, held to an account that sorts all open tuples after each step and looks where the gaps are."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.bench import Bench, Event
from tupletree import Window, window_bolt


class Session(msgspec.Struct, frozen=True):
    """What a session was like."""

    key: Any
    start_s: float
    end_s: float
    numbers: list[int]


def note(window: Window[Event]) -> Session:
    assert window.new == window.expiring == window.tuples
    return Session(window.key, window.start_s, window.end_s, [event.number for event in window])


def session_bolt(**settings: Any) -> Any:
    return window_bolt(
        **({"late": "fail", "timestamp": "at", **settings} if settings.pop("by_event", True) else settings)
    )(note)


def sessions_of(times: list[tuple[float, int]], gap: float, longest: float | None) -> list[Session]:
    """Those of one key, spelled out: (time, number) of its tuples in; one after the other."""
    found: list[Session] = []
    last = -math.inf
    for time, number in sorted(times):
        if found and time - last < gap and (longest is None or time < found[-1].start_s + longest):
            found[-1].numbers.append(number)
        else:
            found.append(Session(None, float(time), 0.0, [number]))
        last = time
        end = min(time + gap, found[-1].start_s + (math.inf if longest is None else longest))
        found[-1] = msgspec.structs.replace(found[-1], end_s=float(end))
    return found


class Account:
    """The rule, spelled out: after each step, every session whose end the watermark has passed since the last step."""

    def __init__(
        self, gap: int, longest: int | None, lag: int, *, per_key: bool, by_event: bool, restarts: bool
    ) -> None:
        self.gap, self.longest, self.lag = gap, longest, lag
        self.per_key, self.by_event, self.restarts = per_key, by_event, restarts
        self.steps = 0
        self.open: dict[str, dict[int, float]] = {}  # key → number → time
        self.late: list[int] = []
        self.done: list[int] = []
        self.over: float = -math.inf
        self.latest: float = -math.inf
        self.sessions: list[Session] = []

    def step(self, events: list[Event], now: int) -> None:
        known = self.latest if self.restarts and self.steps else math.inf
        self.steps += 1
        for event in events:
            time = event.at if self.by_event else float(now)
            self.latest = max(self.latest, time)
            held = self.open.setdefault(event.key if self.per_key else "", {})
            if time + self.gap <= self.over and not any(abs(one - time) < self.gap for one in held.values()):
                self.late.append(event.number)
            else:
                held[event.number] = time
        self.reach(max(self.over, min(self.latest, known) - self.lag if self.by_event else float(now)))

    def reach(self, over: float) -> None:
        self.over = over
        for key, held in self.open.items():
            for one in sessions_of([(time, number) for number, time in held.items()], self.gap, self.longest):
                if one.end_s > over:
                    break
                self.sessions.append(msgspec.structs.replace(one, key=key if self.per_key else None))
                self.done += one.numbers
                for number in one.numbers:
                    del held[number]


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[list[Event], int]]:
    """(events, clock) step by step: out of order, several at a time, in bursts, with pauses."""
    story, number, now = [], 0, 1000
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(0, 15))
        events = []
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            events.append(Event(draw(st.sampled_from("ab")), float(now + draw(st.integers(-30, 5))), number))
        story.append((events, now))
    return story


def by_end(sessions: list[Session]) -> list[tuple[Any, float, float, list[int]]]:
    return sorted(
        [(str(one.key), one.start_s, one.end_s, sorted(one.numbers)) for one in sessions],
        key=lambda one: (one[0], one[2]),
    )


@settings(deadline=None)
@given(
    story=stories(),
    gap=st.integers(1, 12),
    longest=st.none() | st.integers(0, 12),
    lag=st.integers(0, 20),
    per_key=st.booleans(),
    by_event=st.booleans(),
    restarts=st.booleans(),
)
def test_every_session_is_seen_once_when_it_is_over_with_all_tuples_of_it(
    story: list[tuple[list[Event], int]],
    gap: int,
    longest: int | None,
    lag: int,
    per_key: bool,
    by_event: bool,
    restarts: bool,
) -> None:
    longest = None if longest is None else gap + longest
    account = Account(gap, longest, lag, per_key=per_key, by_event=by_event, restarts=restarts)
    times: dict[str, Any] = {"lag_s": float(lag)} if by_event else {"by_event": False}
    bolt = session_bolt(gap_s=gap, max_length_s=longest, per_key=per_key, **times)
    bench = Bench(bolt, *["key"][: per_key or None])
    for events, now in story:
        account.step(events, now)
        bench.take(events, now_s=float(now))
        if restarts:
            bench.restart()
        assert by_end([value for value, _ in bench.emitted]) == by_end(account.sessions)
        assert sorted(bench.acked) == sorted(account.done)
        assert sorted(bench.failed) == sorted(account.late)
        assert bench.task.is_holding == any(account.open.values())
    for value, roots in bench.emitted:
        assert sorted(roots) == sorted(value.numbers), "anchored to every tuple of the session"
    bench.flush()
    account.reach(math.inf)
    assert by_end([value for value, _ in bench.emitted]) == by_end(account.sessions)
    assert sorted(bench.acked) == sorted(account.done)
    assert not bench.task.is_holding
    assert bench.task.held() == []


@settings(deadline=None)
@given(story=stories(), failing=st.sets(st.integers(1, 20), max_size=8), restarts=st.booleans())
def test_tuples_of_messages_that_failed_elsewhere_hold_no_session_together(
    story: list[tuple[list[Event], int]], failing: set[int], restarts: bool
) -> None:
    bench = Bench(session_bolt(gap_s=6, lag_s=100.0, per_key=True), "key")
    for events, now in story:
        bench.take(events, now_s=float(now))
        bench.task.forget(failing)
        if restarts:
            bench.restart()
    bench.flush()
    left = [event for events, _ in story for event in events if event.number not in failing]
    expected = [
        msgspec.structs.replace(one, key=key)
        for key in "ab"
        for one in sessions_of([(event.at, event.number) for event in left if event.key == key], 6, None)
    ]
    assert by_end([value for value, _ in bench.emitted]) == by_end(expected)
    assert not bench.task.is_holding
    assert bench.task.due_s is None


def test_a_tuple_between_two_sessions_makes_one_of_them() -> None:
    bench = Bench(session_bolt(gap_s=10, lag_s=30.0))
    bench.take([Event("a", 10.0, 1), Event("a", 28.0, 2), Event("a", 49.0, 3)])
    assert [bench.task.until_s(root) for root in (1, 2, 3)] == [20.0, 38.0, 59.0]
    bench.take([Event("a", 19.0, 4)])
    assert bench.task.until_s(1) == bench.task.until_s() == 38.0
    bench.flush()
    assert [value.numbers for value, _ in bench.emitted] == [[1, 4, 2], [3]]


def test_tuples_exactly_a_gap_apart_are_in_two_sessions() -> None:
    bench = Bench(session_bolt(gap_s=10))
    bench.take([Event("a", 10.0, 1), Event("a", 19.999999, 2), Event("a", 29.999999, 3)])
    bench.flush()
    assert [(value.start_s, value.end_s, value.numbers) for value, _ in bench.emitted] == [
        (10.0, 29.999999, [1, 2]),
        (29.999999, 39.999999, [3]),
    ]


def test_a_late_tuple_that_is_near_an_open_session_is_part_of_it_and_another_is_late() -> None:
    bench = Bench(session_bolt(gap_s=10))
    bench.take([Event("a", 10.0, 1), Event("a", 33.0, 2)])
    assert [value.numbers for value, _ in bench.emitted] == [[1]]
    bench.take([Event("a", 12.0, 6), Event("a", 23.5, 3), Event("a", 14.0, 4), Event("a", 22.0, 5)])
    assert [*bench.failed] == [6]
    assert "its session is over" in bench.failed[6]
    bench.flush()
    assert [value.numbers for value, _ in bench.emitted[1:]] == [[4, 5, 3, 2]]


def test_a_session_that_lasts_too_long_is_cut() -> None:
    bench = Bench(session_bolt(gap_s=10, max_length_s=25))
    for number in range(12):
        bench.take([Event("a", 6.0 * number, number)])
    bench.flush()
    assert [(value.start_s, value.end_s, value.numbers) for value, _ in bench.emitted] == [
        (0.0, 25.0, [0, 1, 2, 3, 4]),
        (30.0, 55.0, [5, 6, 7, 8, 9]),
        (60.0, 76.0, [10, 11]),
    ]


def test_when_it_is_due_follows_what_comes() -> None:
    bench = Bench(session_bolt(gap_s=10, by_event=False))
    bench.take([Event("a", 0.0, 1)], now_s=100.0)
    assert bench.task.due_s == bench.task.until_s() == 110.0
    bench.take([Event("a", 0.0, 2)], now_s=105.0)
    assert bench.task.due_s == bench.task.until_s() == 115.0
    bench.pass_to(114.0)
    assert bench.emitted == []
    bench.pass_to(115.0)
    assert [value.numbers for value, _ in bench.emitted] == [[1, 2]]
    assert bench.task.due_s is bench.task.until_s() is None


def test_a_session_that_fails_fails_its_messages_and_they_are_together_again_when_they_come_again() -> None:
    raised: list[int] = []

    @window_bolt(gap_s=10, timestamp="at", late="fail")
    def fragile(window: Window[Event]) -> Session:
        if window.start_s == 10.0 and not raised:
            raised.append(1)
            raise ConnectionError("too bad")
        return note(window)

    bench = Bench(fragile)
    bench.take([Event("a", 10.0, 1), Event("a", 18.0, 2), Event("a", 26.0, 3), Event("a", 90.0, 9)], now_s=1000.0)
    assert [*bench.failed] == [1, 2, 3]
    bench.place.attempts = {1: 2, 2: 2, 3: 2}
    bench.place.retrying_since_s = 999.0
    bench.take([Event("a", 26.0, 3)], now_s=1002.0)
    bench.restart()
    bench.take([Event("a", 10.0, 1)], now_s=1003.0)
    assert bench.emitted == [], "another one may come again"
    bench.take([Event("a", 18.0, 2)], now_s=1004.0)
    bench.place.retrying_since_s = None
    bench.restart()
    bench.pass_to(1005.0)
    assert [(value.start_s, value.end_s, value.numbers) for value, _ in bench.emitted] == [(10.0, 36.0, [1, 2, 3])]
    assert sorted(bench.acked) == [1, 2, 3]


def test_a_tuple_that_comes_again_joins_what_was_called_again_with_what_is_open() -> None:
    bench = Bench(session_bolt(gap_s=10))
    bench.take([Event("a", 28.0, 1), Event("a", 30.0, 2)], now_s=1000.0)
    bench.place.attempts = {3: 2, 4: 2}
    bench.place.retrying_since_s = 999.0
    bench.take([Event("a", 10.0, 3)], now_s=1001.0)
    bench.take([Event("a", 19.0, 4)], now_s=1002.0)
    bench.place.retrying_since_s = None
    bench.flush()
    assert [value.numbers for value, _ in bench.emitted] == [[3, 4, 1, 2]]
    assert sorted(bench.acked) == [1, 2, 3, 4]


@pytest.mark.parametrize("dies", [2, None])
def test_what_a_message_that_died_held_together_is_two_sessions(dies: int | None) -> None:
    bench = Bench(session_bolt(gap_s=10))
    bench.take([Event("a", 10.0, 1), Event("a", 18.0, 2), Event("a", 26.0, 3)], now_s=1000.0)
    held, memory = bench.task.held(), bench.task.memory()
    bench.task = bench.made()
    bench.task.restore(held, memory, {2})
    bench.take([Event("b", 90.0, 4)], now_s=1001.0)
    bench.pass_to(1002.0)
    held, memory = bench.task.held(), bench.task.memory()
    bench.task = bench.made()
    bench.task.restore(held, memory, {2})
    bench.pass_to(1003.0)
    assert bench.emitted == [], "2 waits for its next attempt"
    held, memory = bench.task.held(), bench.task.memory()
    bench.task = bench.made()
    bench.task.restore(held, memory)
    if dies:
        bench.task.forget([dies])
    bench.pass_to(1004.0)
    assert [value.numbers for value, _ in bench.emitted] == ([[1], [3]] if dies else [[1, 2, 3]])
    assert sorted(bench.acked) == ([1, 3] if dies else [1, 2, 3])
