"""Messages at a steady rate: an open-loop load for measuring throughput and latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tupletree.clock import Clock, SystemClock
from tupletree.errors import ConfigError, EndOfInput
from tupletree.topology.components import Emit, Spout, TaskContext

__all__ = ["Rate", "rate"]

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
        per_second: messages per second of all tasks together, above 0.
        message_type: class of the messages.
        total: end after this many; None never ends.
        clock: for tests.

    Raises:
        ConfigError: a rate that is not above 0.
    """
    return Rate(make, per_second, message_type=message_type, total=total, clock=clock)


class Rate(Spout[T], Generic[T]):
    """See `rate`."""

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
            raise ConfigError("a rate is above 0", where="rate", got=f"per_second={per_second}")
        self.make = make
        self.per_second = per_second
        self.message_type = message_type
        self.total = total
        self.clock = clock or SystemClock()

    def open(self, context: TaskContext) -> None:
        """Take this task's share of the numbers."""
        self._index, self._step = context.task_index, context.parallelism
        self._task_rate = self.per_second / context.parallelism
        self._taken = 0
        self.activate()

    def activate(self) -> None:
        """Start the schedule here: a pause is not caught up."""
        self._origin, self._taken_before = self.clock.monotonic(), self._taken

    def next(self) -> Sequence[Emit[T]] | None:
        """Return the messages that are due and were not returned yet."""
        number = self._index + self._taken * self._step
        if self.total is not None and number >= self.total:
            raise EndOfInput
        elapsed_s = self.clock.monotonic() - self._origin
        due = self._taken_before + int(elapsed_s * self._task_rate) - self._taken
        if due <= 0:
            return None
        end = number + min(due, _BATCH) * self._step
        numbers = range(number, end if self.total is None else min(end, self.total), self._step)
        self._taken += len(numbers)
        return [Emit(self.make(each), each) for each in numbers]

    def snapshot(self) -> int:
        """How many messages this task returned."""
        return self._taken

    def restore(self, position: int) -> None:
        """Continue with the next number; the schedule starts here."""
        self._taken = position
        self.activate()
