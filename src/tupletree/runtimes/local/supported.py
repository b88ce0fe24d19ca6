"""What this runtime does not support yet: refused before the start, with every finding at once."""

from __future__ import annotations

from collections.abc import Iterator

from tupletree.errors import Finding, TopologyError
from tupletree.topology.model import BoltSpec, TopologySpec


def refuse_unsupported(spec: TopologySpec) -> None:
    """Raise TopologyError with every finding if the local runtime cannot run this topology yet."""
    findings = [
        Finding(what, where=f"bolt {component.name!r} ({component.where})", next_step=next_step)
        for component in spec.components.values()
        if isinstance(component.body, BoltSpec)
        for what, next_step in _bolt(component.body)
    ]
    if findings:
        raise TopologyError("the local runtime does not support everything in this topology yet", findings=findings)


def _bolt(bolt: BoltSpec) -> Iterator[tuple[str, str]]:
    if bolt.style in {"batch", "arrow"} and bolt.is_async:
        yield f"an async {bolt.style} bolt cannot run locally yet", "use a plain function with blocking=True"
