"""Drives the machines of a whole topology in one thread, on virtual time, in the order in which things were sent."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from typing import Any

from tupletree import AsyncSpout, Topology
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.routing.plan import ACKER, Plan, Task
from tupletree.state.cells import ValueCell
from tupletree.tasks.acker import AckerMachine
from tupletree.tasks.async_bolt import AsyncBoltMachine
from tupletree.tasks.async_spout import AsyncSpoutMachine
from tupletree.tasks.bolt import BoltMachine
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import Mail, Now
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.sink import SinkMachine
from tupletree.tasks.spout import DEFAULT_MAX_PENDING, SpoutMachine, SpoutSurroundings
from tupletree.tasks.spouts.spout_buffer import SpoutCheckpoint
from tupletree.tasks.ticks import SystemMachine
from tupletree.tasks.upstream.retry_status import RetryStatus
from tupletree.topology.ordering import ordered_inputs
from tupletree.tracking.records import Died


class Driver:
    """The tasks of a topology. What is under way lies in `queue`, in the order in which it was sent.

    Args:
        topology: what to drive.
        options: None takes those of the topology.
        seed: of every random draw.
        active: False starts with inactive spouts.
        adapts: whether unset options let spouts measure how many messages may be in flight.
    """

    def __init__(
        self,
        topology: Topology,
        options: Options | None = None,
        seed: int = 0,
        *,
        active: bool = True,
        adapts: bool = False,
    ) -> None:
        self.options = options or Options(**topology.build().options)
        if (
            self.options.max_spout_pending is None and not adapts
        ):  # what is tested here does not wait for a pace to be measured
            self.options = replace(self.options, max_spout_pending=DEFAULT_MAX_PENDING)
        self.spec = topology.build()
        self.plan = Plan.of(self.spec, self.options)
        self.now_s = 1000.0
        self.out = Outbox(self.plan.task_ids_of(ACKER))
        self.queue: deque[Frame | tuple[int, Mail]] = deque()
        self.died: list[Died] = []
        self.notes: list[str] = []
        self.attempts: dict[int, int] = {}
        self.random = random.Random(seed)
        self.active = active
        self.incarnations = dict.fromkeys(self._tasks_of_kind("sink"), 1)
        self.machines: dict[int, Machine] = {task.task_id: self.make(task) for task in self.plan.tasks}
        self.retry_status = RetryStatus.of(self.plan, self.options)
        # Where order counts, those who wait must hear of an attempt that failed before the acker does.
        is_ordered = any(map(ordered_inputs, self.plan.spec.components.values()))
        live = LiveRoots(self.options.message_timeout_s) if is_ordered else None
        for machine in self.machines.values():
            machine.retry_status, machine.live = self.retry_status, live
            machine.start(self.now, self.out)

    def make(self, task: Task, spout_checkpoint: SpoutCheckpoint | None = None) -> Machine:
        """A machine for this task that was not started yet; a spout takes up what the one before it left."""
        bits = self.random.getrandbits
        kind = self._kind(task.component)
        if kind == "acker":
            return AckerMachine(
                task,
                timeout_s=self.options.message_timeout_s,
                buckets=self.options.timeout_buckets,
                high_water=None,
                spout_tasks=self._tasks_of_kind("spout"),
                sink_tasks=[*self.incarnations],
                now_s=self.now_s,
            )
        if kind == "system":
            return SystemMachine(task, self.plan, self.options)
        if kind == "spout":
            spout = self._instance(task.component)
            spout_machine = AsyncSpoutMachine if isinstance(spout, AsyncSpout) else SpoutMachine
            return spout_machine(
                self.plan,
                task,
                spout,
                self.options,
                SpoutSurroundings(bits, self.random.random, self.incarnations, self.attempts),
                spout_checkpoint=spout_checkpoint,
                active=self.active,
            )
        if kind == "sink":
            incarnation = self.incarnations[task.task_id]
            return SinkMachine(self.plan, task, self._instance(task.component), run="test", incarnation=incarnation)
        body = self.spec.components[task.component].body
        cell: ValueCell[Any] | None = ValueCell({}, body.state.default) if body.state else None
        machine = AsyncBoltMachine if body.is_async else BoltMachine
        options = replace(self.options, processing_timeout_s=None)
        return machine(self.plan, task, options, random_bits=bits, attempts=self.attempts, cell=cell)

    def _tasks_of_kind(self, kind: str) -> list[int]:
        return [task.task_id for task in self.plan.tasks if self._kind(task.component) == kind]

    def _kind(self, component: str) -> str:
        if component in self.spec.components:
            return self.spec.components[component].kind
        return "acker" if component == ACKER else "system"

    def _instance(self, component: str) -> Any:
        """The object for one task: that of the test, so that it sees what it hears."""
        return self.spec.components[component].body

    @property
    def now(self) -> Now:
        return Now(self.now_s, 1_700_000_000.0 + self.now_s)

    @property
    def spouts(self) -> list[SpoutMachine]:
        return [machine for machine in self.machines.values() if isinstance(machine, SpoutMachine)]

    @property
    def sinks(self) -> list[SinkMachine]:
        return [machine for machine in self.machines.values() if isinstance(machine, SinkMachine)]

    @property
    def ackers(self) -> list[AckerMachine]:
        return [machine for machine in self.machines.values() if isinstance(machine, AckerMachine)]

    def carry_out(self) -> None:
        """Take what the step asked for to where it belongs."""
        self.queue += self.out.take_tracks()
        self.queue += self.out.take_frames()
        self.queue += self.out.take_mail()
        ticks, self.out.ticks = self.out.ticks, []
        for task in ticks:
            self.machines[task].tick(self.now, self.out)
            self.queue += self.out.take_tracks()
            self.queue += self.out.take_frames()
        died, self.out.died = self.out.died, []
        self.died += died
        for one in died:
            self.machines[one.spout_task].letters_stored([one])  # type: ignore[attr-defined]
        self.notes += [note.text for note in self.out.notes]
        self.out.notes.clear()
        self.out.acked.clear()

    def step(self) -> bool:
        """Deliver one thing; whether there was one."""
        if not self.queue:
            return False
        one = self.queue.popleft()
        if isinstance(one, Frame):
            self.machines[one.task].work(one, self.now, self.out)
        else:
            task, mail = one
            self.machines[task].receive([mail], self.now, self.out)
        self.carry_out()
        return True

    def settle(self, limit: int = 100_000) -> None:
        """Deliver and poll until nothing happens any more at this time."""
        for _ in range(limit):
            if self.step():
                continue
            polled = [machine.poll(self.now, self.out) for machine in self.machines.values()]
            if not any(polled):
                self.carry_out()
                if not self.queue:
                    return
            self.carry_out()
        raise AssertionError("the flow does not come to rest")

    def run(self, limit: int = 100_000) -> None:
        """Settle, moving time to the next thing that is due, until every spout is finished."""
        for _ in range(limit):
            self.settle()
            if all(spout.is_finished for spout in self.spouts):
                return
            if self.retry_status is not None and all(spout.ended for spout in self.spouts) and self.flush():
                continue
            due = [due_s for machine in self.machines.values() if (due_s := machine.next_due_s()) is not None]
            self.now_s = max(self.now_s + 0.001, min(due))
        raise AssertionError("the flow does not end")

    def flush(self) -> bool:
        """Nothing more will come: let go of what is held; whether anything was."""
        flushed = [machine.flush(self.now, self.out) for machine in self.machines.values()]
        self.carry_out()
        return any(flushed)

    def stop(self) -> None:
        """Close every component."""
        for machine in reversed(self.machines.values()):
            machine.stop(self.now, self.out)
