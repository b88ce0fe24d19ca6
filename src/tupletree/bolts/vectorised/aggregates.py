"""Aggregates by key: counts, sums and the like, kept as keyed state and updated once per key and batch.

Owns the builders, and what they demand of classes and fields. Each aggregate gives one row per key and batch: the value
so far. It is anchored to all tuples of its key in that batch, and exactly once wherever keyed state is. The number of
rows depends on the runtime, which chooses the batches; the last row of a key is its value.

Keys are those of groupings: None is one, NaN equals NaN, -0.0 equals 0.0. In a row the key is as in the batch's
first tuple of it. None in a field that is added up, compared or collected counts for nothing.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal, TypeAlias

from tupletree.bolts.vectorised.recipes import LibraryBolt, field_faults
from tupletree.errors import Finding, one_of
from tupletree.topology import hints
from tupletree.topology.keys import coercion_of
from tupletree.topology.model import StateSpec
from tupletree.topology.streams import Schema

FoldName: TypeAlias = Literal["count", "sum", "min", "max", "mean", "distinct", "top"]

ADDED = frozenset({int, float, decimal.Decimal, dt.timedelta})
AVERAGED = frozenset({int, float})
ORDERED = ADDED | {bool, str, bytes, dt.datetime, dt.date, dt.time, uuid.UUID}
TAKES: dict[FoldName, frozenset[type]] = {
    "sum": ADDED, "mean": AVERAGED, "min": ORDERED, "max": ORDERED, "top": ORDERED,
}  # fmt: skip


def count_by_key(message: type, *keys: str, into: type) -> LibraryBolt:
    """How many tuples there were of each key.

    Args:
        message: class of the tuples.
        keys: fields that make the key; group the bolt's inputs by them.
        into: class of the rows: the key's fields, and one more of type `int`.

    >>> import msgspec
    >>> class Word(msgspec.Struct):
    ...     word: str
    >>> class Count(msgspec.Struct):
    ...     word: str
    ...     count: int
    >>> count_by_key(Word, "word", into=Count)
    <bolt count of Word by word, into Count>
    """
    return LibraryBolt(_Aggregate("count", message, keys, into))


def sum_by_key(message: type, *keys: str, field: str, into: type) -> LibraryBolt:
    """The sum of a field (`int`, `float`, `Decimal`, `timedelta`) per key; 0 if it was None each time.

    Floats are added one after the other, so the sum is to the last bit that of a loop. A sum of integers beyond 64 bits
    fails the tuples that lead there. `into` has one more field, of the field's type; see `count_by_key`.
    """
    return LibraryBolt(_Aggregate("sum", message, keys, into, field))


def min_by_key(message: type, *keys: str, field: str, into: type) -> LibraryBolt:
    """The smallest value of a field per key; NaN only if there is nothing else. See `count_by_key`.

    Any type with an order: numbers, text (by code points), bytes, dates and times, Decimal, UUID.
    """
    return LibraryBolt(_Aggregate("min", message, keys, into, field))


def max_by_key(message: type, *keys: str, field: str, into: type) -> LibraryBolt:
    """The largest value of a field per key; NaN is larger than any other number. See `min_by_key`."""
    return LibraryBolt(_Aggregate("max", message, keys, into, field))


def mean_by_key(message: type, *keys: str, field: str, into: type) -> LibraryBolt:
    """The mean of a field (`int`, `float`) per key, as `float`. See `count_by_key`."""
    return LibraryBolt(_Aggregate("mean", message, keys, into, field))


def count_distinct_by_key(message: type, *keys: str, field: str, into: type) -> LibraryBolt:
    """How many different values a field had per key, exactly, equal as keys are. See `count_by_key`.

    The state holds every one of them: it is for thousands of values per key, not for millions.
    """
    return LibraryBolt(_Aggregate("distinct", message, keys, into, field))


def top_by_key(message: type, *keys: str, field: str, size: int, into: type) -> LibraryBolt:
    """The largest values of a field per key, largest first; equal ones each count. See `max_by_key`.

    Args:
        message: class of the tuples.
        keys: fields that make the key.
        field: whose values are compared.
        size: how many are kept.
        into: the key's fields, and one more: a list of the field's type.
    """
    return LibraryBolt(_Aggregate("top", message, keys, into, field, size))


def dedupe_by_key(message: type, *keys: str) -> LibraryBolt:
    """Let the first tuple of each key through, anchored to itself only; the others are acked. See `count_by_key`."""
    return LibraryBolt(_Dedupe(message, keys))


@dataclass(frozen=True)
class _Aggregate:
    """The recipe of an aggregate. `field`: what it looks at. `size`: how many values `top` keeps."""

    fold: FoldName
    message: type
    keys: tuple[str, ...]
    into: type
    field: str = ""
    size: int = 0

    def __str__(self) -> str:
        field = f" of {self.field}" if self.field else ""
        keys = ", ".join(self.keys)
        return f"{self.fold}{field} of {self.message.__qualname__} by {keys}, into {self.into.__qualname__}"

    def faults(self, message: Schema, into: Schema) -> Iterator[Finding]:
        where = str(self)
        wrong = list(_key_faults(message, self.keys, where))
        if self.field:
            wrong += field_faults(message, (self.field,), where)
        yield from wrong
        if wrong:
            return
        if self.fold == "top" and self.size < 1:
            yield Finding("the top has no size", where, got=str(self.size), expected="at least 1")
        if self.field:
            yield from self._field_faults(message, where)
        missing = [name for name in self.keys if name not in into.fields]
        others = [name for name in into.fields if name not in self.keys]
        if missing or len(others) != 1:
            yield Finding(
                f"{into.cls.__qualname__} does not fit the result",
                where,
                got=one_of(into.fields),
                expected=f"the fields {', '.join(self.keys)}, and one more for the result",
            )
            return
        for name in self.keys:
            if not _holds(into.fields[name], hints.members(message.fields[name])):
                yield _misfit(into, name, message.fields[name], where)
        expected = self._result_types(message)
        if not _holds(into.fields[others[0]], expected):
            yield _misfit(into, others[0], " | ".join(map(hints.text_of, expected)), where)

    def _field_faults(self, message: Schema, where: str) -> Iterator[Finding]:
        annotation = message.fields[self.field]
        kinds = _kinds(annotation)
        takes = TAKES.get(self.fold)
        if (takes and not (len(kinds) == 1 and kinds[0] in takes)) or (not takes and coercion_of(annotation) is None):
            expected = (
                "what may be a key" if takes is None else "one of " + ", ".join(sorted(map(hints.text_of, takes)))
            )
            yield Finding(f"there is no {self.fold} of {self.field}", where, hints.text_of(annotation), expected)

    def _result_types(self, message: Schema) -> tuple[Any, ...]:
        if self.fold in {"count", "distinct"}:
            return (int,)
        (kind,) = _kinds(message.fields[self.field])
        if self.fold == "top":
            return (GenericAlias(list, (kind,)),)
        if self.fold == "sum":
            return (kind,)
        result = float if self.fold == "mean" else kind
        is_optional = hints.NONE_TYPE in hints.members(message.fields[self.field])
        return (result, hints.NONE_TYPE) if is_optional else (result,)

    @property
    def calls_user_code(self) -> bool:
        return False

    def state(self, message: Schema) -> StateSpec:
        if self.fold == "count":
            return StateSpec(int, int)
        kinds = _kinds(message.fields[self.field])
        value_type: Any = kinds[0] if len(kinds) == 1 else message.fields[self.field]
        choices: dict[str, tuple[Any, Callable[[], Any]]] = {
            "sum": (value_type, value_type),
            "min": (value_type | None, _nothing),
            "max": (value_type | None, _nothing),
            "mean": (tuple[float, int], _no_mean),
            "distinct": (GenericAlias(set, (message.fields[self.field],)), set),
            "top": (GenericAlias(list, (value_type,)), list),
        }
        return StateSpec(*choices[self.fold])

    def prepare(self, message: Schema, into: Schema) -> Callable[..., Any]:
        from tupletree.bolts.vectorised.folding import Folding

        result = next(name for name in into.fields if name not in self.keys)
        return Folding(self.fold, message, self.keys, into, result, self.field, self.size)


@dataclass(frozen=True)
class _Dedupe:
    """The recipe of `dedupe_by_key`."""

    message: type
    keys: tuple[str, ...]

    @property
    def into(self) -> type:
        return self.message

    @property
    def calls_user_code(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"dedupe of {self.message.__qualname__} by {', '.join(self.keys)}"

    def faults(self, message: Schema, into: Schema) -> Iterator[Finding]:  # noqa: ARG002 - the same class
        return _key_faults(message, self.keys, str(self))

    def state(self, message: Schema) -> StateSpec:  # noqa: ARG002 - it knows no fields
        return StateSpec(bool, bool)

    def prepare(self, message: Schema, into: Schema) -> Callable[..., Any]:  # noqa: ARG002 - it knows no fields
        from tupletree.bolts.vectorised.folding import keep_first

        return keep_first


def _key_faults(message: Schema, keys: tuple[str, ...], where: str) -> Iterator[Finding]:
    if not keys:
        yield Finding("no field makes the key", where, expected=one_of(message.fields))
    for name in keys:
        if fault := message.key_fault(name):
            yield Finding(fault.what, where, fault.got, fault.expected, fault.next_step)


def _misfit(into: Schema, name: str, expected: Any, where: str) -> Finding:
    text = expected if isinstance(expected, str) else hints.text_of(expected)
    return Finding(f"{into.cls.__qualname__}.{name} has another type", where, hints.text_of(into.fields[name]), text)


def _holds(annotation: Any, kinds: tuple[Any, ...]) -> bool:
    return set(kinds) <= set(hints.members(annotation))


def _kinds(annotation: Any) -> list[Any]:
    return [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]


def _nothing() -> None:
    return None


def _no_mean() -> tuple[float, int]:
    return 0.0, 0
