"""Pace: how long a task takes per tuple, and how many tuples it is therefore given at a time.

Owns the size of a slice. What a call acked, failed, emitted or renewed leaves when the slice is over, so a slice holds
a few milliseconds of work: a whole frame where calls are quick, one tuple where they are slow. It does not know
clocks: the driver of the task says how long a slice took. And which share of a bolt's `max_rate` a task has.
"""

from __future__ import annotations

from tupletree.routing.plan import Plan
from tupletree.topology.model import ComponentSpec
from tupletree.tracking.rate_limit import RateLimit

SLICE_S = 0.005
"""Work in one slice."""

SLACK = 4
"""A frame is cut if it would take longer than so many slices: cuts cost something, and measures are inexact."""

MEMORY = 64
"""Tuples in the moving average; all of a larger slice. A thread that waited for the interpreter once does not
count as a slow bolt, and a bolt that became slow is seen within one slice."""


class Pace:
    """The pace of one task.

    Attributes:
        limit: tuples that the next slice may hold. One at first, when nothing is measured.
        whole: a frame with fewer tuples is worked as it is.
        tuple_s: seconds per tuple; 0.0 before anything was measured.
    """

    __slots__ = ("_seconds", "_tuples", "limit", "whole")

    def __init__(self) -> None:
        self.limit = self.whole = 1
        self._seconds = 0.0
        self._tuples = 0.0

    @property
    def tuple_s(self) -> float:
        """Seconds per tuple."""
        return self._seconds / self._tuples if self._tuples else 0.0

    def note(self, tuples: int, seconds: float) -> None:
        """Note that so many tuples took so long.

        >>> pace = Pace()
        >>> pace.note(1, 0.001), pace.limit
        (None, 5)
        >>> pace.note(5, 0.5), pace.limit
        (None, 1)
        """
        kept = self._tuples
        if kept + tuples > MEMORY:
            kept = max(0.0, MEMORY - tuples)
            self._seconds *= kept / self._tuples if self._tuples else 0.0
        self._seconds += seconds
        self._tuples = kept = kept + tuples
        self.limit = limit = max(1, int(SLICE_S * kept / self._seconds)) if self._seconds > 0.0 else MEMORY
        self.whole = SLACK * limit if limit > 1 else 1


def limit_of(plan: Plan, component: ComponentSpec) -> RateLimit | None:
    """The rate at which one task of a bolt may be called: an equal share. A task that stands for others has theirs."""
    if component.max_rate is None:
        return None
    return RateLimit(component.max_rate / len({*plan.deputies_of(component.name)}))
