"""Keyed state of one task: a committed version, and what this run changed on top of it."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import decimal
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from tupletree.topology.model import StateSpec

V = TypeVar("V")


class _MarkerRecord:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


TIDY_FROM: Final = 1024
"""With fewer changes than this, `_tidy` does not look for values that are back at the default."""

CLEARED: Final = _MarkerRecord("<cleared>")
_NOTHING: Final = _MarkerRecord("<nothing>")

_IMMUTABLE = (
    bool, int, float, complex, str, bytes, type(None), decimal.Decimal, uuid.UUID,
    dt.datetime, dt.date, dt.time, dt.timedelta,
)  # fmt: skip


def is_immutable(value: object) -> bool:
    """Whether a value cannot be changed in place, so that giving it out is safe without a copy."""
    return isinstance(value, _IMMUTABLE)


class ValueCell(Generic[V]):
    """One value per key (see `KeyedState`), for the key in hand.

    The task sets `key` and `value` before each tuple and reads the value back after it: a plain attribute is much
    cheaper for user code than a property. Reads fall through to the committed version, which is never written: a run
    that is thrown away leaves no trace.
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
        check: raises for a (key, value) that could not be stored; None where that is found out later.
        handed_out: keys whose stored value was given out and could have been changed in place.
    """

    __slots__ = (
        "_committed",
        "_default",
        "_look_up",
        "_looked_for",
        "_tidy_at",
        "changed",
        "check",
        "handed_out",
        "key",
        "value",
    )

    def __init__(
        self,
        committed: Mapping[Any, V],
        default: Callable[[], V],
        look_up: Callable[[list[Any]], Mapping[Any, V]] | None = None,
    ) -> None:
        self.key: Any = None
        self.value: V
        self.changed: dict[Any, V] = {}
        self.check: Callable[[Any, Any], None] | None = None
        self.handed_out: list[Any] = []
        self._committed: dict[Any, V] | Mapping[Any, V] = committed if look_up is None else dict(committed)
        self._default = default
        self._look_up = look_up
        self._looked_for: set[Any] = set()
        self._tidy_at = TIDY_FROM

    def prepare(self, keys: list[Any], time_s: float) -> None:  # noqa: ARG002 - nothing expires here
        """Make ready for tuples with these keys: those not seen yet are looked up together."""
        if self._look_up is None:
            if len(self.changed) >= self._tidy_at:
                self._tidy()
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

    def touch(self) -> None:
        """The value in hand was changed in place."""

    def adopt(self, key: Any, value: V, expires_s: float) -> None:  # noqa: ARG002 - nothing expires here
        """Restore a value that outlived its run, before any tuple is in hand; the first to expire first."""
        self.changed[key] = value

    def savepoint(self) -> Callable[[], None]:
        """See `StateCell`."""
        key, value = self.key, self.value
        if is_immutable(value):

            def undo() -> None:
                self.value = value

            return undo
        kept = _copied(value)

        def restore() -> None:
            self.value = self.changed[key] = _copied(kept)

        return restore

    def commit(self) -> dict[Any, tuple[Any, float | None]]:
        """Make what changed a part of the committed version, where that is this memory (there is no `look_up`).

        The values are not changed any more: a caller that changes one in place gets a copy.

        Returns:
            key → (value, or CLEARED if it need not be stored any more; when it expires, or None), of what changed.
        """
        try:
            delta = self.delta()
        except Exception:  # noqa: BLE001 - a default that raises fails the tuples that need it, not this
            delta = dict(self.changed)
        expires_s = self._expiry()
        committed = self._committed
        assert isinstance(committed, dict)
        for key, value in delta.items():
            if value is CLEARED:
                del committed[key]
            else:
                committed[key] = value
        self.changed.clear()
        self.handed_out.clear()
        return {key: (value, expires_s.get(key)) for key, value in delta.items()}

    def _forget(self, key: Any) -> None:
        """Remove a key from the committed version, which is this memory."""
        assert isinstance(self._committed, dict)
        del self._committed[key]

    def _expiry(self) -> Mapping[Any, float]:
        """Key → when its value expires."""
        return {}

    def _tidy(self) -> None:
        """Drop values that are back at the default, where this memory is all there is and no delta is taken.

        It looks at all of them whenever there are twice as many as it left: a constant cost per change.
        """
        with contextlib.suppress(Exception):  # a default that raises fails the tuples that need it, not this
            kept = self.delta()
            for key in [one for one in self.changed if one not in kept]:
                del self.changed[key]
        self._tidy_at = max(TIDY_FROM, 2 * len(self.changed))

    def clear(self) -> None:
        """Remove the key in hand: its value is the default again."""
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
            if not equals_exactly(value, default):
                stored[key] = value
            elif key in committed:
                stored[key] = CLEARED
        return stored


def _copied(value: Any) -> Any:
    """A deep copy; cheap for the containers that state mostly is."""
    items = value.values() if type(value) is dict else value if type(value) in (list, set) else None
    if items is not None and all(map(is_immutable, items)):  # a dict's keys are hashable, so nothing changes in them
        return copy.copy(value)
    return copy.deepcopy(value)


def equals_exactly(value: object, default: object) -> bool:
    """Whether a value can be stored as the default; what is equal but has another `repr` (-0.0) cannot."""
    return type(value) is type(default) and value == default and repr(value) == repr(default)


class ExpiringCell(ValueCell[V]):
    """A value per key that expires some time after it last changed.

    A value counts as changed when another one takes its place. One that could be changed in place counts as changed
    whenever it is given out, unless changes are declared by `touch`.

    Args:
        committed: as for `ValueCell`; holds nothing that has expired.
        default: as for `ValueCell`.
        look_up: as for `ValueCell`; finds nothing that has expired.
        ttl_s: how long a value lasts.
        is_told: changes in place are declared by `touch`.

    Attributes:
        renewed: key → when it expires now, of those that changed; the first to expire first.
    """

    __slots__ = ("_is_told", "_now_s", "_ttl_s", "renewed")

    def __init__(
        self,
        committed: Mapping[Any, V],
        default: Callable[[], V],
        look_up: Callable[[list[Any]], Mapping[Any, V]] | None = None,
        *,
        ttl_s: float,
        is_told: bool = False,
    ) -> None:
        super().__init__(committed, default, look_up)
        self.changed = _Renewing(self)
        self.renewed: dict[Any, float] = {}
        self._ttl_s = ttl_s
        self._is_told = is_told
        self._now_s = 0.0

    def prepare(self, keys: list[Any], time_s: float) -> None:
        """See `ValueCell.prepare`; what expired by this time is gone."""
        super().prepare(keys, time_s)
        self._now_s = time_s
        for key in [key for key, _ in self._first_expired()]:
            del self.renewed[key]
            self.changed.pop(key, None)
            if self._look_up is None and key in self._committed:  # this memory is all there is
                self._forget(key)
        if not self._is_told:
            for key in keys:
                if key in self.changed and not is_immutable(self.changed[key]):
                    self._renew(key)

    def _first_expired(self) -> Iterator[tuple[Any, float]]:
        """They are in the order in which they expire."""
        return itertools.takewhile(lambda entry: entry[1] <= self._now_s, self.renewed.items())

    def touch(self) -> None:
        self._renew(self.key)

    def adopt(self, key: Any, value: V, expires_s: float) -> None:
        super().adopt(key, value, expires_s)
        self.renewed[key] = expires_s

    def savepoint(self) -> Callable[[], None]:
        """See `StateCell`: when the value expires is restored, too."""
        key, expires_s, restore_value = self.key, self.renewed.get(self.key), super().savepoint()

        def restore() -> None:
            restore_value()
            if expires_s is None:
                self.renewed.pop(key, None)
            else:
                self.renewed[key] = expires_s

        return restore

    def note(self, key: Any, before: object, value: object) -> None:
        """A value takes the place of another in `changed`, or is put there first."""
        if self._is_told:
            is_change = before is not _NOTHING and not equals_exactly(value, before)
        elif is_immutable(value):
            is_change = not equals_exactly(value, self._committed.get(key, _NOTHING) if before is _NOTHING else before)
        else:
            is_change = True
        if is_change:
            self._renew(key)

    def delta(self) -> dict[Any, Any]:
        """See `ValueCell.delta`: of what changed."""
        return {key: value for key, value in super().delta().items() if key in self.renewed}

    def _expiry(self) -> Mapping[Any, float]:
        return self.renewed

    def _renew(self, key: Any) -> None:
        self.renewed.pop(key, None)
        self.renewed[key] = self._now_s + self._ttl_s


class _Renewing(dict[Any, Any]):
    """Reports to its cell what is put into it."""

    def __init__(self, cell: ExpiringCell[Any]) -> None:
        super().__init__()
        self._cell = cell

    def __setitem__(self, key: Any, value: Any) -> None:
        self._cell.note(key, self.get(key, _NOTHING), value)
        super().__setitem__(key, value)


def cell_of(spec: StateSpec, look_up: Callable[[list[Any]], Mapping[Any, Any]] | None = None) -> ValueCell[Any]:
    """The cell for a bolt's state: with `look_up` on top of what is stored, else with a memory of its own."""
    if spec.ttl_s is None:
        return ValueCell({}, spec.default, look_up)
    return ExpiringCell({}, spec.default, look_up, ttl_s=spec.ttl_s, is_told=spec.kind in {"map", "list"})
