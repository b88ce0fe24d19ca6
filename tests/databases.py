"""Databases for tests: SQLite files always, a PostgreSQL server of its own where its programs are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

__all__ = ["Postgres", "missing_postgres", "need_postgres", "postgres", "postgres_server", "query"]

REQUIRED = "TESTS_REQUIRE"
"""Environment variable: `postgresql` makes tests that need a server fail, not skip, where there is none. CI sets it."""

ACCOUNT = "postgres"
"""Who runs the server where the tests run as root: it refuses to run as root itself."""


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


def missing_postgres() -> str:
    """Why there can be no PostgreSQL server here; empty if there can."""
    if os.name != "posix":
        return "PostgreSQL is tested on a Unix socket, which this system has not"
    programs = _programs()
    absent = "initdb, pg_ctl and postgres" if programs is None else _absent(programs)
    if absent:
        where = programs or "PATH, or below /usr/lib/postgresql"
        return f"no PostgreSQL server: {absent} not found in {where}. Next: make postgresql"
    if os.geteuid() == 0 and not _has_account():
        return (
            f"no PostgreSQL server: it does not run as root, and there is no account {ACCOUNT}. Next: make postgresql"
        )
    return ""


def _absent(programs: Path) -> str:
    return ", ".join(one for one in ("initdb", "pg_ctl", "postgres") if not (programs / one).exists())


def _has_account() -> bool:
    import pwd

    try:
        return bool(pwd.getpwnam(ACCOUNT))
    except KeyError:
        return False


def need_postgres() -> None:
    """Skip the test, with the reason, where there can be no server; fail it where `TESTS_REQUIRE` asks for one."""
    if reason := missing_postgres():
        if "postgresql" in os.environ.get(REQUIRED, "").replace(",", " ").split():
            pytest.fail(f"{REQUIRED} asks for PostgreSQL: {reason}", pytrace=False)
        pytest.skip(reason)


@dataclass
class Postgres:
    """A server that can be stopped and started. Clients reach it through a socket in `folder`."""

    folder: str
    control: Callable[..., None]

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}"

    def stop(self) -> None:
        """As a server that crashes: its connections break."""
        self.control("-m", "immediate", "stop")

    def start(self) -> None:
        """Start it; returns when it takes connections."""
        self.control("start")


@contextmanager
def postgres_server() -> Iterator[str]:
    """A server that nobody reaches but through a socket in a folder of its own; yields that folder."""
    with postgres() as server:
        yield server.folder


@contextmanager
def postgres() -> Iterator[Postgres]:
    """As `postgres_server`; yields the server."""
    programs = _programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="tt-pg-"))  # short: a socket's path has about 100 characters
    # The server refuses to run as root.
    account: dict[str, Any] = {"user": ACCOUNT, "group": ACCOUNT} if os.geteuid() == 0 else {}
    if account:
        shutil.chown(folder, ACCOUNT, ACCOUNT)
    data = folder / "data"
    settings = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
    try:
        subprocess.run(
            [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=folder,
            **account,
        )
        options = " ".join(f"-c {name}={value or chr(39) * 2}" for name, value in settings.items())
        command = [str(programs / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options]

        def control(*arguments: str) -> None:
            subprocess.run([*command, *arguments], check=True, capture_output=True, cwd=folder, **account)

        server = Postgres(str(folder), control)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What a statement gives, in a transaction of its own."""
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        engine.dispose()


if __name__ == "__main__":
    sys.exit(missing_postgres() or 0)  # the reason on stderr, and 1
