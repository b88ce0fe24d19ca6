"""Nodes → the typed document. Where parts are faulty the rest is typed all the same, so that it can be judged, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tupletree.routes.document.faults import FaultList
from tupletree.routes.document.model import UNKNOWN, DefaultsModel, DocumentModel
from tupletree.routes.document.nodes import Entry, MappingNode, below, plain
from tupletree.routes.document.typing_faults import fit_variables, note_errors

MAX_PASSES = 20
PLACEHOLDERS: dict[str, Any] = {"version": 1, "pipeline": "unnamed"}
ITEMS: dict[str, Any] = {"adapters": {"type": UNKNOWN}, "outbound": {"queue": UNKNOWN}}


@dataclass(frozen=True)
class Typed:
    """What became of a document.

    Attributes:
        model: the typed document, without its faulty parts; None if nothing of it can be judged.
        complete: whether no route had to be left out.
    """

    model: DocumentModel | None
    complete: bool


def inherited(root: MappingNode) -> MappingNode:
    """The document with `defaults` laid under each of its routes."""
    defaults, routes = root.entries.get("defaults"), root.entries.get("routes")
    if defaults is None or routes is None:
        return root
    base, all_routes = defaults.node, routes.node
    if not isinstance(base, MappingNode) or not isinstance(all_routes, MappingNode):
        return root
    known = {key: entry for key, entry in base.entries.items() if key in DefaultsModel.model_fields}
    base = MappingNode(base.place, known)
    filled = {
        name: replace(entry, node=below(base, entry.node, inherited=True))
        if isinstance(entry.node, MappingNode)
        else entry
        for name, entry in all_routes.entries.items()
    }
    entries = {**root.entries, "routes": Entry(routes.place, MappingNode(all_routes.place, filled, all_routes.faulty))}
    return MappingNode(root.place, entries, root.faulty)


def typed_document(root: MappingNode, faults: FaultList, *, complete: bool) -> Typed:
    """Check keys, types and values.

    Args:
        root: the document, with what its routes inherit.
        faults: gets what is found.
        complete: whether all files could be read; if not, missing keys are no faults.
    """
    data = plain(root)
    first = True
    for _ in range(MAX_PASSES):
        try:
            return Typed(DocumentModel.model_validate(data), complete)
        except ValidationError as error:
            if first and fit_variables(error, root):
                data = plain(root)
                continue
            if first:  # what is wrong later is so because of what was left out here
                note_errors(error, root, DocumentModel, faults, missing=complete)
            first = False
            for one in error.errors(include_url=False, include_context=False, include_input=False):
                location = tuple(step for step in one["loc"] if step != "[key]")
                complete = (
                    _leave_out(data, location[:-1] if one["type"] == "missing" else location, location) and complete
                )
    return Typed(None, complete=False)


def _leave_out(data: Any, location: Sequence[Any], said: Sequence[Any]) -> bool:
    """Take away what is at a location, and say whether all routes are still there."""
    if not location:
        key = said[0] if said else ""
        if key in PLACEHOLDERS:
            data[key] = PLACEHOLDERS[key]
        return key in PLACEHOLDERS
    if location[0] == "tests":  # they are told of as they are, and nothing else depends on them
        data.pop("tests", None)
        return True
    holder: Any = None
    for depth, step in enumerate(location):
        inner = _item(data, step)
        if inner is None or depth == len(location) - 1:
            holder = data, step, location[depth - 1] if depth else ""
            break
        data = inner
    container, step, name = holder
    if isinstance(container, list):
        container[step] = ITEMS.get(name, {})
        return True
    if not isinstance(container, dict):
        return True
    container.pop(step, None)
    if len(location) == 1 and step in PLACEHOLDERS:
        container[step] = PLACEHOLDERS[step]
    return "routes" not in {name, step}


def _item(data: Any, step: Any) -> Any:
    """The list or mapping that is there; None if there is none."""
    found = None
    if isinstance(data, dict):
        found = data.get(step)
    elif isinstance(data, list) and isinstance(step, int) and step < len(data):
        found = data[step]
    return found if isinstance(found, dict | list) else None
