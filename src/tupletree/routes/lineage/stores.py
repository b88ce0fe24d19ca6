"""Where rows of lineage are kept: the contract of a store, and which store a URL names.

Owns the default place. Refuses to buffer or to try again (`writer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tupletree.errors import ConfigError
from tupletree.routes.lineage.rows import Edge, Row, Step

__all__ = ["Store", "open_store", "store_beside"]

PARQUET = "parquet:"


class Store(Protocol):
    """Keeps rows. Used by one thread."""

    @property
    def where(self) -> str:
        """Its URL without secrets, for errors and logs."""

    @property
    def most_rows(self) -> int:
        """Rows that one `write` takes best."""

    def open(self) -> None:
        """Connect, and make what is missing. Called again after it failed.

        Raises:
            ConnectorError: it is not available now.
            ConfigError: it cannot be used: wrong URL, no driver.
        """

    def write(self, rows: Sequence[Row], edges: Sequence[Edge], steps: Sequence[Step]) -> None:
        """Write all of these or nothing. What is there already is replaced.

        Raises:
            ConnectorError: it is not available now.
            Exception: it refuses these rows.
        """

    def forget(self, before_s: float) -> int:
        """Remove some of the rows that ended before this Unix time, oldest first. 0: there are no more."""

    def close(self) -> None:
        """Release everything. Harmless if repeated."""


def open_store(url: str) -> Store:
    """The store of a URL; it connects in `Store.open`.

    Args:
        url: of a database, as SQLAlchemy takes it, or `parquet:FOLDER`.

    Raises:
        ConfigError: it names none.
        RuntimeUnavailableError: what it needs is not installed.
    """
    if url.startswith(PARQUET):
        from tupletree.routes.lineage.parquet import ParquetStore

        folder = url.removeprefix(PARQUET)
        if not folder.removeprefix("//"):
            raise ConfigError("no folder for lineage", got=repr(url), expected="such as parquet:lineage")
        return ParquetStore(Path(folder.removeprefix("//")))
    from tupletree.routes.lineage.database import DatabaseStore

    return DatabaseStore(url)


def store_beside(ledger: str) -> str:
    """The store that belongs to a ledger's database.

    It is the same database, except that of a SQLite file: there only one transaction writes at a time, and lineage must
    not keep the ledger waiting. Its store is a file beside it: `sqlite:///pipeline.db` has `sqlite:///pipeline.lineage.db`.
    """
    scheme, mark, path = ledger.partition(":///")
    if not mark or not scheme.startswith("sqlite") or not path or path.startswith((":memory:", "?")):
        return ledger
    path, _, _ = path.partition("?")
    name = Path(path)
    return f"{scheme}:///{name.with_name(f'{name.stem}.lineage{name.suffix}')}"
