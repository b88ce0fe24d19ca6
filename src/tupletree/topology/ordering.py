"""The two orders that a topology may ask for: per key, of an input (`ordered=True`), and of making, of a sink.

Owns which inputs are ordered per key, and what stands in their way; who makes values, and which streams are between a
maker and a sink that asks for their order. Decided from the topology alone, so that other streams have no cost. What
keeps the first is in `tasks.in_order`, the second in `tasks.making`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tupletree.errors import Finding
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec


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


def ordered_inputs(component: ComponentSpec) -> frozenset[tuple[str, str]]:
    """(component, stream) of the inputs that are grouped by `fields(…, ordered=True)`."""
    return frozenset((source.component, source.stream) for source in component.inputs if source.grouping.ordered)


def order_faults(component: ComponentSpec, by_name: Mapping[str, ComponentSpec], where: str) -> Iterator[Finding]:
    """What stands in the way of an ordered input: at the component itself, and between the sources and it."""
    for source in component.inputs:
        if not source.grouping.ordered:
            continue
        subject = f"the input from {source.component}.{source.stream} is ordered"
        if component.kind != "bolt" or component.body.is_vectorised or not component.body.settles_each_call:
            yield Finding(
                f"{subject}, and {component.name!r} has no call for each tuple that settles it",
                where,
                expected="a bolt that is called for each tuple, and acks or fails it with the call",
                next_step="leave out ordered=True: "
                + (
                    "rows have numbers instead, see `sql(key=)` and `made=True`"
                    if component.kind == "sink"
                    else "put a bolt that is called for each tuple there, or order the tuples in it"
                ),
            )
        met, left = {component.name}, [source.component]
        while left:
            name = left.pop()
            producer = by_name.get(name)
            if producer is None or producer.kind != "bolt" or name in met:
                if name == component.name:
                    yield Finding(f"{subject}, and is part of a cycle", where, next_step="leave out ordered=True")
                continue
            met.add(name)
            left += [one.component for one in producer.inputs]
            body: BoltSpec = producer.body
            if not body.settles_each_call:
                yield Finding(
                    f"{subject}, and bolt {name!r} before it keeps tuples beyond a call",
                    where,
                    expected="only bolts that settle each tuple with its call between the sources and the input",
                    next_step="leave out ordered=True, or move the ordered bolt before that one",
                )


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
