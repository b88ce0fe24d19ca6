"""Ordered bolts: those with an input grouped by `fields(…, ordered=True)`, and what is before and behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tupletree.topology.model import TopologySpec
from tupletree.topology.ordering import ordered_inputs


@dataclass(frozen=True)
class OrderedBolts:
    """Those of a topology.

    Attributes:
        below: ordered bolt → itself, and every component that something of it comes to.
        above: ordered bolt → every component that something of it comes from.
        spouts: the spouts among these.
    """

    below: Mapping[str, frozenset[str]]
    above: Mapping[str, frozenset[str]]
    spouts: frozenset[str]

    @classmethod
    def of(cls, spec: TopologySpec) -> OrderedBolts | None:
        """Those of a topology; None if it has none."""
        components = spec.components
        names = [name for name, component in components.items() if ordered_inputs(component)]
        if not names:
            return None
        upstream = {name: spec.upstream_of(name) for name in components}
        above = {name: upstream[name] for name in names}
        below = {name: frozenset({name, *(one for one in components if name in upstream[one])}) for name in names}
        every = frozenset().union(*above.values())
        return cls(below, above, frozenset(one for one in every if components[one].kind == "spout"))
