"""Lineage in a database: SQLite by default, PostgreSQL by URL.

Owns the tables (`tupletree_lineage_…`), their indexes, and the statements that write. A row that is written again
replaces what is there. Indexes are few, as each costs about a third of a write: by message, by execution and cell (for
statistics), and the failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from tupletree.durable import claim_private
from tupletree.errors import ConfigError, ConnectorError, needing
from tupletree.queues.urls import without_secrets
from tupletree.routes.lineage.rows import COLUMNS, KEY, REST_S, Edge, RowMaker, StepName, edges_of
from tupletree.routes.messages import CallRecord
from tupletree.sinks.databases import file_of, make_engine, shown

with needing("lineage in a database needs SQLAlchemy", "routes"):
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Iterator

BUSY_TIMEOUT_S = 5.0
_PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", "cache_size = -32768", "temp_store = MEMORY")
"""NORMAL: a power cut may lose the last rows, which lineage may; a killed process loses nothing that was written."""
SWEPT_AT_ONCE = 5_000

_METADATA = sa.MetaData()
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite counts up only an INTEGER by itself

CALLS = sa.Table(
    "tupletree_lineage_calls",
    _METADATA,
    sa.Column("id", _BIG, primary_key=True),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("started_s", sa.Double, nullable=False),
    sa.Column("ended_s", sa.Double, nullable=False),
    sa.Column("execution", sa.Text, nullable=False),
    sa.Column("cell", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in COLUMNS[7:]),
    sa.Index("tupletree_lineage_by_message", *KEY, unique=True),
    sa.Index("tupletree_lineage_by_execution", "execution", "cell", "started_s"),
)
_FAILED = CALLS.c.status == "failed"
sa.Index("tupletree_lineage_failed", CALLS.c.started_s, sqlite_where=_FAILED, postgresql_where=_FAILED)
sa.Index(
    "tupletree_lineage_failed_of", CALLS.c.execution, CALLS.c.started_s, sqlite_where=_FAILED, postgresql_where=_FAILED
)
EDGES = sa.Table(
    "tupletree_lineage_edges",
    _METADATA,
    sa.Column("child", sa.Text, primary_key=True),
    sa.Column("parent", sa.Text, primary_key=True),
    sa.Index("tupletree_lineage_children", "parent", "child"),
    sqlite_with_rowid=False,
)
STEPS = sa.Table(
    "tupletree_lineage_steps",
    _METADATA,
    sa.Column("step", _BIG, primary_key=True, autoincrement=False),
    sa.Column("pipeline", sa.Text, nullable=False),
    sa.Column("route", sa.Text, nullable=False),
    sa.Column("adapter", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
)


def connect(url: str) -> tuple[sa.Engine, str]:
    """An engine for lineage, and its URL without secrets. Nothing is connected yet.

    Raises:
        ConfigError: this is no URL of SQLite or PostgreSQL.
        RuntimeUnavailableError: the driver is not installed.
    """
    parsed: sa.URL | None = None
    with suppress(SQLAlchemyError, ValueError):  # not shown: it may quote a part of the URL
        parsed = sa.make_url(url)
    family = parsed.get_backend_name() if parsed else ""
    if parsed is None or family not in {"sqlite", "postgresql"}:
        raise ConfigError(
            "this is no database for lineage",
            where="lineage.store",
            got=family or "no URL that can be read",
            expected="such as sqlite:///lineage.db, postgresql+psycopg://user:password@host/name or parquet:FOLDER",
        )
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    where = shown(parsed)
    return make_engine(parsed, where, sqlite={"timeout": BUSY_TIMEOUT_S}, pragmas=_PRAGMAS), where


@contextmanager
def failing_as_outage(where: str) -> Iterator[None]:
    """Raise ConnectorError where the database or its tables are not available; errors about values pass as they are."""
    try:
        yield
    except (DataError, IntegrityError):
        raise
    except SQLAlchemyError as error:
        origin = getattr(error, "orig", None) or error
        raise ConnectorError(
            "lineage is not available",
            where=where,
            got=without_secrets(str(origin).strip().partition("\n")[0]) or type(origin).__name__,
            next_step="see that the database runs, and that this user may read and write its tables",
        ) from error


class RecordDatabase:
    """A store in a database. See `RecordStore`."""

    most_rows = 10_000
    """A transaction of this many touches each page of an index once, not again for every thousand rows."""

    def __init__(self, url: str, pipeline: str, *, keep_s: float = 0.0) -> None:
        self._engine, self.where = connect(url)
        self._rows = RowMaker(pipeline)
        self._known_steps = 0
        self._keep_s = keep_s
        self._calls = _Inserted.of(self._engine, CALLS, COLUMNS, KEY)
        self._edges = _Inserted.of(self._engine, EDGES, Edge._fields, None)
        self._steps = _Inserted.of(self._engine, STEPS, StepName._fields, None)

    def open(self) -> None:
        """See `RecordStore`."""
        if path := file_of(self._engine.url):
            with suppress(OSError):  # told by what comes next
                path.parent.mkdir(parents=True, exist_ok=True)
            claim_private(path, "the file of lineage", self.where)  # errors of adapters may quote payloads
        with failing_as_outage(self.where):
            _METADATA.create_all(self._engine)

    def write(self, records: Sequence[CallRecord]) -> None:
        """See `RecordStore`."""
        rows = [self._rows.row(record) for record in records]
        steps = self._rows.known()
        with failing_as_outage(self.where), self._engine.begin() as connection:
            self._steps.execute(connection, steps[self._known_steps :])
            self._edges.execute(connection, sorted(edges_of(records)))
            # Of a call that is there twice the later counts: one statement cannot replace a row that it inserts.
            self._calls.execute(connection, list({row[: len(KEY)]: row for row in rows}.values()))
        self._known_steps = len(steps)

    def rest(self, now_s: float) -> float:
        """See `RecordStore`."""
        return 0.0 if self._keep_s and self.forget(now_s - self._keep_s) else REST_S

    def forget(self, before_s: float) -> int:
        """Remove some of the rows that ended, or began and did not end, before this Unix time: the first written first.

        Returns:
            How many; 0: there are no more.
        """
        columns = CALLS.c.id, CALLS.c.started_s, CALLS.c.ended_s, CALLS.c.message
        oldest = sa.select(*columns).order_by(CALLS.c.id).limit(SWEPT_AT_ONCE)
        with failing_as_outage(self.where), self._engine.begin() as connection:
            old = []
            for row in connection.execute(oldest):
                if max(row.started_s, row.ended_s) >= before_s:  # one that is pending has not ended
                    break
                old.append(row)
            if not old:
                return 0
            connection.execute(sa.delete(CALLS).where(CALLS.c.id <= old[-1].id))
            messages = sorted({row.message for row in old})
            for start in range(0, len(messages), 500):
                part = messages[start : start + 500]
                # SQLite would look for the rest of each message's calls by itself, without the index.
                left = set(connection.scalars(sa.select(CALLS.c.message).where(CALLS.c.message.in_(part)).distinct()))
                connection.execute(sa.delete(EDGES).where(EDGES.c.child.in_([one for one in part if one not in left])))
        return len(old)

    def close(self) -> None:
        """See `RecordStore`."""
        self._engine.dispose()


class _Inserted:
    """INSERT of many rows in few statements: the driver lets other threads run only between statements."""

    def __init__(self, one: str, values: str, at_once: int) -> None:
        self._one = one
        self._values = values
        self._at_once = at_once
        self._many = one.replace(values, ", ".join([values] * at_once))

    @classmethod
    def of(cls, engine: sa.Engine, table: sa.Table, columns: Sequence[str], key: Sequence[str] | None) -> _Inserted:
        """Into a table; a row whose key is there replaces it, or without `key` changes nothing."""
        is_sqlite = engine.dialect.name == "sqlite"
        statement = (sqlite.insert if is_sqlite else postgresql.insert)(table)
        if key is None:
            upsert = statement.on_conflict_do_nothing()
        else:
            changed = {name: statement.excluded[name] for name in columns if name not in key}
            upsert = statement.on_conflict_do_update(index_elements=list(key), set_=changed)
        make_dialect: Any = type(engine.dialect)
        dialect = make_dialect(paramstyle="qmark" if is_sqlite else "format")
        one = str(upsert.compile(dialect=dialect, column_keys=list(columns)))
        values = one[one.index(" VALUES ") + len(" VALUES ") : one.index(" ON CONFLICT")]
        return cls(one, values, max(1, _parameters(engine) // len(columns)))

    def execute(self, connection: sa.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert the rows."""
        whole = len(rows) - len(rows) % self._at_once
        for start in range(0, whole, self._at_once):
            self._run(connection, self._many, rows[start : start + self._at_once])
        if rest := rows[whole:]:
            self._run(connection, self._one.replace(self._values, ", ".join([self._values] * len(rest))), rest)

    @staticmethod
    def _run(connection: sa.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(rows)))


def _parameters(engine: sa.Engine) -> int:
    """How many one statement may have: SQLite took 999 before 3.32, then 32,766; PostgreSQL takes 65,535."""
    if engine.dialect.name == "sqlite":
        import sqlite3

        if sqlite3.sqlite_version_info < (3, 32):
            return 999
    return 8_000
