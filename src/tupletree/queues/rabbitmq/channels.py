"""Channels of one connection to a RabbitMQ server: requests that are answered, and publishing that is confirmed.

Everything here runs on the connection's event loop. Refuses to know leases: that is `consuming`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pika.exceptions import AMQPError
from pika.spec import Basic

from tupletree.errors import ConnectorError
from tupletree.queues.rabbitmq.wire import Parcel

CHUNK_MESSAGES = 1000
CHUNK_BYTES = 16_000_000
"""Of what is on its way to the server unconfirmed, for each call."""


async def opened(connection: Any) -> Any:
    """A new channel of a connection that is open."""
    opening: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def closed(_: Any, reason: BaseException) -> None:
        if not opening.done():
            opening.set_exception(reason)

    channel = connection.channel(on_open_callback=partial(answered, opening))
    channel.add_on_close_callback(closed)
    return await opening


def answered(waiting: asyncio.Future[Any], answer: Any) -> None:
    """The answer has come, unless nobody waits for it any more."""
    if not waiting.done():
        waiting.set_result(answer)


class Requests:
    """A channel whose requests are awaited.

    Args:
        channel: of pika.

    Attributes:
        closed: why the channel is closed; None while it is open.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.closed: BaseException | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._ending: list[Callable[[BaseException], None]] = []
        channel.add_on_close_callback(self._hear_end)

    def on_end(self, listener: Callable[[BaseException], None]) -> None:
        """Call this when the channel closes, with the reason."""
        self._ending.append(listener)

    def future(self) -> asyncio.Future[Any]:
        """A future that fails when the channel closes."""
        one: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.closed is not None:
            one.set_exception(self.closed)
        else:
            self._waiting.add(one)
            one.add_done_callback(self._waiting.discard)
        return one

    def send(self, method: str, *arguments: Any, **named: Any) -> asyncio.Future[Any]:
        """Send a request of pika's, such as `queue_declare`; the future has the answer's method."""
        answer = self.future()
        if not answer.done():

            def hear(frame: Any) -> None:
                if not answer.done():
                    answer.set_result(frame.method)

            try:
                getattr(self.channel, method)(*arguments, callback=hear, **named)
            except (AMQPError, ValueError) as error:
                if not answer.done():
                    answer.set_exception(error)
        return answer

    def tell(self, method: str, *arguments: Any, **named: Any) -> None:
        """Send what is not answered, such as `basic_ack`; nothing, if the channel is closing."""
        if self.channel.is_open:
            getattr(self.channel, method)(*arguments, **named)

    def close(self) -> None:
        """Close the channel: what it holds goes back to its queue."""
        if self.closed is None and self.channel.is_open:
            self.channel.close()

    def _hear_end(self, _: Any, reason: BaseException) -> None:
        self.closed = reason
        for one in [*self._waiting]:
            if not one.done():
                one.set_exception(reason)
        for listener in self._ending:
            listener(reason)


class _Batch:
    """Messages whose confirms are waited for.

    Attributes:
        lost: routing keys of it that lead to no queue.
    """

    def __init__(self, done: asyncio.Future[Any], parcels: Sequence[Parcel]) -> None:
        self.done = done
        self.open_count = len(parcels)
        self.keys = {one.routing_key for one in parcels}
        self.lost: set[str] = set()
        self.refused = 0


class Confirmed:
    """A channel whose publishes are confirmed by the server.

    Args:
        requests: the channel, in confirm mode.
    """

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self._tag = 0
        self._open: dict[int, _Batch] = {}  # in the order of their tags
        self._waiting: set[_Batch] = set()

    @classmethod
    async def on(cls, channel: Any) -> Confirmed:
        """Put a channel into confirm mode."""
        made = cls(Requests(channel))
        channel.add_on_return_callback(made._hear_return)
        answer = made.requests.future()
        channel.confirm_delivery(made._hear_confirm, callback=partial(answered, answer))
        await answer
        return made

    async def publish(self, parcels: Sequence[Parcel], timeout_s: float, where: str) -> set[str]:
        """Hand over messages and wait until the server has all of them.

        Returns:
            The routing keys that lead to no queue.

        Raises:
            ConnectorError: the server refused some, or did not confirm all in time.
        """
        lost: set[str] = set()
        first = 0
        while first < len(parcels):
            last, size = first, 0
            while last < len(parcels) and last - first < CHUNK_MESSAGES and (size < CHUNK_BYTES or last == first):
                size += len(parcels[last].body)
                last += 1
            lost |= await self._publish(parcels[first:last], timeout_s, where)
            if lost:
                break
            first = last
        return lost

    async def _publish(self, parcels: Sequence[Parcel], timeout_s: float, where: str) -> set[str]:
        batch = _Batch(self.requests.future(), parcels)
        self._waiting.add(batch)
        batch.done.add_done_callback(lambda _: self._waiting.discard(batch))
        for one in parcels:
            self._tag += 1
            self._open[self._tag] = batch
            self.requests.tell("basic_publish", one.exchange, one.routing_key, one.body, one.properties, mandatory=True)
        await asyncio.wait_for(batch.done, timeout_s)
        if batch.refused:
            raise ConnectorError(
                f"{where}: the server did not take {batch.refused} messages now",
                next_step="publish them again, with the same ids",
            )
        return batch.lost

    def _hear_confirm(self, frame: Any) -> None:
        method = frame.method
        is_refused = isinstance(method, Basic.Nack)
        tags = [method.delivery_tag]
        if method.multiple:
            tags = []
            for tag in self._open:
                if tag > method.delivery_tag:
                    break
                tags.append(tag)
        for tag in tags:
            batch = self._open.pop(tag, None)
            if batch is None:
                continue
            batch.open_count -= 1
            batch.refused += is_refused
            if not batch.open_count and not batch.done.done():
                batch.done.set_result(None)

    def _hear_return(self, _: Any, method: Any, __: Any, ___: bytes) -> None:
        # It comes before the confirm of its message. Of several batches with the key it does not say which: all publish
        # to a queue that is not there, or was not a moment ago.
        for batch in self._waiting:
            if method.routing_key in batch.keys:
                batch.lost.add(method.routing_key)
