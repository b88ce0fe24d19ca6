"""Where rows of lineage are kept: the contract of a store, and which store a URL names.

Owns the default place. Refuses to buffer or to try again (`writer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tupletree.errors import ConfigError
from tupletree.routes.messages import CallRecord

PARQUET = "parquet:"


class RecordStore(Protocol):
    """Takes records, to keep them or to hand them on. Used by one thread.

    Attributes:
        where: its URL without secrets, for errors and logs.
        most_rows: records that one `write` takes best.
    """

    where: str
    most_rows: int

    def open(self) -> None:
        """Connect, and make what is missing. Called again after it failed.

        Raises:
            ConnectorError: it is not available now.
            ConfigError: it cannot be used: wrong URL, no driver.
        """

    def write(self, records: Sequence[CallRecord]) -> None:
        """Write all of these or nothing. What is there already is replaced.

        Raises:
            ConnectorError: it is not available now.
            Exception: it refuses these records.
        """

    def rest(self, now_s: float) -> float:
        """Nothing waits to be written: do what is due at this Unix time, such as removing some old rows.

        Returns:
            Seconds until something may be due; 0: at once.

        Raises:
            ConnectorError: it is not available now.
        """

    def close(self) -> None:
        """Release everything. Harmless if repeated."""


def open_store(url: str, pipeline: str, *, keep_s: float = 0.0) -> RecordStore:
    """The store of a URL; it connects in `RecordStore.open`.

    Args:
        url: of a database, as SQLAlchemy takes it, or `parquet:FOLDER`.
        pipeline: name of the pipeline.
        keep_s: rows that ended longer ago are removed; 0: never.

    Raises:
        ConfigError: it names none.
        RuntimeUnavailableError: what it needs is not installed.
    """
    if url.startswith(PARQUET):
        from tupletree.routes.lineage.parquet import ParquetStore

        folder = url.removeprefix(PARQUET)
        if not folder.removeprefix("//"):
            raise ConfigError("no folder for lineage", got=repr(url), expected="such as parquet:lineage")
        return ParquetStore(Path(folder.removeprefix("//")), pipeline, keep_s=keep_s)
    from tupletree.routes.lineage.database import RecordDatabase

    return RecordDatabase(url, pipeline, keep_s=keep_s)


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
