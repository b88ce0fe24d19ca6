"""Time comes in from outside: a `Clock` for the edges, a `ManualClock` for tests and the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Two readings in seconds. Pure code never holds a clock: it gets the readings."""

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


class SteadyClock:
    """A clock whose wall reading never goes back, and never goes slower than the monotonic one.

    A step of the machine's clock forward is followed. A step back is not: from there on the reading goes on with the
    monotonic clock, until the machine's has caught up. So times that were noted before can be compared with those of
    now. For times that people and other processes compare with their own clock, ask the machine's.

    >>> machine = ManualClock(wall=100.0)
    >>> clock = SteadyClock(machine)
    >>> clock.not_before(3700.0)
    >>> machine.advance(2.0)
    >>> clock.wall()
    3702.0
    """

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.monotonic: Callable[[], float] = inner.monotonic
        self._ahead_s = inner.wall() - inner.monotonic()

    def not_before(self, wall_s: float) -> None:
        """The wall reading is at least this from now on: it was noted before, for example by another process."""
        self._ahead_s = max(self._ahead_s, wall_s - self._inner.monotonic())

    def wall(self) -> float:
        """Seconds since the Unix epoch, as far as they have come."""
        monotonic_s = self._inner.monotonic()
        self._ahead_s = max(self._ahead_s, self._inner.wall() - monotonic_s)
        return monotonic_s + self._ahead_s


class ManualClock:
    """A clock that moves only when `advance` is called; both readings move together.

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

    def step(self, seconds: float) -> None:
        """Set the wall reading forward, or back, as when a machine's clock is set."""
        self._wall += seconds

    def monotonic(self) -> float:
        """Seconds moved so far, from the start value."""
        return self._monotonic

    def wall(self) -> float:
        """The wall clock's start value plus the seconds moved."""
        return self._wall
