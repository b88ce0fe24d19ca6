"""The Arrow codec: the messages of one stream as a record batch or Arrow IPC bytes, and back exactly.

Owns the wire form of a frame's values: one column per field. What Arrow represents natively is native (bool, int64,
float64, text, bytes, date, duration, UUID as 16 bytes). What it would change is text (datetime and time keep zone and
fold, Decimal its digits, an Enum its member's name). The rest is msgpack in a binary column. Field metadata
`tupletree.form` says which. It refuses every value that would not come back as declared: there is no silent null and no
coercion that loses anything. Imported lazily: it imports pyarrow.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tupletree.data.payloads import datetime_text, lift, lower, registry_of, shown, text_datetime
from tupletree.errors import ProcessingError, TopologyError, UnusableDataError
from tupletree.topology import hints, keys
from tupletree.topology.field_types import fault_of
from tupletree.topology.streams import Schema, is_message_class

T = TypeVar("T")

FORM = b"tupletree.form"
MOMENTS = (pa.date32(), pa.duration("us"))
"""Native types that hold more than Python's own."""

ROWS = "__rows"
"""Stands in for the columns of a message without fields, so that a batch keeps its number of rows."""


class EncodeError(ProcessingError):
    """A batch holds a value that cannot travel; `ArrowCodec.check_each` says which."""


@dataclass(frozen=True, slots=True)
class _Column:
    """How one field travels.

    Attributes:
        arrow_type: how Arrow holds it.
        form: what `tupletree.form` says; empty for a native type.
        exact: values of exactly these types are right as they are.
        conform: turns a value of another type into the declared one, or raises TypeError.
        write, read: a whole column without None to what Arrow takes, and back; None where nothing is to do.
    """

    arrow_type: pa.DataType
    form: str
    exact: frozenset[type]
    conform: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


class ArrowCodec(Generic[T]):
    """Encodes and decodes the messages of one schema. Stateless after construction; safe to share between threads.

    Attributes:
        schema: the stream's schema.
        arrow_schema: one column per field, nullable where the field may be None.
        build: makes a message of the values of its fields, in their order.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._columns = [_column(kind, f"{schema.cls.__qualname__}.{name}") for name, kind in schema.fields.items()]
        self._nullable = [_takes_none(kind) for kind in schema.fields.values()]
        fields = [
            pa.field(name, column.arrow_type, nullable, metadata={FORM: column.form.encode()} if column.form else None)
            for name, column, nullable in zip(schema.fields, self._columns, self._nullable)
        ]
        self.arrow_schema = pa.schema(fields or [pa.field(ROWS, pa.null())])
        self._getters = [attrgetter(name) for name in schema.fields]
        self._exact = [
            column.exact | {hints.NONE_TYPE} if nullable else column.exact
            for column, nullable in zip(self._columns, self._nullable)
        ]
        self._nested = {
            position: name
            for position, (name, column) in enumerate(zip(schema.fields, self._columns))
            if column.form in {"msgpack", "tagged"}
        }
        self.build = _builder(schema)

    @classmethod
    def of(cls, schema: Schema) -> ArrowCodec[Any]:
        """The codec of a schema.

        Raises:
            TopologyError: a field's type cannot travel.
        """
        return cls(schema)

    def encode(self, values: Sequence[T]) -> bytes:
        """The messages as an Arrow IPC stream of one record batch.

        Raises:
            EncodeError: a value cannot travel; nothing is encoded.
        """
        return self.pack(self.to_batch(values))

    def pack(self, batch: pa.RecordBatch) -> bytes:
        """A batch of `arrow_schema` as `encode` writes it."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.arrow_schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def decode(self, data: bytes | memoryview | pa.Buffer) -> list[T]:
        """The messages that `encode` wrote.

        Raises:
            UnusableDataError: the bytes are damaged, or were written for another schema.
        """
        return self.from_batch(self.unpack(data))

    def unpack(self, data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
        """The batch that `encode` or `pack` wrote.

        Raises:
            UnusableDataError: the bytes are damaged, or were written for another schema.
        """
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                batch = reader.read_next_batch()
        except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
            raise UnusableDataError(
                f"a frame of {self.schema.cls.__qualname__} cannot be read", got=f"{type(error).__name__}: {error}"
            ) from error
        if self._nested or not batch.schema.equals(self.arrow_schema):
            batch = self._as_now(batch)
        return batch

    def _as_now(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A stored batch, perhaps of an earlier version of the class: new fields get their default.

        Raises UnusableDataError for one of another class.
        """
        names = batch.schema.names
        fresh = [name for name in self.schema.fields if name not in names and name not in self.schema.required]
        for name in fresh:
            values = [self.schema.default_of(name)] * batch.num_rows
            batch = batch.append_column(name, self._items([*self.schema.fields].index(name), values))
        for position, name in self._nested.items():
            if name in names and (form := _form(batch.schema.field(name))) != self._columns[position].form:
                items = self._readers(position, form)(batch.column(name))
                array = self._items(position, items)
                batch = batch.set_column(names.index(name), self.arrow_schema.field(position), array)
        return batch if batch.schema.equals(self.arrow_schema) else self._cast(batch)

    def _readers(self, position: int, form: str) -> Callable[[pa.Array[Any]], list[Any]]:
        """How a column of another form than the present one is read: a class in it has got a field that changes it."""
        annotation = [*self.schema.fields.values()][position]
        where = f"{self.schema.cls.__qualname__}.{[*self.schema.fields][position]}"
        if form not in {"msgpack", "tagged"}:
            raise self._misfit(f"{where}: {form or 'plain'}")
        read = (_typed_msgpack if form == "msgpack" else _tagged_msgpack)(annotation, where).read
        assert read is not None
        return lambda array: _around_none(read, array.to_pylist())

    def to_batch(self, values: Sequence[T]) -> pa.RecordBatch:
        """The messages as a record batch of `arrow_schema`.

        Raises:
            EncodeError: a value cannot travel.
        """
        where = self.schema.cls.__qualname__
        arrays: list[pa.Array[Any]] = []
        try:
            self._check_classes(values)
            for column, name in enumerate(self.schema.fields):
                where = f"{self.schema.cls.__qualname__}.{name}"
                arrays.append(self._items(column, list(map(self._getters[column], values))))
            return pa.RecordBatch.from_arrays(arrays or [pa.nulls(len(values))], schema=self.arrow_schema)
        except Exception as error:  # a value's own code may raise anything
            got = str(error) if type(error) is TypeError else f"{type(error).__name__}: {error}"
            raise EncodeError("a batch cannot be encoded", where=where, got=got) from error

    def from_batch(self, batch: pa.RecordBatch) -> list[T]:
        """The messages in a record batch.

        Columns may come in another order and in another width (int32 for int64); what would not fit is refused.

        Raises:
            UnusableDataError: a column is missing, cannot be cast without loss, or holds null where None is not
                declared.
        """
        if not batch.schema.equals(self.arrow_schema):
            batch = self._cast(batch)
        if not self._columns:
            return [self.build() for _ in range(batch.num_rows)]
        return list(
            map(self.build, *[self._read(position, batch.column(position)) for position in range(len(self._columns))])
        )

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch from elsewhere as one of `arrow_schema`, of which `from_batch` will make messages.

        Columns may come in another order and in another width, as for `from_batch`.

        Raises:
            UnusableDataError: as for `from_batch`, or a column holds what its field cannot be read from.
        """
        if not batch.schema.equals(self.arrow_schema):
            batch = self._cast(batch)
        for position, (name, column) in enumerate(zip(self.schema.fields, self._columns)):
            array = batch.column(position)
            if array.null_count and not self._nullable[position]:
                raise self._misfit(f"null in {name}")
            if column.read is None and column.arrow_type not in MOMENTS:
                continue
            try:  # each distinct value once
                items = pc.drop_null(pc.unique(array)).to_pylist()
                if column.read is not None:
                    column.read(items)
            except Exception as error:  # a value's own code may raise anything
                raise self._misfit(f"{name} with {type(error).__name__}: {error}") from error
        return batch

    def column(self, name: str, items: Sequence[Any]) -> pa.Array[Any]:
        """Values of one field as its column.

        Raises:
            EncodeError: a value cannot travel.
        """
        try:
            return self._items(list(self.schema.fields).index(name), list(items))
        except Exception as error:  # a value's own code may raise anything
            got = str(error) if type(error) is TypeError else f"{type(error).__name__}: {error}"
            where = f"{self.schema.cls.__qualname__}.{name}"
            raise EncodeError("a column cannot be encoded", where=where, got=got) from error

    def items(self, name: str, batch: pa.RecordBatch) -> list[Any]:
        """The values of one field in a batch of `arrow_schema`."""
        return self.items_of(name, batch.column(name))

    def items_of(self, name: str, array: pa.Array[Any]) -> list[Any]:
        """The values of one field in a column of its own type."""
        values: list[Any] = self._read(list(self.schema.fields).index(name), array)
        return values

    def takes(self, name: str, kind: pa.DataType) -> bool:
        """Whether a column of this type differs in width alone from the one that this codec has for a field."""
        return pa.types.is_null(kind) or _family(kind) == _family(self.arrow_schema.field(name).type)

    def check_each(self, values: Sequence[Any]) -> list[tuple[int, TypeError]]:
        """Which values of a batch cannot travel, and why: field, got and expected. Slow: for after an EncodeError."""
        found = []
        for position, value in enumerate(values):
            try:
                self.schema.check(value)
                self.to_batch([value])
            except EncodeError as error:
                found.append((position, TypeError(f"{error.findings[0].where}: {error.findings[0].got}")))
            except TypeError as error:
                found.append((position, error))
            except Exception as error:  # noqa: BLE001 - a value's own code may raise anything; it is reported
                found.append((position, TypeError(f"{self.schema.cls.__qualname__}: {type(error).__name__}: {error}")))
        return found

    def _check_classes(self, values: Sequence[Any]) -> None:
        """A subclass would lose the fields it added, and another class might have the same fields by chance."""
        if strangers := set(map(type, values)) - {self.schema.cls}:
            raise TypeError(f"got {', '.join(map(hints.text_of, strangers))}")

    def _items(self, position: int, items: list[Any]) -> pa.Array[Any]:
        column = self._columns[position]
        types = set(map(type, items))
        has_none = hints.NONE_TYPE in types
        if has_none and not self._nullable[position]:
            raise TypeError("got None, which is not declared")
        exact = self._exact[position]
        if not types <= exact:
            items = [item if type(item) in exact else column.conform(item) for item in items]
        if column.write is not None:
            items = _around_none(column.write, items) if has_none else column.write(items)
        return pa.array(items, type=column.arrow_type)

    def _read(self, position: int, array: pa.Array[Any]) -> Any:
        column = self._columns[position]
        items = array.to_pylist()
        if array.null_count:
            if not self._nullable[position]:
                raise self._misfit(f"null in {self.arrow_schema.names[position]}")
            return _around_none(column.read, items) if column.read is not None else items
        return column.read(items) if column.read is not None else items

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            columns = [batch.column(name) for name in self.arrow_schema.names]
            for array, field in zip(columns, self.arrow_schema):
                if not self.takes(field.name, array.type):
                    raise self._misfit(f"{field.name}: {array.type}")
            arrays = [array.cast(field.type) for array, field in zip(columns, self.arrow_schema)]
            return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        except (pa.ArrowException, KeyError) as error:
            raise self._misfit(f"{type(error).__name__}: {error}") from error

    def _misfit(self, got: str) -> UnusableDataError:
        return UnusableDataError(
            f"a record batch does not fit {self.schema.cls.__qualname__}",
            got=got,
            expected=", ".join(f"{field.name}: {field.type}" for field in self.arrow_schema),
        )


def _form(field: pa.Field[Any]) -> str:
    return (field.metadata or {}).get(FORM, b"").decode()


def _family(kind: pa.DataType) -> str:
    """Which types differ in width only: Arrow would also cast a number to text."""
    types = pa.types
    if isinstance(kind, pa.DictionaryType):
        return _family(kind.value_type)
    if types.is_integer(kind) or types.is_floating(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "bytes"
    return "date" if types.is_date(kind) else "duration" if types.is_duration(kind) else str(kind)


def _around_none(convert: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Convert a column whose None entries stay None."""
    converted = iter(convert([item for item in items if item is not None]))
    return [None if item is None else next(converted) for item in items]


def _takes_none(annotation: Any) -> bool:
    kinds = hints.members(annotation)
    return any(kind is Any or kind is hints.NONE_TYPE or None in _choices(kind) for kind in kinds)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """What a Literal allows; nothing for other types."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _builder(schema: Schema) -> Callable[..., Any]:
    """The class itself where fields can be given by position, else a function that names them."""
    names = list(schema.fields)
    taken = inspect.signature(schema.cls).parameters.values()
    if [parameter.name for parameter in taken if parameter.kind is not parameter.KEYWORD_ONLY] == names:
        return schema.cls
    return lambda *items: schema.cls(**dict(zip(names, items)))


def _column(annotation: Any, where: str) -> _Column:
    kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
    if len(kinds) == 1:
        kind = kinds[0]
        if kind in NATIVE:
            return NATIVE[kind]
        if isinstance(kind, type) and issubclass(kind, enum.Flag):
            return _Column(
                pa.int64(), "flag", frozenset({kind}), _refuse(kind), _each(attrgetter("value")), _each(kind)
            )
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            named = dict(kind.__members__)
            return _Column(
                pa.string(),
                "enum",
                frozenset({kind}),
                _refuse(kind),
                _each(attrgetter("_name_")),
                _each(named.__getitem__),
            )
    return _typed_msgpack(annotation, where) if _is_exact(annotation, set()) else _tagged_msgpack(annotation, where)


def _typed_msgpack(annotation: Any, where: str) -> _Column:
    """Nested values that msgspec, knowing the type, reads back exactly; each is read back once, as a check."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(annotation).decode

    def conform(value: Any) -> bytes:
        packed = encode(value)
        # Unequal is not wrong yet: NaN never equals itself, and a class may have no equality.
        if decode(packed) != value and (fault := fault_of(value, annotation, where)) is not None:
            raise TypeError(str(fault))
        return packed

    return _Column(pa.binary(), "msgpack", frozenset(), conform, read=_each(decode))


def _tagged_msgpack(annotation: Any, where: str) -> _Column:
    """Values whose type is not known beforehand, or that msgspec would change: see `tupletree.data.payloads`."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(strict=False).decode
    try:
        registry = registry_of(annotation)
    except TypeError as error:
        raise TopologyError("this field cannot travel", where=where, got=str(error)) from error

    def conform(value: Any) -> bytes:
        if (fault := fault_of(value, annotation, where)) is not None:
            raise TypeError(str(fault))
        packed = encode(lower(value, json=False))
        read(packed)
        return packed

    def read(packed: bytes) -> Any:
        return lift(decode(packed), registry, may_have_more=True)

    return _Column(pa.binary(), "tagged", frozenset(), conform, read=_each(read))


def _is_exact(annotation: Any, seen: set[Any]) -> bool:
    """Whether msgspec's typed msgpack gives every value of this type back as it was."""
    annotation = hints.plain(annotation)
    kinds = [kind for kind in hints.members(annotation) if kind is not hints.NONE_TYPE]
    if len(kinds) != 1:
        return False
    kind, origin, arguments = kinds[0], get_origin(kinds[0]), get_args(kinds[0])
    if kind in EXACT or kind in seen:
        return True
    if origin is dict:
        return arguments[0] in {str, int} and _is_exact(arguments[1], seen)
    if origin in {list, set, frozenset, tuple}:
        return all(argument is Ellipsis or _is_exact(argument, seen) for argument in arguments)
    if origin is Literal:
        return all(isinstance(choice, str) for choice in arguments)
    if is_message_class(kind):
        seen.add(kind)
        return all(_is_exact(inner, seen) for inner in Schema.of(kind).fields.values())
    return False


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda items: list(map(convert, items))


def _refuse(kind: type) -> Callable[[Any], Any]:
    def refuse(value: Any) -> Any:
        raise TypeError(f"got {hints.text_of(type(value))} {shown(value)}, expected {hints.text_of(kind)}")

    return refuse


def _float(value: Any) -> float:
    number = keys.coerce_float(value) if not isinstance(value, float) else float(value)
    if number != value and value == value:  # noqa: PLR0124 - NaN is the one float that differs from itself
        raise TypeError(f"got int {shown(value)}, expected a number that a float holds exactly")
    return number


def _datetime(value: Any) -> datetime:
    """A subclass's moment (pandas.Timestamp, say) as a plain datetime, unless it holds more."""
    if isinstance(value, datetime):
        plain = datetime.combine(date(value.year, value.month, value.day), value.timetz())
        if plain == value:
            return plain
    raise TypeError(f"got {hints.text_of(type(value))} {shown(value)}, expected datetime")


def _timedelta(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        plain = timedelta(value.days, value.seconds, value.microseconds)
        if plain == value:
            return plain
    raise TypeError(f"got {hints.text_of(type(value))} {shown(value)}, expected timedelta")


def _text_times(items: Any) -> list[time]:
    return [text_datetime(item, time) for item in items]


def _uuids(items: Any) -> list[UUID]:
    return [UUID(bytes=item) for item in items]


EXACT = frozenset({bool, int, float, str, bytes, Decimal, UUID, timedelta, hints.NONE_TYPE})
"""Leaves of typed msgpack. Not datetime and time (zones would become offsets), date (takes a datetime), enums."""

NATIVE: dict[Any, _Column] = {
    bool: _Column(pa.bool_(), "", frozenset({bool}), keys.coerce_bool),
    int: _Column(pa.int64(), "", frozenset({int}), keys.coerce_int),
    float: _Column(pa.float64(), "", frozenset({float}), _float),
    str: _Column(pa.string(), "", frozenset({str}), keys.coerce_text),
    bytes: _Column(pa.binary(), "", frozenset({bytes}), keys.coerce_bytes),
    date: _Column(pa.date32(), "", frozenset({date}), keys.coerce_date),
    timedelta: _Column(pa.duration("us"), "", frozenset({timedelta}), _timedelta),
    datetime: _Column(
        pa.string(), "datetime", frozenset({datetime}), _datetime, _each(datetime_text), _each(text_datetime)
    ),
    time: _Column(pa.string(), "time", frozenset({time}), _refuse(time), _each(datetime_text), _text_times),
    Decimal: _Column(pa.string(), "decimal", frozenset({Decimal}), _refuse(Decimal), _each(str), _each(Decimal)),
    UUID: _Column(pa.binary(16), "uuid", frozenset({UUID}), _refuse(UUID), _each(attrgetter("bytes")), _uuids),
}
