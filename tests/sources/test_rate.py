from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.places import Place
from tupletree.clock import ManualClock
from tupletree.errors import ConfigError, EndOfInput
from tupletree.sources import rate
from tupletree.sources.rate import BLOCK, Rate
from tupletree.topology.splits import read_split


class Number(msgspec.Struct, frozen=True):
    value: int


def opened(
    clock: ManualClock, per_second: float = 10.0, *, task: int = 0, tasks: int = 1, **options: Any
) -> Rate[Number]:
    spout = rate(Number, per_second, message_type=Number, clock=clock, **options)
    spout.open(Place(task_index=task, parallelism=tasks))
    return spout


def numbers(spout: Rate[Number], max_rows: int = 10_000) -> Iterator[int]:
    for split in spout.plan(max_rows, 1) or ():
        for index, number in enumerate(read_split(spout, split)):
            assert split.message_id(index) == number.value
            yield number.value


def test_what_is_due_is_named_and_no_more_than_there_is_room_for() -> None:
    clock = ManualClock()
    spout = opened(clock)
    assert spout.plan(100, 1) is None
    clock.advance(1.0)
    assert [*numbers(spout, 4)] == [0, 1, 2, 3]
    assert [*numbers(spout)] == [4, 5, 6, 7, 8, 9]
    assert [*numbers(spout)] == []


def test_a_pause_is_not_caught_up_and_a_position_goes_on_with_the_next_number() -> None:
    clock = ManualClock()
    spout = opened(clock)
    clock.advance(1.0)
    assert len([*numbers(spout)]) == 10
    clock.advance(100.0)
    spout.activate()
    assert [*numbers(spout)] == []
    other = opened(clock)
    other.restore(spout.snapshot())
    clock.advance(0.2)
    assert [*numbers(other)] == [10, 11]


def test_tasks_share_the_numbers_and_end_with_the_last() -> None:
    clock = ManualClock()
    total = 3 * BLOCK + 10
    given: list[int] = []
    for task in range(2):
        spout = opened(clock, 1e9, task=task, tasks=2, total=total)
        clock.advance(10.0)
        while True:
            try:
                given += numbers(spout, 700)
            except EndOfInput:
                break
    assert sorted(given) == [*range(total)]


def test_an_endless_rate_gives_as_much_as_there_is_room_for() -> None:
    clock = ManualClock()
    spout = opened(clock, float("inf"))
    clock.advance(0.001)
    assert [*numbers(spout, 5)] == [0, 1, 2, 3, 4]


def test_a_rate_is_above_0() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        rate(Number, 0, message_type=Number)
