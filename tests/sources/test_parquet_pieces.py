"""Pieces of Parquet files: the right rows in any order, and no row group decoded again for its next piece."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.sources import parquet_pieces
from tupletree.sources.parquet_pieces import MAX_READERS, read_batches

ROWS = 100


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parquet_pieces, "BATCH_ROWS", 7)
    _close_all()
    yield
    _close_all()


def _close_all() -> None:
    for reader in parquet_pieces._readers:
        reader.close()
    parquet_pieces._readers.clear()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    table = pa.table({"number": [*range(ROWS)], "other": ["x"] * ROWS})
    for size in (1, 10, 33, 100):
        pq.write_table(table, folder / f"{size}.parquet", row_group_size=size)
    return sorted(map(str, folder.iterdir()))


def numbers(path: str, first: int, count: int) -> list[int]:
    batches: Any = read_batches(path, ["number"], first, count)
    return [row for batch in batches for row in batch.column("number").to_pylist()]


@given(st.data())
def test_any_pieces_in_any_order_have_their_rows(files: list[str], data: st.DataObject) -> None:
    pieces = st.tuples(st.sampled_from(files), st.integers(0, ROWS - 1), st.integers(1, 40))
    for path, first, count in data.draw(st.lists(pieces, min_size=1, max_size=12)):
        assert numbers(path, first, count) == [*range(ROWS)][first : first + count]
    assert len(parquet_pieces._readers) <= MAX_READERS


def test_pieces_that_follow_each_other_decode_each_row_once(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    seek = parquet_pieces._Reader._seek

    def counted(reader: Any, row: int) -> None:
        opened.append(row)
        seek(reader, row)

    monkeypatch.setattr(parquet_pieces._Reader, "_seek", counted)
    (path,) = (path for path in files if path.endswith("/100.parquet"))
    given_ = [row for first in range(0, ROWS, 5) for row in numbers(path, first, 5)]
    assert (given_, opened) == ([*range(ROWS)], [0])
    assert not parquet_pieces._readers  # closed at the end of the file
    opened.clear()
    for first in range(0, ROWS, 10):  # as one of two workers that take turns
        numbers(path, first, 5)
    assert opened == [0]


def test_threads_that_read_one_file_do_not_disturb_each_other(files: list[str]) -> None:
    found: dict[int, list[int]] = {}

    def read(turn: int) -> None:
        found[turn] = [row for first in range(turn, ROWS, 8) for row in numbers(files[turn % 4], first, 4)]

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for turn, rows in found.items():
        assert rows == [row for first in range(turn, ROWS, 8) for row in [*range(ROWS)][first : first + 4]]


def test_a_file_that_was_written_again_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"number": [*range(50)]}), path)
    assert numbers(str(path), 0, 10) == [*range(10)]
    pq.write_table(pa.table({"number": [*range(1000, 1060)]}), path)
    assert numbers(str(path), 10, 10) == [*range(1010, 1020)]


def test_a_caller_that_stops_early_leaves_no_reader_in_the_middle_of_its_rows(files: list[str]) -> None:
    for _ in read_batches(files[0], ["number"], 0, 50):
        break
    assert numbers(files[0], 10, 30) == [*range(10, 40)]
