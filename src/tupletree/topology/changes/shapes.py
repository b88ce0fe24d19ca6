"""Shapes: what stored bytes need of a type, and how the shapes of an earlier and a present type differ.

A shape says how a type is written, without the modules of its classes, and what each class in it is made of. It is
JSON-compatible, so that state files and the state directory keep it. Owns the judgement whether old bytes can be read
with a new class. Refuses to know what is stored, and where.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from tupletree.topology import hints
from tupletree.topology.streams import Schema, is_message_class

Shape: TypeAlias = Mapping[str, Any]
"""`type`: the members of its union, as texts. `classes`: name → `module`, and `fields` (name → members, default) with
`kind` (`named`, `array`, `strict`), or `members` of an enum. Some have `stored_as`, field → its name in
stored bytes where that is another, and `left_out`, field → the value of it that is not stored, as text."""

ShapeKind: TypeAlias = Literal["moved", "widened", "removed", "changed"]


@dataclass(frozen=True)
class ShapeChange:
    """One difference between two shapes.

    Attributes:
        kind: `moved` (a class is in another module) and `widened` (an optional field, None, a member of an enum) need
            nothing; what is `removed` is lost when old bytes are read; what has `changed` cannot be read.
        what: where, as in `Line.at`.
        was, now: as texts; empty for nothing.
    """

    kind: ShapeKind
    what: str
    was: str
    now: str


def shape_of(*annotations: Any) -> dict[str, Any]:
    """The shape of a type; of several, one after the other, as for a key of several fields."""
    classes: dict[str, dict[str, Any]] = {}
    types = [_members(annotation) for annotation in annotations]
    pending = [cls for annotation in annotations for cls in hints.classes_in(annotation)]
    while pending:
        cls = pending.pop(0)
        if _name_of(cls) in classes:
            continue
        if is_message_class(cls):
            schema = Schema.of(cls)
            pending += [inner for kind in schema.fields.values() for inner in hints.classes_in(kind)]
            fields = {name: [_members(kind), name not in schema.required] for name, kind in schema.fields.items()}
            classes[_name_of(cls)] = {"module": cls.__module__, "kind": _kind(cls), "fields": fields, **_settings(cls)}
        elif issubclass(cls, enum.Enum):
            classes[_name_of(cls)] = {"module": cls.__module__, "members": [*cls.__members__]}
    return {"type": types[0] if len(types) == 1 else types, "classes": classes}


def _members(annotation: Any) -> list[Any]:
    return [hints.text_of(member, _name_of) for member in hints.members(annotation)]


def _name_of(cls: type) -> str:
    """Without the module where the class may move to another one: what it is made of is compared instead."""
    if is_message_class(cls) or issubclass(cls, enum.Enum):
        return cls.__qualname__
    return hints.text_of(cls)


def _kind(cls: type) -> str:
    if issubclass(cls, tuple):
        return "array"
    if dataclasses.is_dataclass(cls) or not issubclass(cls, msgspec.Struct):
        return "named"
    settings = cls.__struct_config__
    return "array" if settings.array_like else "strict" if settings.forbid_unknown_fields else "named"


def _settings(cls: type) -> dict[str, dict[str, str]]:
    """`stored_as` and `left_out`, those that there are."""
    if not issubclass(cls, msgspec.Struct):
        return {}
    pairs = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
    found = {"stored_as": {name: stored for name, stored in pairs if name != stored}}
    if cls.__struct_config__.omit_defaults and not cls.__struct_config__.array_like:
        found["left_out"] = {one.name: _default_text(one) for one in msgspec.structs.fields(cls) if not one.required}
    return {name: one for name, one in found.items() if one}


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    """A default, the same in each process: of a class with fields only the name is told."""
    if field.default is msgspec.NODEFAULT:
        return f"{hints.text_of(field.default_factory)}()" if isinstance(field.default_factory, type) else "made"
    default = field.default
    is_plain = default is None or isinstance(default, (bool, int, float, str, bytes))
    return repr(default) if is_plain or isinstance(default, enum.Enum) else type(default).__name__


def fits(before: Shape, after: Shape) -> bool:
    """Whether what was stored of one shape can be read as another, with what is removed left out."""
    return all(change.kind != "changed" for change in shape_changes(before, after))


def shape_changes(before: Shape, after: Shape, *, by_name: bool = False) -> list[ShapeChange]:
    """How two shapes differ.

    Args:
        before: what is stored.
        after: what is declared now.
        by_name: the outermost class is stored field by field, under their names, whatever its kind.
    """
    found = [*_type_changes("", before["type"], after["type"])]
    outermost = _only(after["type"])
    for name, old in before["classes"].items():
        new = after["classes"].get(name)
        if new is not None:
            found += _class_changes(name, old, new, by_name=by_name and name == outermost)
    return found


def _only(members: Sequence[Any]) -> Any:
    return members[0] if len(members) == 1 else None


def _type_changes(what: str, before: Sequence[Any], after: Sequence[Any]) -> Iterator[ShapeChange]:
    if list(before) == list(after) or (_flat(before) == _flat(after)):
        return
    widened = _flat(after) == _flat(before) | {"None"} and len(_flat(before)) > 0
    yield ShapeChange("widened" if widened else "changed", what, _text(before), _text(after))


def _flat(members: Sequence[Any]) -> set[str] | frozenset[str]:
    """The members of one union; of the fields of a key, nothing, because their order counts."""
    return {*members} if all(isinstance(one, str) for one in members) else frozenset((_text(members),))


def _text(members: Sequence[Any]) -> str:
    if all(isinstance(one, str) for one in members):
        return " | ".join(members)
    return f"({', '.join(map(_text, members))})"


def _class_changes(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], *, by_name: bool
) -> Iterator[ShapeChange]:
    if before["module"] != after["module"]:
        yield ShapeChange("moved", name, before["module"], after["module"])
    if "members" in before or "members" in after:
        yield from _enum_changes(name, before.get("members"), after.get("members"))
        return
    is_array = "array" in {before["kind"], after["kind"]}
    if is_array and not by_name:
        yield from _position_changes(name, before, after)
    else:
        yield from _removed_fields(name, before, after, strict=after["kind"] == "strict" and not by_name)
    if not is_array and not by_name:
        yield from _stored_changes(name, before, after)
    for field, (kinds, has_default) in after["fields"].items():
        known = before["fields"].get(field)
        if known is not None:
            yield from _type_changes(f"{name}.{field}", known[0], kinds)
        else:
            shown = f"{_text(kinds)}{' with a default' if has_default else ' without a default'}"
            yield ShapeChange("widened" if has_default else "changed", f"{name}.{field}", "", shown)


def _enum_changes(name: str, before: Sequence[str] | None, after: Sequence[str] | None) -> Iterator[ShapeChange]:
    if before is None or after is None:
        kinds = ("a class with fields", "an enum")
        yield ShapeChange("changed", name, kinds[before is not None], kinds[after is not None])
        return
    for member in before:
        if member not in after:
            yield ShapeChange("changed", f"{name}.{member}", "a member of the enum", "")
    for member in after:
        if member not in before:
            yield ShapeChange("widened", f"{name}.{member}", "", "a member of the enum")


def _removed_fields(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], *, strict: bool
) -> Iterator[ShapeChange]:
    for field, (kinds, _) in before["fields"].items():
        if field not in after["fields"]:
            yield ShapeChange("changed" if strict else "removed", f"{name}.{field}", _text(kinds), "")


def _stored_changes(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ShapeChange]:
    """Fields that would be looked for under another name, or would get another value where none was stored."""
    old, new = (one.get("stored_as", {}) for one in (before, after))
    was_out, is_out = (one.get("left_out", {}) for one in (before, after))
    for field in before["fields"]:
        if field not in after["fields"]:
            continue
        names = old.get(field, field), new.get(field, field)
        if names[0] != names[1]:
            yield ShapeChange("changed", f"{name}.{field}", *(f"stored as {one!r}" for one in names))
        if field in was_out and was_out[field] != is_out.get(field):
            now = f"left out if {is_out[field]}" if field in is_out else "always stored"
            yield ShapeChange("changed", f"{name}.{field}", f"left out if {was_out[field]}", now)


def _position_changes(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ShapeChange]:
    """Fields that are stored by their position can only be added at the end."""
    old, new = [*before["fields"]], [*after["fields"]]
    if before["kind"] != after["kind"] or new[: len(old)] != old:
        shown = [f"{one['kind']} fields {', '.join(one['fields'])}" for one in (before, after)]
        yield ShapeChange("changed", name, *shown)
