"""Batches from elsewhere: what is taken for a stream's columns, and what is refused."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tupletree.data.codec import ArrowCodec
from tupletree.errors import ConnectorError
from tupletree.topology.streams import Schema


class Level(enum.Enum):
    LOW = 1


class Row(msgspec.Struct, frozen=True):
    text: str = "a"
    number: int | None = 1
    real: float = 1.0
    raw: bytes = b"x"
    day: date = date(2024, 2, 29)
    span: timedelta = timedelta(1)
    moment: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    amount: Decimal | None = Decimal("1.10")
    level: Level = Level.LOW
    tags: list[str] = []


CODEC = ArrowCodec.of(Schema.of(Row))


def batch_with(name: str, column: Any) -> pa.RecordBatch:
    """A batch of one row that is right but for one column."""
    plain = CODEC.to_batch([Row()])
    return pa.RecordBatch.from_pydict({**{one: plain[one] for one in plain.schema.names}, name: column})


FITTING = [
    ("text", pa.array(["a"], pa.large_string())),
    ("text", pa.array(["a"]).dictionary_encode()),
    ("number", pa.array([1], pa.uint8())),
    ("number", pa.array([1.0])),
    ("real", pa.array([1], pa.int32())),
    ("raw", pa.array([b"x"], pa.large_binary())),
    ("day", pa.array([date(2024, 2, 29)], pa.date64())),
    ("span", pa.array([86_400], pa.duration("s"))),
]


@pytest.mark.parametrize(("name", "column"), FITTING)
def test_another_width_is_taken(name: str, column: Any) -> None:
    assert CODEC.from_batch(CODEC.conform(batch_with(name, column))) == [Row()]


def test_nulls_are_none_where_none_is_declared() -> None:
    batch = batch_with("number", pa.nulls(1))
    assert CODEC.from_batch(CODEC.conform(batch))[0].number is None


WRONG = [
    ("text", pa.array([1])),
    ("text", pa.array([True])),
    ("text", pa.array([b"1"])),
    ("text", pa.array([["1"]])),
    ("text", pa.array([date(2024, 1, 1)])),
    ("text", pa.nulls(1)),
    ("number", pa.array(["1"])),
    ("number", pa.array([True])),
    ("number", pa.array([0.5])),
    ("number", pa.array([2**63], pa.uint64())),
    ("day", pa.array([10_000_000], pa.int32()).cast(pa.date32())),
    ("moment", pa.array(["yesterday"])),
    ("moment", pa.array([0], pa.timestamp("us"))),
    ("amount", pa.array(["1,10"])),
    ("level", pa.array(["HIGH"])),
    ("tags", pa.array([b"\xff\xff"])),
]


@pytest.mark.parametrize(("name", "column"), WRONG)
def test_what_no_message_could_be_made_of_is_refused(name: str, column: Any) -> None:
    with pytest.raises(ConnectorError, match="does not fit"):
        CODEC.conform(batch_with(name, column))


def test_a_column_that_is_missing_is_refused_and_one_too_many_is_left_out() -> None:
    batch = CODEC.to_batch([Row()])
    with pytest.raises(ConnectorError, match="number"):
        CODEC.conform(batch.drop_columns(["number"]))
    assert CODEC.conform(batch.append_column("more", pa.array([1]))).equals(batch)


def test_a_column_is_made_of_values_and_values_of_a_column() -> None:
    column = CODEC.column("amount", [Decimal("1.50"), None])
    assert CODEC.items_of("amount", column) == [Decimal("1.50"), None]
    assert CODEC.items("tags", CODEC.to_batch([Row(tags=["x"])])) == [["x"]]
