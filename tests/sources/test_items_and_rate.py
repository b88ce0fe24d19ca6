import pickle
from typing import Any

import msgspec
import pytest

from tests.places import Place
from tupletree.clock import ManualClock
from tupletree.errors import ConfigError, EndOfInput
from tupletree.ids import MessageId
from tupletree.sources import items, rate
from tupletree.topology.components import Emit, Spout


class Number(msgspec.Struct, frozen=True):
    value: int


def opened(spout: Spout[Any], index: int = 0, parallelism: int = 1) -> Any:
    spout.open(Place(task_index=index, parallelism=parallelism))
    return spout


def rest_of(spout: Any) -> list[Any]:
    messages: list[Any] = []
    while True:
        try:
            messages.extend(spout.next())
        except EndOfInput:
            return messages


def test_items_come_in_order_with_their_index_as_id() -> None:
    spout = items([Number(5), Number(6)])
    assert spout.message_type is Number
    assert rest_of(opened(spout)) == [Emit(Number(5), 0), Emit(Number(6), 1)]


def test_items_take_ids_that_differ_by_type() -> None:
    ids: list[MessageId] = [0, "0", b"0", False, (0,), (False,)]
    spout = items([Number(n) for n in range(6)], ids=ids)
    assert [message.message_id for message in rest_of(opened(spout))] == ids


def test_items_refuse_ids_that_repeat_or_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="must differ"):
        items([Number(1), Number(2)], ids=["a", "a"])
    with pytest.raises(ConfigError, match="1 ids for 2 values"):
        items([Number(1), Number(2)], ids=["a"])


def test_items_need_one_class() -> None:
    with pytest.raises(ConfigError, match="no values"):
        items([])
    with pytest.raises(ConfigError, match="Number, int"):
        items([Number(1), 1])
    assert rest_of(opened(items([], message_type=Number))) == []


@pytest.mark.parametrize("count", [0, 1, 2500])
def test_the_shares_of_all_tasks_are_all_items(count: int) -> None:
    spout = items([Number(n) for n in range(count)], message_type=Number)
    shares = [rest_of(opened(pickle.loads(pickle.dumps(spout)), index, 3)) for index in range(3)]
    assert sorted(message.value.value for share in shares for message in share) == list(range(count))


def test_items_resume_after_a_snapshot() -> None:
    spout = opened(items([Number(n) for n in range(1500)]))
    first = list(spout.next())
    again = opened(items([Number(n) for n in range(1500)]))
    again.restore(spout.snapshot())
    assert [m.message_id for m in first + rest_of(again)] == list(range(1500))


def test_a_rate_emits_what_is_due_and_catches_up() -> None:
    clock = ManualClock(monotonic=50.0)
    spout = opened(rate(Number, 8.0, message_type=Number, total=25, clock=clock))
    assert spout.next() is None
    clock.advance(0.125)
    assert spout.next() == [Emit(Number(0), 0)]
    assert spout.next() is None
    clock.advance(1.0)
    assert [message.message_id for message in spout.next()] == list(range(1, 9))
    clock.advance(100.0)
    assert [message.message_id for message in spout.next()] == list(range(9, 25))
    with pytest.raises(EndOfInput):
        spout.next()


def test_a_pause_of_a_rate_is_not_caught_up() -> None:
    clock = ManualClock()
    spout = opened(rate(Number, 8.0, message_type=Number, clock=clock))
    clock.advance(0.5)
    assert len(spout.next()) == 4
    spout.deactivate()
    clock.advance(3600.0)
    spout.activate()
    assert spout.next() is None
    clock.advance(0.25)
    assert [message.message_id for message in spout.next()] == [4, 5]


def test_a_rate_resumes_with_the_next_number() -> None:
    clock = ManualClock()
    spout = opened(rate(Number, 8.0, message_type=Number, clock=clock))
    clock.advance(0.375)
    spout.next()
    again = opened(rate(Number, 8.0, message_type=Number, clock=clock))
    clock.advance(5.0)
    again.restore(spout.snapshot())
    assert again.next() is None
    clock.advance(0.125)
    assert again.next() == [Emit(Number(3), 3)]


@pytest.mark.parametrize("per_second", [0, -1.0, float("nan")])
def test_a_rate_is_above_zero(per_second: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        rate(Number, per_second, message_type=Number)
