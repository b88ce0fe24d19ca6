"""Messages as columns that other tools have types for: timestamps, decimals, lists, maps, structs.

Owns which Arrow type a field gets where a table is for Spark SQL, pandas or DuckDB, and not for a stream of ours, whose
codec gives every value back exactly. What no type of theirs holds is refused, or is JSON text where a field may hold
values of several types; the metadata of such a field says so, for `arrow_rows`, which reads them again. Imported
lazily: it imports pyarrow.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa

from tupletree.data.codec import FORM, NATIVE, ArrowCodec, EncodeError
from tupletree.topology import hints
from tupletree.topology.streams import Schema, is_message_class

DECIMAL = pa.decimal128(38, 18)
"""What Spark takes for a Decimal whose digits are not declared."""

LIFTED: dict[bytes | str, bytes | str] = {FORM: b"native"}
"""Metadata of a field whose column has, somewhere in it, JSON, names of an enum's members or a number of microseconds
in the place of a duration: see `lift_of`."""


@dataclass(frozen=True, slots=True)
class _Native:
    """How a field is held.

    Attributes:
        kind: of the column.
        lower: a value that is not None → what Arrow makes the column of; None: the value itself.
        lift: what Python makes of the column, and is not None → what msgspec makes the value of; None: that itself.
    """

    kind: pa.DataType
    lower: Callable[[Any], Any] | None = None
    lift: Callable[[Any], Any] | None = None

    def of(self, item: Any) -> Any:
        """An item that may be None."""
        return item if item is None or self.lower is None else self.lower(item)

    def again(self, item: Any) -> Any:
        """Undo `of`, but for what msgspec does."""
        return item if item is None or self.lift is None else self.lift(item)


class NativeColumns:
    """Makes record batches of the messages of a class. Stateless after construction; safe to share between threads.

    Attributes:
        arrow_schema: one column per field, nullable where the field may be None.

    Raises:
        TopologyError: a field's type cannot travel.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._codec = ArrowCodec.of(schema)
        self._changed: dict[str, _Native] = {}
        fields = []
        for field in self._codec.arrow_schema:
            if field.name in schema.fields:
                native = _native(schema.fields[field.name], frozenset({schema.cls}))
                if native.lower is not None or native.kind != field.type:
                    self._changed[field.name] = native
                is_lifted = native.lift is not None and not self._codec.takes(field.name, native.kind)
                field = pa.field(field.name, native.kind, field.nullable, metadata=LIFTED if is_lifted else None)
            fields.append(field)
        self.arrow_schema = pa.schema(fields)

    def to_batch(self, values: Sequence[Any]) -> pa.RecordBatch:
        """The messages as a record batch of `arrow_schema`.

        Raises:
            EncodeError: a value cannot travel, or no native type holds it.
        """
        exact = self._codec.to_batch(values)
        return self._batch(exact, {name: list(map(attrgetter(name), values)) for name in self._changed})

    def of_batch(self, exact: pa.RecordBatch) -> pa.RecordBatch:
        """The same, of a batch of the class's codec."""
        return self._batch(exact, {name: self._codec.items(name, exact) for name in self._changed})

    def _batch(self, exact: pa.RecordBatch, items: Mapping[str, list[Any]]) -> pa.RecordBatch:
        columns: list[pa.Array[Any]] = []
        for field in self.arrow_schema:
            native = self._changed.get(field.name)
            if native is None:
                columns.append(exact.column(field.name))
                continue
            try:
                columns.append(pa.array(list(map(native.of, items[field.name])), native.kind))
            except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
                where = f"{self._schema.cls.__qualname__}.{field.name}"
                got = str(error) if type(error) is TypeError else f"{type(error).__name__}: {error}"
                raise EncodeError(f"no column of {native.kind} holds this", where=where, got=got) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def check_each(self, values: Sequence[Any]) -> list[tuple[int, TypeError]]:
        """Which values cannot be held, and why. Slow: for after an EncodeError."""
        found = dict(self._codec.check_each(values))
        for position, value in enumerate(values):
            if position not in found:
                try:
                    self.to_batch([value])
                except EncodeError as error:
                    finding = error.findings[0]
                    found[position] = TypeError(f"{finding.where}: {finding.what}: {finding.got}")
        return sorted(found.items())


def is_lifted(field: pa.Field[Any]) -> bool:
    """Whether a field has `LIFTED`."""
    return LIFTED.items() <= (field.metadata or {}).items()


def lift_of(annotation: Any, cls: type) -> Callable[[Any], Any]:
    """For a field of `cls`, whose column has `LIFTED`: item as Python has it → what msgspec makes the value of."""
    return _native(annotation, frozenset({cls})).again


def _native(annotation: Any, within: AbstractSet[type]) -> _Native:
    kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
    of_json = _Native(pa.string(), _json, lambda text: msgspec.json.decode(text, type=annotation))
    if len(kinds) != 1:
        return of_json
    kind = hints.plain(kinds[0])
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        of = {type(choice) for choice in arguments}
        return _PLAIN[of.pop()] if of in ({str}, {int}) else of_json
    if isinstance(kind, type) and issubclass(kind, enum.Flag):
        return _Native(pa.int64(), attrgetter("value"))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _Native(pa.string(), attrgetter("_name_"), lambda name: kind[name].value)
    if origin in {list, set, frozenset} or (origin is tuple and arguments[1:] == (...,)):
        item = _native(arguments[0], within)
        lift = None if item.lift is None else lambda items: list(map(item.again, items))
        return _Native(pa.list_(item.kind), lambda items: list(map(item.of, items)), lift)
    if origin is dict:
        return _map(*(_native(argument, within) for argument in arguments)) or of_json
    if is_message_class(kind) and kind not in within:
        return _struct(kind, within) or of_json
    return of_json


def _map(key: _Native, value: _Native) -> _Native | None:
    if key.lower is _json:
        return None

    def lower(items: Any) -> list[tuple[Any, Any]]:
        return [(key.of(one), value.of(items[one])) for one in items]

    def lift(items: dict[Any, Any]) -> dict[Any, Any]:
        return {key.again(one): value.again(items[one]) for one in items}

    return _Native(pa.map_(key.kind, value.kind), lower, lift if key.lift or value.lift else None)


def _struct(cls: type, within: AbstractSet[type]) -> _Native | None:
    inner = {name: _native(annotation, within | {cls}) for name, annotation in Schema.of(cls).fields.items()}
    if not inner:
        return None  # Parquet has no struct without fields

    def lower(value: Any) -> dict[str, Any]:
        return {name: native.of(getattr(value, name)) for name, native in inner.items()}

    def lift(items: dict[str, Any]) -> dict[str, Any]:
        return {name: inner[name].again(item) if name in inner else item for name, item in items.items()}

    kind = pa.struct([pa.field(name, native.kind) for name, native in inner.items()])
    return _Native(kind, lower, lift if any(native.lift for native in inner.values()) else None)


def _moment(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise TypeError(f"{value.isoformat()} has no zone, so that it is no moment; give it one")
    return value


def _hour(value: time) -> time:
    if value.tzinfo is not None:
        raise TypeError(f"{value.isoformat()} has a zone")
    return value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _took(item: Any) -> timedelta:
    """A duration; of a table that has none (Delta) it is a number of microseconds."""
    return item if isinstance(item, timedelta) else timedelta(microseconds=item)


_PLAIN: Mapping[Any, _Native] = types.MappingProxyType(
    {
        **{kind: _Native(NATIVE[kind].arrow_type) for kind in (bool, int, float, str, bytes, date)},
        timedelta: _Native(NATIVE[timedelta].arrow_type, lift=_took),
        datetime: _Native(pa.timestamp("us", "UTC"), _moment),
        time: _Native(pa.time64("us"), _hour),
        Decimal: _Native(DECIMAL),
        UUID: _Native(pa.string(), str),
    }
)
