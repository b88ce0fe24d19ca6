"""Parquet files of sales, and what a source makes of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.places import Place
from tupletree.errors import EndOfInput
from tupletree.sources import parquet_rows
from tupletree.sources.parquet_rows import ParquetRows
from tupletree.topology.splits import Split, read_split


class Sale(msgspec.Struct, frozen=True):
    number: int
    shop: str


def write(path: Path, *numbers: int, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"shop": [f"s{n % 3}" for n in numbers], "number": pa.array(numbers, pa.int32())}), path, **options
    )
    return path


def opened(*paths: Path | str, position: Any = None, cls: type = Sale, **options: Any) -> ParquetRows[Any]:
    spout: ParquetRows[Any] = parquet_rows(paths, message_type=cls, **options)
    spout.open(Place())
    if position is not None:
        spout.restore(msgspec.json.decode(msgspec.json.encode(position)))  # as it is stored
    return spout


def planned(spout: ParquetRows[Any], max_rows: int = 100, max_bytes: int = 1 << 30) -> Iterator[Split]:
    try:
        while splits := spout.plan(max_rows, max_bytes):
            assert sum(split.rows for split in splits) <= max_rows
            yield from splits
    except EndOfInput:
        return


def rows(spout: ParquetRows[Any], **limits: int) -> list[Any]:
    # Each by a copy, as an executor has it.
    return [row for split in planned(spout, **limits) for row in read_split(pickle.loads(pickle.dumps(spout)), split)]


def numbers(spout: ParquetRows[Any], **limits: int) -> list[int]:
    return [row.number for row in rows(spout, **limits)]
