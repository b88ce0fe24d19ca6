"""Order of making: who makes values, and which streams are between a maker and a sink that asks for their order.

Decided from the topology alone, so that other streams have no cost.
"""

from __future__ import annotations

from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec

__all__ = ["asks_for_names", "asks_for_order", "makes_values", "ordered_streams"]


def makes_values(component: ComponentSpec) -> bool:
    """Whether what a component emits is a new value, and not something about the tuple that it works on.

    True of spouts, of bolts with state of any kind, and of windows and joins. Other bolts pass on what they were given:
    a batch bolt, too, whose results are as new as the newest tuple that they are anchored to.
    """
    if component.kind == "spout":
        return True
    body: BoltSpec = component.body
    return body.state is not None or body.style in ("window", "join")


def asks_for_order(component: ComponentSpec) -> bool:
    """Whether a sink is to know the order in which its rows' values were made."""
    return component.kind == "sink" and bool(getattr(component.body, "ordered", False))


def asks_for_names(component: ComponentSpec) -> bool:
    """Whether a sink is to know which messages its rows belong to."""
    return component.kind == "sink" and bool(getattr(component.body, "names_messages", False))


def ordered_streams(spec: TopologySpec) -> frozenset[tuple[str, str]]:
    """(component, stream) of each stream whose tuples travel with their order of making."""
    found: set[tuple[str, str]] = set()
    left = [component for component in spec.components.values() if asks_for_order(component)]
    while left:
        for source in left.pop().inputs:
            stream = source.component, source.stream
            producer = spec.components.get(source.component)
            if producer is None or stream in found:
                continue
            known = any(name == producer.name for name, _ in found)
            found.add(stream)
            if not known and not makes_values(producer):
                left.append(producer)
    return frozenset(found)
