"""The work of a bolt: how many tuples its calls took, and how long these lasted. It shows which bolt is slow."""

from __future__ import annotations

import msgspec


class WorkDone(msgspec.Struct):
    """The work of one task, or of all tasks of a bolt.

    Attributes:
        tuples: that its calls took.
        seconds: that its calls lasted, with passing on what they emitted. Of async calls it is the sum, also of those
            that go on side by side.
    """

    tuples: int = 0
    seconds: float = 0.0

    def note(self, tuples: int, seconds: float) -> None:
        """Note calls that are over."""
        self.tuples += tuples
        self.seconds += seconds

    @property
    def tuple_ms(self) -> float:
        """Milliseconds per tuple.

        >>> WorkDone(4, 0.002).tuple_ms, WorkDone().tuple_ms
        (0.5, 0.0)
        """
        return 1000.0 * self.seconds / self.tuples if self.tuples else 0.0


class WorkTotals(dict[str, WorkDone]):
    """Bolt → its work.

    >>> totals = WorkTotals()
    >>> totals.add("split", WorkDone(2, 0.5)), totals.add("split", WorkDone(1, 0.5)), totals["split"]
    (None, None, WorkDone(tuples=3, seconds=1.0))
    """

    def add(self, bolt: str, done: WorkDone) -> None:
        """Add the work of a task."""
        if done.tuples:
            self.setdefault(bolt, WorkDone()).note(done.tuples, done.seconds)
