"""Where the ledger's statements run: on a database of SQLAlchemy's, or within the embedded queue's own transaction.

Owns transactions, and what errors of databases mean. Refuses to know the statements.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable

from tupletree.durable import claim_private
from tupletree.errors import ConfigError, ConnectorError, UnusableDataError
from tupletree.queues.sqlite import SqliteBroker, SqliteTransaction
from tupletree.queues.urls import without_secrets
from tupletree.routes.ledger.statements import Statement
from tupletree.routes.ledger.tables import FORMAT, METADATA, meta
from tupletree.sinks.databases import file_of, make_engine, shown

T = TypeVar("T")
Row = tuple[Any, ...]

_encode = msgspec.json.Encoder().encode

_LOCK = 7_473_001_902
"""Of PostgreSQL's advisory locks: one process at a time makes the tables."""

_BUSY_TIMEOUT_S = 10.0
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "wal_autocheckpoint = 4096",
    "cache_size = -32768",
    "temp_store = MEMORY",
)


class Session(ABC):
    """An open transaction.

    Attributes:
        dialect: name of SQLAlchemy's dialect.
        queue: the queue file's transaction, where this is one.
        writes_alone: no other transaction writes meanwhile, so that the order of locks is no matter.
    """

    dialect: str = "sqlite"
    queue: SqliteTransaction | None = None

    @property
    def writes_alone(self) -> bool:
        return self.dialect == "sqlite"

    @abstractmethod
    def fetch(self, text: str, values: Row) -> list[Row]:
        """Run a query as text."""

    @abstractmethod
    def execute(self, text: str, rows: Sequence[Row]) -> int:
        """Run a statement as text, for each row of parameters; how many rows of tables it concerned."""

    def rows(self, statement: Statement, *values: Any) -> list[Row]:
        """What a query gives; a list among the values is one parameter."""
        text, arrange = statement.for_dialect(self.dialect)
        values = self._encoded(values)
        return self.fetch(text, arrange(values) if arrange else values)

    def run(self, statement: Statement, rows: Sequence[Row]) -> int:
        """Run a statement for each row of parameters; how many rows of tables it concerned in all."""
        if not rows:
            return 0
        text, arrange = statement.for_dialect(self.dialect)
        return self.execute(text, [arrange(row) for row in rows] if arrange else rows)

    def run_one(self, statement: Statement, *values: Any) -> int:
        """Run a statement once; how many rows it concerned. A list among the values is one parameter."""
        return self.run(statement, [self._encoded(values)])

    def _encoded(self, values: Row) -> Row:
        if self.dialect != "sqlite":
            return values
        return tuple([_list_text(value) if isinstance(value, list) else value for value in values])


def _list_text(values: list[Any]) -> str:
    try:
        return _encode(values).decode()
    except ValueError:  # an id with half of a surrogate pair
        return json.dumps(values)


class LedgerStore(ABC):
    """A place of the ledger's tables. Any thread may call.

    Attributes:
        where: for errors; without secrets.
    """

    where: str

    @abstractmethod
    def write(self, work: Callable[[Session], T]) -> T:
        """Call `work` in a transaction, which is durable when this returns, and undone if it raises."""

    @abstractmethod
    def read(self, work: Callable[[Session], T]) -> T:
        """Call `work`, which only reads, on one state of the tables."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def has_work(self, queue: str) -> bool:  # noqa: ARG002 - for those that have queues
        """Whether a queue of the store's own has a message to lease; nothing is written."""
        return False

    def prepare(self) -> None:
        """Make the tables where they are missing.

        Raises:
            UnusableDataError: they are of another format.
        """
        found = self.read(_format) or self.write(_make)
        if found != FORMAT:
            raise UnusableDataError(
                "the ledger has a format that this version of Tupletree cannot read",
                where=self.where,
                got=f"format {found}",
                expected=f"format {FORMAT}",
                next_step="use the version of Tupletree that wrote it",
            )


_HAS_TABLES = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE name = 'tupletree_route_meta'",
    "postgresql": "SELECT count(*) FROM pg_tables WHERE tablename = 'tupletree_route_meta'"
    " AND schemaname = current_schema()",
}
_READ_FORMAT = Statement(sa.select(meta.c.value).where(meta.c.name == "format"))


def _format(session: Session) -> str:
    if not session.fetch(_HAS_TABLES[session.dialect], ())[0][0]:
        return ""
    return str(session.rows(_READ_FORMAT)[0][0])


def _make(session: Session) -> str:
    if session.dialect == "postgresql":
        session.fetch(f"SELECT pg_advisory_xact_lock({_LOCK})", ())
    if known := _format(session):
        return known
    dialect = sa.make_url(f"{session.dialect}://").get_dialect()()
    for table in METADATA.sorted_tables:
        session.execute(str(CreateTable(table).compile(dialect=dialect)), [()])
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            session.execute(str(CreateIndex(index).compile(dialect=dialect)), [()])
    session.run(Statement(sa.insert(meta).values(name="format", value=FORMAT)), [()])
    return FORMAT


class _Connected(Session):
    """On a connection of SQLAlchemy's."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.dialect = connection.dialect.name

    def fetch(self, text: str, values: Row) -> list[Row]:
        result = self._connection.exec_driver_sql(text, values or None)
        return list(result.cursor.fetchall()) if result.returns_rows else []

    def execute(self, text: str, rows: Sequence[Row]) -> int:
        if len(rows) == 1:
            return self._connection.exec_driver_sql(text, rows[0] or None).rowcount
        return self._connection.exec_driver_sql(text, list(rows)).rowcount


class LedgerDatabase(LedgerStore):
    """A database by its URL: SQLite or PostgreSQL.

    Raises:
        ConfigError: the URL cannot be read, or is of another database.
        RuntimeUnavailableError: the driver is not installed.
        ConnectorError: the database cannot be reached.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
        except (ArgumentError, ValueError):  # not shown: it may quote a part of the URL
            raise ConfigError(
                "the URL of the ledger cannot be read", expected="sqlite:///file.db or postgresql+psycopg://…"
            ) from None
        self.where = f"ledger {shown(parsed)}"
        self._dialect = parsed.get_backend_name()
        if self._dialect not in _HAS_TABLES:
            raise ConfigError(
                "the ledger cannot be kept in this kind of database",
                where=self.where,
                got=self._dialect,
                expected="sqlite or postgresql",
            )
        self._password = parsed.password or ""
        if file := file_of(parsed):
            claim_private(file, "the ledger's file", self.where)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        arguments = {"timeout": _BUSY_TIMEOUT_S, "isolation_level": None, "cached_statements": 256}
        self._engine = make_engine(parsed, self.where, sqlite=arguments, pragmas=_PRAGMAS)
        if self._dialect == "sqlite":
            sa.event.listen(self._engine, "begin", _begin_sqlite)

    def write(self, work: Callable[[Session], T]) -> T:
        with self._naming_errors(), self._engine.begin() as connection:
            return work(_Connected(connection))

    def read(self, work: Callable[[Session], T]) -> T:
        options: dict[str, Any] = {"tupletree_reads": True}
        if self._dialect == "postgresql":
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._naming_errors(), self._engine.connect().execution_options(**options) as connection:
            return work(_Connected(connection))

    def close(self) -> None:
        self._engine.dispose()

    @contextlib.contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if self._dialect == "postgresql":
                self._engine.dispose()  # a session may be wrong for ever: its server is a standby now
            raise ConnectorError(
                "the ledger's database cannot be used now",
                where=self.where,
                got=without_secrets(f"{type(cause).__name__}: {cause}", self._password),
                next_step="see to the database; what was not confirmed is done again",
            ) from error


def _begin_sqlite(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("tupletree_reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


class _Within(Session):
    """In the queue file's transaction."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self.queue = transaction

    def fetch(self, text: str, values: Row) -> list[Row]:
        assert self.queue is not None
        return self.queue.execute(text, values).fetchall()

    def execute(self, text: str, rows: Sequence[Row]) -> int:
        assert self.queue is not None
        if len(rows) == 1:
            return self.queue.execute(text, rows[0]).rowcount
        return self.queue.executemany(text, rows).rowcount


class QueueFileStore(LedgerStore):
    """Tables beside the queues in the embedded queue's file: ledger, publish and ack are one transaction."""

    def __init__(self, broker: SqliteBroker) -> None:
        self.broker = broker
        self.where = broker.where
        self._reader = LedgerDatabase(f"sqlite:///{broker.path}")

    def write(self, work: Callable[[Session], T]) -> T:
        results: list[T] = []
        self.broker.settle(within=lambda transaction: results.append(work(_Within(transaction))))
        return results[0]

    def read(self, work: Callable[[Session], T]) -> T:
        """See `LedgerStore.read`. On a connection of its own, so that no other caller waits for it."""
        return self._reader.read(work)

    def has_work(self, queue: str) -> bool:
        return self.broker.has_work(queue)

    def close(self) -> None:
        """See `LedgerStore.close`. The broker stays open."""
        self._reader.close()
