"""Messages at a steady rate, made on executors: the load of `rate` without a driver in its way.

Owns which numbers are due; the worker that reads them makes the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from tupletree.clock import Clock, SystemClock
from tupletree.errors import ConfigError, EndOfInput
from tupletree.topology.components import TaskContext
from tupletree.topology.splits import Split, SplitSpout

__all__ = ["RateSplits", "rate_splits"]

T = TypeVar("T")

BLOCK = 1000
"""Tasks take turns at so many numbers, so that those of a split stand one after the other."""


def rate_splits(
    make: Callable[[int], T],
    per_second: float,
    *,
    message_type: type[T],
    total: int | None = None,
    clock: Clock | None = None,
) -> RateSplits[T]:
    """Emit `make(0)`, `make(1)`, … on the schedule of `rate`, made on Spark's executors.

    `make` must give the same message for a number every time, as it is called again when an epoch runs again and when a
    message failed. Message ids are the numbers; several tasks share them in blocks of 1000.

    Args:
        make: number → message; importable by name.
        per_second: messages per second of all tasks together, above 0; infinity for as many as there is room for.
        message_type: class of the messages.
        total: end after this many; None never ends.
        clock: for tests.

    Raises:
        ConfigError: a rate that is not above 0.
    """
    return RateSplits(make, per_second, message_type=message_type, total=total, clock=clock)


class RateSplits(SplitSpout[T], Generic[T]):
    """See `rate_splits`."""

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
            raise ConfigError("a rate is above 0", where="rate_splits", got=f"per_second={per_second}")
        self.make = make
        self.per_second = per_second
        self.message_type = message_type
        self.total = total
        self.clock = clock or SystemClock()

    def open(self, context: TaskContext) -> None:
        """Take this task's share of the numbers."""
        self._index, self._tasks = context.task_index, context.parallelism
        self._task_rate = self.per_second / context.parallelism
        self._taken = 0
        self.activate()

    def activate(self) -> None:
        """Start the schedule here: a pause is not caught up."""
        self._origin_s, self._taken_before = self.clock.monotonic(), self._taken

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:  # noqa: ARG002 - nothing is known of bytes
        """Name the numbers that are due and were not named yet."""
        elapsed_s = self.clock.monotonic() - self._origin_s
        due_in_all = self._taken_before + elapsed_s * self._task_rate
        room = int(min(max_rows, due_in_all - self._taken))
        splits: list[Split] = []
        while room > 0 and (split := self._next(room)) is not None:
            splits.append(split)
            self._taken += split.rows
            room -= split.rows
        if not splits and self._next(1) is None:
            raise EndOfInput
        return splits or None

    def _next(self, room: int) -> Split | None:
        """The numbers that come next in the block in hand; None if there are no more."""
        block, within = divmod(self._taken, BLOCK)
        first = (block * self._tasks + self._index) * BLOCK + within
        count = min(room, BLOCK - within)
        if self.total is not None:
            count = min(count, self.total - first)
        return Split(count, first) if count > 0 else None

    def read(self, split: Split) -> Iterator[T]:
        """Make the messages of these numbers."""
        return map(self.make, range(split.first, split.first + split.rows))

    def snapshot(self) -> int:
        """How many numbers this task named."""
        return self._taken

    def restore(self, position: int) -> None:
        """Continue with the next number; the schedule starts here."""
        self._taken = position
        self.activate()
