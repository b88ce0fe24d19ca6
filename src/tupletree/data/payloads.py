"""Payloads: any value as plain data (None, bool, int, float, str, lists, dicts), and back exactly.

Owns the tagged form that dead letters, logs and the untyped corners of frames use. What JSON can represent is itself;
the rest is a dict with one key that begins with `$` (`{"$bytes": "aGk="}`), and a message inside another value names
its class (`{"$type": "User", "name": "Ann"}`). It refuses to check declared types and to import classes by name:
reading needs the class, whose fields say which other classes may occur.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import reprlib
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from tupletree.errors import ProcessingError
from tupletree.texts import is_encodable
from tupletree.topology import hints
from tupletree.topology.streams import Schema, is_message_class

MAX_DEPTH = 64
INT64_MIN, UINT64_MAX = -(2**63), 2**64 - 1
FOLD = "[fold=1]"

Registry = Mapping[str, type]
"""Class name → message or enum class: what `$type` and `$enum` may name."""


def to_jsonable(value: Any) -> Any:
    """A message (or any value) as JSON-compatible data; never fails.

    Exact for what may travel in a stream, and for what should not have but did (lone surrogates, huge integers). What
    has no plain form, or is nested deeper than 64 levels, becomes `{"$repr": …}`, shortened, which cannot be read back.

    >>> to_jsonable({"at": b"hi", "rate": float("nan")})
    {'at': {'$bytes': 'aGk='}, 'rate': {'$float': 'nan'}}
    """
    if is_message_class(type(value)):
        return {name: lower(field, json=True) for name, field in fields_of(value)}
    return lower(value, json=True)


def from_jsonable(data: Any, cls: type, *, may_have_more: bool = False) -> Any:
    """The message that `to_jsonable` made `data` of.

    Fields that are missing take their defaults, so that payloads outlive a new field.

    Args:
        data: JSON-compatible data.
        cls: the message class.
        may_have_more: leave out fields that the class does not have any more, instead of refusing them.

    Raises:
        ProcessingError: `data` does not make a `cls`; says where.
    """
    if not isinstance(data, dict):
        raise ProcessingError(
            f"this payload is no {cls.__qualname__}", got=shown(data), expected="an object with its fields"
        )
    schema = Schema.of(cls)
    try:
        value = lift({"$type": cls.__qualname__, **data}, registry_of(cls), may_have_more=may_have_more)
        schema.check(value)
    except Exception as error:
        raise ProcessingError(
            f"this payload is no {cls.__qualname__}",
            got=f"{type(error).__name__}: {error}",
            expected=", ".join(f"{name}: {hints.text_of(kind)}" for name, kind in schema.fields.items()),
            next_step="was the class changed since the payload was written?",
        ) from error
    return value


def lower(value: Any, *, json: bool, depth: int = MAX_DEPTH) -> Any:
    """Any value as plain data.

    Args:
        value: what to lower.
        json: True for JSON's limits (no bytes, NaN or lone surrogates), and then nothing is refused. False for
            msgpack's (bytes and NaN are plain).
        depth: levels that may follow.

    Raises:
        TypeError: `json` is False and the value has no plain form, or is nested too deeply.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if not json or is_encodable(value) else {"$str": value.encode("unicode_escape").decode("ascii")}
    if kind is int:
        return value if INT64_MIN <= value <= UINT64_MAX else {"$int": hex(value)}
    if kind is float:
        return value if not json or math.isfinite(value) else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode("ascii")} if json else value
    if depth:
        if write := WRITERS.get(kind):
            return write(value, json, depth - 1)
        if is_message_class(kind):
            fields = {name: lower(field, json=json, depth=depth - 1) for name, field in fields_of(value)}
            return {"$type": kind.__qualname__, **fields}
        if isinstance(value, enum.Flag):
            return {"$flag": [kind.__qualname__, value.value]}
        if isinstance(value, enum.Enum):
            return {"$enum": f"{kind.__qualname__}.{value.name}"}
        # A subclass of a known type is written as that type: what was declared is what arrives.
        for base, plain in PLAIN.items():
            if isinstance(value, base):
                return lower(plain(value), json=json, depth=depth)
    if json:
        return {"$repr": shown(value)}
    raise TypeError(f"{hints.text_of(kind)} {shown(value)} cannot travel" + ("" if depth else ": nested too deeply"))


def shown(value: object) -> str:
    """A value as short text for people, also if its `repr` fails."""
    try:
        return reprlib.repr(value)
    except Exception as error:  # noqa: BLE001 - user code; and an int of 4,300 digits refuses to be shown
        return f"<{type(value).__qualname__}: its repr raised {type(error).__name__}>"


def lift(data: Any, registry: Registry, *, may_have_more: bool = False) -> Any:
    """The value that `lower` made `data` of.

    Args:
        data: plain data.
        registry: the classes that it may name.
        may_have_more: leave out fields that a class does not have.

    Raises:
        ValueError: an unknown tag, a class that the registry does not know, or fields that its constructor refuses.
    """
    if may_have_more:
        data = _without_unknown(data, registry)
    if isinstance(data, list):
        return [lift(item, registry) for item in data]
    if not isinstance(data, dict):
        return data
    tag = next(iter(data), "")
    if not isinstance(tag, str) or not tag.startswith("$"):
        return {key: lift(item, registry) for key, item in data.items()}
    if tag == "$type":
        return _lift_message(data, registry)
    content = data[tag]
    if tag == "$enum":
        name, _, member = content.rpartition(".")
        return _known(name, registry)[member]  # type: ignore[index]  # an Enum class, by what `lower` wrote
    if tag == "$flag":
        return _known(content[0], registry)(content[1])
    if (reader := READERS.get(tag)) is None:
        raise ValueError(f"{tag} cannot be read back: {shown(content)}")
    return reader(lift(content, registry) if isinstance(content, list) else content)


def registry_of(annotation: Any) -> dict[str, type]:
    """Every message and enum class that a value of this type may hold, by qualified name.

    Raises:
        TypeError: two classes of one name; neither could be told from the other.
    """
    found: dict[str, type] = {}
    pending = [annotation]
    while pending:
        for cls in hints.classes_in(pending.pop()):
            known = found.get(cls.__qualname__)
            if known is not None and known is not cls:
                raise TypeError(f"{hints.text_of(known)} and {hints.text_of(cls)} have one name; rename one of them")
            if known is None and is_message_class(cls):
                found[cls.__qualname__] = cls
                pending += Schema.of(cls).fields.values()
            elif issubclass(cls, enum.Enum):
                found[cls.__qualname__] = cls
    return found


def _lift_message(data: dict[str, Any], registry: Registry) -> Any:
    cls = _known(data["$type"], registry)
    return cls(**{name: lift(field, registry) for name, field in data.items() if name != "$type"})


def _without_unknown(data: Any, registry: Registry) -> Any:
    """Plain data without the fields that their classes do not have."""
    if isinstance(data, list):
        return [_without_unknown(item, registry) for item in data]
    if not isinstance(data, dict):
        return data
    cls = registry.get(data["$type"]) if "$type" in data and isinstance(data["$type"], str) else None
    fields = None if cls is None else {"$type", *Schema.of(cls).fields}
    return {key: _without_unknown(item, registry) for key, item in data.items() if fields is None or key in fields}


def _known(name: str, registry: Registry) -> type:
    if name not in registry:
        raise ValueError(f"class {name} is not among {', '.join(sorted(registry)) or 'the declared types'}")
    return registry[name]


def fields_of(message: Any) -> list[tuple[str, Any]]:
    """Names and values of a message's fields, in order."""
    if isinstance(message, msgspec.Struct):
        names: tuple[str, ...] = message.__struct_fields__
    elif isinstance(message, tuple):
        names = message._fields  # type: ignore[attr-defined]  # a NamedTuple
    else:
        names = tuple(entry.name for entry in dataclasses.fields(message))
    return [(name, getattr(message, name)) for name in names]


def datetime_text(moment: datetime | time) -> str:
    """A date and time, or time, as RFC 9557 text: offset, and the zone's name in brackets if it has one.

    Exact, unlike a number of microseconds: a naive value stays naive, and a zone stays that zone.

    Raises:
        TypeError: the zone has no name that another process could look up.

    >>> datetime_text(datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")))
    '2026-07-01T12:00:00+02:00[Europe/Berlin]'
    """
    zone = moment.tzinfo
    text = moment.isoformat()
    if isinstance(zone, ZoneInfo) and zone.key:
        text += f"[{zone.key}]"
    elif zone is not None and type(zone) is not timezone:
        raise TypeError(f"tzinfo {shown(zone)} has no portable name; use zoneinfo.ZoneInfo or datetime.timezone")
    return text + FOLD if moment.fold else text


def text_datetime(text: str, cls: type[datetime | time] = datetime) -> Any:
    """What `datetime_text` wrote. Raises ValueError for anything else."""
    if not text.endswith("]"):
        return cls.fromisoformat(text)
    fold = text.endswith(FOLD)
    text, _, zone = text.removesuffix(FOLD).partition("[")
    moment = cls.fromisoformat(text)
    return moment.replace(fold=int(fold), tzinfo=ZoneInfo(zone.removesuffix("]")) if zone else moment.tzinfo)


def _items(value: Any, json: bool, depth: int) -> list[Any]:
    return [lower(item, json=json, depth=depth) for item in value]


def _write_dict(value: dict[Any, Any], json: bool, depth: int) -> dict[str, Any]:
    """Itself where the keys allow that; pairs where a key is no text, or could be taken for a tag."""
    if all(type(key) is str and not key.startswith("$") and (not json or is_encodable(key)) for key in value):
        return {key: lower(item, json=json, depth=depth) for key, item in value.items()}
    return {"$dict": [_items(pair, json, depth) for pair in value.items()]}


PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int,
    float: float,
    bytes: bytes,
    bytearray: bytes,
    memoryview: bytes,
    dict: dict,
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}

Writer = Callable[[Any, bool, int], Any]

WRITERS: dict[type, Writer] = {
    list: _items,
    dict: _write_dict,
    tuple: lambda value, json, depth: {"$tuple": _items(value, json, depth)},
    set: lambda value, json, depth: {"$set": _items(value, json, depth)},
    frozenset: lambda value, json, depth: {"$frozenset": _items(value, json, depth)},
    datetime: lambda value, json, _: _moment("$datetime", value, json),
    time: lambda value, json, _: _moment("$time", value, json),
    date: lambda value, _json, _depth: {"$date": value.isoformat()},
    timedelta: lambda value, _json, _depth: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value, _json, _depth: {"$decimal": str(value)},
    UUID: lambda value, _json, _depth: {"$uuid": str(value)},
}


def _moment(tag: str, value: datetime | time, json: bool) -> dict[str, str]:
    try:
        return {tag: datetime_text(value)}
    except TypeError:
        if not json:
            raise
        return {"$repr": shown(value)}


READERS: dict[str, Callable[[Any], Any]] = {
    "$str": lambda text: text.encode("ascii").decode("unicode_escape"),
    "$int": lambda text: int(text, 16),
    "$float": float,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": dict,
    "$datetime": text_datetime,
    "$time": lambda text: text_datetime(text, time),
    "$date": date.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
    "$decimal": Decimal,
    "$uuid": UUID,
}
