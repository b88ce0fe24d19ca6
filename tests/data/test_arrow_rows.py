"""Rows that others wrote become messages, or say why not."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from tupletree.data.arrow_rows import ArrowRows
from tupletree.data.codec import ArrowCodec
from tupletree.errors import UnusableDataError
from tupletree.topology.streams import Schema

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
NAIVE = NOON.replace(microsecond=7, tzinfo=None)
ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


class Colour(enum.Enum):
    RED = "r"


class Part(msgspec.Struct, frozen=True):
    name: str
    at: datetime
    count: int = 1


class Everything(msgspec.Struct, frozen=True):
    at: datetime
    local: datetime
    day: date
    hour: time
    took: timedelta
    price: Decimal
    tags: list[str]
    part: Part
    parts: dict[str, Part]
    key: UUID
    raw: bytes
    colour: Colour
    share: float
    shop: str
    number: int
    note: str | None = None
    marks: list[int] = msgspec.field(default_factory=list)


def table(**changes: Any) -> pa.RecordBatch:
    part = pa.struct([("name", pa.string()), ("at", pa.timestamp("ns", "UTC")), ("more", pa.int8())])
    row = {"name": "n", "at": NOON, "more": 1}
    columns = {
        "at": pa.array([NOON], pa.timestamp("ns", "UTC")),
        "local": pa.array([NAIVE], pa.timestamp("us")),
        "day": pa.array([date(2026, 1, 2)], pa.date32()),
        "hour": pa.array([time(3, 4)], pa.time64("us")),
        "took": pa.array([timedelta(seconds=5)], pa.duration("ns")),
        "price": pa.array([Decimal("1.20")], pa.decimal128(10, 2)),
        "tags": pa.array([["a", "b"]], pa.large_list(pa.string())),
        "part": pa.array([row], part),
        "parts": pa.array([[("k", row)]], pa.map_(pa.string(), part)),
        "key": pa.array([str(ID)]),
        "raw": pa.array([b"\x00"], pa.large_binary()),
        "colour": pa.array(["RED"]).dictionary_encode(),
        "share": pa.array([0.5], pa.float32()),
        "shop": pa.array(["s"]).dictionary_encode(),
        "number": pa.array([7], pa.uint8()),
        "unused": pa.array([1]),
        **changes,
    }
    return pa.RecordBatch.from_pydict({name: column for name, column in columns.items() if column is not None})


EXPECTED = Everything(
    NOON,
    NAIVE,
    date(2026, 1, 2),
    time(3, 4),
    timedelta(seconds=5),
    Decimal("1.20"),
    ["a", "b"],
    Part("n", NOON),
    {"k": Part("n", NOON)},
    ID,
    b"\x00",
    Colour.RED,
    0.5,
    "s",
    7,
)


def test_every_type_that_others_write_becomes_what_the_class_says() -> None:
    assert ArrowRows(Everything).all(table()) == [EXPECTED]


def test_what_the_codec_of_a_stream_writes_comes_back() -> None:
    codec = ArrowCodec.of(Schema.of(Everything))
    assert ArrowRows(Everything).all(codec.to_batch([EXPECTED, EXPECTED])) == [EXPECTED, EXPECTED]


@dataclass
class Plain:
    number: int
    tags: list[str] = field(default_factory=list)


class Named(NamedTuple):
    number: int
    shop: str = "none"


@pytest.mark.parametrize(("kind", "expected"), [(Plain, [Plain(1), Plain(2)]), (Named, [Named(1), Named(2)])])
def test_a_field_without_a_column_has_its_default_a_new_one_for_each_message(kind: type, expected: list[Any]) -> None:
    rows: list[Any] = ArrowRows(kind).all(pa.RecordBatch.from_pydict({"number": [1, 2]}))
    assert rows == expected
    if kind is Plain:
        assert rows[0].tags is not rows[1].tags


def test_fields_that_can_come_from_nowhere_are_named() -> None:
    assert ArrowRows(Named).missing(["shop"]) == ["number"]
    with pytest.raises(UnusableDataError, match=r"Named\.number: there is no column"):
        ArrowRows(Named).all(pa.RecordBatch.from_pydict({"shop": ["a"]}))


@pytest.mark.parametrize(
    ("column", "values", "got"),
    [
        ("number", pa.array([None], pa.int64()), "null in number"),
        ("number", pa.array([1.5]), "1.5"),
        ("number", pa.array(["7"]), "Expected `int`, got `str`"),
        ("number", pa.array([2**64 - 1], pa.uint64()), "18446744073709551615"),
        ("day", pa.array([NAIVE], pa.timestamp("us")), "Expected `date`, got `datetime`"),
        ("at", pa.array([1], pa.timestamp("ns", "UTC")), "would lose data"),
        ("at", pa.array(["yesterday"]), "yesterday"),
        ("price", pa.array(["dear"]), "InvalidOperation"),
        ("colour", pa.array(["BLUE"]), "BLUE"),
        ("part", pa.array([{"name": "n"}]), "missing required field `at`"),
        ("tags", pa.array([["a", None]]), "got `null`"),
        ("shop", pa.array([7]), "Expected `str`, got `int`"),
        ("raw", pa.array(["text"]), "Expected `bytes`, got `str`"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_field(column: str, values: pa.Array[Any], got: str) -> None:
    (error,) = ArrowRows(Everything).each(table(**{column: values}))
    assert isinstance(error, UnusableDataError)
    assert error.findings[0].where == f"Everything.{column}"
    assert got in str(error)


def test_a_row_that_does_not_fit_leaves_the_others() -> None:
    batch = pa.RecordBatch.from_pydict({"number": pa.array([1, None, 3, None]), "shop": pa.array(["a", "b", "c", "d"])})
    made = [*ArrowRows(Named).each(batch)]
    assert [made[0], made[2]] == [Named(1, "a"), Named(3, "c")]
    assert all(isinstance(made[at], UnusableDataError) for at in (1, 3))
    assert [*ArrowRows(Named).each(batch.slice(0, 0))] == []
