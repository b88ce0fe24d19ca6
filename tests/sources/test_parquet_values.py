"""Rows of Parquet files as values of message classes: columns of every type, and values that none can hold."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sources.sales import Sale, opened, rows


class Visit(msgspec.Struct, frozen=True):
    at: datetime
    tags: list[str]
    day: date
    number: int
    shop: str | None
    channel: str = "web"


def test_columns_of_any_type_values_of_the_path_defaults_and_none(tmp_path: Path) -> None:
    at = datetime(2026, 11, 29, 12, tzinfo=UTC)
    for day in ("2026-11-29", "2026-11-30"):
        path = tmp_path / "visits" / f"day={day}" / "number=7" / "shop=__HIVE_DEFAULT_PARTITION__" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"at": pa.array([at], pa.timestamp("ns", "UTC")), "tags": [["x"]], "more": [1]}), path)
    assert rows(opened(tmp_path / "visits", cls=Visit)) == [
        Visit(at, ["x"], date(2026, 11, 29), 7, None),
        Visit(at, ["x"], date(2026, 11, 30), 7, None),
    ]


class Seen(msgspec.Struct, frozen=True):
    at: datetime
    each: list[datetime]
    local: datetime


def test_moments_that_spark_writes_are_in_utc_and_others_as_they_are(tmp_path: Path) -> None:
    at = datetime(2026, 11, 29, 12, 30, tzinfo=UTC)
    naive = at.replace(tzinfo=None)
    for unit in ("us", "ns"):
        columns = {
            "at": pa.array([at], pa.timestamp(unit, "UTC")),
            "each": pa.array([[at]], pa.list_(pa.timestamp(unit, "UTC"))),
            "local": pa.array([naive], pa.timestamp(unit)),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{unit}.parquet")
        # As Spark does by default, where every timestamp is a moment.
        pq.write_table(pa.table(columns), tmp_path / f"{unit}-96.parquet", use_deprecated_int96_timestamps=True)
    assert rows(opened(tmp_path, cls=Seen)) == [Seen(at, [at], at), Seen(at, [at], naive)] * 2


class Aware(msgspec.Struct, frozen=True):
    local: Annotated[datetime, msgspec.Meta(tz=True)]


def test_a_class_may_refuse_moments_without_a_zone(tmp_path: Path) -> None:
    at = datetime(2026, 11, 29, 12, 30, tzinfo=UTC)
    for name, kind in (("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("us"))):
        pq.write_table(pa.table({"local": pa.array([at.replace(tzinfo=None)], kind)}), tmp_path / f"{name}.parquet")
    one, other = rows(opened(tmp_path, cls=Aware))
    assert one == Aware(at)
    assert other.reason.startswith("Aware.local: got ValidationError: Expected `datetime` with a timezone")


def test_a_row_that_its_class_cannot_hold_is_rejected_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"number": [1, None, 3], "shop": ["a", "b", "c"]}), path)
    one, other, last = rows(opened(path))
    assert (one, last) == (Sale(1, "a"), Sale(3, "c"))
    assert other.message_id == (str(path), 1)
    assert msgspec.json.decode(other.payload) == {"number": None, "shop": "b"}
    assert other.reason.startswith("Sale.number: got null in number")


class Moment(msgspec.Struct, frozen=True):
    at: datetime


class Day(msgspec.Struct, frozen=True):
    day: date


class Text(msgspec.Struct, frozen=True):
    text: str


class Several(msgspec.Struct, frozen=True):
    several: list[datetime]


class Positive(msgspec.Struct, frozen=True):
    number: int

    def __post_init__(self) -> None:
        assert self.number > 0, "it is not above 0"


NO_UTF_8 = pa.StringArray.from_buffers(
    2, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0])), pa.py_buffer(b"a\xff\xfe")
)


@pytest.mark.parametrize(
    ("cls", "name", "column", "payload", "reason"),
    [
        (Moment, "at", pa.array([0, 2**62], pa.timestamp("us", "UTC")), str(2**62), "out of range"),
        (Day, "day", pa.array([0, 2**30], pa.date32()), str(2**30), "OverflowError"),
        (Text, "text", NO_UTF_8, "//4=", "UnicodeDecodeError"),
        (Several, "several", pa.array([[0], [2**62]], pa.list_(pa.timestamp("us", "UTC"))), "list", "out of range"),
        (Positive, "number", pa.array([1, -1]), "-1", "Positive: got AssertionError: it is not above 0"),
    ],
)
def test_a_value_that_no_object_of_python_holds_costs_no_other_row(
    tmp_path: Path, cls: type, name: str, column: pa.Array[Any], payload: str, reason: str
) -> None:
    pq.write_table(pa.table({name: column}), tmp_path / "a.parquet")
    one, other = rows(opened(tmp_path, cls=cls))
    assert type(one) is cls
    assert other.message_id == (str(tmp_path / "a.parquet"), 1)
    assert payload in other.payload.decode()
    assert reason in other.reason
