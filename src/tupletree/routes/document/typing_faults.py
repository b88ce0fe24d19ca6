"""What pydantic says of a document → faults with place, path, got, expected and the nearest name."""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError

from tupletree.errors import nearest
from tupletree.routes.document.faults import FaultList
from tupletree.routes.document.nodes import ListNode, MappingNode, Node, Place, ScalarNode, Step, node_at, shown
from tupletree.routes.document.words import AmbiguousWordError, read_word

HIDDEN = "(not shown)"

_TEXT = {"string_type", "string_sub_type"}
_NUMBERS = {"bool_type", "bool_parsing", "float_type", "float_parsing", "int_type", "int_parsing"}
_WHOLE = "a whole number"
_KINDS = {
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_type": "a number",
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "list_type": "a list",
    "mapping_type": "keys and values",
    "model_attributes_type": "keys and values",
    "model_type": "keys and values",
    "string_type": "text",
    "string_sub_type": "text",
    "tuple_type": "a list",
}
_VALUES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "finite_number": lambda _: "a finite number",
    "greater_than": lambda limits: f"more than {limits['gt']:,}",
    "greater_than_equal": lambda limits: f"{limits['ge']:,} or more",
    "less_than": lambda limits: f"less than {limits['lt']:,}",
    "less_than_equal": lambda limits: f"at most {limits['le']:,}",
    "literal_error": lambda limits: str(limits["expected"]).replace("'", ""),
    "enum": lambda limits: str(limits["expected"]).replace("'", ""),
    "string_pattern_mismatch": lambda limits: f"text that matches {limits['pattern']}",
    "string_too_short": lambda limits: f"at least {limits['min_length']} characters",
    "string_too_long": lambda limits: f"at most {limits['max_length']} characters",
    "too_short": lambda limits: f"at least {limits['min_length']}",
    "too_long": lambda limits: f"at most {limits['max_length']}",
}


def fit_variables(error: ValidationError, root: Node, prefix: Sequence[Step] = ()) -> bool:
    """Let what comes from the environment take the type that its place asks for, and say whether anything changed.

    A number stays text where text is meant; in quotes, which `{ }` needs, it is a number where a number is meant.
    """
    changed = False
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        node, walked, _ = node_at(root, [*prefix, *one["loc"]])
        if not isinstance(node, ScalarNode) or not node.variables or len(walked) < len(prefix) + len(one["loc"]):
            continue
        value = node.value
        if one["type"] in _TEXT and not isinstance(value, str):
            value = node.text
        elif one["type"] in _NUMBERS and isinstance(value, str):
            with contextlib.suppress(AmbiguousWordError):
                value = read_word(node.text)
        changed = changed or value is not node.value
        node.value = value
    return changed


def note_errors(
    error: ValidationError,
    root: Node,
    model: type[BaseModel],
    faults: FaultList,
    *,
    prefix: Sequence[Step] = (),
    missing: bool = True,
) -> None:
    """Note every error of a validation.

    Args:
        error: pydantic's.
        root: the document.
        model: that was validated; it knows the names of keys.
        faults: gets them.
        prefix: path of what was validated.
        missing: whether a missing key is a fault; not where a file that may hold it could not be read.
    """
    for one in error.errors(include_url=False):
        location = one["loc"]
        node, walked, key_place = node_at(root, [*prefix, *location])
        if _is_faulty(root, walked):
            continue
        kind = one["type"]
        if kind == "extra_forbidden":
            known = _keys_of(model, location[:-1])
            name = str(location[-1])
            faults.add(
                "R201",
                key_place,
                walked,
                "unknown key",
                got=name,
                nearest=nearest(name, known),
                expected=_one_of(known),
            )
        elif kind == "missing":
            # A mapping with a key that could not be read may hold what seems to be missing.
            if missing and not node.faulty:
                path = [*prefix, *location]
                what = f"the key {location[-1]} is missing"
                faults.add("R202", _own_place(root, walked), path, what)
        else:
            place = key_place if "[key]" in location else node.place
            _note_value(one, node, walked, faults, place, is_secret=_is_secret(model, location))


def _note_value(
    one: Any, node: Node, path: Sequence[Step], faults: FaultList, place: Place, *, is_secret: bool
) -> None:
    kind: str = one["type"]
    limits: Mapping[str, Any] = one.get("ctx") or {}
    got = str(path[-1]) if "[key]" in one["loc"] and path else HIDDEN if is_secret else shown(node)
    if kind in _TEXT and isinstance(node, ScalarNode):
        what = "this is no text, for YAML" if node.raw else "there is no value"
        expected = f'text: "{node.raw}"' if node.raw and not node.variables and not is_secret else "text"
        faults.add("R204", place, path, what, got=got, expected=expected)
    elif kind in _KINDS:
        faults.add("R203", place, path, "wrong type", got=got, expected=_KINDS[kind])
    elif kind == "name":
        faults.add("R206", place, path, one["msg"], got=got, expected=limits["expected"])
    else:
        expected = _VALUES[kind](limits) if kind in _VALUES else _said(one)
        options = [
            str(option).strip("' ") for option in str(limits.get("expected", "")).replace(" or ", ",").split(",")
        ]
        near = (
            nearest(str(node.value), options)
            if kind in {"literal_error", "enum"} and isinstance(node, ScalarNode)
            else ""
        )
        faults.add("R205", place, path, "this value is not allowed", got=got, expected=expected, nearest=near)


def _is_secret(model: type[BaseModel], location: Sequence[Any]) -> bool:
    """Whether the value at this location is not to be shown."""
    return any(issubclass(one, SecretStr) for one in _classes_at(model, location))


def _said(one: Any) -> str:
    limits = one.get("ctx") or {}
    if isinstance(limits.get("expected"), str):
        return str(limits["expected"])
    text: str = one["msg"]
    for start in ("Value error, ", "Assertion failed, ", "Input should be "):
        text = text.removeprefix(start)
    return text


def _own_place(root: Node, path: Sequence[Step]) -> Place:
    """The place of the innermost key on the way that the part says itself and does not inherit."""
    place, node = root.place, root
    for step in path:
        if isinstance(node, MappingNode) and isinstance(step, str):
            if node.entries[step].inherited:
                return place
            place, node = node.entries[step].place, node.entries[step].node
        elif isinstance(node, ListNode) and isinstance(step, int):
            node = node.items[step]
            place = node.place
    return place


def _is_faulty(root: Node, path: Sequence[Step]) -> bool:
    """Whether the value, or what holds it, is faulty already. A mapping with one bad key is still judged."""
    node = root
    for step in path:
        if isinstance(node, MappingNode) and isinstance(step, str) and node.entries[step].faulty:
            return True
        node = node_at(node, [step])[0]
        if node.faulty and not isinstance(node, MappingNode):
            return True
    return False


def _one_of(names: Collection[str]) -> str:
    return f"one of {', '.join(sorted(names))}" if names else "no keys"


def _keys_of(model: type[BaseModel], location: Sequence[Any]) -> set[str]:
    """The keys that the model at this location knows."""
    models = [one for one in _classes_at(model, location) if issubclass(one, BaseModel)]
    return {field.alias or name for one in models for name, field in one.model_fields.items()}


def _classes_at(model: type[BaseModel], location: Sequence[Any]) -> list[type]:
    kinds: list[Any] = [model]
    for step in location:
        inner = [found for kind in kinds for found in _inside(kind, step)]
        kinds = inner or kinds  # a step that only says which member of a union was tried
    return [one for kind in kinds for one in members(kind) if isinstance(one, type)]


def _inside(kind: Any, step: Any) -> list[Any]:
    found: list[Any] = []
    for one in members(kind):
        if isinstance(one, type) and issubclass(one, BaseModel):
            found += [field.annotation for name, field in one.model_fields.items() if step in {name, field.alias}]
        elif get_origin(one) in {list, tuple, set, frozenset, Sequence} and isinstance(step, int):
            found += [argument for argument in get_args(one) if argument is not Ellipsis]
        elif get_origin(one) in {dict, Mapping} and isinstance(step, str):
            found += get_args(one)[1:]
    return found


def members(kind: Any) -> list[Any]:
    """The members of a union, without what `Annotated` says; itself for anything else."""
    if get_origin(kind) is typing.Annotated:
        return members(get_args(kind)[0])
    if get_origin(kind) in {Union, types.UnionType}:
        return [one for member in get_args(kind) for one in members(member)]
    return [kind]
