"""Which attempts are open, for tasks that are about to work on their tuples.

Owns the answer to "is any message of this tuple still open?". A tuple whose messages are all over (acked, failed, timed
out or given back) is not worked. The check costs a look-up per root, so it is done where a tuple may have waited for
long, and for a while after any attempt failed; otherwise it costs nothing.

Spout machines write on their threads, bolts read on theirs. A reader may be a moment late, which costs a call.
"""

from __future__ import annotations

import math
from collections.abc import Container

from tupletree.data.frames import Frame, Root, picked, roots_of
from tupletree.tasks.pace import Pace

__all__ = ["LiveRoots"]

WITHOUT_TIMEOUT_S = 30.0
"""How long the check goes on after a failed attempt where messages never expire."""


class LiveRoots:
    """The open attempts of one run.

    Args:
        timeout_s: the message timeout.

    Attributes:
        doubtful_until_s: until then (monotonic) tuples of failed attempts may still arrive.
        paces: bolt → how long its calls take, where that is measured.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.doubtful_until_s = -math.inf
        self.paces: dict[str, Pace] = {}
        self._period_s = 2.0 * (WITHOUT_TIMEOUT_S if timeout_s is None else timeout_s)
        self._in_flight: dict[int, Container[int]] = {}

    def register(self, spout_task: int, in_flight: Container[int]) -> None:
        """Add the open attempts of a spout task, as a collection that changes with them."""
        self._in_flight[spout_task] = in_flight

    def note_failed(self, now_s: float) -> None:
        """Note that an attempt failed."""
        self.doubtful_until_s = now_s + self._period_s

    def slowest(self) -> tuple[str, float] | None:
        """The bolt whose calls take longest, and seconds per call; None if none was measured."""
        measured = [(pace.tuple_s, name) for name, pace in self.paces.items() if pace.tuple_s]
        if not measured:
            return None
        tuple_s, name = max(measured)
        return name, tuple_s

    def is_over(self, root: Root) -> bool:
        """Whether all messages of a tuple are over. An untracked one is never over."""
        ones = roots_of(root)
        return bool(ones) and not any(one in live for live in self._in_flight.values() for one in ones)

    def still_wanted(self, frame: Frame) -> Frame:
        """The frame without tuples whose messages are over; the same frame if there are none."""
        roots = frame.roots
        over = [self.is_over(root) for root in roots]
        if not any(over):
            return frame
        return picked(frame, [not gone for gone in over])
