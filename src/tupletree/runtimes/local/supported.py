"""What this runtime refuses for now: said at build time, all at once, never half done."""

from __future__ import annotations

from collections.abc import Iterator

from tupletree.errors import Finding, TopologyError
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec

__all__ = ["refuse_unsupported"]


def refuse_unsupported(spec: TopologySpec) -> None:
    """Raise TopologyError with every finding if the local runtime cannot run this topology yet."""
    findings = [
        Finding(what, where=f"bolt {component.name!r} ({component.where})", next_step=next_step)
        for component in spec.components.values()
        if isinstance(component.body, BoltSpec)
        for what, next_step in _bolt(component, component.body)
    ]
    if findings:
        raise TopologyError("this topology needs what the local runtime does not have yet", findings=findings)


def _bolt(component: ComponentSpec, bolt: BoltSpec) -> Iterator[tuple[str, str]]:
    if bolt.style == "arrow":
        yield "arrow bolts cannot run locally yet", "use a batch bolt"
    if bolt.style == "batch" and (bolt.can_collect or not (bolt.auto_ack and bolt.auto_fail)):
        yield "a batch bolt that settles its tuples by hand cannot run locally", "write a Bolt class that holds them"
    if not bolt.is_async:
        return
    if bolt.style != "function" or bolt.can_collect or bolt.state is not None:
        yield (
            f"only async functions without collector and state can run locally, and {component.name} is none",
            "return or yield its outputs, or use a plain function with blocking=True",
        )
    if not (bolt.auto_ack and bolt.auto_fail):
        yield "an async bolt cannot settle its tuples by hand yet", "leave auto_ack and auto_fail on"
