"""The files of lineage in a folder of Parquet: how they are named, sorted, written, merged and forgotten.

Owns that a reader finds few rows by what files say of their groups, and that no crash leaves a file that cannot be
read. A batch is up to three files, `KIND-LAST-RANDOM.parquet`, where LAST is the latest end of a call in it, in
milliseconds of Unix time: `calls` sorted by message, `edges` by parent, and `parents`, which are the edges by child.

Small files of one writer are merged, about eight of a size at a time, so that a row is written three or four times in
all and a million rows are in some ten files. A merged file is there before those that it is made of go: a crash leaves
rows twice, which readers pass over.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tupletree.durable import create_new
from tupletree.routes.lineage.rows import COLUMNS, Edge

LARGE_ROWS = 125_000
"""A file of so many rows is not merged again; twice as many come into one file at most."""

SEVERAL = 8
"""Files of about one size that are merged while the run goes on."""

UNFINISHED_S = 86_400.0

_NUMBERS: dict[str, Any] = {
    "position": pa.int32(),
    "attempt": pa.int32(),
    "started_s": pa.float64(),
    "ended_s": pa.float64(),
    "cell": pa.int64(),
}
_CALLS = pa.schema([pa.field(name, _NUMBERS.get(name, pa.string())) for name in COLUMNS])
_EDGES = pa.schema([pa.field(name, pa.string()) for name in Edge._fields])
_SCHEMAS = {"calls": _CALLS, "edges": _EDGES, "parents": _EDGES}
_SORTED_BY = {"calls": ("message", "started_s"), "edges": ("parent", "child"), "parents": ("child", "parent")}
_NAME = re.compile(r"(calls|edges|parents)-(\d+)-(\w+)\.parquet")
_ROWS_IN_GROUP = 4_096


class _File(NamedTuple):
    kind: str
    last_ms: int
    name: str
    rows: int

    @property
    def size(self) -> int:
        """Files of one size are within a factor of eight."""
        return (self.rows // 100).bit_length() // 3


class LineageFiles:
    """See the module. Used by one thread; any number of writers share a folder. Everything may raise OSError.

    Args:
        folder: made by `open`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._small: list[_File] = []  # that this writer wrote

    def open(self) -> None:
        """Make the folder, and remove what writers that were killed left unfinished."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.glob(".*.unfinished"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > UNFINISHED_S:
                    path.unlink()

    def write(self, calls: Sequence[tuple[Any, ...]], edges: Sequence[Edge], last_s: float) -> None:
        """A batch. Edges are there before the calls that they belong to."""
        last_ms = int(last_s * 1000)
        for kind, rows in (("parents", edges), ("edges", edges), ("calls", calls)):
            if rows:
                schema = _SCHEMAS[kind]
                arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows), schema)]
                self._write(kind, last_ms, pa.Table.from_arrays(arrays, schema=schema))

    def _write(self, kind: str, last_ms: int, table: pa.Table) -> None:
        name = f"{kind}-{last_ms:015d}-{secrets.token_hex(6)}.parquet"
        unfinished = self._folder / f".{name}.unfinished"
        try:
            with os.fdopen(create_new(unfinished), "wb") as file:
                # Sorted, and in small groups: a message is found by what the file says of its groups.
                table = table.sort_by([(column, "ascending") for column in _SORTED_BY[kind]])
                pq.write_table(table, file, compression="zstd", row_group_size=_ROWS_IN_GROUP)
                file.flush()
                os.fsync(file.fileno())  # a file that a power cut emptied would keep DuckDB from reading the others
            unfinished.rename(self._folder / name)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
        if table.num_rows < LARGE_ROWS:
            self._small.append(_File(kind, last_ms, name, table.num_rows))

    def merge(self, *, all_of_them: bool = False, most_s: float = math.inf) -> int:
        """Merge small files of this writer, where there are `SEVERAL` of a size or `all_of_them`; how many it made.

        After `most_s` seconds no other merge is begun.
        """
        made = 0
        until_s = time.monotonic() + most_s
        for files in self._to_merge(all_of_them):
            if time.monotonic() > until_s:
                break
            kind = files[0].kind
            # Of some the age is over: `forget` has removed them, as another process may have done.
            there = [one for one in files if (self._folder / one.name).exists()]
            if len(there) > 1:
                tables = [pq.read_table(self._folder / one.name, schema=_SCHEMAS[kind]) for one in there]
                self._write(kind, max(one.last_ms for one in there), pa.concat_tables(tables))
                made += 1
                for one in there:
                    (self._folder / one.name).unlink(missing_ok=True)
            gone = set(files) if len(there) > 1 else set(files) - set(there)
            self._small = [one for one in self._small if one not in gone]
        return made

    def _to_merge(self, all_of_them: bool) -> Iterator[list[_File]]:
        alike: dict[tuple[str, int], list[_File]] = {}
        for one in sorted(self._small, key=lambda file: file.last_ms):
            alike.setdefault((one.kind, 0 if all_of_them else one.size), []).append(one)
        for files in alike.values():
            if len(files) < (2 if all_of_them else SEVERAL):
                continue
            group: list[_File] = []
            for one in files:
                if group and sum(file.rows for file in group) + one.rows > 2 * LARGE_ROWS:
                    yield group
                    group = []
                group.append(one)
            yield group

    def forget(self, before_s: float) -> int:
        """Remove files of which every call ended before this Unix time; how many."""
        removed = 0
        for path in self._folder.iterdir():
            named = _NAME.fullmatch(path.name)
            if named and int(named[2]) < before_s * 1000:
                path.unlink(missing_ok=True)
                removed += 1
        return removed
