"""What may travel: which types can be declared, and why a value does not fit its declaration.

Owns the judgement only; the encoders own the encoding. Slow and thorough by design: types are judged once, at build
time, and values only after a batch of them could not be encoded.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from tupletree.topology import hints

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class ValueFault:
    """One value in the wrong place: `path` leads to it (`Word.tags[2]`)."""

    path: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"{self.path}: got {self.got}, expected {self.expected}"


def untravelled(annotation: Any) -> str:
    """Why values of this type cannot be sent to another process, in words; empty if they can."""
    if isinstance(annotation, type) and annotation in SCALARS:
        return ""
    try:
        nodes = nodes_of(annotation)
    except (TypeError, NameError, RecursionError) as error:
        return str(error)
    for node in nodes:
        if isinstance(node, msgspec.inspect.CustomType | msgspec.inspect.RawType | msgspec.inspect.ExtType):
            return hints.text_of(getattr(node, "cls", type(node)))
    return ""


def nodes_of(annotation: Any) -> list[Any]:
    """Every msgspec type node that a type is made of. Raises TypeError, NameError or RecursionError for no type."""
    pending = [msgspec.inspect.type_info(annotation)]
    found: dict[int, Any] = {}
    while pending:
        node = pending.pop()
        if id(node) not in found:
            found[id(node)] = node
            pending += _inner(node)
    return list(found.values())


def _inner(node: Any) -> list[Any]:
    """The types that a msgspec type node is made of."""
    found = [getattr(node, name) for name in ("item_type", "key_type", "value_type") if hasattr(node, name)]
    found += [*getattr(node, "types", ()), *getattr(node, "item_types", ())]
    return found + [entry.type for entry in getattr(node, "fields", ())]


def fault_of(value: Any, annotation: Any, path: str) -> ValueFault | None:
    """Why `value` does not fit `annotation`; None if it does. The first fault in field order."""
    annotation = hints.plain(annotation)
    origin = get_origin(annotation)
    if annotation is Any:
        return _dynamic_fault(value, path)
    if origin in {Union, types.UnionType}:
        return _union_fault(value, annotation, path)
    if origin is Literal:
        return None if value in get_args(annotation) else _fault(value, hints.text_of(annotation), path)
    if annotation in SCALARS:
        return _scalar_fault(value, annotation, path)
    if origin is not None or annotation in CONTAINERS:
        return _container_fault(value, origin or annotation, get_args(annotation), path)
    fields = _typed_fields(annotation)
    if fields is None:
        return None if isinstance(value, annotation) else _fault(value, hints.text_of(annotation), path)
    # Exactly this class: a subclass would arrive as its base, without the fields that it added.
    if type(value) is not annotation:
        return _fault(value, hints.text_of(annotation), path)
    return _first(fault_of(getattr(value, name), kind, f"{path}.{name}") for name, kind in fields.items())


SCALARS = frozenset({int, float, str, bytes, bool, hints.NONE_TYPE})
CONTAINERS = frozenset({list, tuple, set, frozenset, dict})


def _first(faults: collections.abc.Iterable[ValueFault | None]) -> ValueFault | None:
    return next((fault for fault in faults if fault is not None), None)


def _fault(value: Any, expected: str, path: str) -> ValueFault:
    shown = repr(value)
    return ValueFault(
        path, f"{hints.text_of(type(value))} {shown if len(shown) <= 60 else shown[:57] + '...'}", expected
    )


@lru_cache(4096)
def _typed_fields(cls: Any) -> dict[str, Any] | None:
    """The fields of a message class with their types; None for any other class."""
    is_record = isinstance(cls, type) and (
        issubclass(cls, msgspec.Struct)
        or dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )
    if not is_record:
        return None
    names = getattr(cls, "__struct_fields__", None) or getattr(cls, "_fields", None)
    if names is None:
        names = [entry.name for entry in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    resolved = hints.resolve(cls)
    return {name: resolved[name] for name in names}


def _scalar_fault(value: Any, kind: type, path: str) -> ValueFault | None:
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if kind is bytes:
        fits = isinstance(value, bytes | bytearray | memoryview)
    if not fits:
        return _fault(value, hints.text_of(kind), path)
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        return _fault(value, "an int of at most 64 bits (signed)", path)
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        return _fault(value, "text without lone surrogates", path)
    return None


def _union_fault(value: Any, annotation: Any, path: str) -> ValueFault | None:
    faults = {member: fault_of(value, member, path) for member in hints.members(annotation)}
    if None in faults.values():
        return None
    # The member that the value belongs to, but for something inside it, says more than "none of these types".
    near = (fault for member, fault in faults.items() if fault and (member is type(value) or fault.path != path))
    return next(near, None) or _fault(value, hints.text_of(annotation), path)


def _container_fault(value: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> ValueFault | None:
    if not isinstance(value, origin):
        return _fault(value, hints.text_of(origin[arguments] if arguments else origin), path)
    if isinstance(value, collections.abc.Mapping):
        key_kind, value_kind = arguments or (Any, Any)
        return _first(
            fault
            for key, entry in value.items()
            for fault in (
                fault_of(key, key_kind, f"{path} key {key!r}"),
                fault_of(entry, value_kind, f"{path}[{key!r}]"),
            )
        )
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            return _fault(value, f"{len(arguments)} items", path)
        kinds = arguments
    else:
        kinds = ((arguments[0] if arguments else Any),) * len(value)
    return _first(fault_of(entry, kind, f"{path}[{at}]") for at, (entry, kind) in enumerate(zip(value, kinds)))


def _dynamic_fault(value: Any, path: str) -> ValueFault | None:
    """A value without a declared type: judged by the type that it has."""
    kind = type(value)
    if kind in CONTAINERS:
        return _container_fault(value, kind, (), path)
    reason = untravelled(kind)
    return _fault(value, "a type that can travel", path) if reason else fault_of(value, kind, path)
