"""Keyed state in the hands of one task: a committed version, and what this run changed on top of it."""

from __future__ import annotations

import copy
import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

__all__ = ["CLEARED", "ValueCell", "is_immutable"]

V = TypeVar("V")


class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


CLEARED: Final = _Mark("<cleared>")
_MISSING: Final = _Mark("<missing>")

_IMMUTABLE = (
    bool, int, float, complex, str, bytes, type(None), decimal.Decimal, uuid.UUID,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


def is_immutable(value: object) -> bool:
    """Whether a value cannot be changed in place, so that handing it out is safe without a copy."""
    return isinstance(value, _IMMUTABLE)


class ValueCell(Generic[V]):
    """One value per key (see `KeyedState`). `key` is set by dispatch before each tuple.

    Reads fall through to the committed version, which is never written: a run that is thrown away leaves no trace.
    A value that could be changed in place is copied on its first read and counts as changed from then on.

    Args:
        committed: key → value, the version this run starts from.
        default: makes the value of a key that was never set.
    """

    __slots__ = ("_committed", "_default", "changed", "key")

    def __init__(self, committed: Mapping[Any, V], default: Callable[[], V]) -> None:
        self.key: Any = None
        self.changed: dict[Any, Any] = {}
        self._committed = committed
        self._default = default

    @property
    def value(self) -> V:
        """The value of the key in hand."""
        key = self.key
        value = self.changed.get(key, _MISSING)
        if value is _MISSING:
            value = self._committed.get(key, _MISSING)
            if value is _MISSING:
                value = self._default()
                if not is_immutable(value):
                    self.changed[key] = value
            elif not is_immutable(value):
                value = self.changed[key] = copy.deepcopy(value)
        elif value is CLEARED:
            value = self._default()
            if not is_immutable(value):
                self.changed[key] = value
        return value  # type: ignore[no-any-return]  # the marks never leave this class

    @value.setter
    def value(self, value: V) -> None:
        self.changed[self.key] = value

    def clear(self) -> None:
        """Forget the key in hand."""
        self.changed[self.key] = CLEARED
