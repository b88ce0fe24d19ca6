"""Assembly: from a plan to machines on executors, connected and not yet started."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.routing.plan import ACKER, SYSTEM, Plan, Task
from tupletree.runtimes.instances import own_instance
from tupletree.runtimes.local.executor import Executor, Hub
from tupletree.runtimes.local.ring import Ring, capacity_for
from tupletree.state.cells import ValueCell, cell_of
from tupletree.tasks.acker import AckerMachine
from tupletree.tasks.async_bolt import AsyncBoltMachine
from tupletree.tasks.async_spout import AsyncSpoutMachine
from tupletree.tasks.bolt import BoltMachine
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.machine import Machine
from tupletree.tasks.making import Numbers
from tupletree.tasks.sink import SinkMachine
from tupletree.tasks.spout import SpoutMachine, SpoutSurroundings
from tupletree.tasks.spouts.spout_buffer import SpoutCheckpoint
from tupletree.tasks.stalls import Stalls
from tupletree.tasks.ticks import SystemMachine
from tupletree.tasks.upstream.retry_status import RetryStatus
from tupletree.topology.components import AsyncSpout
from tupletree.topology.model import ComponentSpec
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.work_done import WorkTotals

GATHER_S = 0.1
"""How long rows may wait for more before they become a file: a file costs two flushes to the disk."""


@dataclass
class CarriedOver:
    """What is kept over a restart of the topology.

    Attributes:
        spout_checkpoints: spout task → its messages and position.
        cells: bolt task → its keyed state.
        starts: how often the topology was started.
        rows: sink → rows written by earlier machines.
        outages: component → outages of earlier machines.
        strays: errors of earlier machines that failed no message.
        late: component → tuples that came too late for earlier machines.
        work: bolt → the work of earlier machines.
        active: whether spouts may emit.
        numbers: numbers values in the order in which they were made.
        first: how often it was started by earlier processes, on the same state directory.
        durable: open messages are stored; see `checkpoints`.
    """

    spout_checkpoints: dict[int, SpoutCheckpoint] = field(default_factory=dict)
    cells: dict[int, ValueCell[Any]] = field(default_factory=dict)
    starts: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    outages: Counter[str] = field(default_factory=Counter)
    strays: int = 0
    late: Counter[str] = field(default_factory=Counter)
    work: WorkTotals = field(default_factory=WorkTotals)
    active: bool = True
    numbers: Numbers = field(default_factory=lambda: Numbers(guard=threading.Lock()))
    first: int = 0
    durable: bool = False

    @property
    def was_open(self) -> bool:
        """Whether this process has started the topology before the present start."""
        return self.starts - self.first > 1


@dataclass
class Assembly:
    """The machines and executors of one start.

    Attributes:
        machines: by task id.
        owners: executor of each task, by task id.
    """

    plan: Plan
    machines: Mapping[int, Machine]
    executors: list[Executor]
    owners: list[Executor]

    def spouts(self) -> list[SpoutMachine]:
        """The spout machines."""
        return [machine for machine in self.machines.values() if isinstance(machine, SpoutMachine)]

    @cached_property
    def spout_places(self) -> int:
        """The number of executors that have spouts."""
        return sum(1 for executor in self.executors if executor.spouts)

    def sinks(self) -> list[SinkMachine]:
        """The sink machines."""
        return [machine for machine in self.machines.values() if isinstance(machine, SinkMachine)]

    def waits(self) -> list[OutageWait]:
        """The waits of each task, and of each store of dead letters, for the end of an outage."""
        return [*(one.wait for one in self.machines.values()), *(executor.letters.wait for executor in self.executors)]

    def groups(self) -> list[list[int]]:
        """Task ids in the order of activation: ackers, bolts and sinks, spouts, system."""
        groups: dict[str, list[int]] = {"acker": [], "bolt": [], "spout": [], "system": []}
        for task in self.plan.tasks:
            kind = kind_of(self.plan, task)
            groups["bolt" if kind == "sink" else kind].append(task.task_id)
        return list(groups.values())


def kind_of(plan: Plan, task: Task) -> str:
    """`system`, `acker`, `bolt`, `sink` or `spout`."""
    if task.component in (SYSTEM, ACKER):
        return "system" if task.component == SYSTEM else "acker"
    return plan.spec.components[task.component].kind


def assemble(
    plan: Plan, options: Options, *, clock: Clock, hub: Hub, run_id: str, carried_over: CarriedOver, random: Random
) -> Assembly:
    """Construct system, ackers, bolts and sinks, then spouts, and the executors that serve them.

    Args:
        plan: the topology laid out for one partition.
        options: the run's settings.
        clock: where time comes from.
        hub: the run.
        run_id: names the run in batch ids.
        carried_over: what is kept over a restart; the assembly uses it and adds to it.
        random: for ids and jitter; every machine has a generator of its own, seeded by this one.
    """
    carried_over.starts += 1
    maker = _Maker(plan, options, clock, run_id, carried_over, random)
    machines: dict[int, Machine] = {}
    for kind in ("system", "acker", "bolt", "sink", "spout"):
        machines.update((task.task_id, maker.make(task, kind)) for task in plan.tasks if kind_of(plan, task) == kind)
    executors = []
    for name, task_ids in _shared_out(plan, options):
        executors.append(
            Executor(
                name,
                Ring(capacity_for(options.ring_size, len(task_ids))),
                {task_id: machines[task_id] for task_id in task_ids},
                acker_tasks=tuple(dict.fromkeys(plan.deputies_of(ACKER))),
                clock=clock,
                hub=hub,
                idle_s=options.spout_idle_wait_ms / 1000.0,
                outage_limit_s=options.outage_limit_s,
            )
        )
    owner_of = {task_id: executor for executor in executors for task_id in executor.machines}
    owners = [owner_of[task.task_id] for task in plan.tasks]
    stalls = Stalls(threading.Lock())
    for executor in executors:
        executor.connect(owners, executors, stalls)
    return Assembly(plan, machines, executors, owners)


def _shared_out(plan: Plan, options: Options) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Executors as planned; in the cooperative mode one serves everything that needs no thread of its own."""
    planned = [(executor.name, executor.task_ids) for executor in plan.executors]
    if options.local_threads > 1:
        return planned
    together = [entry for entry in planned if entry[0] in {"spouts", "bolts"}]
    merged = tuple(sorted(task_id for _, task_ids in together for task_id in task_ids))
    return [("all", merged), *(entry for entry in planned if entry not in together)]


class _Maker:
    def __init__(
        self, plan: Plan, options: Options, clock: Clock, run_id: str, carried_over: CarriedOver, random: Random
    ) -> None:
        self._plan = plan
        self._options = options
        self._clock = clock
        self._run_id = run_id
        self._carried_over = carried_over
        self._random = random
        self._attempts: dict[int, int] = {}
        self._retry_status = RetryStatus.of(plan, options, threading.Lock)
        self._live = LiveRoots(options.message_timeout_s) if options.acker_tasks else None
        self._spouts = [task.task_id for task in plan.tasks if kind_of(plan, task) == "spout"]
        self._sinks = {task.task_id: carried_over.starts for task in plan.tasks if kind_of(plan, task) == "sink"}

    def make(self, task: Task, kind: str) -> Machine:
        machine = self._made(task, kind)
        machine.retry_status, machine.live = self._retry_status, self._live
        machine.number_from(self._carried_over.numbers)
        return machine

    def _made(self, task: Task, kind: str) -> Machine:
        if kind == "system":
            return SystemMachine(task, self._plan, self._options)
        if kind == "acker":
            sinks, now_s = [*self._sinks], self._clock.monotonic()
            acker = AckerMachine.of(
                self._plan, task, self._options, spout_tasks=self._spouts, sink_tasks=sinks, now_s=now_s
            )
            acker.is_timed = task.task_id in self._plan.deputies_of(ACKER)
            return acker
        component = self._plan.spec.components[task.component]
        if kind == "bolt":
            return self._bolt(task, component)
        if kind == "sink":
            return SinkMachine(
                self._plan,
                task,
                own_instance(component, shared=self._plan.parallelism(task.component) == 1),
                run=self._run_id,
                incarnation=self._carried_over.starts,
                linger_s=GATHER_S if component.body.gathers else 0.0,
                outage_limit_s=self._options.outage_limit_s,
                was_open=self._carried_over.was_open,
            )
        # A generator per machine: several threads on one generator would need a lock.
        own = Random(self._random.getrandbits(128))
        machine = AsyncSpoutMachine if isinstance(component.body, AsyncSpout) else SpoutMachine
        made: Machine = machine(
            self._plan,
            task,
            own_instance(component, shared=self._plan.parallelism(task.component) == 1),
            self._options,
            SpoutSurroundings(own.getrandbits, own.random, self._sinks, self._attempts, self._carried_over.durable),
            spout_checkpoint=self._carried_over.spout_checkpoints.pop(task.task_id, None),
            active=self._carried_over.active,
            was_open=self._carried_over.was_open,
        )
        return made

    def _bolt(self, task: Task, component: ComponentSpec) -> Machine:
        bits = Random(self._random.getrandbits(128)).getrandbits
        cell = None
        if component.body.state is not None:
            cell = self._carried_over.cells.setdefault(task.task_id, cell_of(component.body.state))
        machine = AsyncBoltMachine if component.body.is_async else BoltMachine
        return machine(self._plan, task, self._options, random_bits=bits, attempts=self._attempts, cell=cell)
