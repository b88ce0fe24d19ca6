"""How keys and values of state are written: exactly, or not at all.

What msgpack and the declared type can carry exactly goes as it is; everything else goes in the tagged form of
`payloads`, which keeps time zones, enums and unions apart. It refuses to know files and versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash
from msgspec import inspect

from tupletree.data.payloads import lift, lower, registry_of
from tupletree.routing.hashing import pack_key
from tupletree.topology.field_types import fault_of, nodes_of
from tupletree.topology.keys import DECIMAL_NAN, NAN

_hash = xxhash.xxh3_64_intdigest

_PLAIN_KEYS = frozenset({str, int, float, bool, bytes, type(None)})

_NATIVE = (
    inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType, inspect.BoolType, inspect.NoneType,
    inspect.DateType, inspect.DecimalType, inspect.UUIDType, inspect.ListType, inspect.TupleType, inspect.VarTupleType,
    inspect.SetType, inspect.FrozenSetType, inspect.DictType, inspect.StructType, inspect.DataclassType,
    inspect.NamedTupleType, inspect.UnionType,
)  # fmt: skip
"""What msgspec reads back as it was, given the type. Not so moments, whose zone it drops, or values of type Any."""


class KeyEncoding:
    """Canonical keys as bytes: equal bytes begin with equal `hashing.pack_key`, and can be read back.

    Plain keys are written as they are hashed. Others (decimals, moments, enums, ...) are hashed in a form that cannot
    be read back, so the tagged form of `payloads` follows, and its length.

    Args:
        key_types: declared types of the key fields; their enums may occur.
    """

    def __init__(self, key_types: Sequence[Any]) -> None:
        self._classes: dict[str, type] = {}
        for key_type in key_types:
            self._classes |= registry_of(key_type)

    def encode(self, keys: list[Any]) -> tuple[list[bytes], list[int]]:
        """Keys as they are stored, and their hashes."""
        packed = list(map(pack_key, keys))
        hashes = list(map(_hash, packed))
        if not _PLAIN_KEYS.issuperset(map(type, keys)):
            packed = [one if _is_plain(key) else self._tagged(one, key) for one, key in zip(packed, keys, strict=True)]
        return packed, hashes

    @staticmethod
    def _tagged(packed: bytes, key: Any) -> bytes:
        plain = [lower(part, json=False) for part in key] if type(key) is tuple else lower(key, json=False)
        readable = msgspec.msgpack.encode(plain)
        return packed + readable + len(readable).to_bytes(4, "little")

    def decode(self, stored: bytes) -> Any:
        """A key that `encode` wrote; NaN is the one NaN of `topology.keys` again, and so finds itself."""
        data = self.plain(stored)
        return tuple(map(self._part, data)) if type(data) is list else self._part(data)

    @staticmethod
    def plain(stored: bytes) -> Any:
        """A stored key as plain data, a list if it has several fields."""
        try:
            return msgspec.msgpack.decode(stored)
        except msgspec.DecodeError:  # something follows: the readable form
            length = int.from_bytes(stored[-4:], "little")
            return msgspec.msgpack.decode(stored[-4 - length : -4])

    @staticmethod
    def same(one: bytes, other: bytes) -> bool:
        """Whether two stored keys are one key: times of one instant in two zones are, and differ as bytes."""
        return one == other or _hashed(one) == _hashed(other)

    def _part(self, data: Any) -> Any:
        part = lift(data, self._classes) if type(data) is dict else data
        if part != part:  # noqa: PLR0124 - only NaN differs from itself
            return NAN if type(part) is float else DECIMAL_NAN
        return part


def _is_plain(key: Any) -> bool:
    return type(key) in _PLAIN_KEYS or (type(key) is tuple and _PLAIN_KEYS.issuperset(map(type, key)))


def _hashed(stored: bytes) -> bytes:
    """The form of a stored key that is hashed."""
    try:
        msgspec.msgpack.decode(stored)
    except msgspec.DecodeError:
        return stored[: -4 - int.from_bytes(stored[-4:], "little")]
    return stored


class ValueEncoding:
    """Values of one declared type as msgpack."""

    def __init__(self, value_type: Any) -> None:
        self._type = value_type
        self._encode = msgspec.msgpack.Encoder().encode
        self._native = _is_native(value_type)
        self._decode = msgspec.msgpack.Decoder(list[value_type] if self._native else list[Any]).decode
        self._classes = {} if self._native else registry_of(value_type)

    def encode(self, values: list[Any]) -> list[bytes]:
        """Each value as bytes.

        Raises the error that says that one of them does not fit the declared type, or would not be read as it is.
        """
        encoded = list(map(self._encode, values if self._native else [lower(value, json=False) for value in values]))
        found = self.decode(len(encoded), b"".join(encoded))
        # Unequal are a NaN, which is fine, and a subclass, which would come back as its base class.
        if not self._native or found != values:
            for value in values:
                fault = fault_of(value, self._type, "value")
                if fault is not None:
                    raise TypeError(str(fault))
        return encoded

    @property
    def form(self) -> str:
        """How values are written: `native` or `tagged`."""
        return "native" if self._native else "tagged"

    def decode_form(self, form: str, count: int, data: bytes | memoryview) -> list[Any]:
        """As `decode`, of values that were written in the form that an earlier version of the type had.

        Raises also TypeError: no value of this type can be told in that form.
        """
        if form in {"", self.form}:
            return self.decode(count, data)
        packed = b"".join((b"\xdd", count.to_bytes(4, "big"), data))
        if form == "native":
            found: list[Any] = msgspec.msgpack.Decoder(list[self._type]).decode(packed)  # type: ignore[name-defined]  # a type that is known at runtime
            return found
        registry = registry_of(self._type)
        return [lift(value, registry, may_have_more=True) for value in msgspec.msgpack.decode(packed)]

    def decode(self, count: int, data: bytes | memoryview) -> list[Any]:
        """So many values that stand one after the other; fields that the type does not have any more are left out.

        Raises MsgspecError or ValueError for bytes that do not fit the type.
        """
        values = self._decode(b"".join((b"\xdd", count.to_bytes(4, "big"), data)))
        return values if self._native else [lift(value, self._classes, may_have_more=True) for value in values]


def _is_native(annotation: Any) -> bool:
    try:
        msgspec.msgpack.Decoder(list[annotation])
    except TypeError:  # a union that bytes alone cannot tell apart
        return False
    return all(isinstance(node, _NATIVE) for node in nodes_of(annotation))
