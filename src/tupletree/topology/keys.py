"""Canonical keys: equal values of a field become one key, in every process and run.

Owns the coercion of a key field's value to its declared type. It refuses to hash: that is routing's work.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, TypeAlias, get_args, get_origin

from tupletree.topology.hints import NONE_TYPE, members, plain, text_of

Coerce: TypeAlias = Callable[[Any], Any]
"""Value → canonical value. Raises TypeError or ValueError if the value does not belong to the declared type."""

NAN = math.nan
"""The one NaN that keys hold: as one object it equals itself inside tuples and finds itself in dicts."""

DECIMAL_NAN = decimal.Decimal("NaN")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NUMBERS = (int, float, decimal.Decimal)
"""Types whose values are equal in Python if they are the same number."""


def key_function(fields: tuple[str, ...], coercions: tuple[Coerce, ...], cls_name: str) -> Callable[[Any], Any]:
    """Value → canonical key: the field's value, or a tuple of several.

    Args:
        fields: names of the key fields, at least one.
        coercions: one per field, from `coercion_of`.
        cls_name: for error texts.
    """
    if len(fields) == 1:
        return _single(fields[0], coercions[0], cls_name)
    get = attrgetter(*fields)
    checked = [_named(coerce, name, cls_name) for name, coerce in zip(fields, coercions, strict=True)]
    texts = (str,) * len(fields) if set(coercions) == {coerce_text} else ()

    def key_of(value: Any) -> tuple[Any, ...]:
        key: tuple[Any, ...] = get(value)
        if tuple(map(type, key)) == texts:
            return key
        return tuple([coerce(part) for coerce, part in zip(checked, key)])

    return key_of


def _single(name: str, coerce: Coerce, cls_name: str) -> Callable[[Any], Any]:
    get = attrgetter(name)
    checked = _named(coerce, name, cls_name)
    if coerce is not coerce_text:
        return lambda value: checked(get(value))

    # Text is the commonest key and never changes, so an exact str (nearly every key) costs one comparison.
    def key_of_text(value: Any) -> Any:
        key = get(value)
        return key if key.__class__ is str else checked(key)

    return key_of_text


def _named(coerce: Coerce, name: str, cls_name: str) -> Coerce:
    """The coercion, with None passed through and with errors that name the field."""

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return coerce(value)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise TypeError(f"key field {cls_name}.{name}: {error}") from error

    return checked


def _refuse(value: Any, expected: str) -> TypeError:
    shown = repr(value)
    return TypeError(f"got {type(value).__name__} {shown[:60]}, expected {expected}")


def coerce_text(value: Any) -> str:
    """Text as it is, never normalised; a subclass (StrEnum) becomes plain text."""
    if isinstance(value, str):
        return str.__str__(value)
    raise _refuse(value, "str")


def coerce_int(value: Any) -> int:
    """A signed 64-bit integer; bool and IntEnum become int."""
    if not isinstance(value, int):
        raise _refuse(value, "int")
    if not INT64_MIN <= value <= INT64_MAX:
        raise _refuse(value, "an int of at most 64 bits (signed)")
    return int(value)


def coerce_float(value: Any) -> float:
    """A float; int becomes float, NaN becomes `NAN`, -0.0 becomes 0.0."""
    if not isinstance(value, float | int):
        raise _refuse(value, "float")
    number = float(value)
    return NAN if number != number else number + 0.0  # noqa: PLR0124 - only NaN differs from itself


def coerce_bool(value: Any) -> bool:
    """True or False, nothing that is merely truthy."""
    if isinstance(value, bool):
        return value
    raise _refuse(value, "bool")


def coerce_bytes(value: Any) -> bytes:
    """Bytes; bytearray and memoryview are copied, so that the key cannot change."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _refuse(value, "bytes")


def coerce_decimal(value: Any) -> decimal.Decimal:
    """A Decimal without trailing zeros (1.0 equals 1.00), at any precision of the context; one NaN, no -0."""
    if isinstance(value, int):
        value = decimal.Decimal(value)
    if not isinstance(value, decimal.Decimal):
        raise _refuse(value, "Decimal")
    if value.is_nan():
        return DECIMAL_NAN
    if value.is_zero():
        return decimal.Decimal(0)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return decimal.Decimal(value)  # an infinity
    end = len(digits)
    while digits[end - 1] == 0:
        end -= 1
    return decimal.Decimal((sign, digits[:end], exponent + len(digits) - end))


def coerce_datetime(value: Any) -> dt.datetime:
    """A datetime; an aware one in UTC, so that equal instants are equal keys. A naive one stays naive.

    An instant that UTC has no date for, because it is in year 0 or 10000 there, keeps its offset.
    """
    if not isinstance(value, dt.datetime):
        raise _refuse(value, "datetime")
    if value.tzinfo is not None:
        try:
            value = value.astimezone(dt.UTC)
        except OverflowError:
            offset = value.utcoffset()
            assert offset is not None, "an aware one has an offset"
            value = value.replace(tzinfo=dt.timezone(offset), fold=0)
    return dt.datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo
    )


def coerce_date(value: Any) -> dt.date:
    """A date; a datetime is refused, for it would lose its time."""
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    raise _refuse(value, "date")


def _exactly(cls: type) -> Coerce:
    def coerce(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        raise _refuse(value, cls.__name__)

    return coerce


def _enum(cls: type[enum.Enum]) -> Coerce:
    def coerce(value: Any) -> enum.Enum:
        try:
            return cls(value)
        except ValueError:
            raise _refuse(value, f"a member of {cls.__name__}") from None

    return coerce


BY_TYPE: dict[type, Coerce] = {
    str: coerce_text,
    int: coerce_int,
    float: coerce_float,
    bool: coerce_bool,
    bytes: coerce_bytes,
    decimal.Decimal: coerce_decimal,
    dt.datetime: coerce_datetime,
    dt.date: coerce_date,
    dt.time: _exactly(dt.time),
    dt.timedelta: _exactly(dt.timedelta),
    uuid.UUID: _exactly(uuid.UUID),
}


def coercion_of(annotation: Any) -> Coerce | None:
    """The coercion to a declared type; None if values of that type cannot be keys (lists, dicts, messages).

    In a union a value keeps its own type if that is a member, else the first member that takes it wins. Values of
    several members that are equal in Python (1, 1.0 and True) are one key, for keys are looked up in dictionaries.
    """
    kinds = tuple(kind for kind in members(annotation) if kind is not NONE_TYPE)
    if get_origin(plain(annotation)) is Literal:
        kinds = tuple(dict.fromkeys(type(choice) for choice in get_args(plain(annotation)) if choice is not None))
    coercions = {kind: coercion for kind in kinds if (coercion := _of_one(kind)) is not None}
    if not kinds or len(coercions) < len(kinds):
        return None
    if len(coercions) == 1:
        return coercions[kinds[0]]
    return _any_of(coercions, text_of(annotation), _unifier(list(coercions)))


def _unifier(kinds: list[type]) -> Coerce | None:
    """What makes one key of equal ones of several types; None if no two of these types have equal values."""
    if sum(issubclass(kind, NUMBERS) for kind in kinds) > 1:
        return _one_number
    if sum(issubclass(kind, str) for kind in kinds) > 1:
        return _one_text
    return None


def _one_number(key: Any) -> Any:
    if not isinstance(key, NUMBERS):
        return _one_text(key)
    if key != key:  # noqa: PLR0124 - only NaN differs from itself
        return key
    if INT64_MIN <= key <= INT64_MAX and key == int(key):
        return int(key)
    nearest = float(key)
    return nearest if nearest == key else key  # a Decimal that no float holds


def _one_text(key: Any) -> Any:
    return str.__str__(key) if isinstance(key, str) else key


def _of_one(kind: Any) -> Coerce | None:
    if kind in BY_TYPE:
        return BY_TYPE[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    return None


def _any_of(coercions: dict[type, Coerce], expected: str, unify: Coerce | None) -> Coerce:
    def coerce(value: Any) -> Any:
        own = coercions.get(type(value))
        if own is not None:
            return own(value)
        for other in coercions.values():
            try:
                return other(value)
            except (TypeError, ValueError, ArithmeticError):
                continue
        raise _refuse(value, expected)

    return coerce if unify is None else lambda value: unify(coerce(value))
