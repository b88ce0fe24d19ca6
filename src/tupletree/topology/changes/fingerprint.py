"""Fingerprints: what a checkpoint keeps of a topology, and how two of them differ.

Owns a stable, JSON-compatible description of everything that stored state and frames depend on. What a difference
means (accept, refuse, drop) is the judgement of `upgrades`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tupletree.topology.changes.shapes import shape_changes, shape_of
from tupletree.topology.model import BoltSpec, ComponentSpec, StateSpec, TopologySpec
from tupletree.topology.streams import spelled
from tupletree.topology.windows import holding_text

Fingerprint: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """One difference between two fingerprints.

    Attributes:
        component: where it is.
        part: `component` for all of it; `stream`, `input`, `state`, `key`, or another part by its name.
        kind: `added`, `removed`, `changed`, or as in `shapes.ShapeChange`.
        name: of the stream or input.
        what: where in a class, as in `Line.at`; empty for all of the part.
        was, now: as texts.
    """

    component: str
    part: str
    kind: Literal["added", "removed", "moved", "widened", "changed"]
    name: str = ""
    what: str = ""
    was: str = ""
    now: str = ""

    @property
    def text(self) -> str:
        """What it is, without the name of the component."""
        if self.part == "component":
            return f"component {self.component!r} was {self.kind}"
        named = f"{self.part}{f' {self.name!r}' if self.name else ''}{f': {self.what}' if self.what else ''}"
        return f"{named} changed from {self.was or 'nothing'} to {self.now or 'nothing'}"

    def __str__(self) -> str:
        return self.text if self.part == "component" else f"{self.component}: {self.text}"


def fingerprint(topology: TopologySpec) -> dict[str, dict[str, Any]]:
    """What is kept of each component.

    Component → `kind`, `parallelism`, `replay`, `streams` (name → schema), `inputs` (source → grouping), `state`,
    `holding` (what a window or join holds tuples by), `shapes` (what the streams, the state and its key are made of).

    Equal for equal topologies in every process; JSON-compatible, so that it can be stored and read back.
    """
    return {name: _describe(topology, component) for name, component in topology.components.items()}


def _describe(topology: TopologySpec, component: ComponentSpec) -> dict[str, Any]:
    state = component.body.state if isinstance(component.body, BoltSpec) else None
    holding = component.body.holding if isinstance(component.body, BoltSpec) else None
    key = _key_types(topology, component) if state is not None and state.is_keyed else None
    return {
        "kind": component.kind,
        "parallelism": component.parallelism,
        "replay": component.replay,
        "streams": {name: stream.schema.fingerprint() for name, stream in component.outputs.items()},
        "inputs": {
            f"{entry.component}.{entry.stream}": f"{entry.grouping.kind}({', '.join(entry.grouping.fields)})"
            for entry in component.inputs
        },
        "state": _state_text(state) if state is not None else None,
        "key": None if key is None else ", ".join(map(spelled, key)),
        "holding": holding_text(holding) if holding is not None else None,
        "shapes": {
            "streams": {name: shape_of(stream.schema.cls) for name, stream in component.outputs.items()},
            "state": shape_of(state.value_type) if state is not None else None,
            "key": None if key is None else shape_of(*key),
        },
    }


def _key_types(topology: TopologySpec, component: ComponentSpec) -> list[Any]:
    """The types of the key fields, of the first input: they are equal for all."""
    source = component.inputs[0]
    fields = topology.components[source.component].outputs[source.stream].schema.fields
    return [fields[name] for name in source.grouping.fields]


def _state_text(state: StateSpec) -> str:
    """As the bolt declares it; what is only a default, and the time to live, may change."""
    declared = spelled(state.value_type)
    return declared if state.kind == "value" else f"{state.kind} {declared}"


def renamed(stored: Fingerprint, names: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """A fingerprint as it would be if components had had other names: old → new."""
    return {
        names.get(name, name): {
            **one,
            "inputs": {_renamed(source, names): text for source, text in one["inputs"].items()},
        }
        for name, one in stored.items()
    }


def _renamed(source: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if source.startswith(f"{old}."):
            return f"{new}{source[len(old) :]}"
    return source


def differences(stored: Fingerprint, current: Fingerprint) -> list[Difference]:
    """What changed from one fingerprint to another; empty if nothing did."""
    found = [Difference(name, "component", "removed") for name in stored if name not in current]
    found += [Difference(name, "component", "added") for name in current if name not in stored]
    for name, after in current.items():
        if name in stored:
            found += _component_differences(name, stored[name], after)
    return found


def _component_differences(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    old_shapes, new_shapes = before.get("shapes") or {}, after.get("shapes") or {}
    for part in dict.fromkeys([*before, *after]):
        old, new = before.get(part), after.get(part)
        if part == "shapes":
            continue
        if part in {"streams", "inputs"}:
            for entry in dict.fromkeys([*(old or {}), *(new or {})]):
                shapes = [one.get(part, {}).get(entry) for one in (old_shapes, new_shapes)]
                yield from _differences(name, part[:-1], entry, (old or {}).get(entry), (new or {}).get(entry), shapes)
        elif part in before:  # what an earlier version did not write down is not known to differ
            yield from _differences(name, part, "", old, new, [one.get(part) for one in (old_shapes, new_shapes)])


def _differences(component: str, part: str, name: str, old: Any, new: Any, shapes: list[Any]) -> Iterator[Difference]:
    """Between two texts; their shapes, where both are known, say more."""
    found = []
    if None not in shapes:
        found = [
            Difference(component, part, one.kind, name, one.what, one.was, one.now)
            for one in shape_changes(*shapes, by_name=part == "stream")
        ]
    yield from found
    if old != new and not found:
        kind: Literal["added", "removed", "changed"] = (
            "added" if old is None else "removed" if new is None else "changed"
        )
        yield Difference(component, part, kind, name, "", _shown(old), _shown(new))


def _shown(part: Any) -> str:
    return "" if part is None else str(part)
