"""How many messages may be in flight where `max_spout_pending` is not set."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tasks.streams import Line
from tupletree import Topology, batch_bolt, bolt, window_bolt
from tupletree.config import Options
from tupletree.sources import items
from tupletree.tasks.pending_limit import HIGHEST, PendingLimit

MOST = 128


@bolt
def plain(line: Line) -> None: ...


@bolt(concurrency=8)
async def waits(line: Line) -> None: ...


@bolt(blocking=True)
def blocks(line: Line) -> None: ...


@batch_bolt(size=10)
def batches(lines: list[Line]) -> None: ...


@window_bolt(count=3)
def windows(lines: list[Line]) -> None: ...


def limit_of(work: Any, parallelism: int = 1, pending: int | None = None, **options: Any) -> PendingLimit | None:
    t = Topology("limit")
    lines = t.spout("lines", items([Line("")]), pending=pending)
    t.bolt("work", work, parallelism=parallelism).shuffle(lines)
    return PendingLimit.of(t.build(), "lines", Options(**options), MOST)


@pytest.mark.parametrize(
    ("work", "parallelism", "least"), [(plain, 4, 1), (waits, 3, 24), (blocks, 4, 4), (waits, 100, MOST)]
)
def test_it_begins_with_as_many_as_are_worked_at_a_time(work: Any, parallelism: int, least: int) -> None:
    limit = limit_of(work, parallelism)
    assert limit is not None
    assert limit.value == least


def test_it_is_fixed_where_messages_are_held_or_nothing_times_out_or_the_user_sets_it() -> None:
    assert limit_of(batches) is None
    assert limit_of(windows) is None
    assert limit_of(plain, message_timeout_s=None) is None
    assert limit_of(plain, acker_tasks=0) is None
    assert limit_of(plain, max_spout_pending=7) is None
    assert limit_of(plain, pending=7) is None


def measured(limit: PendingLimit, times: int, each_s: float, now_s: float = 0.0) -> float:
    for root in range(1, times + 1):
        limit.launched(root, limit.value, now_s)
        now_s += limit.value * each_s
        limit.ended({root}, now_s)
    return now_s


def test_it_doubles_with_each_measured_message_as_long_as_the_last_one_waits_for_less_than_a_quarter() -> None:
    quick, slow = PendingLimit(1, MOST, 30.0), PendingLimit(1, MOST, 30.0)
    now_s = 0.0
    for expected in (2, 4, 8, 16, 32, 64, 128, 128):
        now_s = measured(quick, 1, 0.001, now_s)
        assert quick.value == expected
    measured(slow, 20, 0.5)
    assert slow.value == 1 + 30.0 / 4 / 0.5


def test_it_goes_beyond_the_usual_number_while_the_last_one_waits_for_a_few_milliseconds() -> None:
    limit = PendingLimit(1, MOST, 30.0)
    now_s = measured(limit, 20, 2e-6)
    assert limit.value == pytest.approx(2500, abs=2)
    now_s = measured(limit, 20, 5e-6, now_s + 1.0)
    assert limit.value == pytest.approx(1000, abs=2)
    now_s = measured(limit, 20, 1e-7, now_s + 1.0)
    assert limit.value == HIGHEST
    now_s = measured(limit, 1, 0.02, now_s + 1.0)  # messages that are suddenly slow
    assert limit.value == MOST
    measured(limit, 1, 2.0, now_s + 2.0 * HIGHEST)
    assert limit.value == 4


def test_it_keeps_to_a_quarter_of_a_timeout_of_milliseconds_beyond_the_usual_number_too() -> None:
    limit = PendingLimit(1, MOST, 0.008)
    measured(limit, 20, 2e-6)
    assert limit.value == pytest.approx(1000, abs=2)


def test_a_measure_that_leaves_the_limit_as_it_was_is_followed_by_a_rest() -> None:
    limit = PendingLimit(1, MOST, 30.0)
    now_s = measured(limit, 8, 0.001)
    measured(limit, 1, 2e-6, now_s + 0.1)
    assert limit.value == MOST
    measured(limit, 1, 2e-6, now_s + 0.5)
    assert limit.value == 2 * MOST


def test_it_starts_again_when_a_message_times_out() -> None:
    limit = PendingLimit(4, MOST, 30.0)
    measured(limit, 4, 0.001)
    assert limit.value == 64
    limit.expired()
    assert limit.value == 4


def test_it_grows_where_no_tuple_waits_for_a_task() -> None:
    limit = PendingLimit(1, MOST, 30.0)
    limit.reached(0.0, is_idle=True)
    limit.reached(0.02, is_idle=True)
    assert limit.value == 2
    limit.reached(0.04, is_idle=False)
    limit.reached(0.06, is_idle=True)
    assert limit.value == 2


def test_it_does_not_grow_beyond_the_usual_number_because_no_tuple_waits() -> None:
    limit = PendingLimit(100, MOST, 30.0)
    limit.reached(0.0, is_idle=True)
    limit.reached(0.02, is_idle=True)
    limit.reached(0.04, is_idle=True)
    assert limit.value == MOST
    measured(limit, 20, 2e-6)
    grown = limit.value
    limit.reached(1.0, is_idle=True)
    limit.reached(1.2, is_idle=True)
    assert limit.value == grown > MOST
