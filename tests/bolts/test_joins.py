"""Joins, held to an account that compares every tuple with every other."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.bench import Bench, Event, Other
from tupletree import join_bolt


class Pair(msgspec.Struct, frozen=True):
    """What was joined."""

    left: int | None
    right: int | None


KINDS = ("inner", "left", "right", "full")


def join_of(kind: str, **settings: Any) -> Any:
    if "timestamp" in settings:
        settings = {"late": "fail", **settings}  # so that it is seen
    if kind == "inner":

        @join_bolt(**settings)
        def inner(event: Event, other: Other) -> Pair:
            return Pair(event.number, other.number)

        return inner
    if kind == "left":

        @join_bolt(**settings)
        def left(event: Event, other: Other | None) -> Pair:
            return Pair(event.number, other.number if other else None)

        return left
    if kind == "right":

        @join_bolt(**settings)
        def right(event: Event | None, other: Other) -> Pair:
            return Pair(event.number if event else None, other.number)

        return right

    @join_bolt(**settings)
    def full(event: Event | None, other: Other | None) -> Pair:
        return Pair(event.number if event else None, other.number if other else None)

    return full


class Account:
    """The rule, spelled out."""

    def __init__(self, kind: str, within: int, lag: int, *, event_time: bool, restarts: bool) -> None:
        self.within, self.lag, self.event_time, self.restarts = within, lag, event_time, restarts
        self.steps = 0
        self.optional_other, self.optional_event = kind in ("left", "full"), kind in ("right", "full")
        self.accepted: list[tuple[int, Event | Other]] = []
        self.latest = {Event: -math.inf, Other: -math.inf}
        self.over: float = -math.inf
        self.late: list[int] = []
        self.pairs: list[Pair] = []

    def step(self, values: list[Event | Other], now: int) -> None:
        known = min(self.latest.values()) if self.restarts and self.steps else math.inf
        self.steps += 1
        for value in sorted(values, key=lambda one: type(one) is Other):
            time = int(value.at) if self.event_time else now
            self.latest[type(value)] = max(self.latest[type(value)], time)
            if time < self.over:
                self.late.append(value.number)
                continue
            for other_time, other in self.accepted:
                near = abs(other_time - time) <= self.within and other_time + self.within >= self.over
                if type(other) is not type(value) and other.key == value.key and near:
                    left, right = (value, other) if isinstance(value, Event) else (other, value)
                    self.pairs.append(Pair(left.number, right.number))
            self.accepted.append((time, value))
        reached = max(self.over, min(known, *self.latest.values()) - self.lag if self.event_time else now)
        self.let_go(reached)
        self.over = reached

    def let_go(self, reached: float) -> None:
        lefts, rights = [pair.left for pair in self.pairs], [pair.right for pair in self.pairs]
        for time, value in self.accepted:
            if not self.over <= time + self.within < reached:
                continue
            if isinstance(value, Event) and self.optional_other and value.number not in lefts:
                self.pairs.append(Pair(value.number, None))
            if isinstance(value, Other) and self.optional_event and value.number not in rights:
                self.pairs.append(Pair(None, value.number))

    @property
    def done(self) -> list[int]:
        return [value.number for time, value in self.accepted if time + self.within < self.over]


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[list[Event | Other], int]]:
    story, number, now = [], 0, 1000
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(0, 8))
        values: list[Event | Other] = []
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            key, at = draw(st.sampled_from("ab")), float(now + draw(st.integers(-12, 3)))
            values.append(Event(key, at, number) if draw(st.booleans()) else Other(key, at, number))
        story.append((values, now))
    return story


@settings(deadline=None)
@given(
    story=stories(),
    kind=st.sampled_from(KINDS),
    within=st.integers(1, 8),
    lag=st.integers(0, 10),
    event_time=st.booleans(),
    restarts=st.booleans(),
)
def test_every_pair_that_belongs_together_comes_out_once_and_each_tuple_is_held_as_long_as_it_may_match(
    story: list[tuple[list[Event | Other], int]], kind: str, within: int, lag: int, event_time: bool, restarts: bool
) -> None:
    account = Account(kind, within, lag, event_time=event_time, restarts=restarts)
    times: dict[str, Any] = {"timestamp": "at", "lag_s": float(lag)} if event_time else {}
    bench = Bench(join_of(kind, within_s=within, **times), "key")
    for values, now in story:
        account.step(values, now)
        bench.take(values, now_s=float(now))
        if restarts:
            bench.restart()
        assert sorted(map(str, (value for value, _ in bench.emitted))) == sorted(map(str, account.pairs))
        assert sorted(bench.acked) == sorted(account.done)
        assert sorted(bench.failed) == sorted(account.late)
    for pair, roots in bench.emitted:
        assert sorted(roots) == sorted(one for one in (pair.left, pair.right) if one is not None)
    bench.flush()
    account.let_go(math.inf)
    assert sorted(map(str, (value for value, _ in bench.emitted))) == sorted(map(str, account.pairs))
    assert sorted(bench.acked) == sorted(value.number for _, value in account.accepted)
    assert not bench.task.is_holding
    assert bench.task.due_s is None


def test_a_pair_that_fails_fails_both_messages_and_neither_matches_anything_else() -> None:
    @join_bolt(within_s=10)
    def fragile(event: Event, other: Other) -> Pair:
        if event.number == 1:
            raise ConnectionError("not 1")
        return Pair(event.number, other.number)

    bench = Bench(fragile, "key")
    bench.take([Event("a", 0.0, 1)], now_s=1.0)
    bench.take([Other("a", 0.0, 2)], now_s=2.0)
    assert [*bench.failed] == [1, 2]
    bench.take([Event("a", 0.0, 3)], now_s=3.0)
    assert bench.emitted == []
    bench.take([Other("a", 0.0, 4)], now_s=4.0)
    assert [value for value, _ in bench.emitted] == [Pair(3, 4)]


def test_untracked_tuples_that_fail_are_let_go_of_too() -> None:
    @join_bolt(within_s=10)
    def fragile(event: Event, other: Other) -> Pair:
        raise ConnectionError("never")

    bench = Bench(fragile, "key")
    bench.take([Event("a", 0.0, 0)], now_s=1.0)
    bench.take([Other("a", 0.0, 0)], now_s=2.0)
    assert bench.strays == 1
    assert not bench.task.is_holding
    bench.take([Event("a", 0.0, 0)], now_s=2.0)
    assert bench.strays == 1


def test_a_message_that_failed_elsewhere_matches_nothing_any_more() -> None:
    bench = Bench(join_of("full", within_s=10), "key")
    bench.take([Event("a", 0.0, 1), Event("a", 0.0, 2)], now_s=1.0)
    bench.task.forget([1])
    bench.take([Other("a", 0.0, 3)], now_s=2.0)
    bench.pass_to(100.0)
    assert [value for value, _ in bench.emitted] == [Pair(2, 3)]
    assert not bench.task.is_holding


def test_the_watermark_waits_for_the_input_that_is_behind() -> None:
    bench = Bench(join_of("left", within_s=5, timestamp="at"), "key")
    bench.take([Event("a", 0.0, 1), Event("b", 50.0, 2)])
    assert bench.emitted == []
    bench.take([Other("a", 4.0, 3)])
    assert [value for value, _ in bench.emitted] == [Pair(1, 3)]
    bench.take([Other("c", 30.0, 4)])
    assert bench.acked == [1, 3]


@pytest.mark.parametrize(
    ("late", "acked", "failed", "emitted"), [("fail", [], [9], 0), ("drop", [9], [], 0), ("emit", [9], [], 1)]
)
def test_a_tuple_that_is_older_than_the_watermark_is_late(
    late: str, acked: list[int], failed: list[int], emitted: int
) -> None:
    bench = Bench(join_of("inner", within_s=5, timestamp="at", late=late), "key")
    bench.take([Event("a", 100.0, 1), Other("b", 100.0, 2)])
    bench.take([Event("b", 99.0, 9)])
    assert (bench.acked, [*bench.failed], len(bench.emitted)) == (acked, failed, emitted)
