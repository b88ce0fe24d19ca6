"""Time that message timeouts do not count: a call to something outside keeps a thread from all other work.

A database that is gone lets each call wait for its connection, so that a sink which tries whether an outage is over has
its thread nearly all the time, and the messages in front of the bolts of that thread grow old through no fault of
theirs. Owns how much of such time there was, of all threads together. It has no clock: callers say what time it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

GRACE_S = 1.0
"""A call that is over sooner costs what calls cost: nothing of it is taken from the timeouts."""


class Stalls:
    """Which calls go on, and how long some call has gone on beyond `GRACE_S`. Any thread may use it.

    Args:
        lock: for what threads share.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._began_s: dict[int, float] = {}
        self._numbers = 0
        self._counted_until_s = float("-inf")
        self._lost_s = 0.0

    def begin(self, now_s: float) -> int:
        """A call begins; returns its number, for `end`."""
        with self._lock:
            self._numbers += 1
            self._began_s[self._numbers] = now_s
            return self._numbers

    def end(self, number: int, now_s: float) -> None:
        """It is over."""
        with self._lock:
            self._count(now_s)
            del self._began_s[number]

    def without(self, now_s: float) -> float:
        """The time less all that was lost until then. It never goes back while `now_s` does not."""
        if not self._began_s:  # no lock, for it is hot: what a call that is over has lost was counted before
            return now_s - self._lost_s
        with self._lock:
            self._count(now_s)
            return now_s - self._lost_s

    def earliest(self, counted_s: float) -> float:
        """The time at which `without` is so much at the earliest, as far as is known."""
        return counted_s + self._lost_s

    def _count(self, now_s: float) -> None:
        if self._began_s:
            since_s = max(min(self._began_s.values()) + GRACE_S, self._counted_until_s)
            if now_s > since_s:
                self._lost_s += now_s - since_s
                self._counted_until_s = now_s
