"""A queue whose messages executors lease: their bodies do not pass through Spark's driver, which settles them.

Owns what executors do for it. What is out, and what the broker is still to be told, is a `BrokerSpout`'s.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from tupletree.errors import ConfigError, ConnectorError, EndOfInput
from tupletree.queues.access import shut_out_is_outage
from tupletree.queues.contract import LeaseLostError
from tupletree.queues.messages import Delivery, Message
from tupletree.queues.named import Queue
from tupletree.queues.registry import open_queue
from tupletree.sources.broker_spout import KEEP_PART, BrokerSpout
from tupletree.topology.components import Reject
from tupletree.topology.splits import AsyncLeaseSpout, Lease

T = TypeVar("T")

_connected: dict[tuple[int, str, bool], Queue] = {}


@contextmanager
def leasing_from(url: str, *, ordered: bool) -> Iterator[Queue]:
    """This process's connection, kept for its next task; after an error it is made again.

    One thread at a time may have it.
    """
    key = os.getpid(), url, ordered  # a process that was forked must not use that of its parent
    queue = _connected.pop(key, None) or open_queue(url, ordered=ordered)
    try:
        yield queue
    except BaseException:
        queue.close()
        raise
    _connected[key] = queue


class ExecutorQueueSpout(BrokerSpout[T], AsyncLeaseSpout[T]):
    """See `queue`, with `read_on="executors"`. Where nothing calls `plan` it is a `BrokerSpout` like any other."""

    _planned_s = 0.0  # when what comes next to `accept` was asked for

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was made: executors get it also after it was opened."""
        return partial(type(self), **self._settings), (self._url, self.message_type, self._body)

    @property
    def _settings(self) -> dict[str, Any]:
        names = ("follow", "prefetch", "lease_s", "max_deliveries", "ordered")
        return {name: getattr(self, f"_{name}") for name in names}

    async def plan(self, max_messages: int) -> int:
        queue = self._connected()
        if not (self._can.ack_anywhere and self._can.leases_survive):
            raise ConfigError(
                "executors cannot lease from this broker: only the connection that took a message can settle it",
                where=self.shown,
                expected="the embedded queue, Redis or NATS",
                next_step='leave out read_on="executors": then the driver leases',
            )
        await self.flush()  # what `accept` could not tell
        depth = await self._in_thread(queue.depth)
        out = 0 if "leased" in self._can.states else len(self._out)
        count = min(max_messages, depth.ready - out)
        self._planned_s = asyncio.get_running_loop().time()
        if count <= 0 and not self._follow and await self._is_over(queue):
            raise EndOfInput
        return max(0, count)

    async def accept(self, leases: Sequence[Lease]) -> Sequence[int]:
        new: list[int] = []
        ended = await self._ended(leases)
        for at, lease in enumerate(leases):
            if lease.handle in ended:
                continue
            delivery = Delivery(
                message=Message(id=lease.message_id),
                handle=lease.handle,
                deliveries=lease.deliveries,
                lease_s=self._lease_s,
                published_s=lease.published_s,
            )
            if self._is_new(delivery):
                new.append(at)
        if len(new) < len(leases):
            with suppress(ConnectorError):  # the others are to be worked all the same; `plan` meets it, too
                await self.flush()
        return new

    async def _ended(self, leases: Sequence[Lease]) -> Collection[str]:
        """The handles of leases that ended before the driver heard of them; the others last from now on.

        Such a message is the broker's again: another consumer may have it.
        """
        late_s = asyncio.get_running_loop().time() - self._planned_s
        if late_s < self._lease_s * KEEP_PART:
            return ()
        handles = [lease.handle for lease in leases]
        try:
            return {*await self._in_thread(partial(self._connected().extend, handles, self._lease_s))}
        except (ConnectorError, LeaseLostError):
            return {*handles} if late_s >= self._lease_s else ()

    def take(self, max_messages: int, max_bytes: int) -> Sequence[tuple[Lease, bytes]]:
        taken: list[tuple[Lease, bytes]] = []
        # The driver was let in before.
        with shut_out_is_outage(self.shown), leasing_from(self._url, ordered=self._ordered) as queue:
            while max_messages > len(taken) and max_bytes > 0:
                limit = min(self._prefetch, max_messages - len(taken))
                try:
                    deliveries = queue.lease(limit, lease_s=self._lease_s, max_bytes=max_bytes)
                except ConnectorError:
                    if not taken:
                        raise
                    break
                for one in deliveries:
                    max_bytes -= len(one.message.body)
                    lease = Lease(one.message.id, one.handle, one.deliveries, one.published_s)
                    taken.append((lease, msgspec.msgpack.encode(one)))
                if len(deliveries) < limit:
                    break
        return taken

    def read(self, taken: bytes) -> T | Reject:
        if not hasattr(self, "_decode"):  # a copy that was never opened
            self._decode = self._decoder()
        return self._value_of(msgspec.msgpack.decode(taken, type=Delivery))

    def payload(self, taken: bytes) -> bytes:
        """See `LeaseReader.payload`: the body."""
        return msgspec.msgpack.decode(taken, type=Delivery).message.body
