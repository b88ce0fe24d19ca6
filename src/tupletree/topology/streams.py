"""Streams: a message class becomes a schema (field names, types), and keys become canonical.

Owns what a message class may be and what may travel in it. It refuses to encode: frames and stores do that, by the
schema.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tupletree.errors import Finding, TopologyError, one_of
from tupletree.topology import hints, keys
from tupletree.topology.field_types import fault_of, untravelled

TIMES = (dt.datetime, float, int, decimal.Decimal)


def is_message_class(cls: object) -> bool:
    """Whether this is a class that can be a stream: a msgspec.Struct, a dataclass or a NamedTuple."""
    if not isinstance(cls, type):
        return False
    if issubclass(cls, msgspec.Struct):
        return cls is not msgspec.Struct
    return dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


@dataclass(frozen=True)
class Schema:
    """The fields of a message class.

    Attributes:
        cls: the message class (msgspec.Struct, dataclass or NamedTuple).
        fields: field name → resolved type, in positional order.
        required: names of fields without a default.
    """

    cls: type
    fields: Mapping[str, Any] = field(hash=False)
    required: frozenset[str] = frozenset()

    @classmethod
    def of(cls, message_class: type, names: Mapping[str, Any] | None = None) -> Schema:
        """Read a class's schema.

        Args:
            message_class: a msgspec.Struct, dataclass (slots and frozen too) or NamedTuple class.
            names: more names to resolve annotations with, for classes that live inside a function.

        Raises:
            TopologyError: with a finding per bad field, or one for a class that is no message class.
        """
        shown = hints.text_of(message_class)
        if not is_message_class(message_class):
            raise TopologyError(
                "not a message class",
                got=shown,
                expected="a msgspec.Struct, a dataclass or a NamedTuple",
                next_step="wrap the value in a class with named, typed fields",
            )
        try:
            types = hints.resolve(message_class, names)
        except hints.RESOLVE_ERRORS as error:
            raise TopologyError(
                "the types of the fields cannot be resolved",
                where=shown,
                got=f"{type(error).__name__}: {error}",
                next_step="import the class that is named, outside of `if TYPE_CHECKING:`, or move it to module level",
            ) from error
        required, findings = _required(message_class, shown)
        fields = {name: types[name] for name in _field_names(message_class) if name in types}
        untyped = [name for name in _field_names(message_class) if name not in types]
        findings += [Finding(f"field {name} has no type", shown, next_step="annotate it") for name in untyped]
        for name, annotation in fields.items():
            if reason := untravelled(annotation):
                findings.append(
                    Finding(
                        f"field {name} has a type that cannot travel",
                        shown,
                        got=reason,
                        expected="numbers, text, bytes, dates, Decimal, UUID, enums, messages, lists or dicts of them",
                        next_step="use one of these types",
                    )
                )
        if findings:
            raise TopologyError(f"{shown} cannot be a stream", findings=findings)
        return cls(message_class, fields, required)

    @property
    def is_read(self) -> bool:
        """False for the stand-in of a class that its component does not emit, which has a finding already."""
        return bool(self.fields) or (is_message_class(self.cls) and not _field_names(self.cls))

    @property
    def text(self) -> str:
        """A text of the class for people."""
        return hints.text_of(self.cls)

    def key_of(self, fields: tuple[str, ...]) -> Callable[[Any], Any]:
        """A function value → canonical key: the field's value coerced to its declared type (a tuple for several).

        Canonical: NaN is one NaN, -0.0 is 0.0, None stays None, bool in an int field becomes int. The returned
        function raises TypeError, naming the field, for a value that cannot be coerced; text is passed on unread
        (a lone surrogate shows when the key is encoded).

        Raises:
            TopologyError: no field, an unknown field, or one whose type cannot be a key.
        """
        findings = self.key_faults(fields)
        if findings:
            raise TopologyError("no such key", findings=findings)
        coercions = tuple(coercion for name in fields if (coercion := keys.coercion_of(self.fields[name])) is not None)
        return keys.key_function(fields, coercions, self.cls.__qualname__)

    def key_faults(self, fields: Sequence[str]) -> list[Finding]:
        """Why these fields cannot be a key."""
        if not fields:
            return [Finding("a key needs at least one field", self.text, expected=one_of(self.fields))]
        return [fault for name in fields if (fault := self.key_fault(name)) is not None]

    def key_fault(self, name: str) -> Finding | None:
        """Why this field cannot be a key, or None if it can."""
        if name not in self.fields:
            return Finding.unknown(f"{self.cls.__qualname__} has no field {name!r}", self.text, name, self.fields)
        if keys.coercion_of(self.fields[name]) is None:
            return Finding(
                f"field {name!r} of {self.cls.__qualname__} cannot be a key",
                self.text,
                got=hints.text_of(self.fields[name]),
                expected="text, a number, bool, bytes, a date or time, Decimal, UUID or an enum",
                next_step="group by another field, or add one that holds the key",
            )
        return None

    def text_of_key(self, name: str) -> str:
        """A text of a field's type without None, which every key may be."""
        return " | ".join(
            hints.text_of(kind) for kind in hints.members(self.fields[name]) if kind is not hints.NONE_TYPE
        )

    def time_fault(self, name: str) -> Finding | None:
        """Why this field cannot say when something happened, or None if it can; `where` is left to the caller."""
        if name not in self.fields:
            return Finding.unknown(f"{self.cls.__qualname__} has no field {name!r}", "", name, self.fields)
        kinds = [kind for kind in hints.members(self.fields[name]) if kind is not hints.NONE_TYPE]
        if all(isinstance(kind, type) and issubclass(kind, TIMES) and kind is not bool for kind in kinds):
            return None
        return Finding(
            f"field {name!r} is no time",
            got=hints.text_of(self.fields[name]),
            expected="a datetime with a zone, or seconds since the Unix epoch",
            next_step="give a function: timestamp=lambda one: ...",
        )

    def check(self, value: object) -> None:
        """Say why a value cannot travel in this stream. Thorough and slow: called after a batch could not be encoded.

        Raises:
            TypeError: wrong class, an integer beyond signed 64 bits, a lone surrogate in text, a field of another
                type than declared; the text names field, got and expected.
        """
        fault = fault_of(value, self.cls, self.cls.__qualname__)
        if fault is not None:
            raise TypeError(str(fault))

    def default_of(self, name: str) -> Any:
        """A value for a field that old bytes do not have. Raises KeyError if the field has no default."""
        if name in self.required:
            raise KeyError(name)
        if issubclass(self.cls, msgspec.Struct):
            entry = next(one for one in msgspec.structs.fields(self.cls) if one.name == name)
            return entry.default if entry.default is not msgspec.NODEFAULT else entry.default_factory()
        if dataclasses.is_dataclass(self.cls):
            plain = next(one for one in dataclasses.fields(self.cls) if one.name == name)
            return plain.default if plain.default_factory is dataclasses.MISSING else plain.default_factory()
        defaults: Mapping[str, Any] = getattr(self.cls, "_field_defaults", {})
        return defaults[name]

    def fingerprint(self) -> str:
        """A text that changes when the class's name, its fields or their types do; the same in every process."""
        return _fingerprint(self.cls, {})


def _field_names(message_class: type) -> tuple[str, ...]:
    if issubclass(message_class, msgspec.Struct):
        return message_class.__struct_fields__
    if dataclasses.is_dataclass(message_class):
        return tuple(entry.name for entry in dataclasses.fields(message_class))
    names: tuple[str, ...] = getattr(message_class, "_fields", ())
    return names


def _required(message_class: type, shown: str) -> tuple[frozenset[str], list[Finding]]:
    """Names of the fields without default, and findings for fields that a copy could not be given."""
    if issubclass(message_class, msgspec.Struct):
        names, last = message_class.__struct_fields__, message_class.__struct_defaults__
        given = dict(zip(names[len(names) - len(last) :], last, strict=True))
        return frozenset(name for name in names if given.get(name, msgspec.NODEFAULT) is msgspec.NODEFAULT), []
    if not dataclasses.is_dataclass(message_class):
        defaults: Mapping[str, Any] = getattr(message_class, "_field_defaults", {})
        return frozenset(name for name in _field_names(message_class) if name not in defaults), []
    missing = dataclasses.MISSING
    entries = dataclasses.fields(message_class)
    findings = [
        Finding(
            f"field {entry.name} cannot be given to the constructor",
            shown,
            got="init=False",
            next_step="make it an ordinary field or a property: a copy in another process is built from its fields",
        )
        for entry in entries
        if not entry.init
    ]
    return frozenset(e.name for e in entries if e.default is missing and e.default_factory is missing), findings


def _fingerprint(cls: type, seen: dict[type, None]) -> str:
    """Name and fields; a message class inside is spelled out where it first occurs."""
    seen[cls] = None
    types = Schema.of(cls).fields
    return f"{hints.text_of(cls)}({', '.join(f'{name}: {_spell(kind, seen)}' for name, kind in types.items())})"


def spelled(annotation: Any) -> str:
    """A text that changes when a type does, or the fields of a message class in it; the same in every process."""
    return _spell(annotation, {})


def _spell(annotation: Any, seen: dict[type, None]) -> str:
    text = hints.text_of(annotation)
    inner = [kind for kind in hints.classes_in(annotation) if is_message_class(kind) and kind not in seen]
    return text + "".join(f" {{{_fingerprint(kind, seen)}}}" for kind in inner if kind not in seen)
