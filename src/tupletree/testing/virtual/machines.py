"""The machines of a whole topology, made one by one and replaced, for one thread and virtual time.

Owns how a machine is made in a test. Those of spouts, bolts and sinks report what they do to a `Probe`; sinks write
nowhere. What runs them, and in which order, is for the test kit and the simulator to say.
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
from tupletree.tasks.edges import RootIds
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.machine import EmittingMachine, Machine
from tupletree.tasks.mail import Now
from tupletree.tasks.making import Numbers
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.sink import SinkMachine
from tupletree.tasks.spout import SpoutMachine, SpoutSurroundings
from tupletree.tasks.spouts.spout_buffer import SpoutBuffer, SpoutCheckpoint
from tupletree.tasks.ticks import SystemMachine
from tupletree.tasks.upstream.retry_status import RetryStatus
from tupletree.testing.virtual.probes import (
    Probe,
    ProbedAsyncBolt,
    ProbedAsyncSpout,
    ProbedBolt,
    ProbedPending,
    ProbedSink,
    ProbedSpout,
)
from tupletree.testing.virtual.scripted import AsyncScriptedSpout, ScriptedSpout
from tupletree.topology.components import AsyncSpout, Sink, Spout
from tupletree.topology.model import ComponentSpec
from tupletree.tracking.retry import RetryPolicy


class MachineSet:
    """All machines by task id.

    Args:
        plan: the topology laid out for one partition.
        options: the run's settings.
        random: draws ids and jitter.
        probe: is told what happens.
        linger_s: see `SinkMachine`.

    Attributes:
        machines: by task id; filled by `start`, changed by `replace`.
        attempts: root → attempt, as machines share it.
        live: which attempts are out.
    """

    def __init__(self, plan: Plan, options: Options, random: Random, probe: Probe, *, linger_s: float = 0.0) -> None:
        self.machines: dict[int, Machine] = {}
        self.attempts: dict[int, int] = {}
        self._plan = plan
        self._options = options
        self._random = random
        self._probe = probe
        self._linger_s = linger_s
        self._retry_status = RetryStatus.of(plan, options)
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

    def replace(self, task_id: int, now: Now, out: Outbox, spout_checkpoint: SpoutCheckpoint | None = None) -> Machine:
        """Make and open a machine for a task, in the place of the one that was there."""
        under_way = None if self._retry_status is None else self._retry_status.under_way
        if under_way is not None:
            under_way.lost(task_id)
        machine = self.machines[task_id] = self._make(self._plan.tasks[task_id], now, spout_checkpoint)
        machine.retry_status, machine.live = self._retry_status, self.live
        machine.number_from(self._numbers)
        machine.start(now, out)
        if under_way is not None and self.live is not None and isinstance(machine, SpoutMachine):
            under_way.judge_over(self.live)
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

    def _make(self, task: Task, now: Now, spout_checkpoint: SpoutCheckpoint | None) -> Machine:
        kind = self.kind_of(task)
        if kind == "system":
            return SystemMachine(task, self._plan, self._options)
        if kind == "acker":
            spouts = [one.task_id for one in self._plan.tasks if self.kind_of(one) == "spout"]
            sinks, now_s = [*self.incarnations], now.monotonic_s
            return AckerMachine.of(self._plan, task, self._options, spout_tasks=spouts, sink_tasks=sinks, now_s=now_s)
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
        return self._spout(task, component, spout_checkpoint)

    def sink(self, component: ComponentSpec) -> Sink[Any]:  # noqa: ARG002 - for those that choose by sink
        """What takes the place of a sink."""
        return ProbedSink(self._probe)

    def _bolt(self, task: Task, component: ComponentSpec) -> Machine:
        bits = self._random.getrandbits
        cell = None
        if component.body.state is not None:
            cell = self._cells.setdefault(task.task_id, cell_of(component.body.state))
        kind: type[ProbedAsyncBolt | ProbedBolt] = ProbedAsyncBolt if component.body.is_async else ProbedBolt
        machine = kind(self._plan, task, self._options, random_bits=bits, attempts=self.attempts, cell=cell)
        machine.probe = self._probe
        return machine

    def _spout(self, task: Task, component: ComponentSpec, spout_checkpoint: SpoutCheckpoint | None) -> Machine:
        bits = self._random.getrandbits
        if spout_checkpoint is None:
            draw = RootIds(bits, self._options.acker_tasks)
            pending = ProbedPending(RetryPolicy.from_options(self._options), draw, self._random.random)
            pending.probe = self._probe
            pending.register(task.task_id, task.component, component.replay)
            spout_checkpoint = SpoutCheckpoint(pending, draw, SpoutBuffer())
        shared = SpoutSurroundings(bits, self._random.random, self.incarnations, self.attempts)
        spout, options = self._instance(component), self._options
        if isinstance(spout, AsyncSpout):
            watched = ProbedAsyncSpout(spout, self._probe)
            return AsyncSpoutMachine(self._plan, task, watched, options, shared, spout_checkpoint=spout_checkpoint)
        probed = ProbedSpout(spout, self._probe)
        return SpoutMachine(self._plan, task, probed, options, shared, spout_checkpoint=spout_checkpoint)

    def _instance(self, component: ComponentSpec) -> Spout[Any] | AsyncSpout[Any]:
        body: Spout[Any] | AsyncSpout[Any] = component.body
        shared = isinstance(body, ScriptedSpout | AsyncScriptedSpout) or self._plan.parallelism(component.name) == 1
        instance: Spout[Any] | AsyncSpout[Any] = own_instance(component, shared=shared)
        return instance
