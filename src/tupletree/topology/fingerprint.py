"""Fingerprints: what a checkpoint keeps of a topology, and how two of them differ in words.

Owns a stable, JSON-compatible description of everything that stored state and frames depend on. What a difference
means (refuse, move state, ignore) is the runtime's judgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tupletree.topology.model import BoltSpec, ComponentSpec, StateSpec, TopologySpec
from tupletree.topology.streams import spelled
from tupletree.topology.windows import JoinSpec, WindowSpec

__all__ = ["differences", "fingerprint"]


def fingerprint(topology: TopologySpec) -> dict[str, dict[str, Any]]:
    """What is kept of each component.

    Component → `kind`, `parallelism`, `replay`, `streams` (name → schema), `inputs` (source → grouping), `state`,
    `holding` (what a window or join holds tuples by).

    Equal for equal topologies in every process; JSON-compatible, so that it can be stored and read back.
    """
    return {name: _describe(component) for name, component in topology.components.items()}


def _describe(component: ComponentSpec) -> dict[str, Any]:
    state = component.body.state if isinstance(component.body, BoltSpec) else None
    holding = component.body.holding if isinstance(component.body, BoltSpec) else None
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
        "holding": _holding_text(holding) if holding is not None else None,
    }


def _holding_text(holding: WindowSpec | JoinSpec) -> str:
    """What decides which tuples come together. How long to wait for them, and what becomes of late ones, may change.

    A function that gives the time is known by its name only.
    """
    timestamp = holding.timestamp
    named = timestamp if timestamp is None or isinstance(timestamp, str) else timestamp.__qualname__
    by = "" if named is None else f", timestamp={named}"
    if isinstance(holding, JoinSpec):
        return f"join(within_s={holding.within_s:g}{by})"
    if holding.length_s is not None:
        slide_s = holding.length_s if holding.slide_s is None else holding.slide_s
        size = f"length_s={holding.length_s:g}, slide_s={slide_s:g}"
    else:
        size = f"count={holding.count}, slide_count={holding.slide_count or holding.count}"
    return f"window({size}{by}, per_key={holding.per_key})"


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
        elif old != new and part in before:  # what an earlier version did not write down is not known to differ
            found.append(f"{name}: {part} changed from {old} to {new}")
    return found
