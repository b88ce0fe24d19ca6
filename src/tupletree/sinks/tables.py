"""Tables for the SQL sink: made from a message class, or checked against it, and how values go into columns.

A value goes in as the column's type has it if that loses nothing, else as text that says everything (ISO 8601, JSON);
what fits neither way is refused with its row. Imported when a sink is opened: it imports SQLAlchemy.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tupletree.data.payloads import datetime_text, to_jsonable
from tupletree.errors import ConfigError, ConnectorError, Finding
from tupletree.sinks.batches import is_there
from tupletree.sinks.files import MADE, RowError
from tupletree.topology import hints
from tupletree.topology.streams import Schema

BATCHES = "tupletree_batches"
"""The table that says up to which number each writer's batches are there."""

RUNS = "tupletree_runs"
"""The table that says from which number on each run's values count, table by table."""

_UPSERTS: dict[str, Callable[[sa.Table], postgresql.Insert | sqlite.Insert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}
"""By dialect: an insert that may say what to do about a row whose key is there."""

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class _Fit:
    """One way in which values of a kind go into a column.

    Attributes:
        column_types: of columns that take them so.
        made: the type of a column that is made for it.
        convert: value → parameter; raises TypeError or ValueError for what would be changed. None: as it is.
    """

    column_types: tuple[type[sa.types.TypeEngine[Any]], ...]
    made: sa.types.TypeEngine[Any]
    convert: Convert | None = None


@dataclass(frozen=True)
class Target:
    """A table that is ready, and what is written to it.

    Attributes:
        statement: inserts one row, or puts it in the place of the one with its key.
        columns: (field's getter, column, conversion) of each field.
        batches: which batches are there.
        checks_late: the database may check constraints at the commit.
        table: the table itself.
        runs: from which number on the values of each run count; None without a key.
        key: the columns that name a row.
    """

    statement: sa.Insert
    columns: tuple[tuple[Convert, str, Convert | None], ...]
    batches: sa.Table
    checks_late: bool
    table: sa.Table
    runs: sa.Table | None = None
    key: tuple[str, ...] = ()

    @classmethod
    def prepare(
        cls, engine: sa.Engine, name: str, schema: str | None, message: Schema, key: Sequence[str], where: str
    ) -> Target:
        """Make the table if it is not there, and see that it fits.

        Raises:
            ConfigError: it does not, for all reasons at once.
            SQLAlchemyError: the database failed.
        """
        dialect = engine.dialect.name
        _check_key(message, key, dialect, where)
        metadata = sa.MetaData(schema=schema)
        batches = sa.Table(
            BATCHES,
            metadata,
            sa.Column("writer", sa.String(255), primary_key=True),
            sa.Column("number", sa.BigInteger, nullable=False),
        )
        runs = _runs_table(metadata) if key else None
        wanted = sa.Table(name, metadata, *_columns_for(message, key, dialect))
        for table in (batches, wanted, *([runs] if runs is not None else [])):
            _create(engine, table)
        table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=engine)
        for column in table.columns:
            column.name = _quoted(column.name)
        fits = _fits(table, message, dialect)
        findings = [*_misfits(table, message, fits, engine.dialect), *_key_findings(engine, table, key)]
        if findings:
            raise ConfigError(f"{where}: the table does not fit {hints.text_of(message.cls)}", findings=findings)
        columns = tuple((attrgetter(field), field, fits[field].convert) for field in message.fields)
        statement = _statement(table, message, key, dialect)
        return cls(statement, columns, batches, dialect == "postgresql", table, runs, tuple(key))

    def base_of(self, connection: sa.Connection, run: str) -> int:
        """What to add to a run's numbers, so that what it makes is newer than all that earlier runs made.

        Decided, in the transaction of its rows, when a run first writes to the table; by what is there and not by a
        clock. It stays the same when the run is started again.
        """
        runs, table = self.runs, self.table
        assert runs is not None, "only tables with a key go by numbers"
        name = {"table_name": table.name, "run": run}
        known = sa.select(runs.c.base).where(runs.c.table_name == table.name, runs.c.run == run)
        base = connection.execute(known).scalar()
        if base is None:
            highest = connection.execute(sa.select(sa.func.max(table.c[MADE]))).scalar() or 0
            claim = _UPSERTS[connection.dialect.name](runs).values(**name, base=highest)
            connection.execute(claim.on_conflict_do_nothing(index_elements=["table_name", "run"]))
            base = connection.execute(known).scalar_one()  # another task of the run may have been faster
        return int(base)

    def newest(
        self, parameters: list[tuple[int, dict[str, Any]]], made: Sequence[int] | None, base: int
    ) -> list[tuple[int, dict[str, Any]]]:
        """Of the rows of a batch the newest of each key, with its number; a statement takes each key only once."""
        found: dict[Any, tuple[int, dict[str, Any]]] = {}
        name_of = itemgetter(*self.key)
        for one in parameters:
            position, values = one
            values[MADE] = number = None if made is None else base + made[position]
            name = name_of(values)
            try:
                known = found.get(name)
            except TypeError:  # JSON
                name = json.dumps(name, sort_keys=True, default=str)
                known = found.get(name)
            if known is None or number is None or number >= known[1][MADE]:
                found[name] = one
        return [*found.values()]

    def parameters(self, rows: Iterable[Any]) -> tuple[list[tuple[int, dict[str, Any]]], list[RowError]]:
        """(position, column → parameter) of the rows that fit the columns, and what is wrong with the others."""
        good: list[tuple[int, dict[str, Any]]] = []
        faults: list[RowError] = []
        for position, row in enumerate(rows):
            values: dict[str, Any] = {}
            try:
                for get, column, convert in self.columns:
                    value = get(row)
                    values[column] = value if value is None or convert is None else convert(value)
            except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
                faults.append(RowError(position, str(error) or type(error).__name__, type(error).__name__))
            else:
                good.append((position, values))
        return good, faults

    def enter(self, connection: sa.Connection, writer: str, number: int) -> bool:
        """Write down, in the transaction of its rows, that a batch is there; False if it was before.

        The first statement of the transaction: another writer of the same batch waits here.

        Raises ConnectorError: a later batch of this writer is there, or another process writes this one now.
        """
        batches = self.batches
        if self.checks_late:  # so that a constraint that would be checked at the commit names its row
            connection.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
        advance = sa.update(batches).where(batches.c.writer == writer, batches.c.number < number)
        if connection.execute(advance.values(number=number)).rowcount:
            return True
        if is_there(writer, self.newest_batch(connection, writer), number):
            return False
        try:
            connection.execute(sa.insert(batches).values(writer=writer, number=number))
        except sa.exc.IntegrityError as error:
            raise ConnectorError("another process writes this batch", where=writer) from error
        return True

    def newest_batch(self, connection: sa.Connection, writer: str) -> int | None:
        """The number of the newest batch of a writer that is there; None: there is none."""
        batches = self.batches
        number: int | None = connection.execute(sa.select(batches.c.number).where(batches.c.writer == writer)).scalar()
        return number


def _create(engine: sa.Engine, table: sa.Table) -> None:
    """Create a table unless it is there; another task or process may be doing the same."""
    try:
        table.create(engine, checkfirst=True)
    except sa.exc.SQLAlchemyError:
        if not sa.inspect(engine).has_table(table.name, schema=table.schema):
            raise


def add_missing_columns(engine: sa.Engine, name: str, schema: str | None, message: Schema) -> None:
    """Give a table that is there a column for each field that it has none for. Another task may be doing the same.

    Raises SQLAlchemyError: the database failed, or refuses it.
    """
    for field, statement in _additions(engine, name, schema, message).items():
        try:
            with engine.begin() as connection:
                connection.exec_driver_sql(statement)
        except sa.exc.SQLAlchemyError:
            if field in _additions(engine, name, schema, message):
                raise


def _additions(engine: sa.Engine, name: str, schema: str | None, message: Schema) -> dict[str, str]:
    """Field → the statement that adds its column, of those without one; none if there is no such table."""
    inspector = sa.inspect(engine)
    if not inspector.has_table(name, schema=schema):
        return {}
    there = {column["name"] for column in inspector.get_columns(name, schema=schema)}
    return {
        field: _addition(name, schema, field, annotation, engine.dialect)
        for field, annotation in message.fields.items()
        if field not in there
    }


def _addition(name: str, schema: str | None, field: str, annotation: Any, dialect: sa.Dialect) -> str:
    """The statement that adds the column of a field. Rows that are there have no value for it, so it may be null."""
    column = sa.Column(_quoted(field), _ways(annotation, dialect.name)[0].made, nullable=True)
    table = sa.Table(name, sa.MetaData(), column, schema=schema)
    text = str(sa.schema.CreateColumn(column).compile(dialect=dialect))
    return f"ALTER TABLE {dialect.identifier_preparer.format_table(table)} ADD COLUMN {text}"


def _quoted(name: str) -> sa.sql.quoted_name:
    """A column's name that is always quoted: a database may have keywords that SQLAlchemy does not know of."""
    return sa.sql.quoted_name(name, quote=True)


def _runs_table(metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        RUNS,
        metadata,
        sa.Column("table_name", sa.String(255), primary_key=True),
        sa.Column("run", sa.String(255), primary_key=True),
        sa.Column("base", sa.BigInteger, nullable=False),
    )


def _columns_for(message: Schema, key: Sequence[str], dialect: str) -> list[sa.Column[Any]]:
    made = [sa.Column(_quoted(MADE), sa.BigInteger, nullable=True)] if key else []
    return [
        sa.Column(
            _quoted(name),
            _ways(annotation, dialect)[0].made,
            nullable=hints.NONE_TYPE in hints.members(annotation),
            primary_key=name in key,
            autoincrement=False,
        )
        for name, annotation in message.fields.items()
    ] + made


def _statement(table: sa.Table, message: Schema, key: Sequence[str], dialect: str) -> sa.Insert:
    """An insert of the columns that its parameters name; with a key, the newer row of it stays."""
    if not key:
        return sa.insert(table)
    insert = _UPSERTS[dialect](table)
    others = {name: insert.excluded[name] for name in (*message.fields, MADE) if name not in key}
    there, comes = table.c[MADE], insert.excluded[MADE]
    is_newer = sa.or_(there.is_(None), comes.is_(None), comes >= there)
    return insert.on_conflict_do_update(index_elements=list(key), set_=others, where=is_newer)


# --- whether a table fits ---------------------------------------------------------------------------------------


def _check_key(message: Schema, key: Sequence[str], dialect: str, where: str) -> None:
    findings = [
        Finding.unknown(
            f"{hints.text_of(message.cls)} has no field {name!r} to be the key", where, name, message.fields
        )
        for name in key
        if name not in message.fields
    ]
    if key and MADE in message.fields:
        findings.append(
            Finding(
                f"the field {MADE!r} has the name of the column that says which row of a key is newer",
                where,
                next_step="give the field another name",
            )
        )
    if key and dialect not in _UPSERTS:
        findings.append(Finding("a key needs SQLite or PostgreSQL", where, got=dialect, next_step="leave key= out"))
    if findings:
        raise ConfigError("the key of a table cannot be used", findings=findings)


def _fits(table: sa.Table, message: Schema, dialect: str) -> dict[str, _Fit]:
    """Field → how it goes into its column, for those that do."""
    found: dict[str, _Fit] = {}
    for name, annotation in message.fields.items():
        column = table.columns.get(name)
        if column is not None:
            way = next((way for way in _ways(annotation, dialect) if _takes(column.type, way)), None)
            if way is not None:
                found[name] = _for_zone(way, column.type)
            if isinstance(column.type, sa.JSON):
                column.type.none_as_null = True
    return found


def _takes(column_type: sa.types.TypeEngine[Any], way: _Fit) -> bool:
    # A Float is a Numeric to SQLAlchemy, and changes what is none.
    is_float = isinstance(column_type, sa.Float)
    return isinstance(column_type, way.column_types) and (not is_float or sa.Float in way.column_types)


def _for_zone(way: _Fit, column_type: sa.types.TypeEngine[Any]) -> _Fit:
    if isinstance(column_type, sa.DateTime):
        return _Fit(way.column_types, way.made, _aware if column_type.timezone else _naive)
    return way


def _misfits(table: sa.Table, message: Schema, fits: dict[str, _Fit], dialect: sa.Dialect) -> list[Finding]:
    findings = []
    for name, annotation in message.fields.items():
        if name in fits:
            continue
        column = table.columns.get(name)
        expected = " or ".join(dict.fromkeys(one.__name__ for way in _ways(annotation, "") for one in way.column_types))
        if column is None:
            statement = _addition(table.name, table.schema, name, annotation, dialect)
            expected = f"{expected}; or sql(…, add_columns=True), which adds it at the start"
            findings.append(
                Finding(
                    f"there is no column for the field {name!r}", table.name, expected=expected, next_step=statement
                )
            )
        else:
            findings.append(
                Finding(
                    f"the column of the field {name!r} does not hold {hints.text_of(annotation)}",
                    table.name,
                    got=repr(column.type),
                    expected=expected,
                )
            )
    return findings + [
        Finding(
            f"the column {column.name!r} needs a value, and there is no such field",
            table.name,
            next_step="give it a default, or let it be null",
        )
        for column in table.columns
        if column.name not in message.fields and not _does_without(column, table)
    ]


def _does_without(column: sa.Column[Any], table: sa.Table) -> bool:
    generates = column.primary_key and column is table.autoincrement_column
    return bool(column.nullable or column.server_default or column.identity or column.computed or generates)


def _key_findings(engine: sa.Engine, table: sa.Table, key: Sequence[str]) -> list[Finding]:
    if not key:
        return []
    return [*_made_findings(table, engine.dialect), *_unique_findings(engine, table, key)]


def _made_findings(table: sa.Table, dialect: sa.Dialect) -> list[Finding]:
    column = table.columns.get(MADE)
    name = dialect.identifier_preparer.format_table(table)
    if column is not None and isinstance(column.type, sa.Integer | sa.Numeric):
        return []
    return [
        Finding(
            f"there is no column {MADE!r}, which says which of two rows of a key is newer"
            if column is None
            else f"the column {MADE!r}, which says which of two rows of a key is newer, holds no integers",
            table.name,
            got="" if column is None else repr(column.type),
            expected="BIGINT that may be null",
            next_step=f"ALTER TABLE {name} ADD COLUMN {MADE} BIGINT" if column is None else "",
        )
    ]


def _unique_findings(engine: sa.Engine, table: sa.Table, key: Sequence[str]) -> list[Finding]:
    if set(key) == {column.name for column in table.primary_key}:
        return []
    inspector = sa.inspect(engine)
    unique: list[Sequence[str | None]] = [
        one["column_names"] for one in inspector.get_unique_constraints(table.name, schema=table.schema)
    ]
    unique += [
        one["column_names"]
        for one in inspector.get_indexes(table.name, schema=table.schema)
        if one["unique"] and not one.get("dialect_options", {}).get("postgresql_where")
    ]
    if any(set(names) == set(key) for names in unique):
        return []
    return [
        Finding(
            "no unique constraint has just the columns of the key",
            table.name,
            expected=f"PRIMARY KEY or UNIQUE ({', '.join(key)})",
            next_step="add it to the table",
        )
    ]


# --- values -----------------------------------------------------------------------------------------------------


def _ways(annotation: Any, dialect: str) -> list[_Fit]:
    """How values of a field's type go into columns; the first is how a column for it is made."""
    kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
    kind = kinds[0] if len(kinds) == 1 else None
    is_postgres = dialect == "postgresql"
    if isinstance(kind, type) and issubclass(kind, enum.Flag):
        return [_Fit((sa.Integer,), sa.BigInteger(), attrgetter("value"))]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [_Fit((sa.String,), sa.Text(), attrgetter("_name_"))]
    if kind is float and dialect == "sqlite":
        return [_Fit((sa.Float,), sa.Double(), _number)]
    plain = _PLAIN.get(kind) if kind is not None else None
    if plain is not None:
        return plain
    split = _SPLIT.get(kind) if kind is not None else None
    if split is not None:
        native, as_text = split
        return [native, as_text] if is_postgres else [as_text, native]
    nested = _Fit((sa.JSON,), postgresql.JSONB(), to_jsonable)
    as_text = _Fit((sa.String,), sa.Text(), _json_text)
    return [nested, as_text] if is_postgres else [as_text, nested]


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone, and the column has one: it would be read as local time")
    return moment


def _naive(moment: datetime) -> datetime:
    if moment.tzinfo is not None:
        raise ValueError(f"{moment} has a time zone, and the column has none: it would be lost")
    return moment


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("NaN, which SQLite would store as NULL")
    return value


def _json_text(value: Any) -> str:
    return json.dumps(to_jsonable(value), ensure_ascii=False)


def _duration_text(value: timedelta) -> str:
    import msgspec

    return str(msgspec.to_builtins(value))


_PLAIN: dict[Any, list[_Fit]] = {
    bool: [_Fit((sa.Boolean,), sa.Boolean())],
    int: [_Fit((sa.Integer, sa.Numeric), sa.BigInteger())],
    float: [_Fit((sa.Float,), sa.Double())],
    str: [_Fit((sa.String,), sa.Text())],
    bytes: [_Fit((sa.LargeBinary,), sa.LargeBinary())],
    date: [_Fit((sa.Date,), sa.Date())],
    time: [_Fit((sa.String,), sa.Text(), datetime_text)],
}

_SPLIT: dict[Any, tuple[_Fit, _Fit]] = {
    datetime: (_Fit((sa.DateTime,), sa.DateTime(timezone=True)), _Fit((sa.String,), sa.Text(), datetime_text)),
    timedelta: (_Fit((sa.Interval, postgresql.INTERVAL), sa.Interval()), _Fit((sa.String,), sa.Text(), _duration_text)),
    Decimal: (_Fit((sa.Numeric,), sa.Numeric()), _Fit((sa.String,), sa.Text(), str)),
    UUID: (_Fit((sa.Uuid,), sa.Uuid()), _Fit((sa.String,), sa.Text(), str)),
}
"""(as the database has it, as text): PostgreSQL keeps the former exactly, SQLite only the latter."""
