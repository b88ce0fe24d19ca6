"""Whatever fails and is tried again, windows and joins publish what they would have published without the failure.

All interleavings of four tuples with two failures and one kill, held to a naive oracle that knows all attempts.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.bolts.bench import Bench, Event, Other
from tests.bolts.epochs import Epochs, Script
from tupletree import Window, batch_bolt, join_bolt, window_bolt

Failing = tuple[str, Any]
"""(where, what): before the holder, inside it, or behind it."""

CLOSER = 99
"""The number of a tuple that lets event time pass all others."""


class Row(msgspec.Struct, frozen=True):
    """What a window held."""

    what: Any
    numbers: tuple[int, ...]
    new: tuple[int, ...] = ()
    expiring: tuple[int, ...] = ()


class Pair(msgspec.Struct, frozen=True):
    """What was joined."""

    left: int | None
    right: int | None

    @property
    def what(self) -> tuple[int | None, int | None]:
        return self.left, self.right


class Story:
    """One way in which it may go."""

    def __init__(self, failures: Sequence[Failing], kill: int = 0) -> None:
        self.script = Script(kills={kill} if kill else set())
        for where, what in failures:
            counts = getattr(self.script, where)
            counts[what] = counts.get(what, 0) + 1

    def meet(self, what: Any) -> None:
        if self.script.inside.get(what, 0):
            self.script.inside[what] -= 1
            raise RuntimeError("scripted")


def windows(story: Story, *by: str, **settings: Any) -> Bench:
    @window_bolt(timestamp="at", late="fail", **settings)
    def gather(window: Window[Event]) -> Row:
        story.meet(window.start_s)
        parts = [tuple(one.number for one in part) for part in (window, window.new, window.expiring)]
        return Row(window.start_s, *parts)

    return Bench(gather, *by)


def counts(story: Story, **settings: Any) -> Bench:
    @window_bolt(**settings)
    def gather(window: Window[Event]) -> Row:
        numbers = tuple(one.number for one in window)
        story.meet(len(numbers))
        return Row(len(numbers), numbers)

    return Bench(gather)


def batches(story: Story) -> Bench:
    @batch_bolt(size=3, max_age_s=2.0)
    def gather(events: list[Event]) -> Row:
        story.meet(len(events))
        return Row(len(events), tuple(one.number for one in events))

    return Bench(gather)


def joins(story: Story, kind: str, **settings: Any) -> Bench:
    if kind == "inner":

        @join_bolt(timestamp="at", late="fail", **settings)
        def inner(event: Event, other: Other) -> Pair:
            story.meet((event.number, other.number))
            return Pair(event.number, other.number)

        return Bench(inner, "key")

    @join_bolt(timestamp="at", late="fail", **settings)
    def outer(event: Event | None, other: Other | None) -> Pair:
        pair = Pair(event.number if event else None, other.number if other else None)
        story.meet(pair.what)
        return pair

    return Bench(outer, "key")


def splits(values: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """All ways to hand them over in epochs."""
    for cuts in itertools.product((False, True), repeat=len(values) - 1):
        parts: list[list[Any]] = [[values[0]]]
        for value, cut in zip(values[1:], cuts, strict=True):
            if cut:
                parts.append([])
            parts[-1].append(value)
        yield parts


def failures_of(insides: Sequence[Any], numbers: Sequence[int]) -> list[tuple[Failing, ...]]:
    """All sets of at most two failures, the same one twice included."""
    single: list[Failing] = [("before", number) for number in numbers]
    single += [(where, what) for what in insides for where in ("inside", "behind")]
    return [(), *((one,) for one in single), *itertools.combinations_with_replacement(single, 2)]


def in_windows(events: Sequence[Event], length: float, slide: float) -> Counter[Row]:
    """What every window holds, spelled out."""
    rows: Counter[Row] = Counter()
    first = min(event.at for event in events) - length
    start = first - first % slide
    while start <= max(event.at for event in events):
        inside = sorted((one for one in events if start <= one.at < start + length), key=lambda one: one.at)
        if inside:
            new = tuple(one.number for one in inside if one.at >= start + length - slide)
            expiring = tuple(one.number for one in inside if one.at < start + slide)
            rows[Row(start, tuple(one.number for one in inside), new, expiring)] += 1
        start += slide
    return rows


def in_pairs(lefts: Sequence[Event], rights: Sequence[Other], within: float, *, outer: bool) -> Counter[Pair]:
    """Every pair, spelled out."""
    pairs = [(one.number, other.number) for one in lefts for other in rights if abs(one.at - other.at) <= within]
    rows = Counter(Pair(left, right) for left, right in pairs)
    if outer:
        matched = {number for pair in pairs for number in pair}
        rows.update(Pair(one.number, None) for one in lefts if one.number not in matched)
        rows.update(Pair(None, one.number) for one in rights if one.number not in matched)
    return rows


def told(bench: Bench, story: Story, parts: Sequence[Sequence[Event | Other]], delays: int) -> Epochs:
    """The story to its end."""
    ways = (lambda number, _: 1 + number % 2, lambda number, _: 3 - number % 3, lambda number, _: 1)
    run = Epochs(bench, story.script, ways[delays])
    for part in parts:
        run.give(part)
    run.finish()
    assert not run.dead
    assert not run.late
    assert not any(story.script.before.values())
    return run


EVENTS = [Event("k", at, number) for number, at in enumerate((10.0, 30.0, 70.0, 90.0))]
END = [Event("k", 1000.0, CLOSER)]


@pytest.mark.parametrize(("length", "slide", "hit"), [(60.0, None, (0.0, 60.0)), (60.0, 30.0, (0.0, 30.0))])
@pytest.mark.parametrize("closes", [False, True])
def test_a_window_by_event_time_is_published_once_with_all_its_tuples(
    length: float, slide: float | None, hit: tuple[float, ...], closes: bool
) -> None:
    expected = in_windows([*EVENTS, *(END if closes else [])], length, slide or length)
    for number, (parts, failures) in enumerate(itertools.product(splits(EVENTS), failures_of(hit, range(4)))):
        story = Story(failures, kill=number % 6)
        bench = windows(story, length_s=length, slide_s=slide, retry_hold_s=600.0)
        given = [*parts, *([END] if closes else [])]
        run = told(bench, story, given, number % 3)
        assert run.published == expected, (parts, failures, number, run.published - expected, expected - run.published)


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_the_order_in_which_tuples_come_changes_no_window(order: tuple[int, ...]) -> None:
    events = [EVENTS[at] for at in order]
    expected = in_windows([*EVENTS, *END], 60.0, 30.0)
    for number, failures in enumerate(failures_of((0.0, 30.0), range(4))):
        story = Story(failures, kill=number % 4)
        bench = windows(story, length_s=60.0, slide_s=30.0, lag_s=100.0, retry_hold_s=600.0)
        parts = [*splits(events)][number % 8]
        run = told(bench, story, [*parts, END], number % 3)
        assert run.published == expected, (parts, failures)


SIDES: list[Event | Other] = [Event("k", 10.0, 0), Event("k", 12.0, 1), Other("k", 11.0, 2), Other("k", 14.0, 3)]


@pytest.mark.parametrize("kind", ["inner", "outer"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (0, 2, 1, 3), (2, 3, 0, 1), (0, 2, 3, 1), (2, 0, 1, 3)])
@pytest.mark.parametrize("within", [100.0, 2.5])
def test_a_pair_is_published_once_and_none_is_called_unmatched_that_is_not(
    kind: str, order: tuple[int, ...], within: float
) -> None:
    tuples: list[Any] = [SIDES[at] for at in order]
    end = (Event("z", 1000.0, CLOSER), Other("z", 1000.0, CLOSER + 1))
    hit = [(0, 2), (1, 3), (0, 3), (CLOSER, CLOSER + 1)] + ([(0, None)] if kind == "outer" else [])
    lefts = [one for one in (*SIDES, *end) if isinstance(one, Event)]
    rights = [one for one in (*SIDES, *end) if isinstance(one, Other)]
    expected = in_pairs(lefts, rights, within, outer=kind == "outer")
    for number, failures in enumerate(failures_of(hit, range(4))):
        story = Story(failures, kill=number % 5)
        bench = joins(story, kind, within_s=within, lag_s=5.0, retry_hold_s=600.0)
        parts = [*splits(tuples)][(number * 3) % 8]
        run = told(bench, story, [*parts, end], number % 3)
        assert run.published == expected, (parts, failures, expected - run.published, run.published - expected)


@pytest.mark.parametrize("slide", [None, 1])
def test_each_tuple_is_in_as_many_count_windows_as_without_failures(slide: int | None) -> None:
    for number, (parts, failures) in enumerate(itertools.product(splits(EVENTS), failures_of((2,), range(4)))):
        story = Story(failures, kill=number % 5)
        bench = counts(story, count=2, slide_count=slide)
        run = told(bench, story, parts, number % 3)
        held = Counter(one for row, times in run.published.items() for one in row.numbers for _ in range(times))
        new = Counter(row.numbers[-1] for row in run.published.elements()) if slide else held
        assert set(new) == set(range(4)), (parts, failures)
        assert all(times == 1 for times in new.values())


def test_each_tuple_is_in_one_batch_that_counts() -> None:
    for number, (parts, failures) in enumerate(itertools.product(splits(EVENTS), failures_of((1, 2), range(4)))):
        story = Story(failures, kill=number % 5)
        bench = batches(story)
        run = told(bench, story, parts, number % 3)
        assert Counter(one for row in run.published.elements() for one in row.numbers) == Counter(range(4))


SIZES = [*((seed, 600) for seed in range(3)), *(pytest.param(seed, 5000, marks=pytest.mark.nightly) for seed in (7, 8))]


@pytest.mark.parametrize(("seed", "count"), SIZES)
def test_many_messages_with_many_failures_and_kills_lose_and_double_nothing(seed: int, count: int) -> None:
    rng = random.Random(seed)
    events = [Event("k", float(at), at) for at in range(count)]
    starts = [float(start) for start in range(-40, count, 20)]
    failures: list[Failing] = [("before", rng.randrange(count)) for _ in range(count // 25)]
    failures += [(rng.choice(("inside", "behind")), rng.choice(starts)) for _ in range(count // 50)]
    story = Story(failures)
    story.script.kills = {rng.randrange(1, 60) for _ in range(6)}
    parts = []
    while events:
        size = rng.randrange(1, 40)
        parts.append(events[:size])
        events = events[size:]
    bench = windows(story, length_s=60.0, slide_s=20.0, retry_hold_s=3600.0)
    run = told(bench, story, parts, seed % 3)
    expected = in_windows([Event("k", float(at), at) for at in range(count)], 60.0, 20.0)
    assert run.published == expected


@pytest.mark.parametrize(("seed", "count"), SIZES)
def test_many_pairs_with_many_failures_and_kills_lose_and_double_nothing(seed: int, count: int) -> None:
    rng = random.Random(seed)
    lefts = [Event(str(number % 5), number / 2, number) for number in range(0, count, 2)]
    rights = [Other(str(number % 5), number / 2, number) for number in range(1, count, 2)]
    expected_by_key: Counter[Pair] = Counter()
    for key in "01234":
        one, other = [event for event in lefts if event.key == key], [event for event in rights if event.key == key]
        expected_by_key += in_pairs(one, other, 7.0, outer=True)
    pairs = [pair.what for pair in expected_by_key]
    failures: list[Failing] = [("before", rng.randrange(count)) for _ in range(count // 30)]
    failures += [(rng.choice(("inside", "behind")), rng.choice(pairs)) for _ in range(count // 25)]
    story = Story(failures)
    story.script.kills = {rng.randrange(1, 60) for _ in range(6)}
    both: list[Any] = sorted([*lefts, *rights], key=lambda one: one.at)
    parts = []
    while both:
        size = rng.randrange(1, 25)
        parts.append(both[:size])
        both = both[size:]
    bench = joins(story, "outer", within_s=7.0, retry_hold_s=3600.0)
    run = told(bench, story, parts, seed % 3)
    assert run.published == expected_by_key
