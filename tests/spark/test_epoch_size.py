"""How many messages an epoch may have."""

from __future__ import annotations

from tests.tasks.streams import Line
from tupletree import Topology, bolt
from tupletree.config import Options
from tupletree.runtimes.spark.driver.epoch_size import EpochSize
from tupletree.sources import items


@bolt
def work(line: Line) -> None: ...


def size_of(max_rate: float | None = None, **options: object) -> EpochSize:
    t = Topology("sizes")
    t.bolt("work", work, max_rate=max_rate).shuffle(t.spout("lines", items([Line("")])))
    return EpochSize(t.build(), Options(**options))  # type: ignore[arg-type]  # any of them


def test_without_trouble_it_is_what_the_option_says() -> None:
    size = size_of(epoch_max_messages=500)
    size.settled(500, 100.0, was_split=False)
    assert size.limit == 500


def test_an_epoch_that_was_split_is_followed_by_smaller_ones_that_grow_again() -> None:
    size = size_of(epoch_max_messages=1_000)
    size.settled(1_000, 1.0, was_split=True)
    assert size.limit == 250
    for expected in (500, 1_000, 1_000):
        size.settled(250, 1.0, was_split=False)
        assert size.limit == expected


def test_with_a_rate_an_epoch_takes_about_ten_seconds() -> None:
    size = size_of(5.0)
    assert size.limit == 50
    size.settled(50, 40.0, was_split=False)  # each message was four calls
    assert size.limit == 12
    size.settled(12, 2.0, was_split=False)  # few of them were
    assert size.limit == 24
    assert size_of(0.01).limit == 1


def test_with_a_limit_on_dead_letters_it_begins_small() -> None:
    assert size_of(max_dead=20).limit == 21
    assert size_of(max_dead="1%").limit == 100
    assert size_of(5.0, max_dead=100).limit == 50


def test_with_a_limit_on_dead_letters_it_doubles_with_each_epoch_that_settles() -> None:
    size = size_of(max_dead=20, epoch_max_messages=100)
    for expected in (42, 84, 100, 100):
        size.settled(size.limit, 1.0, was_split=False)
        assert size.limit == expected
