"""A document with every default filled in, and where each value comes from.

Owns what `explain` shows. Secrets are hidden: passwords in URLs, and values and variables that are named like secrets.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from tupletree.errors import TupletreeError
from tupletree.escaping import escape
from tupletree.queues.urls import is_secret, parse_url, without_secrets
from tupletree.routes.document.loading import Document
from tupletree.routes.document.nodes import MappingNode, Node, Place, ScalarNode, Step, node_at, path_text, plain
from tupletree.routes.document.spec import MOST_HELD
from tupletree.routes.document.words import AmbiguousWordError, read_word

HIDDEN = "***"
COMMENT_COLUMN = 48
ALONE = {"level", "url"}
"""Keys whose value may stand for the mapping that holds it."""

_SAFE = re.compile(r"[\w/.](?:[\w/. +@=-]|:(?=[\w/]))*", re.ASCII)

Origin = Literal["document", "default", "defaults", "environment", "file"]


@dataclass(frozen=True)
class Value:
    """One value of a document.

    Attributes:
        path: where it belongs.
        value: itself; secrets are hidden.
        origin: `document` says it, `defaults` of the document, the format's or the adapter's `default`, a variable of
            the `environment`, a `file` that `!file` names.
        place: of what says it; None for a default.
        variables: of the environment.
        file: that `!file` names.
    """

    path: tuple[Step, ...]
    value: Any
    origin: Origin
    place: Place | None = None
    variables: tuple[str, ...] = ()
    file: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "path": path_text(self.path),
            "value": self.value,
            "origin": self.origin,
            "file": self.place.file if self.place else "",
            "line": self.place.line if self.place else 0,
            "column": self.place.column if self.place else 0,
            "variables": list(self.variables),
        }

    def __str__(self) -> str:
        at = f"{self.place.file}:{self.place.line}" if self.place else ""
        if self.origin == "environment":
            return f"environment {', '.join(self.variables)}, {at}"
        if self.origin == "file":
            return f"file {self.file}, {at}"
        if self.origin == "defaults":
            return f"defaults, {at}"
        return at or "default"


def values(document: Document) -> Iterator[Value]:
    """Every value, in the order of the format."""
    for path, value in _leaves(_filled(document), ()):
        yield _value(document.root, path, value)


def to_yaml(document: Document) -> str:
    """The document as YAML, with a comment after each value. It means the same, but for hidden secrets."""
    lines: list[str] = []
    _write(_filled(document), (), document.root, lines, "")
    lines += [f"# {note}" for note in notes(document)]
    return "\n".join(lines) + "\n"


def notes(document: Document) -> list[str]:
    """What follows from the document and is said nowhere in it."""
    spec = document.spec
    found = []
    cycles = {route: queues for route, queues in spec.queues_in_cycles().items() if queues}
    if cycles:
        shown = ", ".join(f"{route} → {queue}" for route, queues in cycles.items() for queue in sorted(queues))
        found.append(
            f"high_water does not count for queues of a cycle, whose routes would wait for each other: {shown}"
        )
    found += [
        f"routes.{name}: what {adapter.name} holds for a batch takes no slot, up to {MOST_HELD:,} messages"
        for name, route in spec.routes.items()
        for adapter in route.adapters
        if adapter.batch_size
    ]
    used = {queue for route in spec.routes.values() for queue in route.queues}
    own = sorted({queue for queue in (*used, spec.on_complete) if queue} - set(spec.queues))
    if own:
        found.append(f"in the embedded queue file: {', '.join(own)}")
    if spec.tests:
        found.append(f"tests: {len(spec.tests)}")
    return [escape(note) for note in found]


def _filled(document: Document) -> dict[str, Any]:
    """The document as plain data with every default; `defaults` is part of the routes, tests are left out."""
    data = document.model.model_dump(exclude={"defaults", "tests"})
    for name, route in document.spec.routes.items():
        for position, adapter in enumerate(route.adapters):
            row = data["routes"][name]["adapters"][position]
            row["name"] = adapter.name
            row["config"] = _config(document.root, ("routes", name, "adapters", position, "config"), adapter.config)
    return data


def _config(root: MappingNode, path: tuple[Step, ...], config: Any) -> Any:
    """An adapter's settings as plain data; as the document says them where the model cannot be written as JSON."""
    try:
        return to_jsonable_python(config, by_alias=True, inf_nan_mode="constants")
    except Exception:  # noqa: BLE001 - a model may hold anything, and serialize it by code of its own
        node, walked, _ = node_at(root, path)
        return plain(node) if walked == path else {}


def _leaves(data: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    if isinstance(data, Mapping) and data:
        for key, item in data.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(data, list) and data:
        for position, item in enumerate(data):
            yield from _leaves(item, (*path, position))
    else:
        yield path, data


def _value(root: MappingNode, path: tuple[Step, ...], value: Any) -> Value:
    node, walked, place = node_at(root, path)
    said = walked == path or (len(walked) == len(path) - 1 and path[-1] in ALONE and isinstance(node, ScalarNode))
    if not said:
        return Value(path, _hidden(path, value, None), "default")
    shown = _hidden(path, value, node)
    if isinstance(node, ScalarNode) and node.file:
        return Value(path, shown, "file", node.place, node.variables, node.file)
    if isinstance(node, ScalarNode) and node.variables:
        return Value(path, shown, "environment", node.place, node.variables)
    if _inherited(root, walked):
        return Value(path, shown, "defaults", place)
    return Value(path, shown, "document", node.place)


def _inherited(root: MappingNode, path: Sequence[Step]) -> bool:
    node: Node = root
    for step in path:
        if isinstance(node, MappingNode) and isinstance(step, str) and node.entries[step].inherited:
            return True
        node = node_at(node, [step])[0]
    return False


def _hidden(path: Sequence[Step], value: Any, node: Node | None) -> Any:
    if value in ("", None) or isinstance(value, dict | list):
        return value
    names = _names(path)
    names += node.variables if isinstance(node, ScalarNode) else ()
    if any(is_secret(name) for name in names) and isinstance(value, str):
        return HIDDEN
    if isinstance(value, str) and "://" in value:
        try:
            shown = parse_url(value).shown
        except TupletreeError:
            return without_secrets(value)
        return shown if HIDDEN in shown else without_secrets(value)
    return without_secrets(value) if isinstance(value, str) else value


def _names(path: Sequence[Step]) -> list[str]:
    """The keys that say what a value is: its own, and above it those of settings, which are not the format's."""
    keys = [step for step in path if isinstance(step, str)]
    inside = next((keys.index(word) + 1 for word in ("config", "settings") if word in keys[:-1]), len(keys) - 1)
    return keys[inside:]


def _write(data: Any, path: tuple[Step, ...], root: MappingNode, lines: list[str], indent: str) -> None:
    """The items of a mapping or list, a line for each value."""
    items: Sequence[tuple[Step, Any]] = list(data.items()) if isinstance(data, dict) else list(enumerate(data))
    for step, item in items:
        at = (*path, step)
        head = f"{indent}- " if isinstance(step, int) else f"{indent}{_word(step)}:"
        if isinstance(item, dict | list) and item:
            if isinstance(step, int):
                inner: list[str] = []
                _write(item, at, root, inner, f"{indent}  ")
                lines += [head + inner[0].removeprefix(f"{indent}  "), *inner[1:]]
            else:
                lines.append(head)
                _write(item, at, root, lines, f"{indent}  ")
            continue
        found = _value(root, at, item)
        text = head if isinstance(step, int) else f"{head} "
        lines.append(f"{text + _word(found.value):<{COMMENT_COLUMN}}  # {escape(str(found))}")


def _word(value: Any) -> str:
    """A value as YAML writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        bare = _SAFE.fullmatch(value) is not None and value.strip() == value and read_word(value) == value
    except AmbiguousWordError:
        bare = False
    if bare:
        return value
    quoted = json.dumps(value.replace("${", "$${"), ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(map(_character, quoted))


def _character(character: str) -> str:
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
