"""The timers of a task: when something is due for which keys."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any


class Timers:
    """At most one time per key: the one that was set last."""

    def __init__(self) -> None:
        self._time_of: dict[Any, int] = {}
        self._keys: dict[int, dict[Any, None]] = {}
        self._times: list[int] = []  # a heap of the times in `_keys`, and of some that were in it

    @property
    def next_us(self) -> int | None:
        """The earliest time that was put down; None: nothing is due ever."""
        return self._times[0] if self._times else None

    def put(self, key: Hashable, time_us: int) -> None:
        """Something is due for this key at this time, and not at another one."""
        before_us = self._time_of.get(key)
        self._time_of[key] = time_us
        if time_us not in self._keys:
            self._keys[time_us] = {}
            heapq.heappush(self._times, time_us)
        self._keys[time_us][key] = None
        if before_us is not None and before_us != time_us:
            self._take_out(key, before_us)

    def put_earlier(self, key: Hashable, time_us: int) -> None:
        """As `put`, unless something is due for it before that."""
        if self._time_of.get(key, time_us) >= time_us:
            self.put(key, time_us)

    def remove(self, key: Hashable) -> None:
        """Nothing is due for this key."""
        before_us = self._time_of.pop(key, None)
        if before_us is not None:
            self._take_out(key, before_us)

    def take_next(self) -> tuple[int, list[Any]]:
        """The earliest time, and the keys that something is due for; nothing is due for them from now on."""
        time_us = self._times[0]
        keys = [*self._keys.pop(time_us)]
        for key in keys:
            del self._time_of[key]
        self._drop_empty()
        return time_us, keys

    def _take_out(self, key: Hashable, time_us: int) -> None:
        keys = self._keys[time_us]
        del keys[key]
        if not keys:
            del self._keys[time_us]
            self._drop_empty()

    def _drop_empty(self) -> None:
        """Let the heap begin with a time at which something is due."""
        while self._times and self._times[0] not in self._keys:
            heapq.heappop(self._times)
