from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pytest

from tests.places import Place
from tupletree import Reject, SourceChangedError, Split, SplitSpout, Topology, TopologyError, bolt, testing
from tupletree.errors import ConnectorError, EndOfInput, is_outage
from tupletree.topology.components import Emit
from tupletree.topology.splits import read_split
from tupletree.tracking.outcomes import Outcome


class Number(msgspec.Struct, frozen=True):
    value: int


class Numbers(SplitSpout[Number]):
    """0, 1, 2, … in pieces of three; numbers that end with 7 cannot be made values of."""

    def __init__(self, total: int, source: str | None = None) -> None:
        self.total = total
        self.source = source

    def open(self, context: Any) -> None:
        self.taken = 0

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split]:
        if self.taken == self.total:
            raise EndOfInput
        split = Split(min(3, max_rows, self.total - self.taken), self.taken, self.source)
        self.taken += split.rows
        return [split]

    def read(self, split: Split) -> Iterable[Number | Reject]:
        for index in range(split.rows):
            number = split.first + index
            yield Reject(b"7", split.message_id(index), "seven") if number % 10 == 7 else Number(number)

    def snapshot(self) -> int:
        return self.taken

    def restore(self, position: int) -> None:
        self.taken = position


class Broken(Numbers):
    def __init__(self, error: Exception) -> None:
        super().__init__(9)
        self.error = error

    def read(self, split: Split) -> Iterable[Number | Reject]:
        yield Number(split.first)
        raise self.error


class Longer(Numbers):
    def read(self, split: Split) -> Iterator[Number]:
        return map(Number, range(split.rows + 1))


class Shorter(Numbers):
    def read(self, split: Split) -> Iterator[Number]:
        return map(Number, range(split.rows - 1))


@bolt
def fail_on_two(number: Number) -> None:
    if number.value == 2:
        raise ValueError("two")


def topology(spout: SplitSpout[Any], replay: Any = "runtime") -> Topology:
    t = Topology("numbers")
    t.bolt("work", fail_on_two).shuffle(t.spout("numbers", spout, replay=replay))
    return t


def test_a_row_is_named_by_its_source_and_number() -> None:
    assert Split(2, 5).message_id(1) == 6
    assert Split(2, 5, "a").message_id(0) == ("a", 5)


def test_where_all_rows_are_read_in_one_place_it_is_a_spout_like_others() -> None:
    spout = Numbers(8, "n")
    spout.open(Place())
    given: list[Any] = [message for _ in range(3) for message in spout.next() or ()]
    with pytest.raises(EndOfInput):
        spout.next()
    assert given[:7] == [Emit(Number(number), ("n", number)) for number in range(7)]
    assert given[7] == Reject(b"7", ("n", 7), "seven")


def test_the_test_kit_runs_it() -> None:
    run = testing.run(topology(Numbers(9)))
    outcomes = {message.message_id: message.outcome for message in run.messages["numbers"]}
    assert {number for number, outcome in outcomes.items() if outcome is Outcome.DEAD} == {2, 7}
    assert [*outcomes.values()].count(Outcome.ACKED) == 7


@pytest.mark.parametrize(("cls", "got"), [(Longer, "more than 3 rows"), (Shorter, "2 rows")])
def test_other_rows_than_were_planned_are_an_error_that_names_the_piece(cls: type[Numbers], got: str) -> None:
    with pytest.raises(SourceChangedError) as raised:
        list(read_split(cls(9), Split(3, 3, "n")))
    assert "n, rows 3 to 5: a piece of a source is not as it was when it was planned" in str(raised.value)
    assert got in str(raised.value)


@pytest.mark.parametrize(("error", "waits"), [(OSError("the disk is gone"), True), (LookupError("a bug"), False)])
def test_what_reading_raises_is_named_with_the_piece(error: Exception, waits: bool) -> None:
    with pytest.raises(ConnectorError) as raised:
        list(read_split(Broken(error), Split(3, 3)))
    assert "rows 3 to 5: a piece of a source cannot be read" in str(raised.value)
    assert f"{type(error).__name__}: {error}" in str(raised.value)
    assert is_outage(raised.value) is waits


def test_what_such_a_spout_must_have_and_must_not_is_said_at_once() -> None:
    class Bare(SplitSpout[Number]):
        def ack(self, message_id: Any) -> None:
            pass

    with pytest.raises(TopologyError) as raised:
        topology(cast("Any", Bare)(), replay="source").build()
    for fault in ("no `plan`", "no `read`", "hears no `ack`", "needs a position", "cannot emit a message again"):
        assert fault in str(raised.value)
