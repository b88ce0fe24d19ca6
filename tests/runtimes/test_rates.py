"""How fast messages are acked, and how long they take: what is shown is of the last moments."""

from __future__ import annotations

import pytest

from tupletree.clock import ManualClock
from tupletree.runtimes.rates import SAMPLES, WINDOW_S, Rates
from tupletree.tracking.records import Acked


def acked(count: int, latency_s: float) -> list[Acked]:
    return [Acked(1, number, latency_s, 1) for number in range(count)]


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = ManualClock(monotonic=50.0)
    rates = Rates(clock)
    assert rates.rate_per_s() == 0.0
    rates.settled(acked(1_000, 0.1))
    clock.advance(100.0)
    assert rates.rate_per_s() == 0.0
    for _ in range(3):
        rates.settled(acked(4, 0.1), more=6)
        clock.advance(1.0)
    assert rates.rate_per_s() == pytest.approx(10.0)
    clock.advance(WINDOW_S - 1.5)
    assert rates.rate_per_s() == pytest.approx(10 / (WINDOW_S - 0.5)), "the last ten are still in it"


def test_latencies_are_those_of_the_last_messages() -> None:
    rates = Rates(ManualClock())
    assert rates.latency_ms(0.5) is None
    rates.settled(acked(100, 5.0))
    assert rates.latency_ms(0.5) == 5_000.0
    for number in range(SAMPLES // 10):
        rates.settled(acked(10, 0.001 * (number % 2 + 1)))
    assert [rates.latency_ms(quantile) for quantile in (0.0, 0.25, 0.75, 1.0)] == [1.0, 1.0, 2.0, 2.0]
