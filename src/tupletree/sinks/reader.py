"""A plain reader of what file sinks published: for tests, examples and tables on a terminal.

It reads the way any other tool would: names that start with `_` or `.` are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tupletree.errors import ConnectorError
from tupletree.sinks.files import MADE
from tupletree.sinks.folders import runs_of, visible_files
from tupletree.sinks.partitions import folders_with_files, values_of_folders

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def read_rows(directory: str | os.PathLike[str], *, latest_by: str | Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The published rows of a sink's folder, file by file in name order.

    Parquet files may have different columns, as where a field was added between two starts: a row has None in those
    that its file does not have. Files in folders of partitions (`day=2026-11-29/`) are read, too: their rows have the
    folders' values as last columns. A line of JSON has the fields that it was written with.

    Args:
        directory: the folder.
        latest_by: a field, or several: only the newest row of each of their values, without its `_made`, in the order
            in which the values first appear. The sink must have been made with `made=True`. A run that came later to
            the folder (`--append`) is newer than one that came before.

    Raises:
        ConnectorError: the folder does not exist; a file is neither `.jsonl` nor `.parquet`; or the newest rows are
            asked for, and a row does not say how new it is or has no such field.
    """
    folder = Path(directory)
    try:
        paths = [
            path
            for place in folders_with_files(folder)
            for path in visible_files(place)
            if "=" not in path.name or path.is_file()
        ]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConnectorError("no such folder", where=str(folder), next_step="run the topology first") from error
    names = (latest_by,) if isinstance(latest_by, str) else tuple(latest_by)
    if names:
        return iter(_newest(folder, paths, names))
    return _rows_of(folder, paths)


def _newest(folder: Path, paths: list[Path], names: tuple[str, ...]) -> list[dict[str, Any]]:
    runs = runs_of(folder)
    found: dict[bytes, tuple[tuple[int, int], dict[str, Any]]] = {}
    for path in paths:
        rank = _run_of(path.name, runs)
        for row in _rows_of(folder, [path]):
            missing = next((name for name in (MADE, *names) if name not in row), None)
            if missing is not None:
                raise ConnectorError(
                    "the newest rows cannot be told",
                    where=str(path),
                    got=f"a row without {missing!r}",
                    next_step="start the sink with made=True" if missing == MADE else "name a field of all rows",
                )
            order = rank, row.pop(MADE)
            key = _encoder.encode([row[name] for name in names])
            known = found.get(key)
            if known is None or order >= known[0]:
                found[key] = order, row
    columns = [name for name in _columns_of(paths) if name != MADE]
    return [{**{name: row.get(name) for name in columns}, **row} for _, row in found.values()]


def _run_of(file: str, runs: list[str]) -> int:
    """Which of these runs a file is from, by its name; -1: none of them."""
    starts = ((f"part-{run[:8]}-", f"batch-{run}-") for run in runs)
    return next((number for number, names in enumerate(starts) if file.startswith(names)), -1)


def _columns_of(paths: list[Path]) -> list[str]:
    """The columns of all Parquet files together, in the order of the newest file and then of the others."""
    import pyarrow.parquet as pq

    names = [pq.read_schema(path).names for path in reversed(paths) if path.suffix == ".parquet"]
    return [*dict.fromkeys(name for one in names for name in one)]


def _rows_of(folder: Path, paths: list[Path]) -> Iterator[dict[str, Any]]:
    several = [path for path in paths if path.suffix == ".parquet"]
    columns = _columns_of(several) if len(several) > 1 else []
    for path in paths:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                yield from map(_decoder.decode, lines)
        elif path.suffix == ".parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(path)
            is_whole = set(file.schema_arrow.names) >= {*columns}
            values = values_of_folders(path.relative_to(folder).parts[:-1], file.schema_arrow.metadata)
            for batch in file.iter_batches():
                rows = batch.to_pylist()
                if not is_whole:
                    rows = [{name: row.get(name) for name in columns} for row in rows]
                yield from [row | values for row in rows] if values else rows
        else:
            raise ConnectorError("not a file of a sink", where=str(path), expected="*.jsonl or *.parquet")
