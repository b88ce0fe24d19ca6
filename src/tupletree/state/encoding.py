"""How keys and values of state are written: exactly, or not at all.

What msgpack and the declared type can carry exactly goes as it is; everything else goes in the tagged form of
`payloads`, which keeps time zones, enums and unions apart. It refuses to know files and versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from tupletree.payloads import lift, lower, registry_of
from tupletree.topology.keys import DECIMAL_NAN, NAN
from tupletree.topology.travel import fault_of, nodes_of

__all__ = ["KeyEncoding", "ValueEncoding"]

_PLAIN_KEYS = frozenset({str, int, float, bool, bytes, type(None)})
_CANONICAL_KEYS = _PLAIN_KEYS - {float}

_NATIVE = (
    inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType, inspect.BoolType, inspect.NoneType,
    inspect.DateType, inspect.DecimalType, inspect.UUIDType, inspect.ListType, inspect.TupleType, inspect.VarTupleType,
    inspect.SetType, inspect.FrozenSetType, inspect.DictType, inspect.StructType, inspect.DataclassType,
    inspect.NamedTupleType, inspect.UnionType,
)  # fmt: skip
"""What msgspec reads back as it was, given the type. Not so moments, whose zone it drops, or values of type Any."""


class KeyEncoding:
    """Canonical keys as plain data: each part says its own type, so that a key does not depend on a decoder's guess.

    Args:
        key_types: declared types of the key fields; their enums may occur.
    """

    def __init__(self, key_types: Sequence[Any]) -> None:
        self._classes: dict[str, type] = {}
        for key_type in key_types:
            self._classes |= registry_of(key_type)

    def plain(self, keys: list[Any]) -> list[Any]:
        """What to write."""
        if _PLAIN_KEYS.issuperset(map(type, keys)):
            return keys
        return [
            [lower(part, json=False) for part in key] if type(key) is tuple else lower(key, json=False) for key in keys
        ]

    def canonical(self, data: list[Any]) -> list[Any]:
        """The keys that `plain` wrote; NaN is the one NaN of `topology.keys` again, and so finds itself."""
        if _CANONICAL_KEYS.issuperset(map(type, data)):
            return data
        return [tuple(map(self._part, one)) if type(one) is list else self._part(one) for one in data]

    def _part(self, data: Any) -> Any:
        part = lift(data, self._classes) if type(data) is dict else data
        if part != part:  # noqa: PLR0124 - only NaN differs from itself
            return NAN if type(part) is float else DECIMAL_NAN
        return part


class ValueEncoding:
    """Values of one declared type as msgpack bytes."""

    def __init__(self, value_type: Any) -> None:
        self._type = value_type
        self._encode = msgspec.msgpack.Encoder().encode
        self._native = _is_native(value_type)
        self._decode = msgspec.msgpack.Decoder(list[value_type] if self._native else list[Any]).decode
        self._classes = {} if self._native else registry_of(value_type)

    def encode(self, values: list[Any]) -> bytes:
        """Values that `read_back` has let through, as bytes."""
        return self._encode(values if self._native else [lower(value, json=False) for value in values])

    def decode(self, data: bytes | msgspec.Raw) -> list[Any]:
        """What `encode` wrote. Raises MsgspecError or ValueError for bytes that do not fit the type."""
        values = self._decode(data)
        return values if self._native else [lift(value, self._classes) for value in values]

    def read_back(self, values: list[Any]) -> list[Any]:
        """The values as they will be read. Raises whatever says that one of them does not fit the declared type."""
        found = self.decode(self.encode(values))
        # Unequal are a NaN, which is fine, and a subclass, which would come back as less than it was.
        if not self._native or found != values:
            for value in values:
                fault = fault_of(value, self._type, "value")
                if fault is not None:
                    raise TypeError(str(fault))
        return found


def _is_native(annotation: Any) -> bool:
    try:
        msgspec.msgpack.Decoder(list[annotation])
    except TypeError:  # a union that bytes alone cannot tell apart
        return False
    return all(isinstance(node, _NATIVE) for node in nodes_of(annotation))
