"""Connections that drop while messages are leased, at the servers whose clients reconnect by themselves.

The same for RabbitMQ, whose handles end with their connection: tests/queues/test_rabbitmq_faults.py.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.queues.servers import nats_server, redis_server
from tests.relays import Relay
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.queues import Failure, Message, open_queue

R = TypeVar("R")


@pytest.fixture(params=["redis", "nats"])
def relayed(request: pytest.FixtureRequest) -> Iterator[tuple[str, Relay]]:
    """The URL of a server behind a relay, and that."""
    serving = redis_server() if request.param == "redis" else nats_server()
    with serving as server:
        relay = Relay(server.port)
        url = server.url.replace(str(server.port), str(relay.port))
        yield (f"{url}?queue=drops" if request.param == "redis" else f"{url}?queue=drops&lease_s=600"), relay
        relay.close()


def again(call: Callable[[], R]) -> R:
    """As a run does it: an outage is waited for."""
    found: list[R] = []

    def attempt() -> bool:
        with contextlib.suppress(ConnectorError):
            found.append(call())
        return bool(found)

    until(attempt)
    return found[0]


def test_connections_that_drop_three_times_lose_nothing_and_no_handle_ends_with_them(
    relayed: tuple[str, Relay],
) -> None:
    url, relay = relayed
    with open_queue(url) as queue:
        ids = [f"m{number}" for number in range(200)]
        queue.publish([Message(id=one, body=one.encode()) for one in ids])
        assert queue.broker.capabilities.ack_anywhere
        done: list[str] = []
        for _ in range(3):
            leased = again(lambda: queue.lease(40, lease_s=600, wait_s=5.0))
            relay.drop()
            refused = again(lambda: queue.ack([one.handle for one in leased[:20]]))  # noqa: B023 - called at once
            assert not refused
            done += [one.message.id for one in leased[:20]]
            again(lambda: queue.fail([Failure(handle=one.handle) for one in leased[20:]]))  # noqa: B023 - called at once
        while leased := again(lambda: queue.lease(40, lease_s=600, wait_s=1.0)):
            assert not again(lambda: queue.ack([one.handle for one in leased]))
            done += [one.message.id for one in leased]
        assert Counter(done) == Counter(ids)
        assert again(queue.depth).open == 0
    assert relay.dropped >= 3


def test_a_connection_that_a_firewall_has_forgotten_is_left_for_another_one(relayed: tuple[str, Relay]) -> None:
    url, relay = relayed
    with open_queue(f"{url}&timeout_s=1") as queue:
        queue.publish([Message(id="a", body=b"")])
        (leased,) = queue.lease(1, lease_s=600, wait_s=5.0)
        relay.forget()
        with pytest.raises(ConnectorError, match="cannot be reached"):
            queue.ack([leased.handle])
        assert not queue.ack([leased.handle])
        relay.forget()  # and while it is idle
        with pytest.raises(ConnectorError, match="cannot be reached"):
            queue.lease(1, wait_s=0.1)
        assert queue.depth().open == 0
