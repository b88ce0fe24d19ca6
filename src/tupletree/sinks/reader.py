"""A plain reader of what file sinks published: for tests, examples and tables on a terminal.

It reads the way any other tool would: names that start with `_` or `.` do not exist for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tupletree.errors import ConnectorError
from tupletree.sinks.files import visible_files

__all__ = ["read_rows"]

_decoder = msgspec.json.Decoder()


def read_rows(directory: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The published rows of a sink's folder, file by file in name order.

    Raises ConnectorError if the folder does not exist, or on a file that is neither `.jsonl` nor `.parquet`.
    """
    folder = Path(directory)
    try:
        paths = visible_files(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConnectorError("no such folder", where=str(folder), next_step="run the topology first") from error
    for path in paths:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                yield from map(_decoder.decode, lines)
        elif path.suffix == ".parquet":
            import pyarrow.parquet as pq

            for batch in pq.ParquetFile(path).iter_batches():
                yield from batch.to_pylist()
        else:
            raise ConnectorError("not a file of a sink", where=str(path), expected="*.jsonl or *.parquet")
