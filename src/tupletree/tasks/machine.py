"""What all machines have in common, so that their driver does not need to know the kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tupletree.data.frames import Frame
from tupletree.errors import InternalError
from tupletree.routing.plan import Task
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.mail import Mail, Now
from tupletree.tasks.orders import Numbers
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.pace import Pace
from tupletree.tasks.retry_status import RetryStatus
from tupletree.tracking.outages import OutageWait

if TYPE_CHECKING:
    from tupletree.topology.components import MessageId

__all__ = ["Machine"]


class Machine:
    """One task. It is called by one thread at a time: `start`, then any of the others, then `stop`.

    An exception that a method raises is an error of the component or of ours, never of a message: the topology is to be
    restarted, and the machine is not to be used again, except for what its class says.

    Attributes:
        task: which task it is.
        retry_status: what machines of one topology tell each other; only where there are windows or joins.
        live: which attempts are open; None where nothing is tracked, or this is unknown.
        pace: how many tuples it is to be given at a time; None: whole frames, of any length.
        is_timed: whether `poll`, `flush`, `next_due_s` and `is_busy` may have something to do. When that changes, the
            machine puts its task into `Outbox.timed`.
        strays: tuples of no message that failed: their errors are in the notes only.
        wait: whether it waits for the end of an outage.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_timed = True
        self.retry_status: RetryStatus | None = None
        self.strays = 0
        self.wait = OutageWait(task.component)
        self.live: LiveRoots | None = None
        self.pace: Pace | None = None

    def _ids_of(self, roots: Sequence[int]) -> tuple[MessageId, ...]:
        """The message ids of these roots, as far as they are known."""
        return self.live.ids_of(roots) if self.live is not None else ()

    def number_from(self, numbers: Numbers) -> None:
        """Take numbers for the order of making from here; call it before `start`."""

    def start(self, now: Now, out: Outbox) -> None:
        """Open the component."""

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:  # noqa: ARG002 - for machines that get frames
        """Take a frame that is addressed to this task."""
        raise InternalError(
            "a task got a frame, and tasks of its kind get none", where=self.task.component, got=frame.component
        )

    def cut(self, frame: Frame, tuples: int, out: Outbox) -> tuple[Frame, Frame]:  # noqa: ARG002 - for those with a pace
        """Cut a frame that is addressed to this task behind so many tuples; `work` takes both, the first part first."""
        raise InternalError("a frame is cut for a task that takes whole frames", where=self.task.component)

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:  # noqa: ARG002 - for those that get mail
        """Take mail, in order of arrival."""
        raise InternalError(
            "a task got mail, and tasks of its kind get none", where=self.task.component, got=repr(mail)[:200]
        )

    def tick(self, now: Now, out: Outbox) -> None:
        """The component's tick is due."""

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:  # noqa: ARG002 - nothing to do
        """Do what is due; whether there was anything. `paused`: too much is in flight already."""
        return False

    def next_due_s(self) -> float | None:
        """When `poll` will have something to do at the latest (monotonic); None: only after mail."""
        return None

    @property
    def is_busy(self) -> bool:
        """Whether something is held back that `flush`, or the end of a call, would release."""
        return False

    def flush(self, now: Now, out: Outbox) -> bool:  # noqa: ARG002 - nothing to do
        """Nothing more will come for now: work what is held back for a batch; whether there was anything."""
        return False

    def stop(self, now: Now, out: Outbox) -> None:
        """Close the component. What is held is not worked: call `flush` before, unless its messages have failed."""
