"""Delays between attempts and between restarts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.config import Options
from tupletree.errors import ConfigError
from tupletree.tracking.outcomes import RetryRule
from tupletree.tracking.retry import RestartPolicy, RetryPolicy


def middle() -> float:
    return 0.5


def test_delays_double_up_to_the_cap() -> None:
    policy = RetryPolicy(jitter=0.0)
    assert [policy.delay_s(attempt, middle) for attempt in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert policy.delay_s(10, middle) == 30.0


@pytest.mark.parametrize("attempt", [1, 64, 1_024, 10_000, 10**9])
def test_rule_14_no_number_of_failures_overflows(attempt: int) -> None:
    delay_s = RetryPolicy(max_attempts=10**10).delay_s(attempt, middle)
    assert 0.1 <= delay_s <= 30.0


def test_rule_14_attempts_delays_and_cap_are_separate_settings() -> None:
    policy = RetryPolicy.from_options(
        Options(max_attempts=3, backoff_initial_ms=10, backoff_factor=3, backoff_max_ms=50, backoff_jitter=0)
    )
    assert [policy.exhausted(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert [policy.delay_s(attempt, middle) for attempt in (1, 2, 3)] == [0.01, 0.03, 0.05]


@given(
    attempt=st.integers(1, 20_000),
    spread=st.floats(0, 1, exclude_max=True),
    initial=st.floats(0, 1e6),
    factor=st.floats(1, 1e3),
    cap=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
def test_every_delay_is_finite_and_within_the_spread(
    attempt: int, spread: float, initial: float, factor: float, cap: float, jitter: float
) -> None:
    policy = RetryPolicy(5, initial, factor, cap, jitter)
    delay_s = policy.delay_s(attempt, lambda: spread)
    assert math.isfinite(delay_s)
    assert 0 <= delay_s * 1000 <= cap * (1 + jitter) * 1.000001


def test_jitter_spreads_evenly_around_the_delay() -> None:
    policy = RetryPolicy(jitter=0.5)
    assert [round(policy.delay_s(1, lambda at=at: at), 6) for at in (0.0, 0.5, 1.0)] == [0.05, 0.1, 0.15]  # type: ignore[misc]  # mypy cannot infer lambdas with defaults


def test_what_a_failure_says_wins_over_the_options() -> None:
    policy = RetryPolicy(jitter=0.0)
    rule = RetryRule(attempts=3, backoff_s=2.0, factor=3.0, max_s=5.0)
    assert [policy.delay_s(attempt, middle, rule) for attempt in (1, 2, 3)] == [2.0, 5.0, 5.0]
    assert [policy.exhausted(attempt, rule) for attempt in (2, 3)] == [False, True]
    assert policy.delay_s(2, middle, RetryRule(max_s=0.15)) == 0.15
    assert [policy.exhausted(attempt, RetryRule(max_s=0.15)) for attempt in (4, 5)] == [False, True]


def test_a_pause_that_was_asked_for_is_never_shortened() -> None:
    policy = RetryPolicy(backoff_max_ms=10.0, jitter=1.0)
    rule = RetryRule(after_s=100.0, backoff_s=1.0)
    assert [policy.delay_s(attempt, lambda at=at: at, rule) for attempt, at in ((1, 0.0), (9, 1.0))] == [100.0, 200.0]  # type: ignore[misc]  # mypy cannot infer lambdas with defaults


def test_after_failures_of_services_the_pauses_are_two_minutes_in_total() -> None:
    policy = RetryPolicy(jitter=0.0)
    pauses = [policy.delay_s(attempt, middle, RetryRule(is_service=True)) for attempt in (1, 2, 3, 4, 5, 9)]
    assert pauses == [0.5, 3.0, 18.0, 108.0, 120.0, 120.0]
    assert policy.delay_s(2, middle, RetryRule(is_service=True, backoff_s=1.0)) == 6.0


def test_options_out_of_range_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(max_attempts=0, backoff_factor=0.5, jitter=math.nan)
    assert [finding.where for finding in caught.value.findings] == ["max_attempts", "backoff_factor", "backoff_jitter"]


def fail_and_start(policy: RestartPolicy, now_s: float) -> float | None:
    """Fail at `now_s`, and be up again as soon as the policy allows."""
    delay_s = policy.failed(now_s)
    if delay_s is not None:
        policy.started(now_s + delay_s)
    return delay_s


def test_restarts_wait_longer_each_time_and_end_after_five() -> None:
    policy = RestartPolicy()
    policy.started(0.0)
    delays = [fail_and_start(policy, now_s) for now_s in (0, 59, 118, 177, 236, 295)]
    assert delays == [2.0, 4.0, 8.0, 16.0, 30.0, None]


def test_lasting_health_forgives_restarts() -> None:
    policy = RestartPolicy()
    delays = [fail_and_start(policy, 100.0 * turn) for turn in range(20)]
    assert delays == [2.0] * 20


def test_several_errors_at_once_are_one_restart() -> None:
    policy = RestartPolicy()
    assert policy.failed(10.0) == 2.0
    assert policy.failed(10.5) == 1.5
    assert policy.restarts == 1


def test_a_slow_start_that_fails_does_not_count_as_health() -> None:
    policy = RestartPolicy()
    policy.started(0.0)
    delays = [policy.failed(now_s) for now_s in (0, 100, 200, 300, 400, 500)]
    assert delays == [2.0, 4.0, 8.0, 16.0, 30.0, None]


def test_giving_up_is_final() -> None:
    policy = RestartPolicy(max_restarts=1)
    assert [policy.failed(now_s) for now_s in (0, 10, 1000)] == [2.0, None, None]


def test_delays_never_shrink() -> None:
    policy = RetryPolicy(jitter=0.0)
    delays = [policy.delay_s(attempt, middle) for attempt in range(1, 100)]
    assert all(earlier <= later for earlier, later in pairwise(delays))
