"""The format as JSON Schema, for editors: keys, types, limits, and the settings of the adapters that are known here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tupletree.errors import TupletreeError
from tupletree.routes.adapters import registry
from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.document.model import DocumentModel
from tupletree.routes.document.typing_faults import members

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "#/$defs/{model}"


def document_schema(adapters: Iterable[str]) -> dict[str, Any]:
    """The schema of a document.

    Args:
        adapters: types whose settings are part of it; those that cannot be imported here are left out.
    """
    classes = _classes(adapters)
    models: list[tuple[type[BaseModel], Any]] = [(DocumentModel, "validation"), (Condition, "validation")]
    models += [(adapter.Config, "validation") for adapter in classes.values()]
    keys, definitions = models_json_schema(models, ref_template=REFERENCE)
    parts: dict[str, Any] = definitions["$defs"]
    _refine(parts, keys[Condition, "validation"])
    known = []
    for name, adapter in classes.items():
        then: dict[str, Any] = {"properties": {"config": keys[adapter.Config, "validation"]}}
        if any(field.is_required() for field in adapter.Config.model_fields.values()):
            then["required"] = ["config"]
        known.append({"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": then})
    if known:
        parts["AdapterModel"]["allOf"] = known
        parts["AdapterModel"]["properties"]["type"]["examples"] = list(classes)
    whole = parts.pop("DocumentModel")
    return {
        "$schema": DIALECT,
        "title": "Tupletree pipeline",
        "description": "A pipeline of routes.",
        **{key: value for key, value in whole.items() if key not in {"title", "description", "required"}},
        # A file without these two is a part that others include; one that includes others may have its routes there.
        "if": {"anyOf": [{"required": ["version"]}, {"required": ["pipeline"]}]},
        "then": {
            "required": ["version", "pipeline"],
            "if": {"not": {"required": ["include"]}},
            "then": {"required": ["routes"]},
        },
        "$defs": parts,
    }


def _classes(adapters: Iterable[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name in adapters:
        try:
            found[name] = registry.find(name)
        except TupletreeError:
            continue
    return found


def _refine(parts: dict[str, Any], condition: dict[str, Any]) -> None:
    """What the models take and do not say: a URL or level alone, `include`, conditions, variables."""
    whole = parts["DocumentModel"]["properties"]
    queue = whole["queues"]["additionalProperties"]
    whole["queues"]["additionalProperties"] = {"anyOf": [{"type": "string"}, queue]}
    level = parts["LineageSpec"]["properties"]["level"]
    kept = {key: whole["lineage"].pop(key) for key in ("description", "default") if key in whole["lineage"]}
    whole["lineage"] = {**kept, "anyOf": [{"type": "string", "pattern": level["pattern"]}, whole["lineage"]]}
    whole["include"] = {
        "description": "files, relative to this one; what this one says wins",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    parts["AdapterModel"]["properties"]["condition"]["anyOf"][0] = condition
    test = parts["TestModel"]["properties"]
    test["input"] = _one_or_more(test["input"])
    test["mocks"]["additionalProperties"] = _one_or_more(test["mocks"]["additionalProperties"])
    for part in parts.values():
        for name, one in part.get("properties", {}).items():
            part["properties"][name] = _or_variable(one)


def _one_or_more(many: dict[str, Any]) -> dict[str, Any]:
    """One alone stands for a list of one."""
    kept: dict[str, Any] = {key: many[key] for key in ("description", "default", "title") if key in many}
    bare = {key: value for key, value in many.items() if key not in kept}
    return {**kept, "anyOf": [bare, many["items"]]}


VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-.*)?\}"}
"""Text that holds a variable: what it comes to is not known here."""

_CONSTRAINTS = {"pattern", "enum", "const", "maxLength", "minLength", "format"}


def _or_variable(one: dict[str, Any]) -> dict[str, Any]:
    """A value that is no text, or not any text, may be one with a variable."""
    kinds = [*one.get("anyOf", ()), one]
    if not any(kind.get("type") in {"integer", "number", "boolean"} or _CONSTRAINTS & kind.keys() for kind in kinds):
        return one
    kept: dict[str, Any] = {key: one[key] for key in ("description", "default", "title", "examples") if key in one}
    bare = {key: value for key, value in one.items() if key not in kept}
    alternatives = bare["anyOf"] if bare.keys() == {"anyOf"} else [bare]
    return {**kept, "anyOf": [*alternatives, VARIABLE]}


def document_keys() -> Iterator[tuple[str, str, str, str]]:
    """Every key of the format: its path, type, default (empty: it must be there) and meaning, as Markdown."""
    yield "include", "a path, or a list of them", "none", "files, relative to this one; what this one says wins"
    yield from _keys(DocumentModel, "")


def _keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner, ending = _part_of(field.annotation)
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        if name == "defaults":
            yield path, "mapping", default, field.description or ""
            continue
        if inner is None:
            yield path, _type_of(field.annotation), default, field.description or ""
            continue
        yield path, "list" if ending == "[]" else "mapping", default, field.description or ""
        yield from _keys(inner, f"{path}{ending}.")


def _part_of(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model within an annotation, and how its keys are reached."""
    for one in members(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one, ""
        arguments = get_args(one)
        if get_origin(one) is list:
            return _part_of(arguments[0])[0], "[]"
        if get_origin(one) is dict:
            return _part_of(arguments[1])[0], ".NAME"
    return None, ""


def _type_of(annotation: Any) -> str:
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null"}
    found = []
    for one in members(annotation):
        if one in names:
            found.append(names[one])
        else:
            found.append({list: "list", dict: "mapping", Literal: "1"}.get(get_origin(one) or one, "any value"))
    return " or ".join(found)


def _default(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "none"
    if isinstance(value, float) and value.is_integer():
        return f"{int(value):,}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value in ("", None, {}, []) else f"`{json.dumps(value)}`".replace('"', "")
