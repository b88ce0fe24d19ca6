"""What a connection has leased, and until when it counts on it.

Owns which handles are good. Refuses to make requests: the broker does.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.sqs.client import QueueAddress
from tupletree.queues.sqs.wire import Received

LOOK_EVERY = 1_000
"""Leases that are added until those that are over are looked for."""


class Lease(msgspec.Struct, gc=False, eq=False):
    """A message that was leased by this connection.

    Attributes:
        handle: names it to callers.
        place: the queue that it is from.
        received: as the service handed it out.
        began_s, ends_s: from before the request that took it, or extended it: the service's lease lasts no shorter.
        has_letter: it is among the dead letters, and only to be deleted.
    """

    handle: str
    place: QueueAddress
    received: Received
    began_s: float
    ends_s: float
    has_letter: bool = False


class Leases:
    """Of one connection. Any thread may call.

    Args:
        clock: seconds that count while the host sleeps.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._name = secrets.token_hex(6)
        self._changing = threading.Lock()
        self._held: dict[str, Lease] = {}
        self._number = 0

    def add(self, place: QueueAddress, received: Received, began_s: float, lease_s: float) -> Lease:
        """A message was leased."""
        with self._changing:
            self._number += 1
            if self._number % LOOK_EVERY == 0:
                now_s = self._clock()
                self._held = {handle: one for handle, one in self._held.items() if one.ends_s > now_s}
            lease = Lease(f"{self._name}.{self._number}", place, received, began_s, began_s + lease_s)
            self._held[lease.handle] = lease
        return lease

    def split(self, handles: Sequence[str]) -> tuple[list[str], dict[QueueAddress, list[Lease]]]:
        """Handles whose lease is not held here any more, and the leases of the others by their queue.

        Raises:
            ConfigError: it is no handle.
        """
        refused: list[str] = []
        held: dict[QueueAddress, list[Lease]] = {}
        with self._changing:
            now_s = self._clock()
            for handle in dict.fromkeys(handles):
                name, _, number = str(handle).partition(".")
                if not name or not number.isdecimal():
                    raise ConfigError(
                        "this is no handle of a lease", got=repr(handle)[:80], expected="what `lease` gave"
                    )
                lease = self._held.get(handle)
                if lease is None or lease.ends_s <= now_s:
                    refused.append(handle)
                else:
                    held.setdefault(lease.place, []).append(lease)
        return refused, held

    def drop(self, leases: Iterable[Lease]) -> None:
        """They are settled, or lost."""
        with self._changing:
            for one in leases:
                self._held.pop(one.handle, None)
