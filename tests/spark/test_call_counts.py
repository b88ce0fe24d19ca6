"""How often runs make a call that raises, and what makes first runs make it again."""

from __future__ import annotations

from tupletree.runtimes.spark.format.wire import StatsReport
from tupletree.runtimes.spark.settle.call_counts import CallCounts


def note(counts: CallCounts, *reports: dict[str, tuple[int, int]]) -> None:
    counts.note(StatsReport({}, calls_again=report) for report in reports)


def test_further_runs_make_more_calls() -> None:
    counts = CallCounts()
    assert [counts.of_run(number) for number in range(4)] == [1, 3, 9, 9]
    assert counts.of_bolts(0) == {}


def test_repeating_helps_as_long_as_half_of_the_calls_pass() -> None:
    counts = CallCounts()
    note(counts, {"fetch": (5, 0), "store": (0, 5)}, {"fetch": (0, 5), "store": (4, 0)})
    assert [counts.of_bolts(number) for number in range(3)] == [{"fetch": 3}, {"fetch": 9}, {"fetch": 9}]
    note(counts, {}, {"store": (1, 0)})
    assert counts.of_bolts(0) == {"fetch": 3, "store": 3}, "what nothing was said about stays"
    note(counts, {"fetch": (4, 5)})
    assert counts.of_bolts(0) == {"store": 3}
