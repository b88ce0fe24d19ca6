"""Fingerprints: what a checkpoint remembers of a topology, and how two of them differ in words.

Owns a stable, JSON-compatible description of everything that stored state and frames depend on. What a difference
means (refuse, move state, ignore) is the runtime's judgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tupletree.topology.model import BoltSpec, ComponentSpec, StateSpec, TopologySpec
from tupletree.topology.streams import spelled

__all__ = ["differences", "fingerprint"]


def fingerprint(topology: TopologySpec) -> dict[str, dict[str, Any]]:
    """Component → `kind`, `parallelism`, `replay`, `streams` (name → schema), `inputs` (source → grouping), `state`.

    Equal for equal topologies in every process; JSON-compatible, so that it can be stored and read back.
    """
    return {name: _describe(component) for name, component in topology.components.items()}


def _describe(component: ComponentSpec) -> dict[str, Any]:
    state = component.body.state if isinstance(component.body, BoltSpec) else None
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
    }


def _state_text(state: StateSpec) -> str:
    """As the bolt declares it; what is only a default, and the time to live, may change."""
    declared = spelled(state.value_type)
    return declared if state.kind == "value" else f"{state.kind} {declared}"


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """What changed from one fingerprint to another, a sentence each; empty if nothing did."""
    found = [f"component {name!r} was removed" for name in stored if name not in current]
    found += [f"component {name!r} was added" for name in current if name not in stored]
    for name, after in current.items():
        if name in stored:
            found += _component_differences(name, stored[name], after)
    return found


def _component_differences(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    found = []
    for part in dict.fromkeys([*before, *after]):
        old, new = before.get(part), after.get(part)
        if part in {"streams", "inputs"}:
            old, new = old or {}, new or {}
            found += [
                f"{name}: {part[:-1]} {entry!r} changed from {old.get(entry, 'nothing')} to {new.get(entry, 'nothing')}"
                for entry in dict.fromkeys([*old, *new])
                if old.get(entry) != new.get(entry)
            ]
        elif old != new:
            found.append(f"{name}: {part} changed from {old} to {new}")
    return found
