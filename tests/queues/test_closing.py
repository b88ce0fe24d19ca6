"""A connection that is closed while threads call it, as a run does that stops while it leases ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.queues.servers import nats_server, redis_server
from tupletree.errors import ConnectorError
from tupletree.queues import Message, Queue, open_queue

GROUPED = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("rabbitmq", "kafka", "sqs")]
"""Their servers are shared by tests of one process."""


@pytest.fixture(params=["sqlite", "redis", "nats", *GROUPED])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """That of a queue, at each broker."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db?queue=closing"
    elif request.param in {"redis", "nats"}:
        with redis_server() if request.param == "redis" else nats_server() as server:
            yield f"{server.url}?queue=closing"
    else:
        base = request.getfixturevalue(request.param).url
        more = "&partitions=1&session_s=2" if request.param == "kafka" else ""
        yield f"{base}{'&' if '?' in base else '?'}queue=closing{more}"


CALLS: list[Callable[[Queue], object]] = [
    lambda queue: queue.lease(1, wait_s=0.05),
    Queue.depth,
    lambda queue: queue.publish([Message()]),
]


def ours() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("tupletree-")}


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.3])
def test_calls_that_are_made_meanwhile_end_with_what_the_contract_says_and_leave_nothing(
    url: str, after_s: float
) -> None:
    before, ends = ours(), list[BaseException]()
    for _ in range(5):
        queue = open_queue(url)
        ends.clear()

        def ask(call: Callable[[Queue], object], queue: Queue) -> None:
            try:
                while True:
                    call(queue)
            except BaseException as error:  # noqa: BLE001 - it is looked at below
                ends.append(error)

        threads = [threading.Thread(target=ask, args=(one, queue), daemon=True) for one in CALLS * 2]
        for thread in threads:
            thread.start()
        time.sleep(after_s)  # it is closed at various moments of the calls
        queue.close()
        for thread in threads:
            thread.join(60)
        assert [thread for thread in threads if thread.is_alive()] == []
        assert [repr(one) for one in ends if not isinstance(one, ConnectorError)] == []
    assert ours() - before == set()
