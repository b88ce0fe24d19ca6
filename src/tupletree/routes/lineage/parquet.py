"""Lineage in a folder of Parquet files: for runs on Spark, and for those who read it with other tools.

Owns the names of files: `calls-LAST-RANDOM.parquet` and `edges-LAST-RANDOM.parquet`, where LAST is the latest end of a
call in it, in milliseconds of Unix time. Each batch is a file. DuckDB answers questions.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tupletree.errors import ConfigError, ConnectorError, RuntimeUnavailableError
from tupletree.routes.lineage.rows import COLUMNS, REST_S, Edge, Steps, edges_of
from tupletree.routes.messages import CallRecord

__all__ = ["ParquetReader", "ParquetStore"]

_NUMBERS: dict[str, Any] = {
    "position": pa.int32(),
    "attempt": pa.int32(),
    "started_s": pa.float64(),
    "ended_s": pa.float64(),
    "cell": pa.int64(),
}
_CALLS = pa.schema([pa.field(name, _NUMBERS.get(name, pa.string())) for name in COLUMNS])
_EDGES = pa.schema([pa.field(name, pa.string()) for name in Edge._fields])
_NAME = re.compile(r"(calls|edges)-(\d+)-\w+\.parquet")
_LIST = re.compile(r"\bIN :(\w+)")
_ROWS_IN_GROUP = 4_096
_SORTED_BY = {"calls": ("message", "started_s"), "edges": ("parent", "child")}
_PARAMETER = re.compile(r":(\w+)")


class ParquetStore:
    """A store in a folder. See `Store`."""

    most_rows = 50_000

    def __init__(self, folder: Path, pipeline: str, *, keep_s: float = 0.0) -> None:
        self._folder = folder
        self._rows = Steps(pipeline)
        self._keep_s = keep_s
        self.where = f"parquet:{folder}"

    def open(self) -> None:
        """See `Store`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, records: Sequence[CallRecord]) -> None:
        """See `Store`. Edges are there before the calls that they belong to; steps are in the calls."""
        rows = [self._rows.row(record) for record in records]
        edges = sorted(edges_of(records))
        last_ms = int(max((row.ended_s for row in rows), default=0.0) * 1000)
        name = f"{last_ms:015d}-{secrets.token_hex(6)}.parquet"
        try:
            if edges:
                self._write_file(f"edges-{name}", edges, _EDGES)
            self._write_file(f"calls-{name}", rows, _CALLS)
        except OSError as error:
            raise self._unavailable(error) from error

    def _write_file(self, name: str, rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> None:
        columns = zip(*rows)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema)]
        unfinished = self._folder / f".{name}.unfinished"
        try:
            table = pa.Table.from_arrays(arrays, schema=schema)
            table = table.sort_by([(column, "ascending") for column in _SORTED_BY[name.partition("-")[0]]])
            # Sorted, and in small groups: a message is found by what the file says of its groups.
            pq.write_table(table, unfinished, compression="zstd", row_group_size=_ROWS_IN_GROUP)
            unfinished.rename(self._folder / name)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise

    def rest(self, now_s: float) -> float:
        """See `Store`."""
        if self._keep_s:
            self.forget(now_s - self._keep_s)
        return REST_S

    def forget(self, before_s: float) -> int:
        """Remove files of which every call ended before this Unix time; how many."""
        removed = 0
        try:
            for path in self._folder.iterdir():
                named = _NAME.fullmatch(path.name)
                if named and int(named[2]) < before_s * 1000:
                    path.unlink(missing_ok=True)
                    removed += 1
        except OSError as error:
            raise self._unavailable(error) from error
        return removed

    def close(self) -> None:
        """See `Store`. Nothing is open."""

    def _unavailable(self, error: OSError) -> ConnectorError:
        return ConnectorError(
            "lineage is not available",
            where=self.where,
            got=str(error),
            next_step="see to its disk, and that this user may write to it",
        )


class ParquetReader:
    """A reader of a folder, through DuckDB. See `Reader`."""

    calls_once = "tupletree_lineage_calls_once"

    def __init__(self, folder: Path) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise RuntimeUnavailableError(
                "reading lineage from Parquet needs DuckDB",
                got=str(error),
                next_step="pip install 'tupletree[routes]'",
            ) from error
        self.where = f"parquet:{folder}"
        if not any(folder.glob("calls-*.parquet")):
            raise ConfigError(
                "there is no lineage",
                where=self.where,
                got="no such folder" if not folder.is_dir() else "no file calls-….parquet in it",
                next_step="check the path; with level `off` no lineage is written",
            )
        self._errors = duckdb.Error
        self._connection = duckdb.connect(":memory:")
        self._connection.execute("SET parquet_metadata_cache = true")
        calls = f"FROM read_parquet({_quoted(folder / 'calls-*.parquet')})"
        edges = "SELECT '' AS child, '' AS parent WHERE false"
        if any(folder.glob("edges-*.parquet")):
            edges = f"SELECT child, parent FROM read_parquet({_quoted(folder / 'edges-*.parquet')})"  # noqa: S608 - a quoted path
        # A call may be there again, after a crash or in place of a pending one: the latest counts.
        latest = "row_number() OVER (PARTITION BY message, position, attempt, started_s ORDER BY ended_s DESC) = 1"
        for name, statement in (
            ("calls", f"SELECT * {calls}"),
            ("calls_once", f"SELECT * {calls} QUALIFY {latest}"),
            ("edges", edges),
            ("steps", f"SELECT DISTINCT cell >> 14 AS step, pipeline, route, adapter, position {calls}"),
        ):
            self._connection.execute(f"CREATE VIEW tupletree_lineage_{name} AS {statement}")

    def rows(self, statement: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """See `Reader`."""
        for name in _LIST.findall(statement):
            # One by one, as only then DuckDB leaves out groups of rows that hold none of them.
            values = parameters.pop(name)
            named = {f"{name}_{number}": value for number, value in enumerate(values)}
            parameters |= named
            statement = statement.replace(f"IN :{name}", f"IN ({', '.join(f':{one}' for one in named)})")
        statement = _PARAMETER.sub(r"$\1", statement)
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except self._errors as error:
            raise ConnectorError(
                "lineage is not available",
                where=self.where,
                got=str(error).partition("\n")[0],
                next_step="see that the folder and its files can be read",
            ) from error

    def close(self) -> None:
        """See `Reader`."""
        self._connection.close()


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
