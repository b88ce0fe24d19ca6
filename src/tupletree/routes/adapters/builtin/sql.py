"""`write_sql`: a row for each message, written in batches, once however often a message comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa
from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite

from tupletree.errors import (
    ConfigError,
    ConnectorError,
    PermanentError,
    ProcessingError,
    did_you_mean,
)
from tupletree.queues.urls import without_secrets
from tupletree.routes.adapters.contract import (
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    BatchAdapter,
    PipelineContext,
)
from tupletree.routes.adapters.paths import Path, PathText
from tupletree.sinks.databases import make_engine

_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_ROW_FAULTS = (exc.IntegrityError, exc.DataError, exc.NotSupportedError, exc.InterfaceError)


class SqlConfig(AdapterConfig):
    """Which table, and what is in its rows.

    Attributes:
        url: of the database, SQLAlchemy's: `sqlite:///file.db`, `postgresql+psycopg://…`. It is not shown.
        table: its name, `schema.name` for one of a schema. It must be there, unless `setup` makes it.
        columns: column → path of its value. A path that a message has not gives NULL; lists and objects become JSON.
        key: columns that say which row it is; they need a unique constraint. Empty: the column with `message.id`.
        mode: where the row is there already: `upsert` writes it again, `ignore` leaves it.
        setup: SQL statements that are run when the adapter is opened; they must do no harm when they are run again.
        size: rows of a full batch.
        max_bytes: of a batch's payloads; 0: no limit.
        max_age_s: seconds that a row waits for others.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # the URL may hold a password

    url: SecretStr
    table: str = Field(min_length=1)
    columns: Mapping[str, PathText] = Field(min_length=1)
    key: Sequence[str] = ()
    mode: Literal["upsert", "ignore"] = "upsert"
    setup: Sequence[str] = ()
    size: int = Field(default=500, ge=1)
    max_bytes: int = Field(default=0, ge=0)
    max_age_s: float = Field(default=1.0, gt=0)

    @field_validator("url")
    @classmethod
    def _is_of_a_known_database(cls, url: SecretStr) -> SecretStr:
        try:
            kind = sa.make_url(url.get_secret_value()).get_backend_name()
        except (exc.ArgumentError, ValueError):  # not shown: it may quote a part of the URL
            raise ValueError("a database URL, such as sqlite:///file.db") from None
        if kind not in _INSERTS:
            raise ValueError(f"{' or '.join(_INSERTS)}, into which rows can be written once")
        return url

    @model_validator(mode="after")
    def _knows_its_rows(self) -> SqlConfig:
        unknown = [column for column in self.key if column not in self.columns]
        if unknown:
            raise ValueError(f"key names {', '.join(unknown)}, which columns does not have")
        if not self.key_columns:
            raise ValueError("no column tells rows apart; expected key, or a column whose path is message.id")
        return self

    @property
    def key_columns(self) -> list[str]:
        """The columns of the key."""
        return list(self.key) or [column for column, path in self.columns.items() if path == "message.id"][:1]


class WriteSql(BatchAdapter[SqlConfig]):
    """Writes a row for each message, a batch in a transaction, and lets the messages pass.

    A message that comes again, after a crash or a failure elsewhere, finds its row: nothing is written twice. A row
    that the database refuses fails its message for good; a database that is away is an outage.
    """

    Config = SqlConfig

    def __init__(self, config: SqlConfig) -> None:
        super().__init__(config)
        self.size, self.max_bytes, self.max_age_s = config.size, config.max_bytes, config.max_age_s
        self._paths = {column: Path(path) for column, path in config.columns.items()}
        self._engine: sa.Engine | None = None

    async def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        """Connect, run the setup, check the table.

        Raises:
            ConfigError: the table has not these columns, or no unique constraint on the key.
            ConnectorError: the database cannot be reached.
            RuntimeUnavailableError: its driver is not installed.
        """
        try:
            await asyncio.to_thread(self._prepare)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._engine is not None:
            await asyncio.to_thread(self._engine.dispose)

    def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for context in contexts:
            row = {column: self._value(path, context) for column, path in self._paths.items()}
            identity = tuple(row[column] for column in self.config.key_columns)
            if None in identity:
                raise PermanentError(
                    "a row has no key", where=self._where, got=f"NULL in {', '.join(self.config.key_columns)}"
                )
            if self.config.mode == "ignore":
                rows.setdefault(identity, row)
            else:
                rows[identity] = row
        assert self._engine is not None, "opened before it is called"
        try:
            with self._engine.begin() as connection:
                connection.execute(self._statement, list(rows.values()))
        except (exc.SQLAlchemyError, OverflowError, ValueError, TypeError) as error:
            raise self._fault(error) from error
        return [AdapterResult(context.message) for context in contexts]

    def _prepare(self) -> None:
        config = self.config
        url = sa.make_url(config.url.get_secret_value())
        self._password = url.password or ""
        self._where = f"{config.table} in {url.host or url.database or url.drivername}"
        make = _INSERTS[url.get_backend_name()]
        try:
            self._engine = make_engine(url, self._where)
            try:
                self._set_up(self._engine)
            except (exc.IntegrityError, exc.ProgrammingError):
                self._set_up(self._engine)  # another task may have made the same table at the same time
        except exc.SQLAlchemyError as error:
            raise self._fault(error, at_start=True) from error
        schema, _, name = config.table.rpartition(".")
        insert = make(sa.table(name, *map(sa.column, config.columns), schema=schema or None))
        others = {column: insert.excluded[column] for column in config.columns if column not in config.key_columns}
        if config.mode == "ignore" or not others:
            self._statement = insert.on_conflict_do_nothing(index_elements=config.key_columns)
        else:
            self._statement = insert.on_conflict_do_update(index_elements=config.key_columns, set_=others)
        self._is_sqlite = url.get_backend_name() == "sqlite"

    def _set_up(self, engine: sa.Engine) -> None:
        with engine.begin() as connection:
            for text in self.config.setup:
                connection.exec_driver_sql(text)
            self._check(sa.inspect(connection))

    def _check(self, inspector: sa.Inspector) -> None:
        schema, _, name = self.config.table.rpartition(".")
        if not inspector.has_table(name, schema or None):
            meant = did_you_mean(name, inspector.get_table_names(schema or None))
            way_out = meant or "make it, or give setup: [CREATE TABLE IF NOT EXISTS …]"
            raise ConfigError("the table is not there", where=self._where, next_step=way_out)
        there = [column["name"] for column in inspector.get_columns(name, schema or None)]
        missing = [column for column in self.config.columns if column not in there]
        if missing:
            raise ConfigError(
                "the table has not these columns",
                where=self._where,
                got=", ".join(missing),
                expected=f"of {', '.join(there)}",
            )
        keys: list[Sequence[Any]] = [inspector.get_pk_constraint(name, schema or None)["constrained_columns"]]
        keys += [one["column_names"] for one in inspector.get_unique_constraints(name, schema or None)]
        keys += [one["column_names"] for one in inspector.get_indexes(name, schema or None) if one["unique"]]
        if not any(set(key) == set(self.config.key_columns) for key in keys):
            raise ConfigError(
                "the table lets rows be written twice",
                where=self._where,
                got=f"no unique constraint on {', '.join(self.config.key_columns)}",
                next_step="make it the primary key, or give the columns of one as key",
            )

    def _value(self, path: Path, context: PipelineContext) -> Any:
        value = path.get(context.message)
        if value is None or isinstance(value, str | bytes | int | float):
            return value
        if isinstance(value, datetime | date | time | Decimal | UUID):
            return str(value) if self._is_sqlite else value
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise PermanentError("this is no value of a column", where=path.text, got=str(error)) from error

    def _fault(self, error: Exception, *, at_start: bool = False) -> Exception:
        cause = getattr(error, "orig", None) or error
        said = str(cause).splitlines()[0] if str(cause) else ""
        text = f"{type(cause).__name__}: {without_secrets(said, self._password)}"
        # SQLite calls it OperationalError, too, when a statement is wrong.
        is_statement = (
            isinstance(error, exc.ProgrammingError) or getattr(cause, "sqlite_errorname", "") == "SQLITE_ERROR"
        )
        is_row = isinstance(error, _ROW_FAULTS) or not isinstance(error, exc.DBAPIError)
        if at_start and (is_statement or is_row):
            return ConfigError("the database refuses the setup of this adapter", where=self._where, got=text)
        if is_statement:
            return ProcessingError("the database refuses the statement", where=self._where, got=text)
        if is_row:
            return PermanentError("the database refuses this row", where=self._where, got=text)
        return ConnectorError("the database failed", where=self._where, got=text)
