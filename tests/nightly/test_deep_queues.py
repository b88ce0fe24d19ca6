"""A million ready messages: leases, acks and the depth cost what they cost on a thousand.

TUPLETREE_READY_MESSAGES says how many (default 1,000,000).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.queues.selling import BROKERS, served
from tupletree.queues import Message, Queue, open_queue, url_of

pytestmark = pytest.mark.nightly

FEW = 1_000
TURNS = 20


def turn_ms(queue: Queue) -> float:
    """How long a lease of ten, their acks and a look at the depth take, at the median."""
    times = []
    for _ in range(TURNS):
        started_s = time.perf_counter()
        leased = queue.lease(10, wait_s=5.0)
        queue.ack([one.handle for one in leased])
        queue.depth()
        times.append(time.perf_counter() - started_s)
        assert leased
    return sorted(times)[TURNS // 2] * 1000


@pytest.mark.parametrize("broker", BROKERS)
def test_a_million_ready_messages_stay_quick(broker: str, tmp_path: Path) -> None:
    count = int(os.environ.get("TUPLETREE_READY_MESSAGES", "1000000"))
    with served(broker, tmp_path) as url, open_queue(url_of(url, "deep")) as queue:

        def publish(start: int, end: int) -> None:
            queue.publish([Message(id=f"m{number}", body=b"x") for number in range(start, end)])

        publish(0, FEW)
        few_ms = turn_ms(queue)
        for start in range(FEW, count, 10_000):
            publish(start, min(count, start + 10_000))
        many_ms = turn_ms(queue)
        assert queue.depth().ready > count - 2_000
    print(f"{broker}: {few_ms:.2f} ms with {FEW:,} ready, {many_ms:.2f} ms with {count:,}")
    assert many_ms < 5 * few_ms + 5, (few_ms, many_ms)
