"""How much time message timeouts do not count: that in which a call keeps a thread from its other work."""

from __future__ import annotations

from threading import Lock

from hypothesis import given
from hypothesis import strategies as st

from tupletree.tasks.stalls import GRACE_S, Stalls


def test_what_a_call_takes_beyond_its_grace_is_lost_while_it_lasts_and_afterwards() -> None:
    stalls = Stalls(Lock())
    assert stalls.without(100.0) == 100.0
    number = stalls.begin(100.0)
    assert stalls.without(100.0 + GRACE_S) == 100.0 + GRACE_S
    assert stalls.without(130.0) == 100.0 + GRACE_S
    stalls.end(number, 140.0)
    assert stalls.without(140.0) == 100.0 + GRACE_S
    assert stalls.without(150.0) == 110.0 + GRACE_S
    assert stalls.earliest(stalls.without(150.0)) == 150.0


def test_short_calls_cost_nothing_however_many_there_are() -> None:
    stalls = Stalls(Lock())
    for second in range(1000):
        stalls.end(stalls.begin(float(second)), second + GRACE_S)
    assert stalls.without(1000.0) == 1000.0


def test_time_is_lost_once_where_calls_of_several_threads_last_at_once() -> None:
    stalls = Stalls(Lock())
    first, second = stalls.begin(0.0), stalls.begin(10.0)
    stalls.end(first, 20.0)
    stalls.end(second, 30.0)
    assert stalls.without(30.0) == GRACE_S


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from(["begin", "end", "ask"]))))
def test_it_never_goes_back_and_never_ahead(steps: list[tuple[float, str]]) -> None:
    stalls, now_s, seen_s = Stalls(Lock()), 0.0, 0.0
    going: list[int] = []
    for pause_s, what in steps:
        now_s += pause_s
        if what == "begin":
            going.append(stalls.begin(now_s))
        elif what == "end" and going:
            stalls.end(going.pop(0), now_s)
        found_s = stalls.without(now_s)
        assert seen_s - 1e-9 <= found_s <= now_s
        seen_s = found_s
