"""The adapters of a document: found by their types, their settings and conditions checked by their own models."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tupletree.errors import TupletreeError
from tupletree.escaping import escape
from tupletree.routes.adapters import registry
from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.adapters.contract import Adapter
from tupletree.routes.document.faults import FaultList
from tupletree.routes.document.model import UNKNOWN, AdapterModel, DocumentModel
from tupletree.routes.document.nodes import MappingNode, Step, node_at, plain, shown
from tupletree.routes.document.spec import AdapterSpec
from tupletree.routes.document.typing_faults import fit_variables, note_errors


def adapters_of(document: DocumentModel, root: MappingNode, faults: FaultList) -> dict[str, tuple[AdapterSpec, ...]]:
    """The adapters of every route; what is faulty is noted and left out."""
    return {
        name: tuple(_of_route(route.adapters, ("routes", name, "adapters"), root, faults))
        for name, route in document.routes.items()
    }


def check_modules(document: DocumentModel, root: MappingNode, folder: str, faults: FaultList) -> None:
    """Note modules beside the document that another module of the same name hides.

    Args:
        document: whose adapters have been found.
        root: its places.
        folder: the document's; empty: it is no file.
        faults: gets what is found.
    """
    if not folder:
        return
    for name, route in document.routes.items():
        for position, adapter in enumerate(route.adapters):
            module, mark, _ = adapter.type.partition(":")
            top = module.partition(".")[0]
            loaded = getattr(sys.modules.get(top), "__file__", None)
            here = next(
                (file for file in (Path(folder, f"{top}.py"), Path(folder, top, "__init__.py")) if file.is_file()), None
            )
            if mark and here is not None and loaded is not None and Path(loaded).resolve() != here.resolve():
                path = ("routes", name, "adapters", position, "type")
                faults.add(
                    "R302",
                    node_at(root, path)[0].place,
                    path,
                    f"another module {top!r} hides the one beside the document",
                    got=loaded,
                    expected=str(here),
                    next_step="choose another name for the module, or check this document in a process of its own",
                )


def _of_route(
    models: Sequence[AdapterModel], path: tuple[Step, ...], root: MappingNode, faults: FaultList
) -> list[AdapterSpec]:
    names: dict[str, int] = {}
    for position, model in enumerate(models):
        if model.name is None:
            continue
        if model.name in names:
            at = (*path, position, "name")
            node = node_at(root, at)[0]
            hint = f"adapters[{names[model.name]}] has it already"
            faults.add("R305", node.place, at, "two adapters have one name", got=model.name, next_step=hint)
        names.setdefault(model.name, position)
    found: list[AdapterSpec] = []
    taken = set(names)
    for position, model in enumerate(models):
        name = model.name or _free_name(model.type, taken)
        taken.add(name)
        spec = _adapter(model, name, (*path, position), root, faults)
        if spec is not None:
            found.append(spec)
    return found


def _free_name(type_name: str, taken: set[str]) -> str:
    """`module:Class` is called `Class`; the second one of a name has a number."""
    name = type_name.rpartition(":")[2]
    number = 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered


def _adapter(
    model: AdapterModel, name: str, path: tuple[Step, ...], root: MappingNode, faults: FaultList
) -> AdapterSpec | None:
    if model.type == UNKNOWN:
        return None
    condition = None
    if model.condition is not None:
        condition = _checked(Condition, (*path, "condition"), root, faults)
    adapter = _find(model.type, (*path, "type"), root, faults)
    if adapter is None:
        return None
    config = _checked(adapter.Config, (*path, "config"), root, faults)
    if config is None or (model.condition is not None and condition is None):
        return None
    return AdapterSpec(name, model.type, adapter, config, condition)


def _find(type_name: str, path: Sequence[Step], root: MappingNode, faults: FaultList) -> type[Adapter[Any]] | None:
    node = node_at(root, path)[0]
    try:
        return registry.find(type_name)
    except TupletreeError as error:
        [finding, *_] = error.findings
        near = getattr(error, "nearest", None)
        unknown = near is not None
        faults.add(
            "R301" if unknown else "R302",
            node.place,
            path,
            finding.what,
            got=finding.got or shown(node),
            expected=finding.expected,
            nearest=near or "",
            next_step=finding.next_step,
        )
    return None


def _checked(model: type[BaseModel], path: tuple[Step, ...], root: MappingNode, faults: FaultList) -> Any:
    """A part of the document as its own model says; None, with the faults noted, if it is not so.

    It is checked as JSON, strictly: text is no number, but a list may become a tuple and text a path or a date.
    """
    node = node_at(root, path)[0] if _is_said(root, path) else MappingNode(root.place)
    try:
        try:
            return model.model_validate_json(json.dumps(plain(node)), strict=True)
        except ValidationError as error:
            if not fit_variables(error, root, path):
                raise
            return model.model_validate_json(json.dumps(plain(node)), strict=True)
    except ValidationError as error:
        note_errors(error, root, model, faults, prefix=path)
    except Exception as error:  # noqa: BLE001 - a model may have validators of its user, which raise anything
        got = escape(f"{type(error).__name__}: {error}")
        faults.add(
            "R302", node.place, path, "checking the settings failed", got=got, next_step="see the adapter's Config"
        )
    return None


def _is_said(root: MappingNode, path: Sequence[Step]) -> bool:
    return node_at(root, path)[1] == tuple(path)
