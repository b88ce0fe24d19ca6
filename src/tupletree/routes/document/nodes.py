"""What a document consists of once it is read: values with their places.

Owns the three kinds of nodes, paths to them, and how mappings are laid over one another. Refuses to read text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

SHOWN_CHARACTERS = 80
_PLAIN_KEY = re.compile(r"[\w-]+")

Step: TypeAlias = "str | int"
"""A key of a mapping, or a position in a list."""


class Place(NamedTuple):
    """Where something stands. Line and column count from 1; both are 0 for a file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(slots=True)
class ScalarNode:
    """One value.

    Attributes:
        place: where it begins.
        value: text, a number, True, False or None.
        raw: as it is written.
        quoted: whether it is in quotes, or a block.
        variables: of the environment that are part of it.
        text: with these replaced.
        file: that its text comes from (`!file`); empty: the document.
        faulty: it has been found wrong already; what it stands for is not known.
    """

    place: Place
    value: Any = None
    raw: str = ""
    quoted: bool = False
    variables: tuple[str, ...] = ()
    text: str = ""
    file: str = ""
    faulty: bool = False


@dataclass(slots=True)
class ListNode:
    """A list."""

    place: Place
    items: list[Node] = field(default_factory=list)
    faulty: bool = False


@dataclass(slots=True)
class Entry:
    """A key with its value.

    Attributes:
        place: of the key.
        node: the value.
        inherited: it comes from `defaults`.
        faulty: the key has been found wrong already.
    """

    place: Place
    node: Node
    inherited: bool = False
    faulty: bool = False


@dataclass(slots=True)
class MappingNode:
    """Keys and values, in their order."""

    place: Place
    entries: dict[str, Entry] = field(default_factory=dict)
    faulty: bool = False


Node: TypeAlias = "ScalarNode | ListNode | MappingNode"


def path_text(path: Sequence[Step]) -> str:
    """`routes.convert.adapters[0]`; a key that holds more than letters, digits, `_` and `-` is in quotes."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            key = step if _PLAIN_KEY.fullmatch(step) else f'"{step}"'
            text += f".{key}" if text else key
    return text


def plain(node: Node) -> Any:
    """The value as Python's own: dict, list, text, numbers, booleans, None."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, ListNode):
        return [plain(item) for item in node.items]
    return {key: plain(entry.node) for key, entry in node.entries.items()}


def node_at(node: Node, path: Sequence[Any]) -> tuple[Node, tuple[Step, ...], Place]:
    """What a path leads to, as far as it goes: the node, the part of the path that leads there, and the key's place."""
    place = node.place
    walked: list[Step] = []
    for step in path:
        if isinstance(node, MappingNode) and step in node.entries:
            place = node.entries[step].place
            node = node.entries[step].node
        elif isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            place = node.place
        elif isinstance(node, MappingNode) and step == 0:
            continue  # one thing that stands for a list of it
        else:
            break
        walked.append(step)
    return node, tuple(walked), place


def below(base: MappingNode, over: MappingNode, *, inherited: bool) -> MappingNode:
    """`over` with what only `base` has, key by key at every depth; lists are not merged.

    Args:
        base: what is used where `over` says nothing.
        over: wins.
        inherited: whether what is taken from `base` counts as taken from `defaults`.
    """
    entries = dict(over.entries)
    for key, entry in base.entries.items():
        own = entries.get(key)
        if own is None:
            entries[key] = replace(entry, inherited=inherited or entry.inherited)
        elif isinstance(own.node, MappingNode) and isinstance(entry.node, MappingNode):
            entries[key] = replace(own, node=below(entry.node, own.node, inherited=inherited))
    return MappingNode(over.place, entries, over.faulty)


def shown(node: Node) -> str:
    """What stands there, shortened. What comes from the environment or a file is shown as it is written."""
    if isinstance(node, ScalarNode):
        text = f'"{node.raw}"' if node.quoted else node.raw or "nothing"
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
    if isinstance(node, ListNode):
        return f"a list of {len(node.items)}"
    keys = ", ".join(node.entries)
    return "a mapping" + (f" with {keys}" if len(keys) <= SHOWN_CHARACTERS and keys else "")
