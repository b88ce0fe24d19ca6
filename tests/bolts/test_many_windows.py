"""What windows cost where very many are over at once."""

from __future__ import annotations

import time

from tests.bolts.bench import Bench, Event
from tupletree import window_bolt


def look(events: list[Event]) -> None:
    """Nothing that costs anything."""


def cost_s(windows: int) -> float:
    """CPU seconds of as many windows of one key, all over at once."""
    bench = Bench(window_bolt(length_s=1, timestamp="at")(look))
    began_s = time.process_time()
    bench.take(Event("k", float(number), number) for number in range(windows + 1))
    spent_s = time.process_time() - began_s
    assert len(bench.acked) == windows - 1  # number 0 is of no message
    return spent_s


def test_the_cost_of_a_window_does_not_grow_with_those_that_come_after_it() -> None:
    few = min(cost_s(2_000) for _ in range(3))
    many = min(cost_s(32_000) for _ in range(2))
    assert many < 64 * few  # 16 times as many; when each one moved all that came later, 200 times
