"""Messages at a steady rate: an open-loop load for measuring throughput and latency.

Owns which numbers are due; the reader makes the messages, on Spark in a worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tupletree.clock import Clock, SystemClock
from tupletree.errors import ConfigError, EndOfInput
from tupletree.topology.components import TaskContext
from tupletree.topology.splits import Split, SplitSpout

T = TypeVar("T")

BLOCK = 1000
"""Tasks take turns at so many numbers, so that those of a split are consecutive."""


class Rate(SplitSpout[T]):
    """Emit `make(0)`, `make(1)`, … so that by t seconds after activation `per_second` × t messages are due.

    The schedule does not wait for a slow topology: what could not be emitted in time follows at once, so measured
    latency includes the queueing (no coordinated omission; Tene, "How not to measure latency", 2013). Message ids are
    the numbers. Several tasks share the rate, and the numbers in blocks of 1,000. A run that resumes continues with the
    next number.

    Args:
        make: number → message, the same for a number every time: on Spark executors call it, again when an epoch runs
            again and when a message failed. Importable by name where the topology is pickled.
        per_second: messages per second of all tasks together, above 0; infinity for as many as there is room for.
        message_type: class of the messages.
        total: end after this many; None never ends.
        clock: for tests.

    Raises:
        ConfigError: a rate that is not above 0.
    """

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

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:  # noqa: ARG002 - nothing is known of bytes
        """Name the numbers that are due and were not named yet."""
        room = self._due(max_rows)
        splits: list[Split] = []
        while room > 0 and (split := self._next(room)) is not None:
            splits.append(split)
            self._taken += split.rows
            room -= split.rows
        if not splits and self._next(1) is None:
            raise EndOfInput
        return splits or None

    def read(self, split: Split) -> Iterator[T]:
        return map(self.make, range(split.first, split.first + split.rows))

    def _due(self, at_most: int) -> int:
        """How many numbers of this task are due and not taken."""
        if math.isinf(self.per_second):
            return at_most
        elapsed_s = self.clock.monotonic() - self._origin_s
        in_all = self._taken_before + int(elapsed_s * self.per_second / self._tasks)
        return min(at_most, in_all - self._taken)

    def _next(self, room: int) -> Split | None:
        """The numbers that come next in the current block; None if there are no more."""
        block, within = divmod(self._taken, BLOCK)
        first = (block * self._tasks + self._index) * BLOCK + within
        count = min(room, BLOCK - within)
        if self.total is not None:
            count = min(count, self.total - first)
        return Split(count, first) if count > 0 else None


rate = Rate
