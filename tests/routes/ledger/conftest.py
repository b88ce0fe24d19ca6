"""A ledger beside its queues, in each place that it can be in."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import need_postgres, postgres_server, query
from tests.routes.ledger.ledgers import Bench, bench


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    need_postgres()
    with postgres_server() as folder:
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"


@pytest.fixture
def database(server: str) -> str:
    """The URL of an empty schema there."""
    schema = f"s{secrets.token_hex(6)}"
    query(server, f"CREATE SCHEMA {schema}")
    return f"{server}&options=-csearch_path%3D{schema}"


@pytest.fixture(params=["database", "queue file", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A ledger and its queues."""
    url = request.getfixturevalue("database") if request.param == "postgresql" else ""
    made = bench(request.param, tmp_path, url)
    yield made
    made.close()
