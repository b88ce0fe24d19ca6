import pickle
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tupletree.errors import CheckpointError, InternalError
from tupletree.sinks import parquet, read_rows
from tupletree.sinks.files import SinkRowsError
from tupletree.topology.components import SinkBatch


class Measured(msgspec.Struct, frozen=True):
    name: str
    value: float | None
    count: int = 0


class Other(msgspec.Struct, frozen=True):
    name: str


ROWS = [Measured("a", 1.5), Measured("é", None, 2**62), Measured("c", float("inf"))]


def test_rows_become_typed_columns_compressed_with_zstd(tmp_path: Path) -> None:
    candidate = tmp_path / "_tt-1.parquet"
    parquet(tmp_path).write_candidate(candidate, ROWS)
    file = pq.ParquetFile(candidate)
    assert file.schema_arrow.remove_metadata().types == [pa.string(), pa.float64(), pa.int64()]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read().to_pylist() == [msgspec.structs.asdict(row) for row in ROWS]


@pytest.mark.parametrize("bad", [Measured("big", 1.0, 2**70), Measured("lone \ud800", 1.0), Other("stranger"), "text"])
def test_a_row_that_the_columns_cannot_hold_is_refused_by_position_and_nothing_is_written(
    tmp_path: Path, bad: Any
) -> None:
    candidate = tmp_path / "_tt-1.parquet"
    with pytest.raises(SinkRowsError) as caught:
        parquet(tmp_path).write_candidate(candidate, [ROWS[0], bad, ROWS[1], bad])
    assert [fault.position for fault in caught.value.rows] == [1, 3]
    assert not candidate.exists()


def test_filtering_keeps_rows_and_columns(tmp_path: Path) -> None:
    sink, source, destination = parquet(tmp_path), tmp_path / "_tt-1.parquet", tmp_path / "_tt-2.parquet"
    sink.write_candidate(source, ROWS)
    assert sink.filter_candidate(source, destination, [True, False, True]) == 2
    assert pq.read_table(destination).equals(pq.read_table(source).take([0, 2]))
    assert sink.filter_candidate(source, destination, [False] * 3) == 0
    assert pq.ParquetFile(destination).schema_arrow == pq.ParquetFile(source).schema_arrow


def test_filtering_refuses_a_file_that_is_gone_or_has_another_number_of_rows(tmp_path: Path) -> None:
    sink, source = parquet(tmp_path), tmp_path / "_tt-1.parquet"
    with pytest.raises(CheckpointError, match="gone"):
        sink.filter_candidate(source, tmp_path / "_tt-2.parquet", [])
    sink.write_candidate(source, ROWS)
    with pytest.raises(CheckpointError, match="wrong number of rows"):
        sink.filter_candidate(source, tmp_path / "_tt-2.parquet", [True])


def test_a_file_without_rows_needs_a_class(tmp_path: Path) -> None:
    candidate = tmp_path / "_tt-1.parquet"
    parquet(tmp_path, message_type=Measured).write_candidate(candidate, [])
    assert pq.ParquetFile(candidate).metadata.num_rows == 0
    with pytest.raises(InternalError, match="class"):
        parquet(tmp_path).write_candidate(candidate, [])


def test_published_rows_can_be_read_and_writing_a_batch_again_changes_nothing(tmp_path: Path) -> None:
    sink = pickle.loads(pickle.dumps(parquet(tmp_path, compression="snappy")))
    for _ in range(2):
        sink.write(SinkBatch("t/out/0/7", ROWS))
    assert list(read_rows(tmp_path)) == [msgspec.structs.asdict(row) for row in ROWS]


class Nested(msgspec.Struct, frozen=True):
    """Fields that are several columns of a file."""

    name: str
    tags: list[str]
    sizes: dict[str, int]


def test_numbers_take_next_to_no_room_and_the_other_columns_are_written_as_without_them(tmp_path: Path) -> None:
    rows = [Nested(f"name {at % 7}", ["a", "b"], {"x": at % 3}) for at in range(20_000)]
    numbers = [1 << 40, *range(7, 20_004), -5, 1 << 62]
    sinks = {name: parquet(tmp_path / name, made=name != "plain") for name in ("plain", "numbered", "filtered")}
    for name, sink in sinks.items():
        (tmp_path / name).mkdir()
        sink.write_candidate(tmp_path / name / "part-0.parquet", rows, numbers if sink.ordered else None)
    kept = [at % 5 > 0 for at in range(20_000)]
    source = tmp_path / "filtered" / "part-0.parquet"
    sinks["filtered"].filter_candidate(source, tmp_path / "filtered" / "part-1.parquet", kept)
    source.unlink()
    assert [row["_made"] for row in read_rows(tmp_path / "numbered")] == numbers
    assert [row["_made"] for row in read_rows(tmp_path / "filtered")] == [*compress(numbers, kept)]
    (plain,), (numbered,) = (
        [pq.ParquetFile(path).metadata.row_group(0) for path in (tmp_path / name).glob("*.parquet")]
        for name in ("plain", "numbered")
    )
    of_plain, of_numbered = (
        {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        for group in (plain, numbered)
    )
    numbers_column = of_numbered.pop("_made")
    assert {name: one.encodings for name, one in of_numbered.items()} == {
        name: one.encodings for name, one in of_plain.items()
    }
    assert numbers_column.total_compressed_size < 8 * len(rows) // 100


def test_files_of_two_versions_of_a_class_are_read_together(tmp_path: Path) -> None:
    wider = msgspec.defstruct("Other", [("name", str), ("lang", str, "?")], frozen=True)
    parquet(tmp_path, made=True).write_candidate(tmp_path / "part-1.parquet", [Other("a"), Other("b")], [1, 2])
    parquet(tmp_path, made=True).write_candidate(tmp_path / "part-2.parquet", [wider("b", "en")], [3])
    rows = [{"name": "a", "lang": None}, {"name": "b", "lang": "en"}]
    assert [{key: row[key] for key in row if key != "_made"} for row in read_rows(tmp_path)] == [
        rows[0],
        {"name": "b", "lang": None},
        rows[1],
    ]
    assert list(read_rows(tmp_path, latest_by="name")) == rows
