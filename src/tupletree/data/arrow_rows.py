"""Messages from Arrow data that others wrote: Spark, pandas, Delta Lake, DuckDB.

Owns how a column of any Arrow type becomes the values of a field. What the codec of a stream writes itself is read as
the codec reads it; of other types Python's own value is taken (a timestamp is a datetime, a struct a message, a map a
dict) and converted by msgspec, strictly: no text becomes a number. Imported lazily: it imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa

from tupletree.data.codec import ArrowCodec
from tupletree.data.native_columns import is_lifted, lift_of
from tupletree.errors import UnusableDataError
from tupletree.topology import hints
from tupletree.topology.streams import Schema

T = TypeVar("T")

_KEPT = (bytes, bytearray, date, datetime, time, timedelta, Decimal, UUID)
"""Types that Arrow takes as they are."""


class ArrowRows(Generic[T]):
    """Makes messages of one class from batches whose columns have the names of its fields; others are passed over.

    Stateless after construction; safe to share between threads.

    Raises:
        TopologyError: a field's type cannot travel.
    """

    def __init__(self, message_class: type[T]) -> None:
        self.schema = Schema.of(message_class)
        self._codec: ArrowCodec[T] = ArrowCodec.of(self.schema)

    def missing(self, columns: Collection[str]) -> list[str]:
        """Fields that have no column and no default, and may not be None."""
        return [name for name in self.schema.fields if name not in columns and not self._may_lack(name)]

    def _may_lack(self, name: str) -> bool:
        return name not in self.schema.required or self._codec.arrow_schema.field(name).nullable

    def with_texts(self, batch: pa.RecordBatch, texts: Mapping[str, str | None]) -> pa.RecordBatch:
        """The batch with more columns, for fields that it has none for; each has one value, given as text.

        A text that its field cannot be read from stays one, so that the rows do not fit.
        """
        for name in self.schema.fields:
            if name in texts and name not in batch.schema.names:
                column: pa.Array[Any] = pa.array([texts[name]] * len(batch), pa.string())
                with suppress(pa.ArrowException):
                    column = column.cast(self._codec.arrow_schema.field(name).type)
                batch = batch.append_column(name, column)
        return batch

    def each(self, batch: pa.RecordBatch) -> Iterator[T | UnusableDataError]:
        """The message of each row, or why its fields cannot hold it. Faster where all can."""
        try:
            yield from self.all(batch)
        except UnusableDataError as error:
            if batch.num_rows == 1:
                yield error
                return
            half = batch.num_rows // 2
            yield from self.each(batch.slice(0, half))
            yield from self.each(batch.slice(half))

    def all(self, batch: pa.RecordBatch) -> list[T]:
        """The messages of a batch.

        Raises:
            UnusableDataError: a field has no column and no default, or cannot hold what a row has for it, or the class
                refuses a row.
        """
        columns = [self._values(name, batch) for name in self.schema.fields]
        if not columns:
            return [self._codec.build() for _ in range(len(batch))]
        try:
            return list(map(self._codec.build, *columns))
        except Exception as error:  # the class's own code may raise anything
            name = self.schema.cls.__qualname__
            got = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UnusableDataError(
                "a row does not fit its class", where=name, got=got, expected="values that it takes"
            ) from error

    def as_read(self, name: str, field: pa.Field[Any], item: Any) -> Any:
        """What `python_values` has shown, as `one` needs it: without what only the field's metadata says.

        Raises whatever the class's own code does, or a value that is not as the metadata says.
        """
        if name not in self.schema.fields or not is_lifted(field):
            return item
        lifted = lift_of(self.schema.fields[name], self.schema.cls)(item)
        return msgspec.to_builtins(lifted, builtin_types=_KEPT)

    def one(self, items: Mapping[str, Any]) -> T:
        """The message of a row that `python_values` has shown. Raises UnusableDataError, as `all`; ArrowException."""
        columns: list[pa.Array[Any]] = [pa.array([item]) for item in items.values()]
        (value,) = self.all(pa.record_batch(columns, [*items]))
        return value

    def _values(self, name: str, batch: pa.RecordBatch) -> Sequence[Any]:
        annotation = self.schema.fields[name]
        where = f"{self.schema.cls.__qualname__}.{name}"
        if name not in batch.schema.names:
            if not self._may_lack(name):
                raise UnusableDataError("there is no column for a field", where=where)
            if name in self.schema.required:
                return [None] * len(batch)
            return [self.schema.default_of(name) for _ in range(len(batch))]  # a list of its own for each message
        array = batch.column(name)
        try:
            if isinstance(array.type, pa.DictionaryType):
                array = array.cast(array.type.value_type)
            field: pa.Field[Any] = batch.schema.field(name)
            if is_lifted(field):
                return _converted(array, annotation, lift_of(annotation, self.schema.cls))
            if self._codec.takes(name, array.type):
                return self._codec.items_of(name, array.cast(self._codec.arrow_schema.field(name).type))
            return _converted(array, annotation)
        except Exception as error:  # a value's own code may raise anything
            why = error.findings[0].got if isinstance(error, UnusableDataError) else f"{type(error).__name__}: {error}"
            raise UnusableDataError(
                "a row does not fit its class",
                where=where,
                got=why.partition("\n")[0],
                expected=f"{hints.text_of(annotation)}; the column is {array.type}",
            ) from error


def _converted(array: pa.Array[Any], annotation: Any, lift: Callable[[Any], Any] | None = None) -> list[Any]:
    column: Any = list[annotation]
    items = python_values(array)
    lifted = items if lift is None else list(map(lift, items))
    # Without `builtin_types` text would become bytes, as base64.
    values: list[Any] = msgspec.convert(lifted, column, builtin_types=(bytes, bytearray))
    return values


def python_values(array: pa.Array[Any]) -> list[Any]:
    """Python's own values of a column. Raises ArrowException, ValueError: it holds what they cannot (nanoseconds)."""
    kind = _held_by_python(array.type)
    held: Any = array if kind == array.type else array.cast(kind)
    items: list[Any] = held.to_pylist()
    return [_with_dicts(kind, item) for item in items] if pa.types.is_nested(kind) else items


def _held_by_python(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, and with microseconds for nanoseconds."""
    types = pa.types
    if isinstance(kind, pa.DictionaryType):
        return _held_by_python(kind.value_type)
    if isinstance(kind, pa.TimestampType) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kind == pa.time64("ns"):
        return pa.time64("us")
    if kind == pa.duration("ns"):
        return pa.duration("us")
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_held_by_python(field.type)) for field in kind.fields])
    if isinstance(kind, pa.MapType):
        return pa.map_(_held_by_python(kind.key_type), _held_by_python(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.large_list(_held_by_python(kind.value_type))
    return kind


def _with_dicts(kind: pa.DataType, item: Any) -> Any:
    """A value in which maps, which Arrow gives as lists of pairs, are dicts."""
    if item is None:
        return None
    if isinstance(kind, pa.MapType):
        return {_with_dicts(kind.key_type, key): _with_dicts(kind.item_type, value) for key, value in item}
    if isinstance(kind, pa.StructType):
        return {field.name: _with_dicts(field.type, item[field.name]) for field in kind.fields}
    if isinstance(kind, pa.LargeListType):
        return [_with_dicts(kind.value_type, one) for one in item]
    return item
