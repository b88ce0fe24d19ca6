"""Leases of another length than the server's: longer ones are kept up, shorter ones are given back.

A JetStream consumer has one time for all of its messages. Refuses to know messages: a handle is text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tupletree.queues.nats_client import NatsClient, Request

__all__ = ["Leases"]

KEPT_UP_AFTER = 1 / 3
"""Part of the server's time after which a lease that is longer is kept up."""


class Leases:
    """Of one connection. Its maps are used on the connection's event loop only.

    Args:
        client: the connection.
        server_s: the server's time.
    """

    def __init__(self, client: NatsClient, server_s: float) -> None:
        self._client = client
        self._server_s = server_s
        self._ends_s: dict[str, float] = {}
        self._is_running = False
        self._is_used = False  # written by callers

    def hold(self, handles: Sequence[str], lease_s: float) -> None:
        """These leases last so long from now."""
        if handles and abs(lease_s - self._server_s) > 0.05 * self._server_s:
            self._is_used = True
            self._client.soon(lambda: self._hold(handles, lease_s))
        else:
            self.drop(handles)

    def drop(self, handles: Sequence[str]) -> None:
        """These leases are over, or have another end."""
        if self._is_used and handles:
            self._client.soon(lambda: self._drop(handles))

    async def _hold(self, handles: Sequence[str], lease_s: float) -> None:
        ends_s = asyncio.get_running_loop().time() + lease_s
        self._ends_s |= dict.fromkeys(handles, ends_s)
        if not self._is_running:
            self._is_running = True
            self._client.soon(self._keep)

    async def _drop(self, handles: Sequence[str]) -> None:
        for one in handles:
            self._ends_s.pop(one, None)

    async def _keep(self) -> None:
        """Until no lease is left that needs it."""
        loop = asyncio.get_running_loop()
        kept_up_s = loop.time()
        try:
            while self._ends_s:
                now_s = loop.time()
                over = [one for one, ends_s in self._ends_s.items() if ends_s <= now_s]
                await self._drop(over)
                if over:
                    await self._client.send([Request(one, b"-NAK") for one in over])
                if now_s - kept_up_s >= self._server_s * KEPT_UP_AFTER and self._ends_s:
                    kept_up_s = now_s
                    await self._client.send([Request(one, b"+WPI") for one in self._ends_s])
                next_s = min([*self._ends_s.values(), kept_up_s + self._server_s * KEPT_UP_AFTER])
                await asyncio.sleep(max(0.001, min(next_s, loop.time() + 1.0) - loop.time()))
        finally:
            self._is_running = False
