"""Sources that give a failed message again after others, while windows wait for it with the limit full of those."""

from __future__ import annotations

import pytest

from tests.simulator.campaign import simulate_all
from tests.tasks.driving import Driver
from tests.tasks.giving_again import Members, Queue, pairs_from, seconds
from tests.tasks.streams import Gathering
from tupletree.tasks.mail import Now
from tupletree.tasks.upstream.retry_status import BLOCKED_S, BlockedSource, RetryStatus


def driver_of(source: Queue, out: Gathering, limit: int) -> Driver:
    return Driver(seconds(source, out, limit))


def by_time(out: Gathering) -> list[Members]:
    return sorted(out.rows, key=lambda row: row.seconds)


def test_windows_wait_for_a_message_that_its_source_gives_again_within_the_limit() -> None:
    source, out = Queue(20, others=0), Gathering()
    driver_of(source, out, limit=8).run()
    assert by_time(out) == pairs_from(0, 20)


def test_the_limit_may_double_for_a_message_that_its_source_gives_again_after_others() -> None:
    source, out = Queue(20, others=6), Gathering()
    driver_of(source, out, limit=8).run()
    assert by_time(out) == pairs_from(0, 20)


@pytest.mark.parametrize("others", [60, 1000])
def test_windows_wait_no_longer_for_a_message_that_cannot_come_because_the_limit_is_full_of_what_they_hold(
    others: int,
) -> None:
    source, out = Queue(100, others), Gathering()
    driver = driver_of(source, out, limit=8)
    before_s = driver.now_s
    driver.run()
    # The window that went on without it is called again, and nothing else changes.
    assert by_time(out) == [Members([0]), Members([1]), *pairs_from(2, 100)]
    assert source.most <= 3 * 8, "twice the limit, and those that are being written"
    assert driver.now_s - before_s < 15  # not the 600 s of `retry_hold_s`; 10 s of them at the end of the input


def test_a_source_is_blocked_once_all_its_messages_are_held_and_that_is_not_old_news() -> None:
    status, source, roots = RetryStatus([1], [5, 6], 30.0), BlockedSource(1), [7, 8]
    status.note_spout(1, 100.0, 2, Now(1000.0, 100.0))
    assert not source.look(status, lambda: roots, Now(1000.0, 100.0))
    assert status.is_asked
    assert source.due_s == 1000.0 + BLOCKED_S
    status.note_holder(5, frozenset([7, 9]))
    assert not source.look(status, lambda: roots, Now(1001.0, 101.0)), "8 is on its way"
    status.note_holder(6, frozenset([8]))
    assert source.due_s is not None
    assert not source.look(status, lambda: roots, Now(source.due_s - 0.01, 101.0)), "it is too early to look again"
    assert source.look(status, lambda: roots, Now(source.due_s, 101.0))
    assert source.given_up_s == 1001.0 + BLOCKED_S
    assert status.retrying_since_s is None


def test_a_source_that_may_be_asked_is_not_blocked_and_asks_no_holder() -> None:
    status, source = RetryStatus([1], [5], 30.0), BlockedSource(1)
    status.note_holder(5, frozenset([7]))
    source.look(status, lambda: [7], Now(1000.0, 100.0))
    assert not source.look(status, None, Now(1001.0, 101.0))
    assert not status.is_asked
    assert source.due_s is None
    assert not source.look(status, lambda: [7], Now(1002.0, 102.0)), "the time in which it was not counts for nothing"


@pytest.mark.parametrize("seed", [2212, 2104], ids=["the limit", "high water"])
def test_seeds_that_waited_for_the_whole_of_retry_hold_s(seed: int) -> None:
    simulate_all([seed])
