"""The adapters that write to databases, against a real PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.databases import Postgres, need_postgres, postgres, query
from tests.routes.adapters.calls import closed, opened, process
from tupletree.errors import ConfigError, ConnectorError, PermanentError
from tupletree.routes import PipelineContext, RouteMessage

AT = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {"id": "message.id", **{name: f"payload.{name}" for name in ("at", "price", "raw", "more")}}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    need_postgres()
    with postgres() as server:
        yield server


async def writer(server: Postgres, name: str, **config: Any) -> Any:
    columns = "id text PRIMARY KEY, at timestamptz, price numeric CHECK (price > 0), raw bytea, more jsonb"
    setup = [f"CREATE TABLE IF NOT EXISTS {name} ({columns})"]
    return await opened("write_sql", **{"url": server.url, "table": name, "columns": COLUMNS, "setup": setup, **config})


async def write(adapter: Any, messages: dict[str, Any]) -> None:
    contexts = [PipelineContext(RouteMessage(payload, id=name)) for name, payload in messages.items()]
    await asyncio.to_thread(adapter.process_batch, contexts)


@pytest.mark.parametrize(("mode", "price"), [("upsert", "2"), ("ignore", "1.10")])
def test_rows_are_written_once_with_their_types(server: Postgres, mode: str, price: str) -> None:
    async def work() -> None:
        adapter = await writer(server, f"public.docs_{mode}", mode=mode)
        await write(adapter, {"m1": {"at": AT, "price": Decimal("1.10"), "raw": b"\x00", "more": {"a": ["é"]}}})
        await write(adapter, {"m1": {"at": AT, "price": 2, "raw": b"\x00", "more": {"a": ["é"]}}, "m2": {}})
        await closed(adapter)

    asyncio.run(work())
    rows = query(server.url, f"SELECT id, at, price::text, more->'a'->>0, raw FROM docs_{mode} ORDER BY id")
    assert rows == [("m1", AT, price, "é", b"\x00"), ("m2", None, None, None, None)]


def test_what_the_database_refuses_is_the_messages_fault(server: Postgres) -> None:
    async def work() -> None:
        adapter = await writer(server, "refused")
        for payload in ({"price": -1}, {"price": "much"}, {"more": "{"}, {"at": "yesterday, or so"}, {"price": "\0"}):
            with pytest.raises(PermanentError, match="refuses this row"):
                await write(adapter, {"m1": {}, "m2": payload})
        await closed(adapter)

    asyncio.run(work())
    assert query(server.url, "SELECT * FROM refused") == []


def test_a_wrong_setup_is_a_fault_of_the_settings(server: Postgres) -> None:
    for config in ({"setup": ["CREATE TABEL x"]}, {"table": "nowhere", "setup": []}, {"key": ["price"]}):
        with pytest.raises(ConfigError):
            asyncio.run(writer(server, "wrong", **config))


def test_tasks_that_open_at_the_same_time_make_the_table_once(server: Postgres) -> None:
    async def work() -> None:
        for name in ("one", "two", "three"):
            adapters = await asyncio.gather(*(writer(server, f"together_{name}") for _ in range(6)))
            for adapter in adapters:
                await closed(adapter)

    asyncio.run(work())


def test_a_store_of_seen_keys_is_shared_by_processes(server: Postgres) -> None:
    async def sent(name: str) -> bool:
        adapter = await opened("dedupe", key="payload", store=server.url)
        result = await process(adapter, RouteMessage("a", id=name), now_s=lambda: 1000.0)
        assert result is not None
        adapter.ended(name, "done")
        await closed(adapter)
        return result.continue_pipeline

    assert [asyncio.run(sent(name)) for name in ("m1", "m1", "m2")] == [True, True, False]


def test_a_server_that_goes_away_is_an_outage_until_it_is_back(server: Postgres) -> None:
    async def work() -> None:
        adapter = await writer(server, "outage")
        await write(adapter, {"m1": {}})
        await asyncio.to_thread(server.stop)
        try:
            with pytest.raises(ConnectorError):
                await write(adapter, {"m2": {}})
            with pytest.raises(ConnectorError):
                await writer(server, "outage")
        finally:
            await asyncio.to_thread(server.start)
        await write(adapter, {"m2": {}})
        await closed(adapter)

    asyncio.run(work())
    assert query(server.url, "SELECT id FROM outage ORDER BY id") == [("m1",), ("m2",)]
