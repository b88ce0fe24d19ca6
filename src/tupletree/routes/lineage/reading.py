"""One way to ask any store of lineage: the same SQL for SQLite, PostgreSQL and Parquet.

Owns what differs between them: how parameters are written, and what is said when there is nothing. Statements name
parameters `:name`; a parameter that is a list stands after IN.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tupletree.errors import ConfigError
from tupletree.routes.lineage.stores import PARQUET


class Reader(Protocol):
    """Answers statements.

    Attributes:
        where: the store, without secrets, for errors.
        calls_once: the table of calls, for counting: each is there once. In `tupletree_lineage_calls` it may be again.
        edges_by_child: the table of edges, for looking for parents; in `tupletree_lineage_edges` children are found
            quickly.
    """

    where: str
    calls_once: str
    edges_by_child: str

    def rows(self, statement: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """What a statement gives.

        Raises:
            ConnectorError: the store is not available, or holds no lineage.
        """

    def close(self) -> None:
        """Release everything. Harmless if repeated."""


def open_reader(url: str) -> Reader:
    """A reader of the store that this URL names (`open_store`). Makes nothing.

    Raises:
        ConfigError: there is no such store.
        RuntimeUnavailableError: what it needs is not installed.
    """
    if url.startswith(PARQUET):
        from tupletree.routes.lineage.parquet import ParquetReader

        return ParquetReader(Path(url.removeprefix(PARQUET).removeprefix("//")))
    return DatabaseReader(url)


class DatabaseReader:
    """A reader of a database. See `Reader`."""

    calls_once = "tupletree_lineage_calls"
    edges_by_child = "tupletree_lineage_edges"

    def __init__(self, url: str) -> None:
        from tupletree.routes.lineage.database import connect

        self._engine, self.where = connect(url)
        path = self._engine.url.database
        if self._engine.dialect.name == "sqlite" and (not path or not Path(path).exists()):
            raise ConfigError(
                "there is no lineage",
                where=self.where,
                got="no such file",
                next_step="check the path; with level `off` no lineage is written",
            )

    def rows(self, statement: str, **parameters: Any) -> Sequence[Sequence[Any]]:
        """See `Reader`."""
        import sqlalchemy as sa

        from tupletree.routes.lineage.database import failing_as_outage

        lists = [name for name, value in parameters.items() if isinstance(value, list)]
        text = sa.text(statement).bindparams(*(sa.bindparam(name, expanding=True) for name in lists))
        with failing_as_outage(self.where), self._engine.connect() as connection:
            return connection.execute(text, parameters).fetchall()

    def close(self) -> None:
        """See `Reader`."""
        self._engine.dispose()
