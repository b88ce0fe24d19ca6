"""Ticks on Spark: which components get a tick in the next epoch."""

from __future__ import annotations

import math

from tupletree.config import Options
from tupletree.tasks.ticks import tick_interval_s
from tupletree.topology.model import BoltSpec, TopologySpec


class TickSchedule:
    """Which components' ticks are due, by monotonic time. A late tick comes once, for any number of missed intervals.

    Args:
        spec: the topology.
        options: the interval of bolts that declare none.
        now_s: the first ticks come one interval from now.
    """

    def __init__(self, spec: TopologySpec, options: Options, now_s: float) -> None:
        self._intervals = {
            component.name: interval_s
            for component in spec.components.values()
            if isinstance(component.body, BoltSpec) and (interval_s := tick_interval_s(component.body, options))
        }
        self._due = {name: now_s + interval_s for name, interval_s in self._intervals.items()}

    def __bool__(self) -> bool:
        return bool(self._intervals)

    @property
    def next_s(self) -> float:
        """When the next tick is due; infinity: never."""
        return min(self._due.values(), default=math.inf)

    def take(self, now_s: float) -> list[str]:
        """The components whose ticks are due."""
        due = [name for name, due_s in self._due.items() if due_s <= now_s]
        for name in due:
            interval_s = self._intervals[name]
            self._due[name] += interval_s * (1 + (now_s - self._due[name]) // interval_s)
        return due
