"""Databases that stop answering without a word: nothing waits for them for ever."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import tupletree
from tests.databases import query
from tests.relays import Relay
from tests.sinks.test_sql import Count, batch, opened
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.sinks import databases, sql
from tupletree.sinks.sql import SqlSink

PATIENCE_S = 30.0
"""Within it a call has raised, with the times of these tests; without them it would take a quarter of an hour."""


@pytest.fixture
def relayed(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Relay]]:
    """The URL of a server behind a relay, and that; a server counts as silent after half a second."""
    monkeypatch.setattr(databases, "SILENT_S", 0.5)
    query(f"postgresql+psycopg://postgres@/postgres?host={postgres}", "DROP TABLE IF EXISTS counts, tupletree_batches")
    relay = Relay(Path(postgres) / ".s.PGSQL.5432")
    yield f"postgresql+psycopg://postgres@127.0.0.1:{relay.port}/postgres?connect_timeout=2", relay
    relay.close()


@pytest.mark.parametrize("when", ["before a batch", "in a batch"])
def test_a_server_that_is_suspended_is_an_outage_and_the_batch_is_there_once_afterwards(
    relayed: tuple[str, Relay], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    url, relay = relayed
    with opened(sql(url, "counts")) as sink:
        sink.write(batch(1, Count("a", 1)))
        if when == "before a batch":
            relay.hush()
        else:
            insert = sink._insert

            def insert_after_the_end(*given: Any) -> None:
                relay.hush()
                insert(*given)

            monkeypatch.setattr(sink, "_insert", insert_after_the_end)
        began_s = time.monotonic()
        for _ in range(2):  # a new connection meets the same
            with pytest.raises(ConnectorError, match="the database failed"):
                sink.write(batch(2, Count("b", 1)))
        assert time.monotonic() - began_s < PATIENCE_S
        monkeypatch.undo()
        relay.speak()
        until(lambda: _is_written(sink, 2))
    assert query(url, "SELECT word FROM counts ORDER BY word") == [("a",), ("b",)]


def _is_written(sink: SqlSink, number: int) -> bool:
    try:
        sink.write(batch(number, Count("b", 1)))
    except ConnectorError:
        return False
    return True


def test_a_statement_that_a_server_works_on_for_long_is_not_ended(relayed: tuple[str, Relay]) -> None:
    engine = databases.make_engine(sa.make_url(relayed[0]), "a test")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1 FROM pg_sleep(3)")).scalar() == 1
    engine.dispose()


def test_a_table_that_another_transaction_holds_is_waited_for_as_an_outage_is(
    relayed: tuple[str, Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "LOCK_WAIT_S", 1)
    url, _ = relayed
    with opened(sql(url, "counts")) as sink:
        holder = sa.create_engine(url)
        with holder.begin() as connection:
            connection.execute(sa.text("LOCK TABLE counts"))
            with pytest.raises(ConnectorError, match="lock timeout"):
                sink.write(batch(1, Count("a", 1)))
        holder.dispose()
        sink.write(batch(1, Count("a", 1)))
    assert query(url, "SELECT word FROM counts") == [("a",)]


def test_what_a_network_loses_is_missed_within_seconds_unless_the_url_says_otherwise(
    relayed: tuple[str, Relay],
) -> None:
    url, _ = relayed
    for one, expected in (url, 15_000), (f"{url}&tcp_user_timeout=7000", 7_000):
        engine = databases.make_engine(sa.make_url(one), "a test")
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            with socket.socket(fileno=driver.fileno()) as shared:
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    assert shared.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected
                assert shared.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                shared.detach()
        engine.dispose()


def test_all_that_connects_to_a_server_does_it_so() -> None:
    source = Path(tupletree.__file__).parent
    makers = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "create_engine(" in line
    ]
    assert makers == ["sinks/databases.py"]
