"""Messages at a steady rate, made on executors: the load of `rate` without a driver in its way.

Owns which numbers are due; the worker that reads them makes the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tupletree.clock import Clock
from tupletree.errors import EndOfInput
from tupletree.sources.rate import Paced
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


class RateSplits(Paced[T], SplitSpout[T]):
    """See `rate_splits`."""

    _name = "rate_splits"

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
