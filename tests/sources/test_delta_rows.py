import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.places import Place
from tupletree.errors import ConfigError, ConnectorError, EndOfInput, SourceChangedError
from tupletree.sources import delta_rows
from tupletree.sources.delta_rows import DeltaRows
from tupletree.topology.components import Reject
from tupletree.topology.splits import Split, read_split


class Sale(msgspec.Struct, frozen=True):
    number: int
    shop: str


def append(path: Path, *numbers: int, **options: Any) -> None:
    table = pa.table({"shop": [f"s{number % 3}" for number in numbers], "number": pa.array(numbers, pa.int32())})
    write_deltalake(path, table, mode="append", **options)


def opened(path: Path, **options: Any) -> DeltaRows[Sale]:
    spout = delta_rows(path, message_type=Sale, **options)
    spout.open(Place())
    return spout


def planned(spout: DeltaRows[Sale], max_rows: int = 100) -> Iterator[Split]:
    try:
        while splits := spout.plan(max_rows, 1 << 30):
            assert sum(split.rows for split in splits) <= max_rows
            yield from splits
    except EndOfInput:
        return


def numbers(spout: DeltaRows[Sale], max_rows: int = 100) -> list[int]:
    return [row.number for split in planned(spout, max_rows) for row in read_split(spout, split)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for start in (0, 10, 20):
        append(tmp_path / "table", *range(start, start + 10))
    return tmp_path / "table"


@pytest.mark.parametrize("max_rows", [1, 4, 100])
def test_every_row_of_the_newest_version_comes_once_whatever_the_pieces(table: Path, max_rows: int) -> None:
    assert sorted(numbers(opened(table), max_rows)) == [*range(30)]


def test_row_groups_are_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "table"
    from deltalake import WriterProperties

    append(path, *range(50), writer_properties=WriterProperties(max_row_group_size=8))
    spout = opened(path)
    splits = [*planned(spout, 7)]
    ids = [split.message_id(index) for split in splits for index in range(split.rows)]
    assert len({*ids}) == 50
    assert [row.number for split in splits for row in read_split(spout, split)] == [*range(50)]


def test_a_position_goes_on_with_the_next_row_and_then_with_later_versions(table: Path) -> None:
    first = opened(table, follow=True)
    given = [row.number for split in first.plan(13, 1 << 30) or () for row in read_split(first, split)]
    append(table, 30, 31)
    DeltaTable(table).optimize.compact()
    append(table, 32)
    second = opened(table, follow=True)
    second.restore(first.snapshot())
    assert sorted(given + numbers(second)) == [*range(33)]
    assert second.plan(10, 1 << 30) is None
    append(table, 33)
    assert numbers(second) == [33]


def test_tasks_share_the_files(table: Path) -> None:
    given = []
    for task in range(2):
        spout = delta_rows(table, message_type=Sale)
        spout.open(Place(task_index=task, parallelism=2))
        given += numbers(spout)
    assert sorted(given) == [*range(30)]


def test_a_row_that_its_fields_cannot_hold_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"number": [1, None, 3], "shop": ["a", "b", "c"]}))
    spout = opened(path)
    (split,) = planned(spout)
    one, other, last = read_split(spout, split)
    assert (one, last) == (Sale(1, "a"), Sale(3, "c"))
    assert isinstance(other, Reject)
    assert other.message_id == split.message_id(1)
    assert json.loads(other.payload) == {"number": None, "shop": "b"}


def test_a_version_that_takes_rows_away_is_named(table: Path) -> None:
    spout = opened(table, follow=True)
    assert len(numbers(spout)) == 30
    DeltaTable(table).delete("number = 5")
    with pytest.raises(SourceChangedError, match="version 3: a version of the Delta table does more than add rows"):
        spout.plan(10, 1 << 30)


def test_a_file_that_was_vacuumed_is_named(table: Path) -> None:
    spout = opened(table)
    (split, *_) = planned(spout)
    (table / str(split.source)).unlink()
    with pytest.raises(SourceChangedError) as raised:
        list(read_split(spout, split))
    assert str(split.source) in str(raised.value)
    assert "do not vacuum" in str(raised.value)


def test_what_cannot_be_read_is_said_by_a_check_and_when_it_is_opened(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "parts", pa.table({"number": [1], "town": ["a"]}), partition_by=["town"])
    with pytest.raises(ConfigError) as raised:
        opened(tmp_path / "parts")
    assert "no column for the field 'shop'" in str(raised.value)
    assert "partitioned" in str(raised.value)
    assert len(delta_rows(tmp_path / "parts", message_type=Sale).faults()) == len(raised.value.findings) == 2
    with pytest.raises(ConnectorError, match="cannot be read"):
        opened(tmp_path / "nothing")
    assert "cannot be read" in str(delta_rows(tmp_path / "nothing", message_type=Sale).faults()[0])
    with pytest.raises(ConfigError, match="from a folder"):
        delta_rows("s3://bucket/table", message_type=Sale)


class Order(msgspec.Struct, frozen=True):
    at: datetime
    price: Decimal
    items: list[str]
    note: str | None
    channel: str = "shop"


def test_columns_of_any_type_become_what_the_class_says_also_of_files_that_lack_one(tmp_path: Path) -> None:
    path, at = tmp_path / "table", datetime(2026, 11, 29, 12, tzinfo=UTC)
    old = {"at": [at], "price": [Decimal("1.20")], "items": [["a", "b"]]}
    write_deltalake(path, pa.table(old))
    write_deltalake(path, pa.table({**old, "note": ["n"]}), mode="append", schema_mode="merge")
    spout: Any = delta_rows(path, message_type=Order)
    spout.open(Place())
    rows = [row for split in spout.plan(10, 1 << 30) for row in read_split(spout, split)]
    assert sorted(rows, key=lambda row: str(row.note)) == [
        Order(at, Decimal("1.20"), ["a", "b"], None),
        Order(at, Decimal("1.20"), ["a", "b"], "n"),
    ]
