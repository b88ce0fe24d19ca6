"""Tells what happens in a flow, step by step and in words: who sends what to whom, and what an acker knows of a tree.

Edges get names in the order in which they appear: a, b, c. `^` is XOR.
"""

from __future__ import annotations

import itertools
import string
from typing import Any

from tests.tasks.driving import Driver
from tupletree import Topology
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.tasks.acker import AckerMachine
from tupletree.tasks.mail import DropRoots, Mail, SinkReset, Track, TreeVerdicts, WriteRequest, Written
from tupletree.tasks.spout import SpoutMachine
from tupletree.tracking.tree import xor_all


class Story(Driver):
    """One acker, so that every tree is in one place, and no pause before a retry is longer or shorter than it says."""

    def __init__(self, topology: Topology, **options: Any) -> None:
        self.edges: dict[str, int] = {}
        self._names = {0: "0"}
        super().__init__(topology, Options(**{"acker_tasks": 1, "backoff_jitter": 0.0, **options}))

    def carry_out(self) -> None:
        """See `Driver`; new edges get their names here."""
        super().carry_out()
        for one in self.queue:
            if isinstance(one, Frame) and len(self.edges) < 26 and one.id not in self.edges.values():
                self._name_edge(one.id)

    # --- what one does --------------------------------------------------------------------------------------------

    def ask(self, spout: str) -> list[str]:
        """Let a spout emit what it may; returns what is sent because of it."""
        return self._sent_by(lambda: self.machine(spout).poll(self.now, self.out))

    def deliver(self, to: str) -> list[str]:
        """Deliver the next thing on its way to this component; returns what is sent because of it."""
        thing = next(one for one in self.queue if self._receiver(one) == to)
        self.queue.remove(thing)
        return self._sent_by(lambda: self._hand_over(thing))

    def _hand_over(self, thing: Frame | tuple[int, Mail]) -> None:
        machine = self.machines[self._task_of(thing)]
        if isinstance(thing, Frame):
            machine.work(thing, self.now, self.out)
        else:
            machine.receive([thing[1]], self.now, self.out)
        if not isinstance(machine, SpoutMachine):  # those are asked by `ask`
            machine.poll(self.now, self.out)

    def wait(self, seconds: float) -> None:
        """Let time pass and everything happen that it brings, in small steps."""
        end_s = self.now_s + seconds
        self.settle()
        while self.now_s < end_s:
            due = [due_s for machine in self.machines.values() if (due_s := machine.next_due_s()) is not None]
            self.now_s = min([end_s, *(due_s for due_s in due if due_s > self.now_s)])
            self.settle()

    def lose(self, to: str) -> None:
        """Everything on its way to this component never arrives."""
        lost = [one for one in self.queue if self._receiver(one) == to]
        for one in lost:
            self.queue.remove(one)

    def kill(self, component: str, index: int = 0) -> None:
        """The task dies with all that it knew and all that was on its way to it; another takes its place."""
        task = self.plan.tasks_of(component)[index]
        for one in [one for one in self.queue if self._task_of(one) == task.task_id]:
            self.queue.remove(one)
        number = task.task_id
        if number in self.incarnations:
            self.incarnations[number] += 1
            reset = SinkReset(number, self.incarnations[number])
            self.queue.extendleft((spout.task.task_id, reset) for spout in self.spouts)
        fresh = self.machines[task.task_id] = self.make(task)
        fresh.start(self.now, self.out)
        if isinstance(fresh, AckerMachine):
            for spout in self.spouts:
                spout.acker_lost(index, self.now, self.out)
            for sink in self.sinks:
                sink.acker_lost(index, self.options.acker_tasks, self.now, self.out)
        self.carry_out()

    def restart(self) -> None:
        """End all tasks after a fault, and start others that take over what the spouts have."""
        spout_checkpoints = {spout.task.task_id: spout.hand_over(self.now, self.out) for spout in self.spouts}
        self.carry_out()
        self.stop()
        self.queue.clear()
        self.incarnations.update({task: number + 1 for task, number in self.incarnations.items()})
        self.machines = {task.task_id: self.make(task, spout_checkpoints.get(task.task_id)) for task in self.plan.tasks}
        for machine in self.machines.values():
            machine.start(self.now, self.out)

    # --- what one sees --------------------------------------------------------------------------------------------

    def machine(self, component: str, index: int = 0) -> Any:
        """A task's machine."""
        return self.machines[self.plan.tasks_of(component)[index].task_id]

    @property
    def on_the_way(self) -> list[str]:
        """What was sent and has not arrived."""
        return [self._words(one) for one in self.queue]

    @property
    def trees(self) -> list[str]:
        """What the acker keeps for each open tree: the XOR of all that it heard."""
        acker = self.ackers[0]
        values = [value for one in acker._acker._generations.values() for _, value in one.trees.values()]
        values += [value for _, value, roots, _ in acker._waiting for _ in roots]  # opened, and nobody worked yet
        return [self._named(value) for value in values]

    @property
    def spout(self) -> SpoutMachine:
        """The only spout."""
        (only,) = self.spouts
        return only

    # --- words ----------------------------------------------------------------------------------------------------

    def _sent_by(self, step: Any) -> list[str]:
        before = len(self.queue)
        step()
        self.carry_out()
        return self.on_the_way[before:]

    @staticmethod
    def _task_of(thing: Frame | tuple[int, Mail]) -> int:
        return thing.task if isinstance(thing, Frame) else thing[0]

    def _receiver(self, thing: Frame | tuple[int, Mail]) -> str:
        return self.plan.tasks[self._task_of(thing)].component.removeprefix("__")

    def _words(self, thing: Frame | tuple[int, Mail]) -> str:
        to = self._receiver(thing)
        if isinstance(thing, Frame):
            texts = ", ".join(str(getattr(value, "text", getattr(value, "word", value))) for value in thing.values)
            return f"{to} <- {texts} (edge {self._named(thing.id)})"
        match thing[1]:
            case Track(openings=openings, deltas=deltas, failures=failures, extended=extended):
                said = [f"open {self._named(value)}" for _, value, _, _ in openings]
                said += [self._named(value) for value, _ in deltas]
                said += ["fail"] * len(failures) + ["renew"] * len(extended)
            case TreeVerdicts(completed=completed, failed=failed, expired=expired):
                said = ["complete"] * sum(map(len, completed)) + ["failed"] * len(failed) + ["expired"] * len(expired)
            case WriteRequest():
                said = ["release its rows"]
            case Written():
                said = ["rows are written"]
            case DropRoots():
                said = ["drop its rows"]
            case other:
                said = [type(other).__name__]
        return f"{to} <- {', '.join(said)}"

    def _named(self, value: int) -> str:
        """An XOR as the edges that it is made of, up to three of them."""
        return self._names.get(value, f"{value:016x}")

    def _name_edge(self, edge: int) -> None:
        name = string.ascii_lowercase[len(self.edges)]
        for count in range(3):
            for others in itertools.combinations(self.edges, count):
                value = xor_all([edge, *(self.edges[other] for other in others)])
                self._names[value] = " ^ ".join([*others, name])
        self.edges[name] = edge
