"""Leases of another length than the server's: longer ones are kept up, shorter ones are given back.

A JetStream consumer has one time for all of its messages. Refuses to know messages: a handle is text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from tupletree.errors import ConnectorError
from tupletree.queues.nats.client import NatsClient, Request

KEPT_UP_AFTER = 1 / 3
"""Part of the server's time after which a lease that is longer is kept up."""

logger = logging.getLogger("tupletree.queues")


class _Lease(msgspec.Struct, frozen=True):
    """By the event loop's clock: its end, when it is due to be kept up; and the server's time for one."""

    ends_s: float
    due_s: float
    server_s: float


class Leases:
    """Of one connection. Its map is used on the connection's event loop only."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._noted: dict[str, _Lease] = {}
        self._is_running = False
        self._is_used = False  # written by callers

    def hold(self, handles: Sequence[str], lease_s: float, server_s: float) -> None:
        """These leases last so long from now; without that they would last as long as the server's."""
        if handles and abs(lease_s - server_s) > 0.05 * server_s:
            self._is_used = True
            self._client.soon(lambda: self._hold(handles, lease_s, server_s))
        else:
            self.drop(handles)

    def drop(self, handles: Sequence[str]) -> None:
        """These leases are over, or have another end."""
        if self._is_used and handles:
            self._client.soon(lambda: self._drop(handles))

    async def _hold(self, handles: Sequence[str], lease_s: float, server_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        for one in handles:
            self._noted[one] = _Lease(now_s + lease_s, now_s + server_s * KEPT_UP_AFTER, server_s)
        if not self._is_running:
            self._is_running = True
            self._client.soon(self._keep)

    async def _drop(self, handles: Sequence[str]) -> None:
        for one in handles:
            self._noted.pop(one, None)

    async def _keep(self) -> None:
        """Until no lease is left that needs it. An outage does not end it: what is still held is kept up after it."""
        loop = asyncio.get_running_loop()
        try:
            while self._noted:
                now_s = loop.time()
                over = [handle for handle, lease in self._noted.items() if lease.ends_s <= now_s]
                await self._drop(over)
                due = [handle for handle, lease in self._noted.items() if lease.due_s <= now_s]
                for handle in due:
                    lease = self._noted[handle]
                    self._noted[handle] = msgspec.structs.replace(lease, due_s=now_s + lease.server_s * KEPT_UP_AFTER)
                told = [Request(one, b"-NAK") for one in over] + [Request(one, b"+WPI") for one in due]
                if told:
                    try:
                        await self._client.send(told)
                    except ConnectorError as error:
                        logger.warning("%d leases could not be kept up, or given back: %s", len(told), error)
                next_s = min([min(one.ends_s, one.due_s) for one in self._noted.values()], default=now_s)
                await asyncio.sleep(max(0.001, min(next_s - loop.time(), 1.0)))
        finally:
            self._is_running = False
