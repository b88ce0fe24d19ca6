"""Streams: a message class becomes a schema (field names, types), and keys become canonical."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Schema"]


@dataclass(frozen=True)
class Schema:
    """The fields of a message class.

    Attributes:
        cls: the message class (msgspec.Struct, dataclass or NamedTuple).
        fields: field name → resolved type, in positional order.
        required: names of fields without a default.
    """

    cls: type
    fields: Mapping[str, Any]
    required: frozenset[str] = frozenset()

    @classmethod
    def of(cls, message_class: type) -> Schema:
        """Read a class's schema. Raises TopologyError (with a finding per bad field)."""
        raise NotImplementedError

    def key_of(self, fields: tuple[str, ...]) -> Callable[[Any], Any]:
        """A function value → canonical key: the field's value coerced to its declared type (a tuple for several).

        Canonical: NaN is one NaN, -0.0 is 0.0, None stays None, bool in an int field becomes int. Raises TypeError
        in the returned function for a value that cannot be coerced.
        """
        raise NotImplementedError
