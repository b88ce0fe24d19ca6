"""When ticks come on Spark."""

from __future__ import annotations

from tests.tasks.streams import Line
from tupletree import Tick, Topology, bolt
from tupletree.config import Options
from tupletree.runtimes.spark.driver.ticks import TickSchedule
from tupletree.sources import items


@bolt(tick_interval_s=10.0)
def ticked(line: Line | Tick) -> None: ...


@bolt
def plain(line: Line | Tick) -> None: ...


def schedule_of(**options: object) -> TickSchedule:
    t = Topology("ticks")
    lines = t.spout("lines", items([Line("")]))
    t.bolt("ticked", ticked).shuffle(lines)
    t.bolt("plain", plain).shuffle(lines)
    return TickSchedule(t.build(), Options(**options), 100.0)  # type: ignore[arg-type]  # any of them


def test_a_tick_that_is_late_comes_once_for_any_number_of_intervals() -> None:
    ticks = schedule_of()
    assert (ticks.take(109.0), ticks.next_s) == ([], 110.0)
    assert (ticks.take(145.0), ticks.next_s) == (["ticked"], 150.0)
    assert ticks.take(149.0) == []


def test_bolts_that_set_no_interval_have_that_of_the_option() -> None:
    assert schedule_of().take(1_000.0) == ["ticked"]
    assert sorted(schedule_of(tick_interval_s=1.0).take(101.0)) == ["plain"]
