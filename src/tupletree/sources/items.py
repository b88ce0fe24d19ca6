"""Messages from memory: a fixed list of values, for tests, demonstrations and small jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from tupletree.errors import ConfigError, EndOfInput
from tupletree.ids import MessageId
from tupletree.topology.components import Emit, Spout, TaskContext

T = TypeVar("T")

_BATCH = 1000


class Items(Spout[T], Generic[T]):
    """Emit the given values, in order, then end. With several tasks each emits its own share.

    The values are read at once and kept. For an endless stream write a `Spout`, or use `rate`.

    Args:
        values: the messages, all of one class.
        message_type: their class; needed only if there are none.
        ids: one message id per value, none twice; by default 0, 1, 2, …

    Raises:
        ConfigError: values of several classes, none and no class, or ids that do not fit.
    """

    def __init__(
        self, values: Iterable[T], *, message_type: type[T] | None = None, ids: Iterable[MessageId] | None = None
    ) -> None:
        self.values = tuple(values)
        self.ids: Sequence[MessageId] = range(len(self.values)) if ids is None else tuple(ids)
        self.message_type = message_type or _common_type(self.values)
        if len(self.ids) != len(self.values):
            raise ConfigError(
                "every value needs one id",
                where="items",
                got=f"{len(self.ids)} ids for {len(self.values)} values",
            )
        if ids is not None and len({repr(message_id) for message_id in self.ids}) != len(self.ids):
            raise ConfigError("message ids must differ", where="items", expected="every id once")

    def open(self, context: TaskContext) -> None:
        """Take this task's share."""
        self._positions = range(context.task_index, len(self.values), context.parallelism)
        self._taken = 0

    def next(self) -> Sequence[Emit[T]]:
        if self._taken == len(self._positions):
            raise EndOfInput
        batch = self._positions[self._taken : self._taken + _BATCH]
        self._taken += len(batch)
        return [Emit(self.values[position], self.ids[position]) for position in batch]

    def snapshot(self) -> int:
        """How many values this task returned."""
        return self._taken

    def restore(self, position: int) -> None:
        """Skip what was returned before."""
        self._taken = min(position, len(self._positions))


items = Items


def _common_type(values: Sequence[T]) -> type[T]:
    classes = set(map(type, values))
    if len(classes) == 1:
        return classes.pop()
    raise ConfigError(
        "cannot tell the class of the messages",
        where="items",
        got=", ".join(sorted(cls.__qualname__ for cls in classes)) or "no values",
        expected="values of one class, or message_type=",
    )
