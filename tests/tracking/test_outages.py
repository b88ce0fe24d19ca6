"""Outages: when a call is made again, what is said of it, and what is shown of several."""

from __future__ import annotations

import math

import pytest

from tupletree.errors import ConnectorError, OutageLimitError
from tupletree.tracking.outages import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    OutageWait,
    ShownOutage,
    error_text,
    shown_outages,
)


def test_pauses_double_up_to_the_longest_and_begin_anew_with_each_outage() -> None:
    wait = OutageWait("geocode")
    pauses = []
    now_s = 100.0
    for _ in range(20):
        wait.met("away", now_s)
        pauses.append(round(wait.due_s - now_s, 6))
        now_s = wait.due_s
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.5]
    assert set(pauses[5:]) == {LONGEST_PAUSE_S}
    wait.over(now_s)
    assert wait.due_s == -math.inf
    wait.met("away", now_s)
    assert wait.due_s - now_s == pytest.approx(FIRST_PAUSE_S)
    assert wait.count == 2


def test_an_outage_of_days_is_still_tried_again() -> None:
    wait = OutageWait("geocode")
    now_s = 0.0
    for _ in range(5_000):  # a power of two of so many tries is no float
        wait.met("away", now_s)
        now_s = wait.due_s
    assert wait.current is not None
    assert wait.current.tries == 5_000


def test_the_newest_error_is_kept_and_since_when_it_lasts() -> None:
    wait = OutageWait("geocode")
    wait.met("refused", 100.0)
    wait.met(TimeoutError("no answer\nin 5 s"), 103.0)
    assert wait.current is not None
    assert (wait.current.error, wait.current.since_s) == ("TimeoutError: no answer in 5 s", 100.0)
    assert wait.over(104.5) == "it goes on: the outage is over after 4.5 s (TimeoutError: no answer in 5 s)"
    assert wait.over(105.0) == ""


def test_it_is_said_at_first_and_every_half_minute() -> None:
    wait = OutageWait("geocode")
    said = {second: text for second in range(100) if (text := wait.met("away", float(second)))}
    assert [*said] == [0, 30, 60, 90]
    assert said[60] == "it has waited for 60 s, next try in 1.5 s: away"


def test_a_limit_ends_it_at_its_time_and_not_before() -> None:
    wait = OutageWait("geocode", limit_s=10.0)
    now_s = 100.0
    wait.met("away", now_s)
    with pytest.raises(OutageLimitError, match="for 10 s"):  # noqa: PT012 - which of the calls raises is the question
        while True:
            now_s = wait.due_s
            assert now_s <= 110.0 + FIRST_PAUSE_S  # the last pause is cut, so that the end is not late
            wait.met("away", now_s)
    assert now_s >= 110.0


def test_of_several_the_longest_is_shown_first_and_one_of_each_component() -> None:
    waits = [OutageWait(name) for name in ("b", "a", "b", "c")]
    for wait, since_s in zip(waits[:3], (5.0, 5.0, 3.0)):
        wait.met(f"since {since_s:g}", since_s)
    shown = shown_outages([wait.current for wait in waits], 10.0)
    assert [(one.component, one.error, one.for_s) for one in shown] == [("b", "since 3", 7.0), ("a", "since 5", 5.0)]


def test_what_is_shown_is_never_in_the_future_nor_overdue() -> None:
    wait = OutageWait("geocode")
    wait.met("away", 100.0)
    assert wait.current is not None
    assert ShownOutage.of(wait.current, 99.0).for_s == 0.0
    assert ShownOutage.of(wait.current, 200.0).next_try_s == 0.0
    assert str(ShownOutage.of(wait.current, 100.0)) == "waiting for geocode: away since 0 s, next try in 0.1 s"


def test_an_error_with_parts_is_one_line_in_which_the_parts_stay_apart() -> None:
    error = ConnectorError("the database failed", where="sink 'out'", got="no answer\nin time", next_step="start it")
    assert (
        error_text(error) == "ConnectorError: sink 'out': the database failed; got: no answer in time; next: start it"
    )
