"""Batches that a queue's source leases ahead."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tupletree.bolts.effects import TaskPlace
from tupletree.queues import Delivery, Message, open_queue
from tupletree.sources import queue

CONTEXT = TaskPlace("t", "orders", 1, 0, 1)
HANG_S = 20.0


def test_batches_that_are_worked_together_do_not_wait_for_messages_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tupletree.sources.broker_spout"], "QUICK_S", 60.0)
    url = f"sqlite:///{tmp_path}/shop.db?queue=orders"
    with open_queue(url) as orders:
        orders.publish([Message(id=str(number)) for number in range(150)])
    waits: dict[bool, set[float]] = {}

    async def work() -> None:
        spout = queue(url, prefetch=50)
        await spout.open(CONTEXT)
        opened = spout._queue
        assert opened is not None
        lease = opened.lease

        def note_lease(limit: int, *, lease_s: float, wait_s: float) -> list[Delivery]:
            waits.setdefault(bool(spout._leased), set()).add(wait_s)
            return lease(limit, lease_s=lease_s, wait_s=wait_s)

        monkeypatch.setattr(opened, "lease", note_lease)
        count = 0
        while count < 150:
            given = await spout.next()
            assert isinstance(given, list)
            count += len(given)
        await spout.close()

    asyncio.run(work())
    assert waits == {False: {0.25}, True: {0.0}}


def stored(place: Path, count: int) -> str:
    """The URL of a queue with so many messages."""
    url = f"sqlite:///{place}/shop.db?queue=orders"
    with open_queue(url) as orders:
        orders.publish([Message(id=str(number)) for number in range(count)])
    return url


def test_messages_in_hand_wait_a_moment_for_a_lease_that_goes_on_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tupletree.sources.broker_spout"], "QUICK_S", 60.0)
    url = stored(tmp_path, 250)

    async def work() -> None:
        spout = queue(url, prefetch=50)
        await spout.open(CONTEXT)
        assert len(await spout.next() or ()) == 50
        assert spout._leasing is not None
        await asyncio.wait([spout._leasing])
        assert len(await spout.next() or ()) == 50
        taken: list[int] = []
        opened = spout._queue
        assert opened is not None
        lease = opened.lease
        go = threading.Event()

        def lease_late(limit: int, *, lease_s: float, wait_s: float) -> list[Delivery]:
            if spout._leased:
                taken.append(len(spout._leased))
                assert go.wait(HANG_S)
            return lease(limit, lease_s=lease_s, wait_s=wait_s)

        monkeypatch.setattr(opened, "lease", lease_late)
        given = await asyncio.wait_for(spout.next(), HANG_S)
        assert (len(given or ()), taken) == (50, [50])
        go.set()
        count = 0
        while count < 100:
            count += len(await spout.next() or ())
        await spout.close()

    asyncio.run(work())


@pytest.mark.parametrize("first", ["the lease", "the extension"])
def test_a_lease_that_was_under_way_when_others_were_extended_is_as_old_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    url = stored(tmp_path, 3)

    async def work() -> None:
        spout = queue(url, prefetch=1, lease_s=1)
        await spout.open(CONTEXT)
        assert len(await spout.next() or ()) == 1
        opened, leasing = spout._queue, spout._leasing
        assert opened is not None
        assert leasing is not None
        await asyncio.wait([leasing])
        if first == "the lease":  # what it brings is all that waits here
            spout._leased.clear()
        lease, extend = opened.lease, opened.extend
        leased, lease_returns, extended, extensions_go, extended_twice = (threading.Event() for _ in range(5))
        kept_s: list[float] = []

        def lease_long(limit: int, *, lease_s: float, wait_s: float) -> list[Delivery]:
            found = lease(limit, lease_s=lease_s, wait_s=wait_s)
            leased.set()
            assert lease_returns.wait(HANG_S)
            return found

        def extend_long(handles: Sequence[str], lease_s: float) -> Sequence[str]:
            kept_s.append(spout._kept_s)
            extended.set()
            assert extensions_go.wait(HANG_S)
            if len(kept_s) == 2:
                extended_twice.set()
            return extend(handles, lease_s)

        monkeypatch.setattr(opened, "lease", lease_long)
        monkeypatch.setattr(opened, "extend", extend_long)
        spout._lease_ahead(opened)
        assert await asyncio.to_thread(leased.wait, HANG_S)
        leased_s = asyncio.get_running_loop().time()
        leasing = spout._leasing
        assert leasing is not None
        assert await asyncio.to_thread(extended.wait, HANG_S)
        if first == "the lease":
            lease_returns.set()
            await asyncio.wait([leasing])
        extensions_go.set()
        assert await asyncio.to_thread(extended_twice.wait, HANG_S)  # the first one is over
        lease_returns.set()
        await asyncio.wait([leasing])
        assert kept_s[0] <= leased_s
        assert (kept_s[1] if first == "the lease" else spout._kept_s) <= leased_s
        assert spout._leased
        await spout.close()

    asyncio.run(work())
