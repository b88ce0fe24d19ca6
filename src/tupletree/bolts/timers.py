"""The timers of a task: when something is due for which keys."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any

__all__ = ["Timers"]


class Timers:
    """At most one time per key counts, the one that was set last; earlier ones are ignored when they come."""

    def __init__(self) -> None:
        self._time_of: dict[Any, int] = {}
        self._keys: dict[int, dict[Any, None]] = {}
        self._times: list[int] = []  # a heap of the times in `_keys`

    @property
    def next_us(self) -> int | None:
        """The earliest time that was put down; None: nothing is due ever."""
        return self._times[0] if self._times else None

    def put(self, key: Hashable, time_us: int) -> None:
        """Something is due for this key at this time, and not at another one."""
        self._time_of[key] = time_us
        if time_us not in self._keys:
            self._keys[time_us] = {}
            heapq.heappush(self._times, time_us)
        self._keys[time_us][key] = None

    def put_earlier(self, key: Hashable, time_us: int) -> None:
        """As `put`, unless something is due for it before that."""
        if self._time_of.get(key, time_us) >= time_us:
            self.put(key, time_us)

    def remove(self, key: Hashable) -> None:
        """Nothing is due for this key."""
        self._time_of.pop(key, None)
        if not self._time_of:
            self._keys.clear()
            self._times.clear()

    def take_next(self) -> tuple[int, list[Any]]:
        """The earliest time, and the keys that something is due for; nothing is due for them from now on."""
        time_us = heapq.heappop(self._times)
        keys = [key for key in self._keys.pop(time_us) if self._time_of.get(key) == time_us]
        for key in keys:
            del self._time_of[key]
        return time_us, keys
