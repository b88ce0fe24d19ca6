"""What a simulated topology calls outside, and what of it is not available just now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tupletree.errors import ConnectorError
from tupletree.testing.kit.tracing import Fail
from tupletree.topology.model import TopologySpec

AWAY = "away in the simulator"


class Away:
    """The services of the bolts and sinks of a topology; windows and joins have none."""

    def __init__(self, spec: TopologySpec) -> None:
        self.clock: Callable[[], float] = lambda: 0.0
        components = spec.components.values()
        self._bolts = [one.name for one in components if one.kind == "bolt" and one.body.holding is None]
        self._names = [*self._bolts, *(one.name for one in components if one.kind == "sink")]
        self._until: dict[str, float] = {}

    def begin(self, random: Random, most_s: float) -> str:
        """Make one unavailable, for up to so many seconds; returns the component that calls it."""
        name = random.choice(self._names)
        self._until[name] = self.clock() + random.random() * most_s
        return name

    def end(self) -> None:
        """Make all available."""
        self._until.clear()

    def check(self, name: str) -> None:
        """Raise ConnectorError if it is not available."""
        if self.clock() < self._until.get(name, 0.0):
            raise ConnectorError(AWAY, where=name)

    def fails(self) -> dict[str, Fail]:
        """For `Tracer.wrap`: what the calls of bolts raise."""
        return {name: partial(self._fail, name) for name in self._bolts}

    def _fail(self, name: str, _: Any) -> bool:
        self.check(name)
        return False
