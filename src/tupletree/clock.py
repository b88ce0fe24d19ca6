"""Time comes in from outside: a `Clock` for the edges, a `ManualClock` for tests and the simulator."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Two readings in seconds. Pure code never holds a clock: it is handed the readings."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch, UTC; may jump."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Read `time.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """Read `time.time`."""
        return time.time()


class ManualClock:
    """A clock that moves only when told to; both readings move together.

    >>> clock = ManualClock(wall=100.0)
    >>> clock.advance(2.5)
    >>> clock.monotonic(), clock.wall()
    (2.5, 102.5)
    """

    def __init__(self, *, monotonic: float = 0.0, wall: float = 0.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def advance(self, seconds: float) -> None:
        """Move both readings forward. Raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"time does not go back, got {seconds}")
        self._monotonic += seconds
        self._wall += seconds

    def monotonic(self) -> float:
        """Seconds moved so far, from the start value."""
        return self._monotonic

    def wall(self) -> float:
        """The wall clock's start value plus the seconds moved."""
        return self._wall
