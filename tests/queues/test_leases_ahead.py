"""Batches that a queue's source leases ahead."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tupletree.bolts.effects import TaskPlace
from tupletree.queues import Delivery, Message, open_queue
from tupletree.sources import queue


def test_batches_that_are_worked_together_do_not_wait_for_messages_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tupletree.sources.queue"], "QUICK_S", 60.0)
    url = f"sqlite:///{tmp_path}/shop.db?queue=orders"
    with open_queue(url) as orders:
        orders.publish([Message(id=str(number)) for number in range(150)])
    waits: dict[bool, set[float]] = {}

    async def work() -> None:
        spout = queue(url, prefetch=50)
        await spout.open(TaskPlace("t", "orders", 1, 0, 1))
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
