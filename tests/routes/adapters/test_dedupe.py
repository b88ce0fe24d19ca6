from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.routes.adapters.calls import closed, opened, process
from tupletree.errors import ConfigError, ConnectorError
from tupletree.routes import Adapter, AdapterResult, RouteMessage


def run(work: Any) -> Any:
    return asyncio.run(work)


class Route:
    """Calls a dedupe adapter as a route does: `sent`, then what became of the attempt."""

    def __init__(self, adapter: Adapter[Any]) -> None:
        self.adapter = adapter
        self.now_s = 1000.0

    async def sent(self, name: str, payload: Any) -> str:
        """Empty: it goes on; otherwise the reason why not."""
        result = await process(self.adapter, RouteMessage(payload, id=name), now_s=lambda: self.now_s)
        assert isinstance(result, AdapterResult)
        return "" if result.continue_pipeline else result.reason

    async def through(self, name: str, payload: Any) -> str:
        reason = await self.sent(name, payload)
        self.adapter.ended(name, "filtered" if reason else "done")
        return reason


async def route(**config: Any) -> Route:
    return Route(await opened("dedupe", key="payload.key", **config))


def test_a_copy_of_a_message_that_got_through_is_dropped_with_the_reason() -> None:
    async def work() -> None:
        one = await route()
        assert await one.through("m1", {"key": "a"}) == ""
        assert await one.through("m2", {"key": "b"}) == ""
        assert await one.through("m3", {"key": "a", "more": 1}) == "a duplicate of message m1"
        assert await one.through("m4", {"key": 1}) == ""
        assert await one.through("m5", {"key": True}) == ""
        assert await one.through("m6", {"key": {"y": 1, "x": 2}}) == ""
        assert await one.through("m7", {"key": {"x": 2, "y": 1}}) == "a duplicate of message m6"

    run(work())


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_message_whose_first_copy_failed_goes_on(outcome: str) -> None:
    async def work() -> None:
        one = await route()
        assert await one.sent("m1", {"key": "a"}) == ""
        one.adapter.ended("m1", outcome)
        assert await one.through("m2", {"key": "a"}) == ""
        # Now the second one is first; the first, tried again, is the duplicate.
        assert await one.through("m1", {"key": "a"}) == "a duplicate of message m2"

    run(work())


def test_another_attempt_of_the_same_message_passes() -> None:
    async def work() -> None:
        one = await route()
        for outcome in ("failed", "done", "done"):
            assert await one.sent("m1", {"key": "a"}) == ""
            one.adapter.ended("m1", outcome)

    run(work())


@pytest.mark.parametrize(("outcome", "expected"), [("done", "a duplicate of message m1"), ("failed", "")])
def test_a_copy_waits_for_the_first_one_that_is_under_way(outcome: str, expected: str) -> None:
    async def work() -> None:
        one = await route()
        assert await one.sent("m1", {"key": "a"}) == ""
        copies = [asyncio.ensure_future(one.through(f"c{index}", {"key": "a"})) for index in range(3)]
        await asyncio.sleep(0)
        assert not any(copy.done() for copy in copies)
        assert await one.through("other", {"key": "b"}) == ""
        copies[2].cancel()
        one.adapter.ended("m1", outcome)
        first, second = await asyncio.gather(*copies[:2])
        assert first == expected
        assert second == ("a duplicate of message m1" if expected else "a duplicate of message c0")

    run(work())


def test_a_copy_that_has_waited_long_enough_passes() -> None:
    async def work() -> None:
        one = await route(max_wait_s=0)
        assert await one.sent("m1", {"key": "a"}) == ""
        assert await one.sent("m2", {"key": "a"}) == ""
        one.adapter.ended("m2", "failed")
        one.adapter.ended("m1", "done")
        assert await one.sent("m3", {"key": "a"}) == "a duplicate of message m1"

    run(work())


def test_what_is_beyond_the_window_is_forgotten() -> None:
    async def work() -> None:
        one = await route(window_s=60, max_keys=2)
        assert await one.through("m1", {"key": "a"}) == ""
        one.now_s += 60
        assert await one.through("m2", {"key": "a"}) != ""
        one.now_s += 1
        assert await one.through("m3", {"key": "a"}) == ""
        for key in "bc":
            assert await one.through(f"m{key}", {"key": key}) == ""
        assert await one.through("m4", {"key": "a"}) == ""

    run(work())


def test_a_message_without_the_key_passes() -> None:
    async def work() -> None:
        one = await route()
        for name in ("m1", "m2"):
            assert await one.through(name, {"other": 1}) == ""
            assert await one.through(name, {"key": object()}) == ""

    run(work())


def test_a_store_remembers_beyond_a_restart_what_got_through_and_nothing_else(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/seen.db"

    async def first() -> None:
        one = await route(store=store, window_s=100)
        assert await one.through("m1", {"key": "a"}) == ""
        assert await one.sent("m2", {"key": "b"}) == ""
        one.now_s += 50
        assert await one.through("m3", {"key": "c"}) == ""
        await closed(one.adapter)

    async def second() -> None:
        one = await route(store=store, window_s=100)
        one.now_s += 90
        assert await one.through("m1", {"key": "a"}) == ""
        assert await one.through("m4", {"key": "a"}) == "a duplicate of message m1"
        assert await one.through("m5", {"key": "b"}) == ""
        one.now_s += 70
        assert await one.through("m6", {"key": "c"}) == ""
        await closed(one.adapter)

    run(first())
    run(second())


def test_what_a_store_remembered_is_forgotten_at_its_time_too(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/seen.db"

    async def first() -> None:
        one = await route(store=store, window_s=100)
        assert await one.through("m1", {"key": "a"}) == ""
        await closed(one.adapter)

    async def second() -> None:
        one = await route(store=store, window_s=100)
        one.now_s += 90
        assert await one.through("m2", {"key": "b"}) == ""
        assert await one.through("m3", {"key": "a"}) == "a duplicate of message m1"
        one.now_s += 15
        assert await one.through("m4", {"key": "a"}) == "", "it is older than `b`, which is remembered still"
        await closed(one.adapter)

    run(first())
    run(second())


def test_the_file_of_seen_keys_is_private_whatever_the_umask(tmp_path: Path) -> None:
    async def seen() -> None:
        one = await route(store=f"sqlite:///{tmp_path}/seen.db", window_s=100)
        assert await one.through("m1", {"key": "a"}) == ""
        await closed(one.adapter)

    before = os.umask(0)
    try:
        run(seen())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_store_that_is_away_is_an_outage_and_one_that_is_none_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError):
        run(route(store=f"sqlite:///{tmp_path}/away/seen.db"))
    with pytest.raises(ConfigError) as caught:
        run(route(store="secret-nonsense"))
    assert "secret" not in str(caught.value)
