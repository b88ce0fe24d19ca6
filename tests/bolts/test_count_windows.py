"""Windows by count, held to an account that keeps every tuple."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bolts.bench import Bench, Event
from tupletree import Window, window_bolt


class Run(msgspec.Struct, frozen=True):
    """What a window was like."""

    key: Any
    numbers: list[int]
    new: list[int]
    expiring: list[int]


def described(window: Window[Event]) -> Run:
    numbers = [[event.number for event in part] for part in (window, window.new, window.expiring)]
    return Run(window.key, *numbers)


class Account:
    """The rule, spelled out: after every `slide` tuples of a key, its last `count`."""

    def __init__(self, count: int, slide: int, *, per_key: bool) -> None:
        self.count, self.slide, self.per_key = count, slide, per_key
        self.arrived: dict[Any, list[int]] = defaultdict(list)
        self.windows: list[Run] = []

    def step(self, events: list[Event]) -> None:
        for event in events:
            key = event.key if self.per_key else None
            arrived = self.arrived[key]
            arrived.append(event.number)
            if len(arrived) % self.slide == 0:
                window = arrived[-self.count :]
                stay = max(0, self.count - self.slide)
                leaving = len([one for one in window if one not in arrived[max(0, len(arrived) - stay) :]])
                self.windows.append(Run(key, window, arrived[-self.slide :], window[:leaving]))

    def flush(self) -> None:
        for key, arrived in self.arrived.items():
            fresh = len(arrived) % self.slide
            if fresh:
                # What an earlier window let go of is in none any more.
                start = len(arrived) - fresh - min(self.count - self.slide, len(arrived) - fresh)
                window = arrived[start:][-self.count :]
                self.windows.append(Run(key, window, arrived[-fresh:], window))

    @property
    def done(self) -> list[int]:
        gone: list[int] = []
        for arrived in self.arrived.values():
            seen = len(arrived) // self.slide * self.slide
            gone += arrived[: max(0, seen - (self.count - self.slide))]
        return gone


@settings(deadline=None)
@given(
    keys=st.lists(st.lists(st.sampled_from("ab"), max_size=6), max_size=8),
    count=st.integers(1, 5),
    slides=st.integers(1, 5),
    per_key=st.booleans(),
    restarts=st.booleans(),
)
def test_after_every_slide_the_last_tuples_are_seen_and_acked_once_no_later_window_holds_them(
    keys: list[list[str]], count: int, slides: int, per_key: bool, restarts: bool
) -> None:
    slide = min(count, slides)
    account = Account(count, slide, per_key=per_key)
    bolt = window_bolt(count=count, slide_count=slide, per_key=per_key)(described)
    bench = Bench(bolt, *["key"][: per_key or None])
    number = 0
    for step in keys:
        events = [Event(key, 0.0, number := number + 1) for key in step]
        account.step(events)
        bench.take(events)
        if restarts:
            bench.restart()
        assert [value for value, _ in bench.emitted] == account.windows
        assert sorted(bench.acked) == sorted(account.done)
    bench.flush()
    account.flush()
    assert sorted(map(str, (value for value, _ in bench.emitted))) == sorted(map(str, account.windows))
    assert sorted(bench.acked) == [*range(1, number + 1)]
    assert not bench.task.is_holding


def test_a_message_that_failed_elsewhere_is_not_counted_any_more() -> None:
    bench = Bench(window_bolt(count=3)(described))
    bench.take([Event("a", 0.0, 1), Event("a", 0.0, 2)])
    bench.task.forget([1])
    bench.take([Event("a", 0.0, 3)])
    assert bench.emitted == []
    bench.take([Event("a", 0.0, 4)])
    assert [value.numbers for value, _ in bench.emitted] == [[2, 3, 4]]


def test_a_failed_window_fails_all_its_tuples_and_the_next_one_starts_without_them() -> None:
    @window_bolt(count=2, slide_count=1)
    def fragile(window: Window[Event]) -> Run:
        if any(event.number == 2 for event in window):
            raise ConnectionError("not with 2")
        return described(window)

    bench = Bench(fragile)
    bench.take([Event("a", 0.0, 1)])
    bench.take([Event("a", 0.0, 2)])
    bench.take([Event("a", 0.0, 3)])
    assert [*bench.failed] == [1, 2]
    assert [value.numbers for value, _ in bench.emitted] == [[1], [3]]


def test_what_comes_back_after_a_restart_makes_a_window_full() -> None:
    """On Spark a message that is tried again is withheld from one `restore` and comes with a later one."""
    bench = Bench(window_bolt(count=2)(described))
    bench.take([Event("a", 0.0, 1)])
    first = bench.task.held()
    bench.task = bench.made()
    bench.take([Event("a", 0.0, 2)])
    second = bench.task.held()
    bench.task = bench.made()
    bench.task.restore([*first, *second], None)
    bench.pass_to(1.0)
    assert [value.numbers for value, _ in bench.emitted] == [[1, 2]]


def test_the_times_of_a_count_window_are_those_of_arrival() -> None:
    seen: list[Window[Event]] = []

    @window_bolt(count=2)
    def note(window: Window[Event]) -> None:
        seen.append(window)

    bench = Bench(note)
    bench.take([Event("a", 0.0, 1)], now_s=100.0)
    bench.take([Event("a", 0.0, 2)], now_s=103.0)
    assert (seen[0].start_s, seen[0].end_s) == (100.0, 103.0)
