"""Hashes of keys that are the same in every process and run, and the way from a key to the task that owns it.

Owns the canonical bytes of a key and its key group. It refuses to coerce: `Schema.key_of` makes a key canonical.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import xxhash

from tupletree.data.payloads import fields_of, shown
from tupletree.topology import hints
from tupletree.topology.streams import is_message_class

KEY_GROUPS = 32
"""Key groups of a component. A `fields` grouping keeps at most this many tasks busy."""

_encode = msgspec.msgpack.Encoder().encode
_hash = xxhash.xxh3_64_intdigest
_Ext = msgspec.msgpack.Ext


def stable_hash(key: Any) -> int:
    """An unsigned 64-bit hash of a canonical key (`Schema.key_of`): xxh3-64 (Collet) over `pack_key`."""
    return _hash(pack_key(key))


def key_group(key: Any, groups: int = KEY_GROUPS) -> int:
    """The key group that a canonical key and its state belong to."""
    return _hash(pack_key(key)) % groups


def task_of_group(group: int, parallelism: int, groups: int = KEY_GROUPS) -> int:
    """The index of the task that owns a key group; each task owns a run of them."""
    return group * parallelism // groups


def pack_key(key: Any) -> bytes:
    """A canonical key as msgpack: equal bytes if and only if it is one key.

    Types are told apart (1, 1.0, True, "1" and b"1" are five keys), but a list and a tuple of the same items are one.
    NaN is one key, and so are -0.0 and 0.0, equal decimals, and aware datetimes of one instant.

    Raises:
        TypeError: the value cannot be a key.
        UnicodeEncodeError: text with a lone surrogate.
        OverflowError: an integer beyond 64 bits.
    """
    kind = type(key)
    if kind in PLAIN or (kind is tuple and PLAIN.issuperset(map(type, key))):
        return _encode(key)
    return _encode(_canonical(key))


PLAIN = frozenset({str, int, bytes, bool, type(None)})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)


def _canonical(key: Any) -> Any:
    kind = type(key)
    if kind in PLAIN:
        return key
    if kind is float:
        return float("nan") if key != key else key + 0.0  # noqa: PLR0124 - only NaN differs from itself
    if kind in {tuple, list}:
        return [_canonical(item) for item in key]
    if pack := EXTENSIONS.get(kind):
        code, content = pack(key)
        return _Ext(code, _encode(content))
    if isinstance(key, enum.Flag):
        return _Ext(10, _encode(key.value))
    if isinstance(key, enum.Enum):
        return _Ext(11, _encode(key.name))
    if is_message_class(kind):
        return _Ext(12, _encode([_canonical(field) for _, field in fields_of(key)]))
    raise TypeError(f"{hints.text_of(kind)} {shown(key)} cannot be a key")


def _pack_decimal(number: Decimal) -> tuple[int, Any]:
    """Digits without trailing zeros, so that 1.0 and 1.00 are one key."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return 1, "NaN" if number.is_nan() else str(number)
    text = "".join(map(str, digits))
    stripped = text.rstrip("0")
    return 1, f"{'-' * sign}{stripped}E{exponent + len(text) - len(stripped)}" if stripped else "0"


def _pack_datetime(moment: datetime) -> tuple[int, Any]:
    """Microseconds: of the instant if aware, else of the wall clock. As in Python's equality, fold is not looked at."""
    naive = (moment.replace(tzinfo=None, fold=0) - _EPOCH) // _MICROSECOND
    offset = moment.replace(fold=0).utcoffset()
    return (2, naive) if offset is None else (3, naive - offset // _MICROSECOND)


def _pack_time(moment: time) -> tuple[int, Any]:
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    naive = seconds * 1_000_000 + moment.microsecond
    offset = moment.replace(fold=0).utcoffset()
    return (4, naive) if offset is None else (5, naive - offset // _MICROSECOND)


def _pack_set(items: Iterable[Any]) -> list[bytes]:
    return sorted(_encode(_canonical(item)) for item in items)


EXTENSIONS: dict[type, Callable[[Any], tuple[int, Any]]] = {
    Decimal: _pack_decimal,
    datetime: _pack_datetime,
    time: _pack_time,
    date: lambda day: (6, day.toordinal()),
    timedelta: lambda span: (7, [span.days, span.seconds, span.microseconds]),
    UUID: lambda key: (8, key.bytes),
    frozenset: lambda items: (9, _pack_set(items)),
    set: lambda items: (9, _pack_set(items)),
    dict: lambda items: (13, _pack_set(items.items())),
}
