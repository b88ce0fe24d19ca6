"""The rate at which calls may be made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tupletree.tracking.rate_limit import SLACK_S, RateLimit


@given(
    per_s=st.floats(0.01, 10_000.0),
    steps=st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 300)), min_size=1, max_size=40),
    window_s=st.floats(0.001, 30.0),
)
def test_no_time_has_more_calls_than_the_rate_allows(
    per_s: float, steps: list[tuple[float, int]], window_s: float
) -> None:
    limit, now_s = RateLimit(per_s, 0.0), 0.0
    made: list[tuple[float, int]] = []
    for pause_s, wanted in steps:
        now_s += pause_s
        taken = limit.take(wanted, now_s)
        assert 0 <= taken <= wanted
        made.append((now_s, taken))
    for start_s, _ in made:
        calls = sum(taken for at_s, taken in made if start_s <= at_s < start_s + window_s)
        assert calls <= per_s * (window_s + SLACK_S) + 1 + 1e-6


@given(per_s=st.floats(0.01, 10_000.0), wanted=st.integers(1, 1_000))
def test_a_caller_that_comes_when_a_call_is_due_gets_one(per_s: float, wanted: int) -> None:
    limit, now_s = RateLimit(per_s, 0.0), 0.0
    for _ in range(20):
        assert limit.take(wanted, now_s) >= 1
        now_s = max(now_s, limit.due_s)


def test_calls_that_are_reserved_come_one_after_the_other() -> None:
    limit = RateLimit(10.0, 0.0, first_s=0.1)
    assert [round(limit.reserve(0.0), 6) for _ in range(3)] == [0.1, 0.2, 0.3]
    assert limit.reserve(10.0) == 0.0
    assert round(limit.reserve(10.0), 6) == 0.05
