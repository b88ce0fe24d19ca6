"""Payloads as bytes: JSON, in which every value that may travel comes back unchanged.

Owns the form in which messages of pipelines are published, and the hash of a payload that lineage keeps. What JSON
cannot represent (NaN, bytes, text without a UTF-8 form, dates, decimals, tuples, sets, keys that are no text) is
written as in `data/payloads`: an object whose one key begins with `$`. What would come back as something else is
refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import xxhash

from tupletree.data.payloads import MAX_DEPTH, READERS, datetime_text, lower, shown
from tupletree.errors import PermanentError
from tupletree.topology.streams import is_message_class

__all__ = ["MAX_DEPTH", "PayloadError", "canonical_hash", "decode", "encode"]

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode

_PLAIN_TYPES = frozenset({str, int, bool, type(None)})
_FLOATS = frozenset({float})
_OF_LISTS = frozenset({"$tuple", "$set", "$frozenset", "$dict", "$timedelta"})


class PayloadError(PermanentError):
    """A payload cannot be published, or the body of a message is no payload; a retry gives the same."""


def encode(payload: Any) -> bytes:
    """A payload as JSON.

    Raises:
        PayloadError: it holds something that would not come back unchanged, or is nested deeper than 64 levels.

    >>> encode({"name": "Ann", "rate": float("nan"), "photo": b"hi"})
    b'{"name":"Ann","rate":{"$float":"nan"},"photo":{"$bytes":"aGk="}}'
    """
    if _is_plain(payload, MAX_DEPTH):
        try:
            return _encode(payload)
        except ValueError:
            pass  # text with half of a surrogate pair, or an integer that Python does not write
    _check(payload, "payload", MAX_DEPTH)
    return _encode(lower(payload, json=True))


def decode(body: bytes) -> Any:
    """The payload that `encode` made `body` of. Other JSON is read, too, also NaN and Infinity as Python writes them.

    Raises:
        PayloadError: it is no JSON, or is nested too deeply.

    >>> decode(b'{"rate":{"$float":"nan"},"size":123456789012345678901234567890}')
    {'rate': nan, 'size': 123456789012345678901234567890}
    """
    try:
        value = _decoded(body)
        if b'"$' in body:
            value = _restored(value)
    except RecursionError as error:
        raise _too_deep("the body of this message") from error
    except ValueError as error:
        raise PayloadError(
            "the body of this message is no JSON",
            got=f"{shown(body)} ({error})",
            expected="JSON, such as tupletree.routes.payloads.encode makes",
        ) from error
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise _too_deep("the body of this message")
    return value


def canonical_hash(payload: Any) -> str:
    """The 64-bit hash XXH3 of a payload's JSON with sorted keys, as 16 hex digits; empty if it has no such form.

    Equal payloads have equal hashes; 1, 1.0 and true are three.

    >>> canonical_hash({"a": 1, "b": [2]}) == canonical_hash({"b": [2], "a": 1})
    True
    """
    if _is_plain(payload, MAX_DEPTH):
        try:
            return xxhash.xxh3_64_hexdigest(_encode_sorted(payload))
        except ValueError:
            pass
    try:
        _check(payload, "payload", MAX_DEPTH)
    except PayloadError:
        return ""
    return xxhash.xxh3_64_hexdigest(_encode_sorted(_ordered(lower(payload, json=True))))


def _decoded(body: bytes) -> Any:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(body)  # it also reads NaN, and halves of surrogate pairs


def _is_plain(value: Any, depth: int) -> bool:
    """Whether msgspec writes a value so that it comes back, unless it raises. Hot: once or twice for each message."""
    kind = type(value)
    if kind is dict:
        if not depth:
            return False
        for key, item in value.items():
            if type(key) is not str or key.startswith("$"):
                return False
            if type(item) not in _PLAIN_TYPES and not _is_plain(item, depth - 1):
                return False
        return True
    if kind is list:
        kinds = set(map(type, value))
        if kinds <= _PLAIN_TYPES:
            return depth > 0
        if kinds == _FLOATS:
            return depth > 0 and all(map(math.isfinite, value))
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    if kind is float:
        return math.isfinite(value)
    return kind in _PLAIN_TYPES


def _check(value: Any, path: str, depth: int) -> None:
    """Refuse what `lower` could not give back."""
    if isinstance(value, Enum) or is_message_class(type(value)):
        raise _untravelled(value, path)
    if isinstance(value, str | int | float | bytes | bytearray | memoryview | None):
        return
    if isinstance(value, dict | list | tuple | set | frozenset):
        if not depth:
            raise _too_deep(path)
        for name, item in _items(value):
            _check(item, f"{path}{name}", depth - 1)
        return
    if type(value) in {datetime, time}:
        try:
            datetime_text(value)
        except TypeError as error:
            raise PayloadError("this time cannot be published", where=path, got=str(error)) from error
    elif type(value) not in {date, timedelta, Decimal, UUID}:
        raise _untravelled(value, path)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((".(key)", key) for key in value if type(key) is not str)
        yield from ((f".{shown(key) if type(key) is not str else key}", item) for key, item in value.items())
    else:
        yield from ((f"[{index}]", item) for index, item in enumerate(value))


def _untravelled(value: Any, path: str) -> PayloadError:
    return PayloadError(
        f"{type(value).__qualname__} cannot be published",
        where=path,
        got=shown(value),
        expected="what JSON can represent, bytes, dates, times, decimals, UUIDs, tuples or sets",
        next_step="make plain values of it in the adapter",
    )


def _too_deep(path: str) -> PayloadError:
    return PayloadError(
        "this payload is nested too deeply",
        where=path if len(path) < 200 else f"{path[:100]}…",
        expected=f"at most {MAX_DEPTH} levels",
    )


def _restored(data: Any) -> Any:
    """What `lower` was given. An object that only looks like one of its tags is itself."""
    if isinstance(data, list):
        return [_restored(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:
        [(tag, content)] = data.items()
        reader: Callable[[Any], Any] | None = READERS.get(tag)
        if reader is not None and isinstance(content, list if tag in _OF_LISTS else str):
            try:
                return reader(_restored(content))
            except (ValueError, TypeError, ArithmeticError, LookupError):
                pass
    return {key: _restored(item) for key, item in data.items()}


def _ordered(data: Any) -> Any:
    """Lowered data, in which what has no order is sorted."""
    if isinstance(data, list):
        return [_ordered(item) for item in data]
    if not isinstance(data, dict):
        return data
    made = {key: _ordered(item) for key, item in data.items()}
    for tag in ("$dict", "$set", "$frozenset"):
        if tag in made:
            made[tag].sort(key=_encode_sorted)
    return made


def _depth(value: Any) -> int:
    level, found = [value], 0
    while True:
        level = [one for one in level if isinstance(one, dict | list | tuple | set | frozenset)]
        if not level:
            return found
        found += 1
        level = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
