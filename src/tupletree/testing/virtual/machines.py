"""The crew: the machines of a whole topology, made one by one and again, for one thread and virtual time.

Owns how a machine is made in a test. Each says what it does to a `Watch`; sinks write nowhere. What runs them, and in
which order, is for the test kit and the simulator to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from tupletree.config import Options
from tupletree.routing.plan import ACKER, SYSTEM, Plan, Task
from tupletree.runtimes.instances import own_instance
from tupletree.state.cells import ValueCell, cell_of
from tupletree.tasks.acker import AckerMachine
from tupletree.tasks.async_spout import AsyncSpoutMachine
from tupletree.tasks.bolt import EmittingMachine
from tupletree.tasks.edges import ShareDraw
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import Now
from tupletree.tasks.orders import Numbers
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.retry_status import Outlook
from tupletree.tasks.sink import SinkMachine
from tupletree.tasks.spout import DEFAULT_MAX_PENDING, SpoutMachine
from tupletree.tasks.spout_buffer import Handover, Offers
from tupletree.tasks.ticks import SystemMachine
from tupletree.testing.virtual.probes import (
    Watch,
    WatchedAsyncBolt,
    WatchedAsyncSpout,
    WatchedBolt,
    WatchedPending,
    WatchedSink,
    WatchedSpout,
)
from tupletree.testing.virtual.scripted import AsyncScriptedSpout, ScriptedSpout
from tupletree.topology.components import AsyncSpout, Sink, Spout
from tupletree.topology.model import ComponentSpec
from tupletree.topology.window_check import max_pending
from tupletree.tracking.retry import RetryPolicy

__all__ = ["Crew"]


class Crew:
    """All machines by task id.

    Args:
        plan: the topology laid out for one partition.
        options: the run's settings.
        random: draws ids and jitter.
        watch: hears what happens.
        linger_s: see `SinkMachine`.

    Attributes:
        machines: by task id; filled by `start`, changed by `replace`.
        attempts: root → attempt, as machines share it.
        live: which attempts are out.
    """

    def __init__(self, plan: Plan, options: Options, random: Random, watch: Watch, *, linger_s: float = 0.0) -> None:
        self.machines: dict[int, Machine] = {}
        self.attempts: dict[int, int] = {}
        self._plan = plan
        self._options = options
        self._random = random
        self._watch = watch
        self._linger_s = linger_s
        self._outlook = Outlook.of(plan, options)
        self.live = LiveRoots(options.message_timeout_s) if options.acker_tasks else None
        self._cells: dict[int, ValueCell[Any]] = {}
        self._numbers = Numbers()
        sinks = (task.task_id for task in plan.tasks if self.kind_of(task) == "sink")
        self.incarnations = dict.fromkeys(sinks, 1)

    def kind_of(self, task: Task) -> str:
        """`system`, `acker`, `bolt`, `sink` or `spout`."""
        if task.component in (SYSTEM, ACKER):
            return "system" if task.component == SYSTEM else "acker"
        return self._plan.spec.components[task.component].kind

    def start(self, now: Now, out: Outbox) -> None:
        """Make and open every machine; the keyed state of bolts stays what it was."""
        self.machines.clear()
        for kind in ("acker", "bolt", "sink", "spout", "system"):
            for task in self._plan.tasks:
                if self.kind_of(task) == kind:
                    self.replace(task.task_id, now, out)

    def replace(self, task_id: int, now: Now, out: Outbox, handover: Handover | None = None) -> Machine:
        """Make and open a machine for a task, in the place of the one that was there."""
        machine = self.machines[task_id] = self._make(self._plan.tasks[task_id], now, handover)
        machine.outlook, machine.live = self._outlook, self.live
        machine.number_from(self._numbers)
        machine.start(now, out)
        return machine

    def spouts(self) -> list[SpoutMachine]:
        """The spout machines."""
        return [machine for machine in self.machines.values() if isinstance(machine, SpoutMachine)]

    def sinks(self) -> list[SinkMachine]:
        """The sink machines."""
        return [machine for machine in self.machines.values() if isinstance(machine, SinkMachine)]

    def ackers(self) -> list[AckerMachine]:
        """The acker machines."""
        return [machine for machine in self.machines.values() if isinstance(machine, AckerMachine)]

    def bolts(self) -> Iterator[EmittingMachine]:
        """The bolt machines."""
        return (machine for machine in self.machines.values() if isinstance(machine, EmittingMachine))

    def _make(self, task: Task, now: Now, handover: Handover | None) -> Machine:
        kind = self.kind_of(task)
        if kind == "system":
            return SystemMachine(task, self._plan, self._options)
        if kind == "acker":
            return self._acker(task, now)
        component = self._plan.spec.components[task.component]
        if kind == "bolt":
            return self._bolt(task, component)
        if kind == "sink":
            return SinkMachine(
                self._plan,
                task,
                self.sink(component),
                run="test",
                incarnation=self.incarnations[task.task_id],
                linger_s=self._linger_s,
            )
        return self._spout(task, component, handover)

    def sink(self, component: ComponentSpec) -> Sink[Any]:  # noqa: ARG002 - for those that choose by sink
        """What stands in the place of a sink."""
        return WatchedSink(self._watch)

    def _acker(self, task: Task, now: Now) -> Machine:
        options = self._options
        spouts = [one.task_id for one in self._plan.tasks if self.kind_of(one) == "spout"]
        pending = max_pending(self._plan.spec, options, DEFAULT_MAX_PENDING)
        return AckerMachine(
            task,
            timeout_s=options.message_timeout_s,
            buckets=options.timeout_buckets,
            high_water=int(options.high_water_factor * pending * len(spouts)),
            spout_tasks=spouts,
            sink_tasks=[*self.incarnations],
            now_s=now.monotonic_s,
        )

    def _bolt(self, task: Task, component: ComponentSpec) -> Machine:
        bits = self._random.getrandbits
        cell = None
        if component.body.state is not None:
            cell = self._cells.setdefault(task.task_id, cell_of(component.body.state))
        kind = WatchedAsyncBolt if component.body.is_async else WatchedBolt
        machine = kind(
            self._plan,
            task,
            random_bits=bits,
            attempts=self.attempts,
            cell=cell,
            timeout_s=self._options.message_timeout_s,
            outage_limit_s=self._options.outage_limit_s,
        )
        machine.watch = self._watch
        return machine

    def _spout(self, task: Task, component: ComponentSpec, handover: Handover | None) -> Machine:
        bits = self._random.getrandbits
        if handover is None:
            draw = ShareDraw(bits, self._options.acker_tasks)
            pending = WatchedPending(RetryPolicy.from_options(self._options), draw, self._random.random)
            pending.watch = self._watch
            pending.register(task.task_id, task.component, component.replay)
            handover = Handover(pending, draw, Offers())
        common: dict[str, Any] = {
            "random_bits": bits,
            "random": self._random.random,
            "sinks": self.incarnations,
            "attempts": self.attempts,
            "handover": handover,
        }
        spout = self._instance(component)
        if isinstance(spout, AsyncSpout):
            watched = WatchedAsyncSpout(spout, self._watch)
            return AsyncSpoutMachine(self._plan, task, watched, self._options, **common)
        return SpoutMachine(self._plan, task, WatchedSpout(spout, self._watch), self._options, **common)

    def _instance(self, component: ComponentSpec) -> Spout[Any] | AsyncSpout[Any]:
        body: Spout[Any] | AsyncSpout[Any] = component.body
        shared = isinstance(body, ScriptedSpout | AsyncScriptedSpout) or self._plan.parallelism(component.name) == 1
        instance: Spout[Any] | AsyncSpout[Any] = own_instance(component, shared=shared)
        return instance
