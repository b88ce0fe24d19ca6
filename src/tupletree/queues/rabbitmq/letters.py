"""Dead letters of a queue on a RabbitMQ server, for those who look at them or move them.

Owns what becomes of letters in hand. Everything here runs on the connection's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from tupletree.queues.messages import DEFAULT_MAX_BYTES, Stored
from tupletree.queues.rabbitmq.channels import Requests, opened
from tupletree.queues.rabbitmq.client import RabbitClient, ServerLink
from tupletree.queues.rabbitmq.consuming import Lease, QueueChannel
from tupletree.queues.rabbitmq.wire import dead_queue_of, parcel_of, ready_queue_of, stored_of

LEAST_LATER_S = 0.01
"""A message that is moved is so much later than it was, whatever clocks say."""


class DeadLetters:
    """Dead letters in hand, which go back when this ends unless they were acked."""

    def __init__(self, client: RabbitClient, link: ServerLink, queue: str) -> None:
        self._client = client
        self._link = link
        self._queue = dead_queue_of(queue)

    async def __aenter__(self) -> Self:
        requests = Requests(await opened(self._link.connection))
        self.channel = QueueChannel(requests, self._queue, self._client.clock, 1e9, lambda _: None)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.channel.give_back_all()
            await self.channel.told()
        self.channel.requests.close()

    async def read(self, most: int) -> list[Lease]:
        """The next ones."""
        return await self.channel.take(most, DEFAULT_MAX_BYTES, 1e9)

    async def move(self, letters: Sequence[tuple[Lease, Stored]], target: str) -> None:
        """Publish them to a queue, and ack them then. They are published anew: see `Capabilities.durable_acks`."""
        if letters:
            ready = ready_queue_of(target)
            now_s = time.time()
            parcels = [
                parcel_of(ready, one.message, published_s=max(now_s, one.published_s + LEAST_LATER_S))
                for _, one in letters
            ]
            await self._client.publish(self._link, parcels, target)
            self.channel.ack([lease.tag for lease, _ in letters])
            await self.channel.told()

    def stored(self, one: Lease) -> Stored:
        """As `peek` shows it."""
        return stored_of(one.body, one.properties, f"{self._link.name}.{one.tag}", "dead")
