"""How an executor measures what its tasks' calls take."""

from __future__ import annotations

from typing import Any

from tupletree.clock import ManualClock
from tupletree.data.frames import Frame, cut
from tupletree.routing.plan import Task
from tupletree.runtimes.local.executor import Executor
from tupletree.runtimes.local.ring import Ring
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import Now
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.pace import Pace
from tupletree.tracking.work_done import WorkDone

CALL_S = 0.000_01
CUT_S = 0.01


class Quick(Machine):
    """Takes next to no time for a tuple; to cut a frame takes long, as on a machine that does something else then."""

    def __init__(self, task: Task, clock: ManualClock) -> None:
        super().__init__(task)
        self.pace, self.measured = Pace(), WorkDone()
        self.slices: list[int] = []
        self._clock = clock

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:
        self._clock.advance(CALL_S * len(frame.values))
        self.slices.append(len(frame.values))

    def cut(self, frame: Frame, tuples: int, out: Outbox) -> tuple[Frame, Frame]:
        self._clock.advance(CUT_S)
        return cut(frame, tuples)[:2]


class Run:
    """A run of which an executor needs nothing."""

    ending = False

    def idle(self, executor: Executor) -> None:
        """See `Hub`."""

    def store_letters(self, died: object) -> None:
        """See `Hub`."""


def test_what_happens_between_two_slices_is_not_counted_as_time_of_the_calls() -> None:
    """Else a task that was given one tuple at a time would be given one at a time for ever."""
    clock, hub = ManualClock(), Run()
    machine = Quick(Task(3, "quick", 0), clock)
    given: Any = hub
    executor = Executor("bolts", Ring(1_000), {3: machine}, acker_tasks=[1], clock=clock, hub=given, idle_s=0.1)
    count = 5_000
    frame = Frame(3, "lines", "Line", ["x"] * count, [*range(1, count + 1)], [*range(1, count + 1)], 77)
    executor.ring.publish([frame])
    while sum(machine.slices) < count:
        executor.step()
    assert machine.slices[0] == 1, "nothing is known yet"
    assert len(machine.slices) < 20
    assert machine.measured is not None
    assert machine.measured.seconds < 2 * CALL_S * count
