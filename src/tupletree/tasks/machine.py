"""What all machines have in common, so that their driver does not need to know the kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.failures import FailureMaker, late_text
from tupletree.config import Options
from tupletree.data.frames import Frame, Root, roots_of
from tupletree.errors import InternalError
from tupletree.ids import RandomBits
from tupletree.routing.plan import Plan, Task
from tupletree.state.keys import ordered_keys
from tupletree.tasks.emitter import DeferredDeltas, Emitter
from tupletree.tasks.in_order import OrderedInput
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.mail import Mail, Now
from tupletree.tasks.making import Numbers
from tupletree.tasks.orphan_check import orphan_check_of
from tupletree.tasks.outbox import LogNote, Outbox
from tupletree.tasks.pace import Pace, limit_of
from tupletree.tasks.stalls import Stalls
from tupletree.tasks.upstream.retry_status import RetryStatus
from tupletree.tasks.upstream.under_way import KeptFrames, UnderWay
from tupletree.tracking.holds import Hold
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.work_done import WorkDone

if TYPE_CHECKING:
    from tupletree.ids import MessageId

RENEWALS = 4
"""How often within a message timeout the timeouts of messages that wait in a task are reset."""


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
        done: what its calls took so far; None for what makes no calls for tuples.
        measured: where the driver of the task adds what `work` and `poll` took; None for what does so itself.
        stalls: what its driver knows of calls that take long; None where nobody notes them.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_timed = True
        self.retry_status: RetryStatus | None = None
        self.strays = 0
        self.wait = OutageWait(task.component)
        self.live: LiveRoots | None = None
        self.pace: Pace | None = None
        self.done: WorkDone | None = None
        self.measured: WorkDone | None = None
        self.stalls: Stalls | None = None

    def _ids_of(self, roots: Sequence[int]) -> tuple[MessageId, ...]:
        """The message ids of these roots, as far as they are known."""
        return self.live.ids_of(roots) if self.live is not None else ()

    def _note(self, text: str, out: Outbox) -> None:
        """A line for the log, if there is anything to say."""
        if text:
            out.notes.append(LogNote(self.task.component, text))

    @property
    def _under_way(self) -> UnderWay | None:
        """What is on its way to windows and joins by event time; None where there are none."""
        return self.retry_status.under_way if self.retry_status is not None else None

    def number_from(self, numbers: Numbers) -> None:
        """Take numbers for the order of making from here; call it before `start`."""

    def start(self, now: Now, out: Outbox) -> None:
        """Open the component."""

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:  # noqa: ARG002 - for machines that get frames
        """Take a frame that is addressed to this task."""
        raise InternalError(
            "a task got a frame, and tasks of its kind get none", where=self.task.component, got=frame.component
        )

    def skip(self, frame: Frame) -> None:
        """A frame that is addressed to this task is not worked: none of its messages is open any more."""

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

    @property
    def may_stall(self) -> bool:
        """Whether what it does now may wait for something outside, and its thread with it: see `Stalls`."""
        return self.wait.current is not None

    def holds(self, root: int, now: Now) -> list[Hold]:  # noqa: ARG002 - nothing is held
        """What holds tuples of this attempt in this task, or its rows; none: it has none. On the task's thread."""
        return []

    def held_now(self) -> list[Hold]:
        """How many tuples this task holds, by what. Any thread may ask; RuntimeError or IndexError: ask again."""
        return []

    def flush(self, now: Now, out: Outbox) -> bool:  # noqa: ARG002 - nothing to do
        """Nothing more will come for now: work what is held back for a batch; whether there was anything."""
        return False

    def stop(self, now: Now, out: Outbox) -> None:
        """Close the component. What is held is not worked: call `flush` before, unless its messages have failed."""


# More than 12 attributes: what the tasks of all kinds of bolts share, with what they count.
class EmittingMachine(Machine, ABC):
    """What the tasks of bolts of all kinds share: where the effects of a call go.

    Args:
        plan: the topology laid out.
        task: the bolt task.
        options: of the run: timeouts.
        random_bits: for edge ids.
        attempts: root → attempt of those beyond the first; spout machines keep it.

    Attributes:
        place: the context that user code sees.
        worked: tuples so far.
        late_verdicts: second verdicts of tuples that were settled already.
        late: tuples that came too late for their window or join.
    """

    def __init__(
        self, plan: Plan, task: Task, options: Options, *, random_bits: RandomBits, attempts: dict[int, int]
    ) -> None:
        super().__init__(task)
        timeout_s = options.message_timeout_s
        self.wait = OutageWait(task.component, options.outage_limit_s)
        self._plan = plan
        self.worked = 0
        self.late_verdicts = 0
        self.late = 0
        self.place = TaskPlace.at(plan, task, attempts=attempts)
        self._emitter = Emitter(plan, task, random_bits)
        self.place.numbered = self._emitter.ordering.numbers_outputs
        self.place.retry = plan.spec.components[task.component].retry
        self._fail = FailureMaker(task.component, task.task_id, self.place.retry)
        self._deferred: DeferredDeltas | None = (
            None  # for those that may emit for a message long before they are done with it
        )
        self._random_bits = random_bits
        self._limit = limit_of(plan, plan.spec.components[task.component])
        self._renewal_s = None if timeout_s is None else timeout_s / RENEWALS
        self._renew_at_s = 0.0
        self._orphan_check = orphan_check_of(plan, task, timeout_s, self.held_roots, self.purge)
        self._kept_frames: KeptFrames | None = None
        self._in_order: OrderedInput | None = None  # made by `start`, where inputs are ordered
        self._late_told = 0  # the log speaks of them when there are ten times as many
        self._since_s = 0.0  # when the oldest message of what is in hand went out, where that is of use

    def number_from(self, numbers: Numbers) -> None:
        self._emitter.ordering.numbers = numbers

    def carry_out(self, worked: Worked, out: Outbox) -> None:
        """Turn what came of a call into frames, deltas and failures."""
        if self._in_order is not None:
            self._in_order.take_back(worked)
        ordering = self._emitter.ordering
        if not ordering.is_idle:
            ordering.settle(worked)
            worked.outputs = ordering.order(worked.outputs)
        failures = worked.failures
        first = len(out.frames)
        sent: list[tuple[int, Sequence[Root]]] | None = None if self._deferred is None else []
        for output in worked.outputs:
            for root, value, error in self._emitter.send(output, out, sent):
                self._fail.blame(worked, root, value, error)
        if self._deferred is not None:
            self._deferred.carry_out(sent or (), worked, out)
        else:
            for frame_id, roots in worked.done:
                out.add_delta(frame_id, roots)
        under_way = self._under_way
        if under_way is not None:
            self._tell_under_way(worked, out.frames[first:], under_way)
        if failures:
            out.fail_trees(failures)
        if worked.extended:
            out.extend(worked.extended)
        self.late_verdicts += worked.late_verdicts
        self.late += worked.late
        if worked.dropped and self.late >= 10 * self._late_told:
            self._late_told = self.late
            self._note(late_text(self.late, worked.dropped), out)
        if worked.stray_count:
            self.strays += worked.stray_count
            self._note(_strays(worked.stray_count, worked.strays), out)
        if self._in_order is not None:
            self._in_order.settle(worked)

    @abstractmethod
    def held_roots(self) -> Iterable[int]:
        """Roots of the tuples that it holds."""

    def purge(self, roots: AbstractSet[int], gone: AbstractSet[int]) -> None:  # noqa: ARG002 - for those that hold tuples
        """Drop what is held for roots that are over only: see `Purge`."""
        if self._kept_frames is not None:
            self._kept_frames.settle((), roots)
        if self._deferred is not None:
            self._deferred.forget(roots)
        if self._in_order is not None:
            self._in_order.purge(roots)

    def _must_renew(self, now: Now) -> bool:
        """Whether it is time to reset the timeouts of messages that wait here; asked again, not for a while."""
        if self._renewal_s is None or now.monotonic_s < self._renew_at_s:
            return False
        self._renew_at_s = now.monotonic_s + self._renewal_s
        return True

    def _note_closed(self, error: BaseException, out: Outbox) -> None:
        text = f"it cannot be opened, and its messages fail until it can: {type(error).__name__}: {error}"
        self._note(text, out)

    def _order(self, *, one_by_one: bool = False) -> OrderedInput | None:
        """What keeps the order of this task's inputs; None if none of them is ordered."""
        ordered = None if self._under_way is None else self._under_way.ordered
        if ordered is None or self.task.task_id not in ordered.tasks:
            return None
        keys = ordered_keys(self._plan.spec, self._plan.spec.components[self.task.component])
        return OrderedInput(self.task.component, ordered, keys, one_by_one=one_by_one)

    def _take_in_order(self, frame: Frame, in_order: OrderedInput) -> None:
        """A frame came whose tuples may have to wait."""
        under_way = self._under_way
        if under_way is not None:
            self._keep_frame(frame, under_way)
        over = in_order.add(frame)
        if over and self._kept_frames is not None:
            self._kept_frames.settle((), over)

    def skip(self, frame: Frame) -> None:
        if self._under_way is not None:
            self._under_way.skipped(frame.id)

    def _keep_frame(self, frame: Frame, under_way: UnderWay) -> None:
        """Some tuples of this frame are kept beyond the call."""
        if self._kept_frames is None:
            self._kept_frames = KeptFrames(under_way)
        self._kept_frames.keep(frame)

    def _tell_under_way(self, worked: Worked, sent: Sequence[Frame], under_way: UnderWay) -> None:
        """What is sent is as old as the oldest that is kept here: it is not known which of these it comes of."""
        since_s, kept = self._since_s, self._kept_frames
        if kept is not None:
            kept_s = kept.since_s
            since_s = since_s if kept_s is None else min(since_s, kept_s)
        if sent:
            under_way.sent(sent, since_s)
        if worked.failures and self.live is not None:
            under_way.failed(worked.failures, self.live)
        if kept is not None:
            kept.settle(((frame_id, _flat(roots)) for frame_id, roots in worked.done), worked.failures)


def _flat(roots: Iterable[Root]) -> Iterable[int]:
    return (one for root in roots for one in roots_of(root))


def _strays(count: int, strays: Sequence[Failure]) -> str:
    some = "; ".join(f"{one.error_type} {one.error} on {one.failing_tuple}" for one in strays)
    return f"{count} errors that fail no message (untracked tuples, or tuples settled before), such as {some}"
