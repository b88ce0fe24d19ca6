"""The format as JSON Schema, for editors: keys, types, limits, and the settings of the adapters that are known here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tupletree.errors import TupletreeError
from tupletree.routes.document.model import DocumentModel
from tupletree.routes.document.stages import REGISTRY, Lookup

__all__ = ["document_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = "#/$defs/{model}"


def document_schema(adapters: Iterable[str], lookup: Lookup = REGISTRY) -> dict[str, Any]:
    """The schema of a document.

    Args:
        adapters: types whose settings are part of it; those that cannot be imported here are left out.
        lookup: how they are found.
    """
    classes = _classes(adapters, lookup)
    models: list[tuple[type[BaseModel], Any]] = [(DocumentModel, "validation"), (lookup.condition, "validation")]
    models += [(adapter.Config, "validation") for adapter in classes.values()]
    keys, definitions = models_json_schema(models, ref_template=REFERENCE)
    parts: dict[str, Any] = definitions["$defs"]
    _refine(parts, keys[lookup.condition, "validation"])
    known = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"properties": {"config": keys[adapter.Config, "validation"]}},
        }
        for name, adapter in classes.items()
    ]
    if known:
        parts["AdapterModel"]["allOf"] = known
        parts["AdapterModel"]["properties"]["type"]["examples"] = list(classes)
    return {
        "$schema": DIALECT,
        "title": "Tupletree pipeline",
        "description": "A pipeline of routes.",
        **{key: value for key, value in parts.pop("DocumentModel").items() if key not in {"title", "description"}},
        "$defs": parts,
    }


def _classes(adapters: Iterable[str], lookup: Lookup) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name in adapters:
        try:
            found[name] = lookup.find(name)
        except TupletreeError:
            continue
    return found


def _refine(parts: dict[str, Any], condition: dict[str, Any]) -> None:
    """What the models take and do not say: a URL or level alone, `include`, conditions, variables."""
    whole = parts["DocumentModel"]["properties"]
    queue = whole["queues"]["additionalProperties"]
    whole["queues"]["additionalProperties"] = {"anyOf": [{"type": "string"}, queue]}
    level = parts["LineageModel"]["properties"]["level"]
    kept = {key: whole["lineage"].pop(key) for key in ("description", "default") if key in whole["lineage"]}
    whole["lineage"] = {**kept, "anyOf": [{"type": "string", "pattern": level["pattern"]}, whole["lineage"]]}
    whole["include"] = {
        "description": "files, relative to this one; what this one says wins",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    parts["AdapterModel"]["properties"]["condition"]["anyOf"][0] = condition
    variable = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-.*)?\}$"}
    for part in parts.values():
        for name, one in part.get("properties", {}).items():
            if one.get("type") in {"integer", "number", "boolean"}:
                extra = {key: one[key] for key in ("description", "default", "title") if key in one}
                bare = {key: value for key, value in one.items() if key not in extra}
                part["properties"][name] = {**extra, "anyOf": [bare, variable]}
