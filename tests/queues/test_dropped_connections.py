"""Connections that drop while messages are leased, at the servers whose clients reconnect by themselves.

The same for RabbitMQ, whose handles end with their connection: tests/queues/test_rabbitmq_faults.py.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests.queues.servers import nats_server, redis_server
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.queues import Failure, Message, open_queue

R = TypeVar("R")

TAKEN_BYTES = 65536


class Relay:
    """Passes on what comes to its port to another one, over connections that can be dropped."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self.dropped = 0
        self._forgotten: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                here, _ = self._listening.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._ends += [here, there]
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=[source, target], daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was dropped
            while taken := source.recv(TAKEN_BYTES):
                if source not in self._forgotten:
                    target.sendall(taken)
        if source in self._forgotten:
            return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """End all connections, in the middle of whatever they carry."""
        with self._lock:
            ends, self._ends = self._ends, []
        self.dropped += len(ends) // 2
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def forget(self) -> None:
        """Pass on nothing more over the connections that there are, and tell neither end: a firewall with no room."""
        with self._lock:
            self._forgotten |= set(self._ends)
            self._ends = []

    def close(self) -> None:
        for end in self._forgotten:
            end.close()
        self._listening.close()
        self.drop()


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
