"""Engines for databases that may stop answering without a word.

Owns how long a PostgreSQL server that is gone is waited for: one that is stopped, whose machine is off, or behind a
firewall that forgot the connection. TCP alone waits for fifteen minutes where something was sent, and for two hours
where an answer is awaited. Owns how long another transaction's locks are waited for. Refuses to end what is only slow:
a server that takes a new connection is at work. SQLAlchemy is imported on first use.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tupletree.errors import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import URL, Engine
    from sqlalchemy.engine import Connection, Dialect

SILENT_S = 3.0
"""A call without an answer for so long has the server asked whether it takes a connection; it has as long for that."""

LOCK_WAIT_S = 10
"""So long a statement waits for what another transaction has locked, unless the URL or the server says otherwise."""

FORGOTTEN_S = 15
"""What was sent is to be confirmed by the server's machine within this time."""

_PIPELINE_ENDED = "error ignored terminating %r: %s"
"""What psycopg logs of a pipeline, for each row that the server refuses."""

_TCP = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": FORGOTTEN_S * 1000,
}
"""Parameters of libpq: https://www.postgresql.org/docs/current/libpq-connect.html. Those in the URL win."""

_LOOK_S = 0.5
_IDLE_LOOKS = 20


def shown(url: URL) -> str:
    """Dialect, host and database: the other parts may hold passwords."""
    # Its `set` takes None for no change.
    only = type(url).create(url.drivername, host=url.host, port=url.port, database=url.database)
    return only.render_as_string()


def file_of(url: URL) -> Path | None:
    """The absolute path of a SQLite database; None if it is in no file of that name."""
    name = url.database
    if url.get_backend_name() != "sqlite" or not name or name == ":memory:" or name.startswith("file:"):
        return None
    return Path(name).absolute()


def make_engine(
    url: URL, where: str, *, sqlite: Mapping[str, Any] | None = None, pragmas: Sequence[str] = ()
) -> Engine:
    """An engine whose calls raise where the server does not answer any more.

    Of PostgreSQL, by psycopg: within about 12 seconds if the server takes no connections, and 15 if only this
    connection is lost. A statement that the server works on is not ended, but for one that waits for a lock: after
    `LOCK_WAIT_S`. Of other databases it is what SQLAlchemy makes.

    Args:
        url: of the database.
        where: for the error.
        sqlite: of SQLite, arguments of `sqlite3.connect`.
        pragmas: of SQLite, settings of each connection, as in `synchronous = FULL`.

    Raises:
        RuntimeUnavailableError: the driver is not installed.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import NoSuchModuleError

    is_sqlite = url.get_backend_name() == "sqlite"
    arguments = dict(sqlite or {}) if is_sqlite else {}
    try:
        engine = sa.create_engine(url, pool_pre_ping=not is_sqlite, connect_args=arguments)
    except (ImportError, NoSuchModuleError) as error:
        raise RuntimeUnavailableError(
            "the database's driver is not installed",
            where=where,
            got=str(error),
            next_step="install it (tupletree[sql] brings psycopg), or name another: postgresql+psycopg://…",
        ) from error
    if is_sqlite:
        sa.event.listen(engine, "connect", partial(_set_up_sqlite, pragmas))
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "begin", _limit_lock_wait)
        if engine.dialect.driver in {"psycopg", "psycopg2"}:
            sa.event.listen(engine, "do_connect", _set_limits)
        if engine.dialect.driver == "psycopg":
            sa.event.listen(engine, "do_connect", partial(_connect_watched, _Watch()))
    return engine


def _set_up_sqlite(pragmas: Sequence[str], connection: Any, _record: object) -> None:
    for setting in pragmas:
        connection.execute(f"PRAGMA {setting}").fetchall()


def _limit_lock_wait(connection: Connection) -> None:
    connection.exec_driver_sql(
        f"SELECT set_config('lock_timeout', '{LOCK_WAIT_S}s', true) WHERE current_setting('lock_timeout', true) = '0'"
    )


def _set_limits(_dialect: Dialect, _record: Any, _arguments: Sequence[Any], parameters: dict[str, Any]) -> None:
    for name, value in _TCP.items():
        parameters.setdefault(name, value)


def _connect_watched(
    watch: _Watch, _dialect: Dialect, _record: Any, arguments: Sequence[Any], parameters: dict[str, Any]
) -> Any:
    connection = _watched_class().connect(*arguments, **parameters)
    connection.watch, connection.server = watch, (tuple(arguments), {**parameters})
    return connection


@cache
def _watched_class() -> Any:
    import psycopg

    logging.getLogger("psycopg").addFilter(_is_news)

    class Watched(psycopg.Connection[Any]):
        """One whose calls are looked after while they last."""

        watch: _Watch | None = None  # not yet, while it connects
        server: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

        def wait(self, *given: Any, **named: Any) -> Any:
            if self.watch is None:
                return super().wait(*given, **named)
            self.watch.begin(self)
            try:
                return super().wait(*given, **named)
            finally:
                self.watch.end(self)

    return Watched


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a pipeline ends because its statement failed: that one is raised, and says why."""
    if record.msg != _PIPELINE_ENDED or not isinstance(record.args, tuple):
        return True
    return type(record.args[0]).__name__ != "Pipeline"


class _Watch:
    """Ends the connections of an engine whose server has stopped answering, so that their calls raise.

    Its thread is there while calls are made, and ends some seconds later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since_s: dict[Any, float] = {}
        self._thread: threading.Thread | None = None

    def begin(self, connection: Any) -> None:
        """A call begins."""
        with self._lock:
            self._since_s[connection] = time.monotonic()
            if self._thread is None or not self._thread.is_alive():  # also in a process that was forked off
                self._thread = threading.Thread(target=self._look, name="tupletree-database", daemon=True)
                self._thread.start()

    def end(self, connection: Any) -> None:
        """It is over."""
        with self._lock:
            self._since_s.pop(connection, None)

    def _look(self) -> None:
        idle = 0
        never = threading.Event()
        while True:
            never.wait(_LOOK_S)
            with self._lock:
                idle = 0 if self._since_s else idle + 1
                if idle >= _IDLE_LOOKS:
                    self._thread = None
                    return
                silent_s = time.monotonic() - SILENT_S
                late = {one: since_s for one, since_s in self._since_s.items() if since_s <= silent_s}
            if late and not _answers(*next(iter(late)).server):
                self._cut(late)

    def _cut(self, late: dict[Any, float]) -> None:
        with self._lock:
            for one, since_s in late.items():
                if self._since_s.get(one) == since_s:  # the same call
                    _shut(one)


def _answers(arguments: tuple[Any, ...], parameters: dict[str, Any]) -> bool:
    """Whether the server takes a connection, or says why not."""
    import psycopg

    try:
        psycopg.connect(*arguments, **{**parameters, "connect_timeout": max(1, round(SILENT_S))}).close()
    except psycopg.errors.ConnectionTimeout:
        return False
    except psycopg.Error:
        return True  # it says why not, or TCP does, and then TCP ends the other connections, too
    return True


def _shut(connection: Any) -> None:
    with contextlib.suppress(Exception):  # it has ended by itself
        shared = socket.socket(fileno=connection.fileno())
        try:
            shared.shutdown(socket.SHUT_RDWR)
        finally:
            shared.detach()  # it is the connection's to close
