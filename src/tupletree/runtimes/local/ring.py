"""The ring buffer of an executor: many producers, one consumer, two lanes.

Owns passing things between threads, and waking the consumer. The data lane holds frames; what is beyond its capacity
is its spill list: a producer never waits, spouts stop while a ring is over its capacity. The control lane holds
everything else and is always read first, so data can never block it.

Why a deque and a lock: appending to a deque is atomic, and a lock as a wake-up costs a fifth of a condition variable
and is only used when the consumer sleeps (measured).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from tupletree.data.frames import Frame


def capacity_for(ring_size: int, tasks: int) -> int:
    """The capacity in tuples of the ring of an executor with so many tasks: a power of two.

    >>> capacity_for(256, 3)
    1024
    """
    return 1 << (max(1, ring_size * tasks) - 1).bit_length()


class Ring:
    """See the module docstring.

    Args:
        capacity: tuples on the data lane before it counts as full.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._frames: deque[Frame] = deque()
        self._control: deque[Any] = deque()
        self._published = 0
        self._consumed = 0
        self._publishing = threading.Lock()
        self._sleeping = False
        self._wake = threading.Lock()
        self._wake.acquire()

    @property
    def depth(self) -> int:
        """Tuples that are published and not yet marked as consumed."""
        return self._published - self._consumed

    @property
    def is_full(self) -> bool:
        """Whether the spill list is in use."""
        return self.depth >= self.capacity

    def publish(self, frames: Sequence[Frame]) -> None:
        """Put frames on the data lane, in order; never waits."""
        tuples = sum([len(frame.values) for frame in frames])
        with self._publishing:
            self._published += tuples
        self._frames.extend(frames)
        if self._sleeping:
            self._wake_up()

    def send(self, message: Any) -> None:
        """Put a message on the control lane; never waits."""
        self._control.append(message)
        if self._sleeping:
            self._wake_up()

    # --- the consumer -----------------------------------------------------------------------------------------

    def take_control(self) -> list[Any]:
        """Everything on the control lane."""
        lane = self._control
        return [lane.popleft() for _ in range(len(lane))]

    def take_frames(self, limit: int) -> list[Frame]:
        """Up to `limit` frames; call `consumed` when they are worked."""
        lane = self._frames
        return [lane.popleft() for _ in range(min(limit, len(lane)))]

    def frames(self) -> list[Frame]:
        """What is on the data lane; it stays there."""
        return [*self._frames.copy()]

    def consumed(self, tuples: int) -> None:
        """Note that so many tuples that were taken are worked."""
        self._consumed += tuples

    @property
    def is_empty(self) -> bool:
        """Whether neither lane has anything."""
        return not self._frames and not self._control

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is there, or for `timeout_s` seconds; may return early."""
        self._sleeping = True
        if self.is_empty:
            self._wake.acquire(timeout=timeout_s)
        self._sleeping = False

    def _wake_up(self) -> None:
        self._sleeping = False
        try:  # noqa: SIM105 - it is hot
            self._wake.release()
        except RuntimeError:  # another producer was faster
            pass
