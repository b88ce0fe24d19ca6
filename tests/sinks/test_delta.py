"""The Delta Lake sink: what a batch does, what a table must be, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tupletree.bolts.effects import TaskPlace
from tupletree.errors import ConfigError, ConnectorError
from tupletree.sinks import SinkRowsError, delta
from tupletree.sinks.delta import DeltaSink
from tupletree.topology.components import SinkBatch


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


@contextmanager
def opened(sink: DeltaSink, cls: type = Count) -> Iterator[DeltaSink]:
    sink.open(TaskPlace("t", "out", 1, 0, 1, input_types=(cls,)))
    yield sink
    sink.close()


def batch(number: int, *rows: Any, writer: str = "run-out-0000") -> SinkBatch[Any]:
    return SinkBatch(f"{writer}-{number:08d}", rows, writer, number)


def rows(folder: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in pa.table(DeltaTable(folder).to_pyarrow_table()).to_pylist())


def test_a_batch_is_written_once_however_often_it_comes(tmp_path: Path) -> None:
    with opened(delta(tmp_path)) as sink:
        for _ in range(3):
            sink.write(batch(4, Count("a", 1), Count("b", 1)))
        sink.write(batch(5, Count("a", 2)))
        with pytest.raises(ConnectorError, match="later batch"):  # two processes are at work
            sink.write(batch(4, Count("late", 1)))
    with opened(delta(tmp_path)) as sink:  # as after a restart
        sink.write(batch(5, Count("a", 2)))
        sink.write(batch(5, Count("c", 1), writer="another"))
    assert rows(tmp_path) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    assert DeltaTable(tmp_path).transaction_version("run-out-0000") == 5


def test_a_batch_that_another_process_has_written_meanwhile_is_there_once(tmp_path: Path) -> None:
    with opened(delta(tmp_path)) as one, opened(delta(tmp_path)) as other:
        one.write(batch(1, Count("a", 1)))
        other.write(batch(1, Count("a", 1)))
        other.write(batch(2, Count("b", 1)))
        one.write(batch(2, Count("b", 1)))
    assert rows(tmp_path) == [("a", 1), ("b", 1)]


class Everything(msgspec.Struct, frozen=True):
    moment: datetime
    span: timedelta
    ident: UUID
    inner: dict[str, int]
    nothing: int | None = None


def test_columns_are_those_of_parquet_and_spans_are_microseconds(tmp_path: Path) -> None:
    row = Everything(datetime(9999, 12, 31, tzinfo=UTC), timedelta(days=-1, microseconds=1), UUID(int=7), {"a": 1})
    with opened(delta(tmp_path), Everything) as sink:
        sink.write(batch(1, row))
    [found] = rows(tmp_path)
    assert found[:3] == ("9999-12-31T00:00:00+00:00", -86_399_999_999, UUID(int=7).bytes)
    assert found[4] is None


def test_columns_are_matched_by_name_and_further_ones_are_null(tmp_path: Path) -> None:
    columns: list[pa.Field[Any]] = [pa.field("count", pa.int64(), nullable=False)]
    columns += [pa.field("note", pa.string()), pa.field("word", pa.string())]
    DeltaTable.create(tmp_path, schema=pa.schema(columns))
    with opened(delta(tmp_path)) as sink:
        sink.write(batch(1, Count("a", 1)))
    assert rows(tmp_path) == [(1, None, "a")]


class Item(msgspec.Struct, frozen=True):
    amount: Decimal
    count: int


class Receipt(msgspec.Struct, frozen=True):
    number: int
    price: Decimal
    items: list[Item]
    totals: dict[str, Decimal]
    first: Item | None = None


def narrow(price: pa.DataType, count: pa.DataType) -> pa.Schema:
    item = pa.struct([pa.field("amount", price), pa.field("count", count)])
    columns: list[Any] = [("number", count), ("price", price), ("items", pa.list_(item))]
    return pa.schema([*columns, ("totals", pa.map_(pa.string(), price)), ("first", item)])


def test_columns_of_a_table_that_is_there_may_have_fewer_digits(tmp_path: Path) -> None:
    schema = narrow(pa.decimal128(12, 2), pa.int32())
    DeltaTable.create(tmp_path, schema=schema)
    item = Item(Decimal("0.50"), 3)
    good = [
        Receipt(1, Decimal("1.25"), [item], {"a": Decimal(7)}, item),
        Receipt(-(2**31), Decimal(-(10**10) + 1), [], {}),
    ]
    bad = [
        Receipt(3, Decimal("1.255"), [], {}),
        Receipt(4, Decimal(10**10), [], {}),
        Receipt(2**31, Decimal(1), [], {}),
        Receipt(6, Decimal(1), [Item(Decimal("0.001"), 1)], {}),
        Receipt(7, Decimal(1), [], {"a": Decimal("0.001")}),
        Receipt(8, Decimal(1), [], {}, Item(Decimal(1), 2**40)),
    ]
    with opened(delta(tmp_path, native=True), Receipt) as sink:
        with pytest.raises(SinkRowsError) as caught:
            sink.write(batch(1, good[0], *bad, good[1]))
        assert [row.position for row in caught.value.rows] == [1, 2, 3, 4, 5, 6]
        assert "price: no column of decimal128(12, 2) holds this: 1.255" in caught.value.rows[0].reason
        assert rows(tmp_path) == []
        sink.write(batch(1, *good))
    there = DeltaTable(tmp_path).to_pyarrow_table().sort_by([("number", "descending")]).to_pylist()
    assert [row["price"] for row in there] == [Decimal("1.25"), Decimal(-(10**10) + 1)]
    assert there[0]["items"] == [there[0]["first"]] == [{"amount": Decimal("0.50"), "count": 3}]
    assert there[0]["totals"] == [("a", Decimal(7))]
    assert DeltaTable(tmp_path).to_pyarrow_table().schema.field("price").type == pa.decimal128(12, 2)


@pytest.mark.parametrize("kind", [pa.float64(), pa.string(), pa.decimal128(12, 2)])
def test_a_column_of_another_kind_of_number_does_not_fit(tmp_path: Path, kind: pa.DataType) -> None:
    DeltaTable.create(tmp_path, schema=narrow(pa.decimal128(38, 18), kind))
    with pytest.raises(ConfigError) as caught, opened(delta(tmp_path, native=True), Receipt):
        pass
    assert len(caught.value.findings) == 3  # also where it is within a list and a struct


def test_a_table_that_does_not_fit_is_refused_at_the_start_for_all_reasons_at_once(tmp_path: Path) -> None:
    columns: list[pa.Field[Any]] = [pa.field("count", pa.string()), pa.field("id", pa.int64(), nullable=False)]
    DeltaTable.create(tmp_path, schema=pa.schema(columns))
    with pytest.raises(ConfigError) as caught, opened(delta(tmp_path)):
        pass
    text = str(caught.value)
    for words in ("no column for the field 'word'", "'count' has another type", "'id' needs a value"):
        assert words in text
    assert len(caught.value.findings) == 3


def test_rows_that_cannot_be_encoded_are_named_and_a_constraint_refuses_the_whole_batch(tmp_path: Path) -> None:
    with opened(delta(tmp_path)) as sink:
        with pytest.raises(SinkRowsError) as caught:
            sink.write(batch(1, Count("a", 1), Count("huge", 2**64)))
        assert [row.position for row in caught.value.rows] == [1]
        DeltaTable(tmp_path).alter.add_constraint({"small": "count < 5"})
        with pytest.raises(SinkRowsError) as refused:
            sink.write(batch(1, Count("a", 1), Count("b", 9)))
        assert [row.position for row in refused.value.rows] == [0, 1]
        sink.write(batch(2, Count("c", 1)))
    assert rows(tmp_path) == [("c", 1)]


def test_a_store_that_fails_is_no_fault_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConnectorError, match="cannot be read or written"), opened(delta(tmp_path / "file" / "table")):
        pass


class Sold(msgspec.Struct, frozen=True):
    number: int
    day: date | None
    shop: str | None


SHOPS = [
    "tea",
    "a/b c%=\u00e9",
    None,
    "__HIVE_DEFAULT_PARTITION__",
    " ",
    "..",
    "007",
    "x" * 250,
    "'\"#*:?\\{[]^\x7f\n\t",
]


def test_a_table_is_made_with_partitions_and_each_row_comes_back(tmp_path: Path) -> None:
    sold = [Sold(at, date(2026, 11, 1 + at % 3) if at % 4 else None, SHOPS[at % len(SHOPS)]) for at in range(40)]
    with opened(delta(tmp_path, partition_by=("day", "shop")), Sold) as sink:
        for _ in range(2):
            sink.write(batch(1, *sold))
    assert DeltaTable(tmp_path).metadata().partition_columns == ["day", "shop"]
    assert rows(tmp_path) == [(one.number, one.day, one.shop) for one in sold]
    assert [path.name for path in tmp_path.glob("day=2026-11-01")] == ["day=2026-11-01"]


@pytest.mark.parametrize("is_made_by_another", [False, True])
def test_a_text_that_no_partition_can_hold_is_refused_and_the_others_are_written(
    is_made_by_another: bool, tmp_path: Path
) -> None:
    """It was NULL afterwards, or, too long for a folder, an outage that never ended."""
    if is_made_by_another:
        columns: list[pa.Field[Any]] = [pa.field("count", pa.int64(), nullable=False)]
        columns += [pa.field("word", pa.string(), nullable=False)]
        DeltaTable.create(tmp_path, schema=pa.schema(columns), partition_by=["word"])
    with opened(delta(tmp_path, partition_by=() if is_made_by_another else "word")) as sink:
        given = [Count("a", 1), Count("", 2), Count("\u00e9" * 42, 3), Count("", 4), Count("x" * 250, 5)]
        with pytest.raises(SinkRowsError, match="is NULL") as caught:
            sink.write(batch(1, *given))
        assert [(row.position, "257 bytes" in row.reason) for row in caught.value.rows] == [
            (1, False),
            (2, True),
            (3, False),
        ]
        sink.write(batch(1, given[0], given[4]))
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted((row["word"], row["count"]) for row in found) == [("a", 1), ("x" * 250, 5)]


def test_other_partitions_than_those_of_the_table_are_refused_and_so_are_fields_that_are_none(tmp_path: Path) -> None:
    with opened(delta(tmp_path, partition_by="word")):
        pass
    with opened(delta(tmp_path)) as sink:  # it goes by those of the table
        sink.write(batch(1, Count("a", 1)))
    with (
        pytest.raises(ConfigError, match=r"partitioned otherwise[\s\S]*word"),
        opened(delta(tmp_path, partition_by="count")),
    ):
        pass
    with pytest.raises(ConfigError, match="no field 'wrd'"):
        delta(tmp_path, message_type=Count, partition_by="wrd")
    with pytest.raises(ConfigError, match="no field 'wrd'"), opened(delta(tmp_path, partition_by="wrd")):
        pass
