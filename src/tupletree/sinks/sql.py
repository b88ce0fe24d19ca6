"""SQL: rows of one class in one table, through SQLAlchemy.

Owns the transaction: a batch's rows and its number are committed together, and a batch that is there is not written
again, so that rows are exactly once on Spark. Owns finding which rows of a batch the database's constraints refuse.
Tables, and how values fit them, are `tables`. It refuses to guess: a table that does not fit is an error at the start.
SQLAlchemy is imported on first use (`pip install 'tupletree[sql]'`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tupletree.durable import identity_of
from tupletree.errors import ConfigError, ConnectorError, needing
from tupletree.sinks.databases import file_of, make_engine, shown
from tupletree.sinks.files import RowError, SinkRowsError
from tupletree.sinks.fitting import only_class
from tupletree.topology.components import Sink, SinkBatch, SinkContext
from tupletree.topology.secret import HIDDEN, Secret
from tupletree.topology.streams import Schema

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

    from tupletree.sinks.tables import Target

MIN_SECRET = 4
"""Shorter values of a URL are words such as `yes`, which errors may hold by themselves."""

_ROW_STATES = ("22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that are about the values of a statement: data, constraints, views, limits, triggers."""


class SqlSink(Sink[Any]):
    """Write rows to a table of a database; its columns are the fields of the message class, matched by name.

    The table is made if it is not there; otherwise it is checked at the start: every field needs a column of a type
    that holds it, and every other column must do without a value. Beside it `tupletree_batches` says which batches are
    there.

    On Spark each row is there exactly once: a batch's rows and its number are one transaction. Locally a batch is
    written once, and a message that was not acked before a restart comes again. A row that the database refuses (a
    constraint, a size) fails its message (`publish_failed`); the rest of its batch is written.

    Args:
        url: as SQLAlchemy takes it: `sqlite:///file.db`, `postgresql+psycopg://user:password@host/name`. Errors and
            logs show its dialect, host and database only.
        table: its name.
        key: columns that name a row: the newest row of a key stays, however early or late its message completed. What
            is newest is decided by the order in which the values were made (by the stateful bolt, window or join that
            made them, or else by the spout), through retries and restarts; it is in a column `_made` (BIGINT, may
            be null) of the table, and a later run is newer than an earlier one (`tupletree_runs`). Needs a unique
            constraint on just the columns of the key (a table made here gets them as its primary key), and SQLite or
            PostgreSQL. Of several rows of a key in one batch only the newest is written.
        schema: the database schema of the table; None is the connection's default.
        message_type: class of the rows; None takes that of the one stream the sink reads.
        add_columns: give the table, at the start, a column for each field that it has none for, with `ALTER TABLE …
            ADD COLUMN`; rows that are there have NULL in it. Default: that is an error, which shows the statement.

    Raises:
        RuntimeUnavailableError: SQLAlchemy is not installed.
        ConfigError: the URL cannot be read.

    Example:
        >>> sql("sqlite:///counts.db", "counts", key="word").promise
        'exactly_once'
    """

    promise = "exactly_once"
    gathers = True
    _target: Target  # since `open`

    def __init__(
        self,
        url: str | Secret[str],
        table: str,
        *,
        key: str | Sequence[str] = (),
        schema: str | None = None,
        message_type: type | None = None,
        add_columns: bool = False,
    ) -> None:
        self.url = url.reveal() if isinstance(url, Secret) else url
        self.shown_url = shown(_parsed(self.url))
        self.table = table
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.schema = schema
        self.message_type = message_type
        self.add_columns = add_columns
        self._engine: Engine | None = None
        self._base: int | None = None
        self._file: Path | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def ordered(self) -> bool:  # type: ignore[override]  # it depends on the key
        """Whether it goes by the order in which values were made: see `Sink`."""
        return bool(self.key)

    def __repr__(self) -> str:
        return f"SqlSink({self.shown_url!r}, {self.table!r})"

    def open(self, context: SinkContext) -> None:
        """Connect, make the tables that are missing, check those that are there.

        Raises:
            ConfigError: the table does not fit the class, everything at once; or the class is not known.
            ConnectorError: the database cannot be reached.
            RuntimeUnavailableError: its driver is not installed.
        """
        from sqlalchemy.exc import SQLAlchemyError

        from tupletree.sinks.tables import Target, add_missing_columns

        cls = only_class(self.message_type, context)
        engine = make_engine(_parsed(self.url), str(self))
        try:
            if self.add_columns:
                add_missing_columns(engine, self.table, self.schema, Schema.of(cls))
            self._target = Target.prepare(engine, self.table, self.schema, Schema.of(cls), self.key, str(self))
        except SQLAlchemyError as error:
            engine.dispose()
            raise self._unreachable(error) from error
        except BaseException:
            engine.dispose()
            raise
        self._engine = engine
        self._file = file_of(engine.url)
        self._identity = None if self._file is None else identity_of(self._file)

    def write(self, batch: SinkBatch[Any]) -> None:
        """Write a batch in one transaction, unless it is there.

        Raises:
            SinkRowsError: rows that the table or the database refuses, all of them; nothing was written.
            ConnectorError: the database failed; nothing was written.
        """
        from sqlalchemy.exc import SQLAlchemyError

        assert self._engine is not None, "write comes after open"
        parameters, faults = self._target.parameters(batch.rows)
        base = self._base
        self._find_file()
        try:
            with self._engine.begin() as connection:
                if not self._target.enter(connection, batch.writer or batch.id, batch.number):
                    return
                if self.key:
                    if base is None and batch.made is not None:
                        base = self._target.base_of(connection, batch.run or batch.writer)
                    parameters = self._target.newest(parameters, batch.made, base or 0)
                self._insert(connection, parameters, faults)
                if faults:
                    # Raised inside, so that the transaction is rolled back: all of the batch or nothing.
                    faults.sort(key=lambda fault: fault.position)
                    raise SinkRowsError(str(self), faults)
        except SQLAlchemyError as error:
            # A session may be wrong for ever (its server is a standby now): the next call makes a new one.
            self._engine.dispose()
            raise self._unreachable(error) from error
        self._find_file()  # else the rows may be in a file that nobody finds
        self._base = base  # committed now

    def _insert(
        self, connection: Connection, parameters: list[tuple[int, dict[str, Any]]], faults: list[RowError]
    ) -> None:
        """Insert (position, values); where the database refuses rows, find them by halves, each under a savepoint."""
        from sqlalchemy.exc import DBAPIError

        if not parameters:
            return
        try:
            with connection.begin_nested():
                connection.execute(self._target.statement, [values for _, values in parameters])
        except (DBAPIError, OverflowError, ValueError, TypeError) as error:
            if isinstance(error, DBAPIError) and not _blames_rows(error):
                raise
            if len(parameters) == 1:
                faults.append(_row_error(parameters[0][0], error))
                return
            middle = len(parameters) // 2
            self._insert(connection, parameters[:middle], faults)
            self._insert(connection, parameters[middle:], faults)

    def newest_batch(self, writer: str) -> int | None:
        """See `Sink`. Raises ConnectorError: the database failed."""
        from sqlalchemy.exc import SQLAlchemyError

        assert self._engine is not None, "it comes after open"
        try:
            with self._engine.connect() as connection:
                return self._target.newest_batch(connection, writer)
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise self._unreachable(error) from error

    def _find_file(self) -> None:
        """See that the file of a SQLite database is the one that was opened: it can be written even if it is gone.

        Raises ConnectorError: it is not.
        """
        if self._file is not None and (found := identity_of(self._file)) != self._identity:
            raise ConnectorError(
                "the database's file is not there any more, or is another one",
                where=str(self),
                got=f"another file at {self._file}" if found else f"no file at {self._file}",
                expected="the file that the run began with",
                next_step="bring it back; to begin another one, stop the run and start it again",
            )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def _without_secrets(self, text: str) -> str:
        """An error of the driver's, which may quote what it was given."""
        parsed = _parsed(self.url)
        values = [value for many in parsed.normalized_query.values() for value in many]
        parts = [part for value in values for part in re.split("[;&]", value)]
        for secret in sorted({self.url, parsed.password or "", *values, *parts}, key=len, reverse=True):
            if len(secret) >= MIN_SECRET:
                text = text.replace(secret, HIDDEN)
        return text

    def _unreachable(self, error: Exception) -> ConnectorError:
        return ConnectorError(
            "the database failed",
            where=str(self),
            got=self._without_secrets(_first_line(error)),
            next_step=_MISSING_TABLE if _is_missing_table(error) else _UNREACHABLE,
        )


sql = SqlSink


_UNREACHABLE = "see that it runs, and that this user may read and write the table"

_MISSING_TABLE = "bring the table back, or start the run again: a start makes the tables that are missing"


def _is_missing_table(error: BaseException) -> bool:
    """As of a database that was set up anew, or is another one now."""
    origin = getattr(error, "orig", None)
    return getattr(origin, "sqlstate", None) == "42P01" or "no such table" in str(origin)


def _parsed(url: str) -> URL:
    with needing("the SQL sink needs SQLAlchemy", "sql"):
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # not shown: it may quote a part of the URL
        raise ConfigError(
            "this is no database URL",
            where="sinks.sql",
            expected="such as sqlite:///file.db or postgresql+psycopg://user:password@host/name",
            next_step="encode @ : / in a password as %40 %3A %2F",
        ) from None


def _blames_rows(error: Any) -> bool:
    """Whether the values of a statement are to blame, and not the database or the statement itself."""
    from sqlalchemy.exc import DataError, IntegrityError

    state = getattr(error.orig, "sqlstate", None)
    if state:
        return str(state).startswith(_ROW_STATES)
    if error.connection_invalidated:
        return False
    # Without a SQLSTATE: SQLite, and values that the driver itself refuses (NUL in text).
    return isinstance(error, IntegrityError | DataError)


def _row_error(position: int, error: Exception) -> RowError:
    origin = getattr(error, "orig", None) or error
    return RowError(position, _first_line(origin), type(origin).__name__)


def _first_line(error: BaseException) -> str:
    origin = getattr(error, "orig", None) or error
    return str(origin).strip().partition("\n")[0] or type(origin).__name__
