"""Windows by time, held to an account that looks at every tuple and every window there could be."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.bench import Bench, Event
from tupletree import Window, window_bolt
from tupletree.data.frames import Frame
from tupletree.topology.windows import WindowSpec


class Summary(msgspec.Struct, frozen=True):
    """What a window was like."""

    key: Any
    start_s: float
    end_s: float
    numbers: list[int]
    new: list[int]
    expiring: list[int]


def summarise(window: Window[Event]) -> Summary:
    def numbers(events: Any) -> list[int]:
        return [event.number for event in events]

    return Summary(
        window.key,
        window.start_s,
        window.end_s,
        numbers(window),
        numbers(window.new),
        numbers(window.expiring),
    )


def summary_bolt(**settings: Any) -> Any:
    if "timestamp" in settings:
        settings = {"late": "fail", **settings}  # so that it is seen
    return window_bolt(**settings)(summarise)


class Account:
    """The rule, spelled out: after each step, every window whose end the watermark has passed since the last step."""

    def __init__(
        self, length: int, slide: int, lag: int, *, per_key: bool, event_time: bool, restarts: bool = False
    ) -> None:
        self.length, self.slide, self.lag = length, slide, lag
        self.per_key, self.event_time, self.restarts = per_key, event_time, restarts
        self.steps = 0
        self.accepted: list[tuple[int, Event, float]] = []  # time, event, what was over when it came
        self.late: list[int] = []
        self.over: float = -math.inf
        self.latest: float = -math.inf
        self.windows: list[Summary] = []

    def step(self, events: list[Event], now: int) -> None:
        known = self.latest if self.restarts and self.steps else math.inf
        self.steps += 1
        for event in events:
            time = int(event.at) if self.event_time else now
            self.latest = max(self.latest, time)
            last_end = time // self.slide * self.slide + self.length
            if last_end <= self.over:
                self.late.append(event.number)
            else:
                self.accepted.append((time, event, self.over))
        reached = max(self.over, min(self.latest, known) - self.lag if self.event_time else now)
        self.windows += self.windows_between(self.over, reached)
        self.over = reached

    def windows_between(self, over: float, reached: float) -> list[Summary]:
        if not self.accepted:
            return []
        times = [time for time, _, _ in self.accepted]
        first = (min(times) - self.length) // self.slide * self.slide
        starts = range(first, max(times) + self.slide, self.slide)
        return [
            summary
            for start in starts
            if over < start + self.length <= reached
            for key in sorted({event.key for _, event, _ in self.accepted}) or [""]
            if (summary := self.window(start, key)) is not None and (self.per_key or key == self.first_key())
        ]

    def first_key(self) -> str:
        return min(event.key for _, event, _ in self.accepted)

    def window(self, start: int, key: str) -> Summary | None:
        end = start + self.length
        held = [
            (time, event, over)
            for time, event, over in sorted(self.accepted, key=lambda one: one[0])
            if start <= time < end and (event.key == key or not self.per_key)
        ]
        if not held:
            return None

        def is_new(time: int, over: float) -> bool:
            ends = [one + self.length for one in range(start - 99 * self.slide, start, self.slide)]
            return not any(over < one and one - self.length <= time < one for one in ends)

        return Summary(
            key if self.per_key else None,
            float(start),
            float(end),
            [event.number for _, event, _ in held],
            [event.number for time, event, over in held if is_new(time, over)],
            [event.number for time, event, _ in held if time < start + self.slide],
        )

    @property
    def done(self) -> list[int]:
        return [event.number for time, event, _ in self.accepted if self.last_end(time) <= self.over]

    def last_end(self, time: int) -> int:
        return time // self.slide * self.slide + self.length


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[list[Event], int]]:
    """(events, clock) step by step: out of order, several at a time, in bursts, with repetitions and pauses."""
    story, number, now = [], 0, 1000
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(0, 15))
        events = []
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            at = now + draw(st.integers(-30, 5))
            events.append(Event(draw(st.sampled_from("ab")), float(at), number))
        story.append((events, now))
    return story


@settings(deadline=None)
@given(
    story=stories(),
    length=st.integers(1, 12),
    slides=st.integers(1, 12),
    lag=st.integers(0, 20),
    per_key=st.booleans(),
    event_time=st.booleans(),
    restarts=st.booleans(),
)
def test_every_window_that_holds_a_tuple_is_seen_once_when_it_is_over_with_all_tuples_of_it(
    story: list[tuple[list[Event], int]],
    length: int,
    slides: int,
    lag: int,
    per_key: bool,
    event_time: bool,
    restarts: bool,
) -> None:
    slide = min(length, slides)
    account = Account(length, slide, lag, per_key=per_key, event_time=event_time, restarts=restarts)
    times: dict[str, Any] = {"timestamp": "at", "lag_s": float(lag)} if event_time else {}
    bench = Bench(summary_bolt(length_s=length, slide_s=slide, per_key=per_key, **times), *["key"][: per_key or None])
    for events, now in story:
        account.step(events, now)
        bench.take(events, now_s=float(now))
        if restarts:
            bench.restart()
        assert by_end([value for value, _ in bench.emitted]) == by_end(account.windows)
        assert sorted(bench.acked) == sorted(account.done)
        assert sorted(bench.failed) == sorted(account.late)
        assert bench.task.is_holding == (len(account.accepted) > len(account.done))
    for value, roots in bench.emitted:
        assert sorted(roots) == sorted(value.numbers), "anchored to every tuple of the window"
    bench.flush()
    account.windows += account.windows_between(account.over, math.inf)
    assert by_end([value for value, _ in bench.emitted]) == by_end(account.windows)
    assert sorted(bench.acked) == sorted(event.number for _, event, _ in account.accepted)
    assert not bench.task.is_holding
    assert bench.task.held() == []


def by_end(windows: list[Summary]) -> list[Summary]:
    return sorted(windows, key=lambda window: (window.end_s, str(window.key)))


@st.composite
def forgettings(draw: st.DrawFn) -> set[int]:
    """Messages that fail somewhere else meanwhile."""
    return draw(st.sets(st.integers(1, 20), max_size=8))


@settings(deadline=None)
@given(story=stories(), failing=forgettings(), restarts=st.booleans())
def test_tuples_of_messages_that_failed_elsewhere_are_in_no_window_any_more(
    story: list[tuple[list[Event], int]], failing: set[int], restarts: bool
) -> None:
    bench = Bench(summary_bolt(length_s=10, slide_s=5, timestamp="at", lag_s=3.0, per_key=True), "key")
    before = 0
    for events, now in story:
        bench.take(events, now_s=float(now))
        before = len(bench.emitted)
        bench.task.forget(failing)
        if restarts:
            bench.restart()
        bench.pass_to(float(now))
    for value, _ in bench.emitted[before:]:
        assert not failing & {*value.numbers}
    bench.flush()
    assert not bench.task.is_holding
    for value, _ in bench.emitted[before:]:
        assert not failing & {*value.numbers}
    assert bench.task.due_s is None


def test_a_window_that_fails_fails_all_its_messages_and_their_tuples_leave_every_other_window() -> None:
    @window_bolt(length_s=10, slide_s=5, timestamp="at")
    def fragile(window: Window[Event]) -> Summary:
        if window.start_s == 0.0:
            raise ConnectionError("no window can start at 0")
        return summarise(window)

    bench = Bench(fragile)
    bench.take([Event("a", 1.0, 1), Event("a", 6.0, 2), Event("a", 12.0, 3)])
    assert bench.failed == {1: "no window can start at 0", 2: "no window can start at 0"}
    bench.flush()
    assert [value.numbers for value, _ in bench.emitted] == [[3], [3]], (
        "neither the window from -5 to 5 nor that from 5 on"
    )
    assert bench.acked == [3]
    assert not bench.task.is_holding


def test_what_was_emitted_for_messages_that_fail_in_the_same_turn_does_not_go_out() -> None:
    @window_bolt(length_s=10, slide_s=5, timestamp="at")
    def fragile(window: Window[Event]) -> Summary:
        if window.start_s == 5.0:
            raise ConnectionError("too bad")
        return summarise(window)

    bench = Bench(fragile)
    bench.take([Event("a", 6.0, 1), Event("a", 30.0, 2)])
    assert bench.failed == {1: "too bad"}
    assert bench.emitted == []


def late_bench(late: str) -> Bench:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", lag_s=5.0, late=late))
    bench.take([Event("a", 3.0, 1), Event("a", 25.0, 2)])
    assert [value.numbers for value, _ in bench.emitted] == [[1]]
    bench.take([Event("a", 9.0, 3)])
    return bench


def test_a_late_tuple_fails_for_good_with_its_time_and_the_watermark() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", lag_s=5.0))
    bench.take([Event("a", 3.0, 1), Event("a", 25.0, 2)])
    worked = bench.task.work(_frame(Event("a", 9.0, 3)))
    (failure,) = worked.failures.values()
    assert failure.permanent
    assert "the tuple came too late" in failure.error
    assert "1970-01-01T00:00:09" in failure.error
    assert "1970-01-01T00:00:20" in failure.error


def test_a_late_tuple_can_be_dropped_which_acks_it_and_says_so() -> None:
    bench = late_bench("drop")
    assert bench.failed == {}
    assert bench.acked == [1, 3]
    assert (bench.strays, len(bench.dropped)) == (0, 1)


def test_a_late_tuple_can_be_emitted_as_it_is_on_the_stream_of_its_class() -> None:
    bench = late_bench("emit")
    assert bench.emitted[1] == (Event("a", 9.0, 3), (3,))
    assert bench.acked == [1, 3]
    assert bench.component.outputs["Event"].schema.cls is Event


def test_a_tuple_within_the_lag_is_not_late() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", lag_s=5.0))
    bench.take([Event("a", 14.0, 1)])
    bench.take([Event("a", 9.9, 2)])
    bench.take([Event("a", 15.0, 3)])
    assert [value.numbers for value, _ in bench.emitted] == [[2]]


def test_windows_by_arrival_end_with_the_clock_and_need_no_tuple_for_it() -> None:
    bench = Bench(summary_bolt(length_s=60))
    bench.take([Event("a", 0.0, 1)], now_s=61.0)
    assert bench.task.due_s == 120.0
    bench.pass_to(119.0)
    assert bench.emitted == []
    bench.pass_to(120.0)
    assert [(value.start_s, value.numbers) for value, _ in bench.emitted] == [(60.0, [1])]
    assert bench.task.due_s is None


def test_a_clock_that_goes_back_makes_no_tuple_late() -> None:
    bench = Bench(summary_bolt(length_s=60))
    bench.take([Event("a", 0.0, 1)], now_s=61.0)
    bench.pass_to(125.0)
    bench.take([Event("a", 0.0, 2)], now_s=90.0)
    bench.pass_to(180.0)
    assert [value.numbers for value, _ in bench.emitted] == [[1], [2]]
    assert bench.failed == {}


def test_windows_that_are_due_together_are_all_seen_in_the_order_of_their_ends() -> None:
    bench = Bench(summary_bolt(length_s=1, per_key=True), "key")
    bench.take([Event(key, 0.0, number) for number, key in enumerate("abcabc", 1)], now_s=5.5)
    bench.take([Event("a", 0.0, 7)], now_s=7.5)
    bench.pass_to(3600.0)
    assert [(value.end_s, value.key) for value, _ in bench.emitted] == [(6.0, "a"), (6.0, "b"), (6.0, "c"), (8.0, "a")]


def dated(at: dt.datetime) -> list[Window[Event]]:
    """The windows of an hour that a time lies in."""
    seen: list[Window[Event]] = []

    @window_bolt(length_s=3600, timestamp=lambda _: at)
    def note(window: Window[Event]) -> None:
        seen.append(window)

    bench = Bench(note)
    bench.take([Event("a", 0.0, 1)])
    bench.flush()
    assert bool(seen) is not bool(bench.failed)
    return seen


def test_the_two_hours_that_a_clock_shows_twice_in_autumn_are_two_hours() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = dt.datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    (summer,), (winter,) = dated(first), dated(first.replace(fold=1))
    assert summer.start == dt.datetime(2026, 10, 25, 0, 0, tzinfo=dt.UTC)
    assert winter.start == dt.datetime(2026, 10, 25, 1, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "at",
    [
        dt.datetime.min.replace(tzinfo=dt.UTC),
        dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14))),
        dt.datetime.max.replace(tzinfo=dt.UTC),
        dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=12))),
    ],
)
def test_the_first_and_the_last_moment_that_a_datetime_can_name_have_their_windows(at: dt.datetime) -> None:
    (window,) = dated(at)
    assert window.end_s - window.start_s == 3600.0
    assert "tuples>" in repr(window)


def test_a_datetime_without_zone_is_refused() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp=lambda _: dt.datetime(2026, 1, 1, 12)))  # noqa: DTZ001 - the fault
    bench.take([Event("a", 0.0, 1)])
    assert "names no moment" in bench.failed[1]
    assert not bench.task.is_holding


@pytest.mark.parametrize("at", [math.nan, math.inf, 1e300, None, True, "12:00", dt.date(2026, 1, 1)])
def test_what_names_no_moment_fails_its_tuple_alone(at: object) -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp=lambda event: at if event.number == 1 else 0.0))
    bench.take([Event("a", 0.0, 1), Event("a", 0.0, 2)])
    bench.flush()
    assert [*bench.failed] == [1]
    assert bench.acked == [2]


def test_a_function_can_take_a_list_and_the_bolt_stays_callable() -> None:
    @window_bolt(length_s=10)
    def total(events: list[Event]) -> Summary:
        return Summary(None, 0.0, 0.0, [event.number for event in events], [], [])

    assert total([Event("a", 0.0, 1)]).numbers == [1]
    bench = Bench(total)
    bench.take([Event("a", 0.0, 1), Event("a", 0.0, 2)])
    bench.flush()
    assert bench.emitted[0][0].numbers == [1, 2]
    assert isinstance(total.spec.holding, WindowSpec)


def test_while_a_message_is_tried_again_the_watermark_waits_but_not_for_ever() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", retry_hold_s=60.0))
    bench.take([Event("a", 1.0, 1)], now_s=1000.0)
    bench.place.retrying_since_s = 1000.0
    bench.take([Event("a", 30.0, 2)], now_s=1002.0)
    assert bench.emitted == []
    bench.take([Event("a", 3.0, 3)], now_s=1030.0)
    assert bench.failed == {}
    bench.take([Event("a", 31.0, 4)], now_s=1061.9)
    assert bench.emitted == []
    bench.take([Event("a", 32.0, 5)], now_s=1063.0)
    assert [value.numbers for value, _ in bench.emitted] == [[1, 3]]


def test_once_nothing_is_tried_again_the_watermark_is_where_it_would_have_been() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", retry_hold_s=10.0))
    bench.take([Event("a", 1.0, 1)], now_s=1000.0)
    bench.place.retrying_since_s = 1000.0
    bench.take([Event("a", 30.0, 2)], now_s=1002.0)
    due_s = bench.task.due_s
    assert due_s is not None
    assert 1012.0 < due_s < 1012.1, "when it has waited long enough"
    bench.place.retrying_since_s = None
    bench.pass_to(1003.0)
    assert [value.numbers for value, _ in bench.emitted] == [[1]]


def test_time_in_which_no_process_runs_does_not_count_as_waiting_for_an_attempt() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", retry_hold_s=10.0))
    bench.place.run_s = 50.0
    bench.take([Event("a", 1.0, 1)], now_s=1000.0)
    bench.place.retrying_since_s = 1000.0
    bench.place.run_s = 51.0
    bench.take([Event("a", 30.0, 2)], now_s=1001.0)
    bench.restart()
    bench.place.run_s = 52.0
    bench.pass_to(4600.0)
    bench.restart()
    bench.place.run_s = 59.0
    bench.pass_to(4607.0)
    assert bench.emitted == [], "nine seconds of ten, and an hour in which nothing ran"
    bench.restart()
    bench.place.run_s = 61.5
    bench.pass_to(4609.5)
    assert [value.numbers for value, _ in bench.emitted] == [[1]]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_step_of_the_clock_makes_no_attempt_wait_longer_and_no_input_idle(step_s: float) -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", retry_hold_s=10.0, idle_s=100.0))
    for second in range(20):
        bench.place.run_s = float(second)
        bench.place.retrying_since_s = 10_000.0 if second >= 1 else None
        if second == 1:
            bench.take([Event("a", 1.0, 1), Event("a", 30.0, 2)], now_s=10_001.0)
        else:
            bench.pass_to(10_000.0 + second + (step_s if second >= 5 else 0.0))
        waits = 1 <= second <= 11
        assert bool(bench.emitted) is (second >= 1 and not waits), second


def test_a_tuple_of_a_later_attempt_is_not_late_and_its_window_is_called_for_all_that_come_again() -> None:
    bench = Bench(summary_bolt(length_s=10, slide_s=5, timestamp="at"))
    bench.place.attempts = {1: 2, 2: 2}
    bench.take([Event("a", 50.0, 9)], now_s=1000.0)
    bench.pass_to(1001.0)
    bench.place.retrying_since_s = 999.0
    bench.take([Event("a", 7.0, 1)], now_s=1002.0)
    assert bench.emitted == [], "another one may come again"
    bench.take([Event("a", 6.0, 2)], now_s=1003.0)
    bench.place.retrying_since_s = None
    bench.restart()
    bench.pass_to(1004.0)
    assert [(value.start_s, value.numbers) for value, _ in bench.emitted] == [(0.0, [2, 1]), (5.0, [2, 1])]
    assert sorted(bench.acked) == [1, 2]
    assert not bench.failed


def test_a_replayed_dead_letter_is_not_late() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at"))
    bench.take([Event("a", 5.0, 1), Event("a", 50.0, 2)], now_s=1000.0)
    bench.place.again = {3}
    bench.take([Event("a", 7.0, 3), Event("a", 8.0, 4)], now_s=1001.0)
    bench.pass_to(1002.0)
    assert [(value.start_s, value.numbers) for value, _ in bench.emitted] == [(0.0, [1]), (0.0, [3])]
    assert [*bench.failed] == [4]


def test_a_silent_input_goes_on_with_the_clock_when_it_is_allowed_to() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at", lag_s=2.0, idle_s=30.0))
    bench.take([Event("a", 5.0, 1)], now_s=1000.0)
    assert bench.task.due_s == 1000.0 + 30.0 + (10.0 + 2.0 - 5.0)
    bench.pass_to(1036.9)
    assert bench.emitted == []
    bench.pass_to(1037.0)
    assert [value.numbers for value, _ in bench.emitted] == [[1]]


def test_without_it_a_silent_input_waits_for_ever() -> None:
    bench = Bench(summary_bolt(length_s=10, timestamp="at"))
    bench.take([Event("a", 5.0, 1)], now_s=1000.0)
    assert bench.task.due_s is None
    bench.pass_to(1e6)
    assert bench.emitted == []


def _frame(event: Event) -> Frame:
    return Frame(5, "event", "Event", [event], [event.number], [1], 99)
