"""Messages that several scenarios send, and sources of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from tupletree.topology.components import Emit

T = TypeVar("T")


class Item(msgspec.Struct, frozen=True):
    """A message, or a part of one."""

    number: int


class KeyedItem(msgspec.Struct, frozen=True):
    """A message with a key, or what came of one."""

    key: int
    number: int


class Count(msgspec.Struct, frozen=True):
    """A running count of a key."""

    key: int
    count: int


class Sum(msgspec.Struct, frozen=True):
    """What became of several items."""

    numbers: list[int]


def numbered(values: Sequence[T]) -> list[Emit[T]]:
    """One message for each value; its id is its position."""
    return [Emit(value, position) for position, value in enumerate(values)]


def numbered_items(count: int) -> list[Emit[Item]]:
    """So many items; each is its own id."""
    return numbered([*map(Item, range(count))])
