"""The system task: sends the ticks of each component when they are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tupletree.config import Options
from tupletree.routing.plan import Plan, Task
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import Now
from tupletree.tasks.outbox import Outbox
from tupletree.topology.components import Tick
from tupletree.topology.model import BoltSpec


class SystemMachine(Machine):
    """See `Machine`. A late tick is sent once, for any number of missed intervals.

    Args:
        task: the system task.
        plan: the topology laid out.
        options: the interval of bolts that declare none.
    """

    def __init__(self, task: Task, plan: Plan, options: Options) -> None:
        super().__init__(task)
        self._intervals: Mapping[str, float] = {
            component.name: interval_s
            for component in plan.spec.components.values()
            if isinstance(component.body, BoltSpec) and (interval_s := tick_interval_s(component.body, options))
        }
        self._tasks: Mapping[str, Sequence[int]] = {name: plan.task_ids_of(name) for name in self._intervals}
        self._due: dict[str, float] = {}

    def start(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - nothing is due yet
        """The first ticks come one interval from now."""
        self._due = {name: now.monotonic_s + interval_s for name, interval_s in self._intervals.items()}

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:  # noqa: ARG002 - time does not pause
        """Send the ticks that are due."""
        came = False
        for name, due_s in self._due.items():
            if due_s <= now.monotonic_s:
                out.ticks += self._tasks[name]
                interval_s = self._intervals[name]
                self._due[name] = due_s + interval_s * (1 + (now.monotonic_s - due_s) // interval_s)
                came = True
        return came

    def next_due_s(self) -> float | None:
        """The next tick."""
        return min(self._due.values(), default=None)

    def stop(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - see `Machine`
        """Send no more ticks."""
        self._due.clear()


def tick_interval_s(bolt: BoltSpec, options: Options) -> float | None:
    """How often a bolt gets ticks; None: never."""
    if (bolt.style == "class" and bolt.takes_collector) or (bolt.style == "function" and Tick in bolt.input_types):
        return bolt.tick_interval_s or options.tick_interval_s
    return None
