"""Lineage in a folder of Parquet files: for runs on Spark, and for those who read it with other tools.

Owns the store and the reader; `parquet_files` owns the files. DuckDB answers questions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tupletree.errors import ConfigError, ConnectorError, needing
from tupletree.routes.lineage.parquet_files import LineageFiles
from tupletree.routes.lineage.rows import REST_S, RowMaker, edges_of
from tupletree.routes.messages import CallRecord

_LIST = re.compile(r"\bIN :(\w+)")
_PARAMETER = re.compile(r":(\w+)")
_TRIES = 3

CLOSING_S = 2.0
"""How long the end of a run may be put off to merge files."""

logger = logging.getLogger("tupletree.routes")


class ParquetStore:
    """A store in a folder. See `RecordStore`."""

    most_rows = 50_000

    def __init__(self, folder: Path, pipeline: str, *, keep_s: float = 0.0) -> None:
        self._files = LineageFiles(folder)
        self._rows = RowMaker(pipeline)
        self._keep_s = keep_s
        self.where = f"parquet:{folder}"

    def open(self) -> None:
        """See `RecordStore`."""
        with self._naming_errors():
            self._files.open()

    def write(self, records: Sequence[CallRecord]) -> None:
        """See `RecordStore`. Steps are in the calls."""
        rows = [self._rows.row(record) for record in records]
        with self._naming_errors():
            last_s = max((max(row.started_s, row.ended_s) for row in rows), default=0.0)  # one that is pending began
            self._files.write(rows, sorted(edges_of(records)), last_s)

    def rest(self, now_s: float) -> float:
        """See `RecordStore`. Small files are merged."""
        if self._keep_s:
            self.forget(now_s - self._keep_s)
        with self._naming_errors():
            return 0.0 if self._files.merge() else REST_S

    def forget(self, before_s: float) -> int:
        """Remove files of which every call ended before this Unix time; how many."""
        with self._naming_errors():
            return self._files.forget(before_s)

    def close(self) -> None:
        """See `RecordStore`. Small files are merged, for `CLOSING_S` at most; where that cannot be, they stay."""
        try:
            self._files.merge(all_of_them=True, most_s=CLOSING_S)
        except OSError as error:
            logger.debug("%s: small files are not merged: %s", self.where, error)

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConnectorError(
                "lineage is not available",
                where=self.where,
                got=str(error),
                next_step="see to its disk, and that this user may write to it",
            ) from error


class ParquetReader:
    """A reader of a folder, through DuckDB. See `Reader`."""

    calls_once = "tupletree_lineage_calls_once"
    edges_by_child = "tupletree_lineage_edges_by_child"

    def __init__(self, folder: Path) -> None:
        with needing("reading lineage from Parquet needs DuckDB", "routes"):
            import duckdb
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
        # A call may be there again, after a crash or in place of a pending one: the latest counts.
        call = "execution, message, position, attempt, started_s"
        for name, statement in (
            ("calls", f"SELECT * {calls}"),
            ("calls_once", f"SELECT {call}, arg_max(cell, ended_s) AS cell {calls} GROUP BY {call}"),
            ("edges", _edges(folder, "edges")),
            ("edges_by_child", _edges(folder, "parents")),
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
        for tried in range(_TRIES):
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except self._errors as error:
                if tried + 1 < _TRIES:
                    continue  # a file was merged with others after it was found
                raise ConnectorError(
                    "lineage is not available",
                    where=self.where,
                    got=str(error).partition("\n")[0],
                    next_step="see that the folder and its files can be read",
                ) from error
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """See `Reader`."""
        self._connection.close()


def _edges(folder: Path, kind: str) -> str:
    if not any(folder.glob(f"{kind}-*.parquet")):
        return "SELECT '' AS child, '' AS parent WHERE false"
    return f"SELECT child, parent FROM read_parquet({_quoted(folder / f'{kind}-*.parquet')})"  # noqa: S608 - a quoted path


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
