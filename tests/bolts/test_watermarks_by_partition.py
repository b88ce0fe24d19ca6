"""Watermarks of inputs whose tuples are of partitions, held to an account that goes through all tuples each time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.bench import Bench, Event, Other
from tupletree import Window, join_bolt, window_bolt
from tupletree.bolts.event_time import BEFORE_ALL, Watermark


class Row(msgspec.Struct, frozen=True):
    left: int
    right: int


INPUT = ("events", "Event")
Seen = tuple[int, str, int]
"""(the run's clock, partition, time)."""


def restarted(watermark: Watermark, idle: int) -> Watermark:
    """As it travels from one epoch to the next."""
    after = Watermark([INPUT], lag_us=0, idle_us=idle, hold_us=1000, partition_of=str)
    after.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(watermark.memory())), {})
    return after


def expected(seen: list[Seen], ran: int, idle: int) -> int:
    """The rule, spelled out: the least of the partitions that were not silent for too long."""
    if not seen or ran - seen[0][0] <= idle:
        return BEFORE_ALL
    if ran - seen[-1][0] > idle:
        return max(time for _, _, time in seen) + ran - seen[-1][0] - idle
    reached = []
    for name in {name for _, name, _ in seen}:
        latest, heard = BEFORE_ALL, None
        for at, _, time in [one for one in seen if one[1] == name]:
            latest = time if heard is not None and at - heard > idle else max(latest, time)
            heard = at
        assert heard is not None
        if ran - heard <= idle:
            reached.append(latest)
    return min(reached)


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 7),
            st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=3),
            st.booleans(),
        ),
        max_size=25,
    ),
    idle=st.integers(1, 12),
)
def test_it_is_the_least_of_the_partitions_that_are_not_idle(
    steps: list[tuple[int, list[tuple[str, int]], bool]], idle: int
) -> None:
    watermark = Watermark([INPUT], lag_us=0, idle_us=idle, hold_us=1000, partition_of=str)
    seen: list[Seen] = []
    ran, highest = 100, BEFORE_ALL
    for passed, tuples, restarts in steps:
        ran += passed
        for name, time in tuples:
            seen.append((ran, name, time))
            watermark.saw(INPUT, time, ran, name)
        highest = max(highest, expected(seen, ran, idle))
        if restarts:
            watermark = restarted(watermark, idle)
        goal = highest + 5
        looks = [] if not seen else [watermark.reaches(goal, ran, ran)]
        assert watermark.advance(ran, ran) == highest
        for look in looks:
            assert look is not None
            assert look > ran, "never at once again"
            between = [expected(seen, at, idle) for at in range(ran, look)]
            assert max(between) < goal, "it is looked in time"


def bench(**settings: Any) -> Bench:
    @window_bolt(length_s=10, timestamp="at", late="fail", **settings)
    def gather(window: Window[Event]) -> Event:
        return Event("".join(one.key for one in window), window.start_s, len(window))

    return Bench(gather)


def test_a_partition_that_is_a_year_behind_makes_nothing_late_and_is_not_late() -> None:
    year = 365 * 86400.0
    late = {}
    for partition in (None, "key"):
        one = bench(idle_s=5.0, partition=partition)
        for second in range(40):
            behind = [Event("a", float(second), 2 * second)] if second > 2 else []
            one.take([Event("b", year + second, 2 * second + 1), *behind], now_s=1000.0 + second)
        one.flush()
        late[partition] = len(one.failed)
        if partition:
            assert {(value.at, value.number) for value, _ in one.emitted} == {
                (start, count) for start, count in ((0.0, 7), (10.0, 10), (20.0, 10), (30.0, 10))
            } | {(year // 10 * 10 + start, 10) for start in (0.0, 10.0, 20.0, 30.0)}
    assert late == {None: 37, "key": 0}


def test_a_partition_that_has_ended_holds_the_watermark_for_as_long_as_it_may_be_silent() -> None:
    one = bench(idle_s=5.0, partition=lambda event: event.key)
    for second in range(12):
        one.take(
            [Event("b", 100.0 + second, second), *([Event("a", 1.0, 50)] if second == 2 else [])], now_s=1000.0 + second
        )
        assert [value.key for value, _ in one.emitted] == (
            [] if second < 8 else ["a"] if second < 10 else ["a", "b" * 10]
        )


def test_a_partition_that_is_first_heard_of_when_others_moved_the_watermark_is_late_where_it_is_older() -> None:
    one = bench(idle_s=5.0, partition="key")
    for second in range(10):
        one.take([Event("a", 100.0 + 5 * second, second)], now_s=1000.0 + second)
    one.take([Event("b", 1.0, 50), Event("b", 150.0, 51)], now_s=1010.0)
    assert [*one.failed] == [50]


def test_a_join_waits_for_the_partition_that_is_behind_too() -> None:
    def matched(partition: str | None) -> tuple[list[int], list[int]]:
        @join_bolt(within_s=5, timestamp="at", late="fail", idle_s=5.0, partition=partition)
        def pair(event: Event, other: Other) -> Row:
            return Row(event.number, other.number)

        one = Bench(pair, "key")
        for second in range(20):
            one.take([Event("x", 1e6 + second, second), Other("x", 1e6 + second, 50 + second)], now_s=1000.0 + second)
            if second > 2:
                one.take([Event("y", float(second), 100 + second), Other("y", float(second), 100 + second)])
        return [row.left for row, _ in one.emitted if row.left >= 100 and row.left == row.right], [*one.failed]

    assert matched("key") == ([*range(103, 120)], [])
    assert matched(None)[1]


def test_what_raises_where_the_partition_is_asked_for_fails_its_tuple() -> None:
    one = bench(idle_s=5.0, partition=lambda event: {"a": 1}[event.key])
    one.take([Event("a", 1.0, 1), Event("b", 1.0, 2)], now_s=1000.0)
    assert [*one.failed] == [2]
    one.flush()
    assert one.acked == [1]


@pytest.mark.parametrize("settings", [{"partition": "key"}, {"timestamp": "at", "partition": "key"}])
def test_a_partition_needs_event_time_and_a_limit_of_silence(settings: dict[str, Any]) -> None:
    @window_bolt(length_s=10, **settings)
    def gather(window: Window[Event]) -> None: ...

    assert "one that has ended would hold the watermark for ever" in "\n".join(map(str, gather.describe().findings))
