"""The rate at which the tasks of a bolt may be called.

Owns when the next call may be made. It refuses to wait: callers hold the clock.
"""

from __future__ import annotations

import math

SLACK_S = 0.05
"""So much time without calls may be made up for, so that one step makes several calls where many are allowed."""


class RateLimit:
    """At most so many calls per second; the generic cell rate algorithm, with tokens for at most `SLACK_S`.

    In any second there are at most `per_s` calls, and `SLACK_S` times as many more, or one.

    Args:
        per_s: calls per second, above 0.
        now_s: the time (monotonic).
        first_s: in how many seconds the first call may be made.

    >>> limit = RateLimit(10.0, now_s=0.0)
    >>> limit.take(5, now_s=0.0), limit.take(5, now_s=0.05), limit.due_s
    (1, 0, 0.1)
    """

    __slots__ = ("_each_s", "due_s")

    def __init__(self, per_s: float, now_s: float = -math.inf, first_s: float = 0.0) -> None:
        self._each_s = 1.0 / per_s
        self.due_s = now_s + first_s
        """When the next call may be made."""

    def take(self, wanted: int, now_s: float) -> int:
        """Take up to `wanted` calls that may be made now; returns how many."""
        if now_s < self.due_s:
            return 0
        first_s = max(self.due_s, now_s - SLACK_S)
        taken = min(wanted, 1 + int((now_s - first_s) / self._each_s))
        self.due_s = first_s + taken * self._each_s
        return taken

    def reserve(self, now_s: float) -> float:
        """Take the next call; returns in how many seconds it may be made."""
        at_s = max(self.due_s, now_s - SLACK_S)
        self.due_s = at_s + self._each_s
        return max(0.0, at_s - now_s)
