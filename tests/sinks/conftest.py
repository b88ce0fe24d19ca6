"""Databases to write to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.databases import need_postgres, postgres_server, query

_names = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The folder of the server's socket."""
    need_postgres()
    with postgres_server() as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rows.db"
    folder = request.getfixturevalue("postgres")
    name = f"rows{next(_names)}"
    engine = f"postgresql+psycopg://postgres@/postgres?host={folder}"
    autocommit(engine, f"CREATE DATABASE {name}")
    return f"postgresql+psycopg://postgres@/{name}?host={folder}"


def autocommit(url: str, statement: str) -> None:
    """A statement that no transaction may hold."""
    import sqlalchemy as sa

    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


Rows = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def rows(url: str) -> Rows:
    """What a query gives."""
    return lambda statement: query(url, statement)
