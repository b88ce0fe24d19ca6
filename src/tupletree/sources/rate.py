"""Messages at a steady rate: an open-loop load for measuring throughput and latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tupletree.clock import Clock, SystemClock
from tupletree.errors import ConfigError, EndOfInput
from tupletree.topology.components import Emit, Spout, TaskContext

__all__ = ["Paced", "Rate", "rate"]

T = TypeVar("T")

_BATCH = 1000


def rate(
    make: Callable[[int], T],
    per_second: float,
    *,
    message_type: type[T],
    total: int | None = None,
    clock: Clock | None = None,
) -> Rate[T]:
    """Emit `make(0)`, `make(1)`, … so that by t seconds after activation `per_second` × t messages are due.

    The schedule does not wait for a slow topology: what could not be emitted in time follows at once, so measured
    latency includes the queueing (no coordinated omission; Tene, "How not to measure latency", 2013). Message ids are
    the numbers. Several tasks share the rate and the numbers. A run that resumes continues with the next number.

    Args:
        make: number → message; importable by name where the topology is pickled.
        per_second: messages per second of all tasks together, above 0; infinity for as many as there is room for.
        message_type: class of the messages.
        total: end after this many; None never ends.
        clock: for tests.

    Raises:
        ConfigError: a rate that is not above 0.
    """
    return Rate(make, per_second, message_type=message_type, total=total, clock=clock)


class Paced(Generic[T]):
    """Numbers that fall due at a steady rate: what `Rate` and `RateSplits` have in common.

    It counts how many numbers its task has taken, and that is the position.
    """

    _name = "rate"

    def __init__(
        self,
        make: Callable[[int], T],
        per_second: float,
        *,
        message_type: type[T],
        total: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not per_second > 0:
            raise ConfigError("a rate is above 0", where=self._name, got=f"per_second={per_second}")
        self.make = make
        self.per_second = per_second
        self.message_type = message_type
        self.total = total
        self.clock = clock or SystemClock()

    def open(self, context: TaskContext) -> None:
        """Take this task's share of the numbers."""
        self._index, self._tasks = context.task_index, context.parallelism
        self._taken = 0
        self.activate()

    def activate(self) -> None:
        """Start the schedule here: a pause is not caught up."""
        self._origin_s, self._taken_before = self.clock.monotonic(), self._taken

    def snapshot(self) -> int:
        """How many numbers this task has taken."""
        return self._taken

    def restore(self, position: int) -> None:
        """Continue with the next number; the schedule starts here."""
        self._taken = position
        self.activate()

    def _due(self, at_most: int) -> int:
        """How many numbers of this task are due and not taken."""
        if math.isinf(self.per_second):
            return at_most
        elapsed_s = self.clock.monotonic() - self._origin_s
        in_all = self._taken_before + int(elapsed_s * self.per_second / self._tasks)
        return min(at_most, in_all - self._taken)


class Rate(Paced[T], Spout[T]):
    """See `rate`."""

    def next(self) -> Sequence[Emit[T]] | None:
        """Return the messages that are due and were not returned yet."""
        number = self._index + self._taken * self._tasks
        if self.total is not None and number >= self.total:
            raise EndOfInput
        due = self._due(_BATCH)
        if due <= 0:
            return None
        end = number + due * self._tasks
        numbers = range(number, end if self.total is None else min(end, self.total), self._tasks)
        self._taken += len(numbers)
        return [Emit(self.make(each), each) for each in numbers]
