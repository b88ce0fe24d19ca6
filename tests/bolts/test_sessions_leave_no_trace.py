"""Whatever fails and is tried again, sessions are published as they would have been without the failure.

All orders of arrival of four tuples in all splits over epochs, with two failures and one kill; and many at random, of
several keys. The oracle sorts all tuples and looks where the gaps are.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.bolts.bench import Event
from tests.bolts.test_failures_leave_no_trace import CLOSER, Failing, Row, Story, failures_of, splits, told, windows

EVENTS = [Event("k", at, number) for number, at in enumerate((10.0, 19.0, 28.0, 45.0))]
"""The first three are one session, held together by the second."""

END = [Event("k", 1000.0, CLOSER)]


def in_sessions(events: Sequence[Event], gap: float, longest: float = 1e9) -> Counter[Row]:
    """What every session of one key holds, spelled out."""
    parts: list[list[Event]] = []
    for event in sorted(events, key=lambda one: one.at):
        if parts and event.at - parts[-1][-1].at < gap and event.at < parts[-1][0].at + longest:
            parts[-1].append(event)
        else:
            parts.append([event])
    numbers = [(part[0].at, tuple(one.number for one in part)) for part in parts]
    return Counter({Row(start, held, held, held): 1 for start, held in numbers})


@pytest.mark.parametrize("longest", [None, 15.0])
@pytest.mark.parametrize("closes", [False, True])
def test_a_session_is_published_once_with_all_its_tuples(longest: float | None, closes: bool) -> None:
    expected = in_sessions([*EVENTS, *(END if closes else [])], 10.0, longest or 1e9)
    hit = (10.0, 28.0) if longest else (10.0, 45.0)
    for number, (parts, failures) in enumerate(itertools.product(splits(EVENTS), failures_of(hit, range(4)))):
        story = Story(failures, kill=number % 6)
        bench = windows(story, gap_s=10.0, max_length_s=longest, retry_hold_s=600.0)
        run = told(bench, story, [*parts, *([END] if closes else [])], number % 3)
        assert run.published == expected, (parts, failures, number)


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_the_order_in_which_tuples_come_changes_no_session(order: tuple[int, ...]) -> None:
    """Two sessions that the second tuple makes one of, before or after one of them failed."""
    events = [EVENTS[at] for at in order]
    expected = in_sessions([*EVENTS, *END], 10.0)
    for number, failures in enumerate(failures_of((10.0, 45.0), range(4))):
        for at, parts in enumerate(splits(events)):
            story = Story(failures, kill=(number + at) % 4)
            bench = windows(story, gap_s=10.0, lag_s=100.0, retry_hold_s=600.0)
            run = told(bench, story, [*parts, END], (number + at) % 3)
            assert run.published == expected, (parts, failures)


def random_events(rng: random.Random, count: int) -> list[Event]:
    """Of three keys, in order: sessions of a tuple to dozens, with gaps around the limit of 5 s."""
    at = dict.fromkeys("abc", 0.0)
    found = []
    for _ in range(count):
        key = rng.choice("abc")
        at[key] += rng.choice((0.5, 1.0, 2.0, 3.0, 4.0, 4.75, 5.0, 30.0))
        found.append((at[key], key))
    return [Event(key, time, number) for number, (time, key) in enumerate(sorted(found))]


SIZES = [*((seed, 600) for seed in range(6)), *(pytest.param(seed, 5000, marks=pytest.mark.nightly) for seed in (7, 8))]


@pytest.mark.parametrize(("seed", "count"), SIZES)
def test_many_sessions_with_many_failures_and_kills_lose_and_double_nothing(seed: int, count: int) -> None:
    rng = random.Random(seed)
    events = random_events(rng, count)
    longest = rng.choice((1e9, 12.0))
    expected: Counter[Row] = Counter()
    for key in "abc":
        expected += in_sessions([event for event in events if event.key == key], 5.0, longest)
    starts = [row.what for row in expected]
    failures: list[Failing] = [("before", rng.randrange(count)) for _ in range(count // 25)]
    failures += [(rng.choice(("inside", "behind")), rng.choice(starts)) for _ in range(count // 40)]
    story = Story(failures)
    story.script.kills = {rng.randrange(1, 60) for _ in range(6)}
    parts: list[list[Event]] = []
    left = events
    while left:  # out of order by less than the lag
        size = rng.randrange(1, 40)
        parts.append(rng.sample(left[:size], len(left[:size])))
        left = left[size:]
    lag_s = max(part[-1] - part[0] for part in (sorted(event.at for event in part) for part in parts))
    bench = windows(story, "key", gap_s=5.0, max_length_s=longest, per_key=True, lag_s=lag_s, retry_hold_s=3600.0)
    run = told(bench, story, parts, seed % 3)
    assert run.published == expected
