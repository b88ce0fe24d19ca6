"""Keyed state in the hands of one task: a committed version, and what this run changed on top of it."""

from __future__ import annotations

import copy
import datetime as dt
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

_IMMUTABLE = (
    bool, int, float, complex, str, bytes, type(None), decimal.Decimal, uuid.UUID,
    dt.datetime, dt.date, dt.time, dt.timedelta,
)  # fmt: skip


def is_immutable(value: object) -> bool:
    """Whether a value cannot be changed in place, so that handing it out is safe without a copy."""
    return isinstance(value, _IMMUTABLE)


class ValueCell(Generic[V]):
    """One value per key (see `KeyedState`), for the key in hand.

    Dispatch puts `key` and `value` in hand before each tuple and takes the value back after it: a plain attribute
    costs user code a fraction of a property. Reads fall through to the committed version, which is never written:
    a run that is thrown away leaves no trace.
    A value that could be changed in place is copied on its first read and counts as changed from then on.

    Args:
        committed: key → value, the version this run starts from.
        default: makes the value of a key that was never set. It is user code: called only with a tuple in hand, and to
            know the values that need not be stored.
        look_up: where to look for keys that are not in `committed`: it gives the values of those that have one, for
            keeps. None looks nowhere.

    Attributes:
        key, value: of the tuple in hand; there is no value before the first tuple.
        changed: key → value, what this run changed so far.
        handed_out: keys whose stored value was handed out and could be changed in place: maybe it was not.
    """

    __slots__ = ("_committed", "_default", "_look_up", "_looked_for", "changed", "handed_out", "key", "value")

    def __init__(
        self,
        committed: Mapping[Any, V],
        default: Callable[[], V],
        look_up: Callable[[list[Any]], Mapping[Any, V]] | None = None,
    ) -> None:
        self.key: Any = None
        self.value: V
        self.changed: dict[Any, V] = {}
        self.handed_out: list[Any] = []
        self._committed: dict[Any, V] | Mapping[Any, V] = committed if look_up is None else dict(committed)
        self._default = default
        self._look_up = look_up
        self._looked_for: set[Any] = set()

    def prepare(self, keys: list[Any], time_s: float) -> None:  # noqa: ARG002 - nothing expires here
        """Make ready for tuples with these keys: those not seen yet are looked up together."""
        if self._look_up is None:
            return
        unknown = set(keys) - self._looked_for
        if unknown:
            self._looked_for |= unknown
            assert isinstance(self._committed, dict)
            self._committed.update(self._look_up(list(unknown)))

    def load(self, key: Any) -> V:
        """The value of a key that is not in `changed`."""
        is_stored = key in self._committed
        value = self._committed[key] if is_stored else self._default()
        if not is_immutable(value):
            if is_stored:
                self.handed_out.append(key)
            # What was looked up is ours; a default may be an object that others hold.
            value = self.changed[key] = value if is_stored and self._look_up is not None else copy.deepcopy(value)
        return value

    def clear(self) -> None:
        """Forget the key in hand: its value is the default again."""
        value = self._default()
        self.value = value if is_immutable(value) else copy.deepcopy(value)

    def delta(self) -> dict[Any, Any]:
        """What to store of this run: `changed`, where a value that is back at the default is `CLEARED`."""
        if not self.changed:
            return {}
        default = self._default()
        if not is_immutable(default) and (type(default) not in (list, dict, set) or default):
            return dict(self.changed)
        committed = self._committed
        stored: dict[Any, Any] = {}
        for key, value in self.changed.items():
            # What equals the default but shows otherwise (-0.0, Decimal("0.00")) is not the default.
            if type(value) is not type(default) or value != default or repr(value) != repr(default):
                stored[key] = value
            elif key in committed:
                stored[key] = CLEARED
        return stored
