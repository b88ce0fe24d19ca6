"""Files in folders of partitions: what they are called, who can read them, and which rows they refuse."""

from __future__ import annotations

import os
import pickle
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path
from typing import Any, Literal

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.places import Place
from tupletree import TaskContext, Topology, bolt
from tupletree.data.codec import ArrowCodec
from tupletree.errors import CheckpointError, ConfigError, ConnectorError
from tupletree.runtimes.run import run
from tupletree.sinks import files, parquet, read_rows
from tupletree.sinks.files import SinkRowsError, publish, sweep
from tupletree.sinks.folders import claim_directory
from tupletree.sources import items, parquet_rows
from tupletree.topology.components import SinkBatch
from tupletree.topology.splits import read_split
from tupletree.topology.streams import Schema


class Color(Enum):
    RED = "r"
    DARK_BLUE = "b"


class Size(Flag):
    WIDE = 1


class Sale(msgspec.Struct, frozen=True):
    number: int
    day: date | None
    shop: str | None
    open: bool
    color: Color
    price: Decimal


SHOPS = [
    "tea",
    "a/b",
    "50%",
    "key=value",
    "é\u20ac",
    " led ",
    "007",
    "'\"#*:?\\{[]^\x7f\n\t",
    None,
    "..",
    "a.b-c_d+e~f(g)!",
]


def sale(number: int) -> Sale:
    day = date(2026, 11, 1 + number % 3) if number % 5 else None
    return Sale(number, day, SHOPS[number % len(SHOPS)], number % 2 == 0, [*Color][number % 2], Decimal(number))


SALES = [sale(number) for number in range(60)]
EVERY = ("day", "shop", "open", "color")


def write(folder: Path, rows: list[Any], name: str = "t/out/0/7", **settings: Any) -> None:
    sink = pickle.loads(pickle.dumps(parquet(folder, **settings)))
    sink.write(SinkBatch(name, rows, made=[*range(len(rows))] if sink.ordered else None))


def plain(row: Sale) -> dict[str, Any]:
    found = msgspec.structs.asdict(row)
    return {**found, "color": row.color.name, "price": str(row.price)}


@pytest.mark.parametrize("partition_by", ["shop", ("day",), ("open", "color"), EVERY])
def test_rows_are_in_the_folders_of_their_values_and_are_read_as_they_were(tmp_path: Path, partition_by: Any) -> None:
    for _ in range(2):  # writing it again changes nothing
        write(tmp_path, SALES, partition_by=partition_by)
    names = (partition_by,) if isinstance(partition_by, str) else partition_by
    found = sorted(read_rows(tmp_path), key=lambda row: row["number"])
    assert found == [plain(row) for row in SALES]
    assert list(found[0])[-len(names) :] == [*names], "the folders' columns are the last ones"
    for path in tmp_path.rglob("*.parquet"):
        assert len(path.relative_to(tmp_path).parts) == len(names) + 1
        assert not {*pq.read_schema(path).names} & {*names}
    kinds = {tuple(getattr(row, name) for name in names) for row in SALES}
    assert len([*tmp_path.rglob("*.parquet")]) == len(kinds), "one file for each folder, however often it is written"
    assert [*tmp_path.glob("_tt-*")] == []


def test_the_source_of_parquet_rows_gives_back_every_row(tmp_path: Path) -> None:
    write(tmp_path, SALES, partition_by=EVERY)
    spout: Any = parquet_rows(tmp_path, message_type=Sale)
    spout.open(Place())
    found = [row for split in spout.plan(1000, 1 << 30) for row in read_split(spout, split)]
    assert sorted(found, key=lambda row: row.number) == SALES


def test_duckdb_and_pyarrow_read_the_folders_as_columns(tmp_path: Path) -> None:
    write(tmp_path, SALES, partition_by=EVERY, native=True)
    expected = sorted((row.number, row.day, row.shop, str(row.open).lower(), row.color.name) for row in SALES)
    columns = "number, day, shop, open, color"
    query = f"SELECT {columns} FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning=true) ORDER BY number"
    assert duckdb.connect().execute(query).fetchall() == expected
    fields: list[pa.Field[Any]] = [pa.field("day", pa.date32()), pa.field("shop", pa.string())]
    fields += [pa.field("open", pa.bool_()), pa.field("color", pa.string())]
    table = ds.dataset(tmp_path, partitioning=ds.partitioning(pa.schema(fields), flavor="hive")).to_table()
    got = sorted(
        ((row["number"], row["day"], row["shop"], row["open"], row["color"]) for row in table.to_pylist()),
        key=lambda row: row[0],
    )
    assert got == [(row.number, row.day, row.shop, row.open, row.color.name) for row in SALES]
    assert table.schema.field("price").type == pa.decimal128(38, 18)


class Texts(msgspec.Struct, frozen=True):
    text: str | None
    number: int = 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "for NULL"),
        ("__HIVE_DEFAULT_PARTITION__", "for NULL"),
        ("x" * 251, "256 bytes"),
        ("é" * 126, "257 bytes"),
        ("/" * 84, "257 bytes"),
    ],
)
def test_a_row_whose_value_no_folder_can_hold_is_refused_and_nothing_is_written(
    tmp_path: Path, text: str, reason: str
) -> None:
    sink = parquet(tmp_path, partition_by="text")
    rows = [Texts("a"), Texts(text), Texts(None), Texts(text)]
    with pytest.raises(SinkRowsError, match=reason) as caught:
        sink.write(SinkBatch("t/1", rows))
    assert [fault.position for fault in caught.value.rows] == [1, 3]
    batch = ArrowCodec.of(Schema.of(Texts)).to_batch(rows)
    assert sink.write_batches(lambda number: tmp_path / f"_tt-{number}.parquet", [(Texts, batch)]) == []
    assert [*tmp_path.rglob("*.parquet")] == []
    write(tmp_path, [Texts("x" * 250)], partition_by="text")  # the longest one


def test_too_long_a_path_of_folders_is_refused(tmp_path: Path) -> None:
    names = [f"column{number}" for number in range(9)]
    cls = msgspec.defstruct("Deep", [(name, str) for name in [*names, "value"]], frozen=True, module=__name__)
    deep = cls(**dict.fromkeys(names, "x" * 240), value="a")
    with pytest.raises(SinkRowsError, match="may have 2000"):
        write(tmp_path, [deep], partition_by=names)


def test_rows_of_too_many_partitions_are_refused_those_of_the_first_ones_are_not(tmp_path: Path) -> None:
    rows = [Texts(f"{at % 5}", at) for at in range(20)]
    with pytest.raises(SinkRowsError, match="more than 3 partitions") as caught:
        write(tmp_path, rows, partition_by="text", max_partitions=3)
    refused = [fault.position for fault in caught.value.rows]
    assert refused == [at for at in range(20) if at % 5 > 2]
    write(tmp_path, [row for at, row in enumerate(rows) if at not in refused], partition_by="text", max_partitions=3)
    assert len([*read_rows(tmp_path)]) == 12


class Unfit(msgspec.Struct, frozen=True):
    price: float
    at: datetime
    tags: list[str]
    inner: Texts
    either: int | str
    size: Size
    exact: Decimal
    mixed: Literal[1, "a"]
    good: str
    _hidden: str = ""


@pytest.mark.parametrize("column", ["price", "at", "tags", "inner", "either", "size", "exact", "mixed"])
def test_a_field_that_cannot_name_folders_is_refused_at_once(tmp_path: Path, column: str) -> None:
    with pytest.raises(ConfigError, match=f"the field '{column}' of Unfit cannot name folders"):
        parquet(tmp_path, message_type=Unfit, partition_by=("good", column))


def test_columns_that_are_not_there_or_come_twice_or_would_be_hidden_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no field 'shp'[\s\S]*'shop'"):
        parquet(tmp_path, message_type=Sale, partition_by="shp")
    with pytest.raises(ConfigError, match="no field of Texts is left"):
        parquet(tmp_path, message_type=Texts, partition_by=("number", "text"))
    for columns in (("good", "good"), "_hidden", ("",)):
        with pytest.raises(ConfigError, match="cannot name the folders"):
            parquet(tmp_path, message_type=Unfit, partition_by=columns)
    with pytest.raises(ConfigError, match="max_partitions"):
        parquet(tmp_path, partition_by="good", max_partitions=0)


def test_a_start_is_refused_whose_sink_cannot_divide_its_input(tmp_path: Path) -> None:
    t = Topology("unfit")
    t.sink("out", parquet(tmp_path / "out", partition_by="sohp")).shuffle(t.spout("sales", items(SALES[:1])))
    with pytest.raises(ConfigError, match=r"sink 'out'[\s\S]*no field 'sohp'[\s\S]*'shop'"):
        run(t, runtime="local", state_dir=tmp_path / "state")
    assert not (tmp_path / "out").exists()


def test_the_newest_row_of_a_key_is_found_over_all_folders(tmp_path: Path) -> None:
    rows = [Texts("a", 1), Texts("b", 2), Texts("a", 1), Texts(None, 3), Texts("c", 2)]
    write(tmp_path, rows, partition_by="text", made=True)
    newest = [(row["text"], row["number"]) for row in read_rows(tmp_path, latest_by="number")]
    assert sorted(newest, key=lambda row: row[1]) == [("a", 1), ("c", 2), (None, 3)]


def test_filtering_a_candidate_of_a_partition_keeps_what_its_folder_means(tmp_path: Path) -> None:
    sink = parquet(tmp_path, partition_by="day")
    rows = [sale(number) for number in (1, 4, 7)]
    (one,) = sink.write_candidates(lambda number: tmp_path / f"_tt-{number}.parquet", rows)
    assert sink.filter_candidate(one.path, tmp_path / "_tt-kept.parquet", [True, False, True]) == 2
    publish(tmp_path / "_tt-kept.parquet", tmp_path / one.folder / "part-0.parquet")
    one.path.unlink()
    assert [*read_rows(tmp_path)] == [plain(rows[0]), plain(rows[2])]


def test_a_name_in_new_folders_is_durable_also_if_the_process_was_killed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    candidate, final = tmp_path / "_tt-1.parquet", tmp_path / "day=1" / "shop=a" / "1.parquet"
    every = [final.parent, final.parent.parent, tmp_path]
    (tmp_path / "day=1").mkdir()  # the process was killed while it made them
    candidate.write_text("rows")
    for _ in range(2):
        publish(candidate, final)
        assert synced == every
        synced.clear()
    candidate.write_text("rows")
    publish(candidate, final)
    assert (synced, candidate.exists()) == (every, False)


def test_a_candidate_keeps_its_name_until_that_in_its_folder_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a move between folders a crash of the machine may leave one half: the file would be gone."""
    candidate, final = tmp_path / "_tt-1.parquet", tmp_path / "day=1" / "1.parquet"
    candidate.write_text("rows")
    there: list[tuple[str, bool, bool]] = []
    monkeypatch.setattr(
        files, "sync_directory", lambda path: there.append((path.name, candidate.exists(), final.exists()))
    )
    publish(candidate, final)
    assert there == [("day=1", True, True), (tmp_path.name, True, True)]
    assert not candidate.exists()


def test_where_nobody_may_link_to_the_files_of_others_they_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "_tt-1.parquet").write_text("rows")
    publish(tmp_path / "_tt-1.parquet", tmp_path / "day=1" / "1.parquet")
    assert [path.name for path in tmp_path.rglob("*.parquet")] == ["1.parquet"]


def test_a_file_in_the_place_of_a_folder_and_other_content_are_told(tmp_path: Path) -> None:
    candidate = tmp_path / "_tt-1.parquet"
    candidate.write_text("rows")
    (tmp_path / "day=1").touch()
    for below in ("day=1", "day=1/shop=a"):
        with pytest.raises(CheckpointError, match="a file is in the place of a partition's folder"):
            publish(candidate, tmp_path / below / "1.parquet")
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=2" / "1.parquet").write_text("others")
    with pytest.raises(CheckpointError, match="with other content"):
        publish(candidate, tmp_path / "day=2" / "1.parquet")
    assert candidate.read_text() == "rows"


def test_a_folder_that_went_away_is_not_made_again_for_a_partition(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    claim_directory(folder, "run", sink="out")
    folder.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(ConnectorError, match="is not there any more"):
            publish(folder / "_tt-1.parquet", folder / "day=1" / "1.parquet")
        folder.mkdir(exist_ok=True)  # as an empty mount point
    assert [*folder.iterdir()] == []
    (tmp_path / "away" / "_tt-1.parquet").touch()
    folder.rmdir()
    (tmp_path / "away").rename(folder)
    publish(folder / "_tt-1.parquet", folder / "day=1" / "1.parquet")


def test_a_lost_candidate_of_a_partition_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    claim_directory(tmp_path, "run", sink="out")
    with pytest.raises(CheckpointError, match="neither the candidate"):
        publish(tmp_path / "_tt-1.parquet", tmp_path / "day=1" / "1.parquet")
    assert not (tmp_path / "day=1").exists()


def test_sweeping_finds_the_candidates_of_all_partitions_and_leaves_what_is_published(tmp_path: Path) -> None:
    sink = parquet(tmp_path, partition_by="day")
    sink.write_candidates(lambda number: tmp_path / f"_tt-{number}.parquet", SALES)
    write(tmp_path, SALES, partition_by="day")
    assert sweep(tmp_path, lambda name: name.startswith("_tt-")) == 4
    assert len([*read_rows(tmp_path)]) == len(SALES)


@bolt
def tried_twice(value: Texts, context: TaskContext) -> Texts:
    if value.number % 7 == 0 and context.attempt == 1:
        raise ConnectionError("once")
    if value.number % 11 == 0:
        raise ValueError("never")
    return value


def test_locally_every_acked_row_is_in_its_folder_and_a_refused_one_is_dead(tmp_path: Path) -> None:
    values = [Texts("" if at % 13 == 0 else f"k{at % 4}" if at % 5 else None, at) for at in range(200)]
    t = Topology("local", options={"backoff_initial_ms": 1.0, "backoff_max_ms": 2.0})
    passed = t.bolt("pass", tried_twice).shuffle(t.spout("values", items(values)))
    t.sink("out", parquet(tmp_path / "out", partition_by="text"), parallelism=2).fields(passed, "text")
    summary = run(t, runtime="local", state_dir=tmp_path / "state").wait(60.0)
    good = [value for value in values if value.number % 11 and value.text != ""]
    assert (summary.acked, summary.dead, summary.open) == (len(good), len(values) - len(good), 0)
    found = sorted(((row["text"], row["number"]) for row in read_rows(tmp_path / "out")), key=lambda row: row[1])
    assert found == [(value.text, value.number) for value in good]
