"""The numbers of a local run, over all its lives: those in its handle, its records and its summary.

Owns reading them while others write: a number may be a moment old, but they agree with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tupletree.clock import Clock
from tupletree.runtimes.local.assembly import Assembly, CarriedOver
from tupletree.runtimes.local.whereabouts import all_holds
from tupletree.runtimes.open_messages import OpenMessages, open_messages
from tupletree.tasks.machine import EmittingMachine
from tupletree.topology.model import TopologySpec
from tupletree.tracking.holds import Hold
from tupletree.tracking.outages import ShownOutage, shown_outages
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import PendingCounters
from tupletree.tracking.work_done import WorkTotals


class RunCounts:
    """See the module docstring.

    Attributes:
        left: what was open when the drain was over; None until then.
    """

    def __init__(
        self, spec: TopologySpec, carried_over: CarriedOver, clock: Clock, assembly: Callable[[], Assembly | None]
    ) -> None:
        self._assembly_of_now = assembly
        self.left: OpenMessages | None = None
        self._spec = spec
        self._carried_over = carried_over
        self._clock = clock

    @property
    def assembly(self) -> Assembly | None:
        """That of the present life; None between lives."""
        return self._assembly_of_now()

    def totals(self) -> tuple[PendingCounters, int]:
        """Sums over all spout tasks, and the messages that are open now."""
        accounts = self.accounts()
        totals = PendingCounters()
        open_now = 0
        for task, pending in accounts.items():
            totals.add(pending.counters)
            open_now += pending.open_count(task) + pending.awaiting_source(task)
        if self.left is not None:  # the shutdown has removed them from the accounts
            open_now = totals.emitted - totals.acked - totals.dead
        return totals, open_now

    def accounts(self) -> dict[int, Pending]:
        """Spout task → the accounts of its messages."""
        assembly = self.assembly
        accounts: dict[int, Pending] = {
            task: one.pending for task, one in self._carried_over.spout_checkpoints.copy().items()
        }
        if assembly is not None:
            accounts.update((spout.task.task_id, spout.pending) for spout in assembly.spouts())
        return accounts

    def note_left(self) -> None:
        """Note what is open now: these messages are what the run leaves open."""
        self.left = open_messages(self.accounts(), self._clock.monotonic(), self._clock.wall())

    def strays(self) -> int:
        """Failed tuples that belong to no message."""
        assembly = self.assembly
        machines = assembly.machines.values() if assembly else ()
        return self._carried_over.strays + sum(machine.strays for machine in machines)

    def late(self) -> dict[str, int]:
        """Component → tuples that came too late for it."""
        counts = Counter(self._carried_over.late)
        assembly = self.assembly
        for machine in assembly.machines.values() if assembly else ():
            if isinstance(machine, EmittingMachine):
                counts[machine.task.component] += machine.late
        return {component: count for component, count in counts.items() if count}

    def work(self) -> WorkTotals:
        """Bolt → its work."""
        totals = WorkTotals()
        assembly = self.assembly
        for bolt, done in self._carried_over.work.items():
            totals.add(bolt, done)
        for machine in assembly.machines.values() if assembly else ():
            if machine.done is not None:
                totals.add(machine.task.component, machine.done)
        return totals

    def rows(self) -> dict[str, int]:
        """Rows written, by sink."""
        rows = {component.name: 0 for component in self._spec.components.values() if component.kind == "sink"}
        assembly = self.assembly
        for name, count in self._carried_over.rows.items():
            rows[name] += count
        for sink in assembly.sinks() if assembly else ():
            rows[sink.task.component] += sink.rows_written
        return rows

    def outages(self) -> tuple[ShownOutage, ...]:
        """What waits for something outside."""
        assembly = self.assembly
        waits = assembly.waits() if assembly is not None else []
        return shown_outages((one.current for one in waits), self._clock.monotonic())

    def holds(self) -> tuple[Hold, ...]:
        """What open messages and their tuples wait for."""
        assembly = self.assembly
        return all_holds(assembly) if assembly is not None and self.left is None else ()

    def outage_counts(self) -> dict[str, int]:
        """Component → its outages."""
        counts = Counter(self._carried_over.outages)
        assembly = self.assembly
        for wait in assembly.waits() if assembly is not None else ():
            counts[wait.component] += wait.count
        return {component: count for component, count in counts.items() if count}
