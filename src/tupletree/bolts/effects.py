"""Effects: what a task's work asks the runtime to carry out, and the context that user code sees meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Self

from tupletree.data.frames import Columns, Frame, LaidOut, Root, roots_of
from tupletree.errors import ProcessingError, is_outage
from tupletree.topology.retry import Retry
from tupletree.tracking.outcomes import Failure

if TYPE_CHECKING:
    from tupletree.ids import MessageId
    from tupletree.routing.plan import Plan, Task

MAX_STRAYS_KEPT = 3


class StateCell(Protocol):
    """What a bolt's task needs of keyed state: set the present key and its value, and take the value back.

    `check`, if there is one, raises ProcessingError for a (key, value) that could not be stored; it is asked after each
    call, so that the call which left the value fails, and no other.
    """

    key: Any
    value: Any
    changed: dict[Any, Any]
    check: Callable[[Any, Any], None] | None

    def prepare(self, keys: list[Any], time_s: float) -> None:
        """Tuples with these keys come next, at this time."""
        ...

    def load(self, key: Any) -> Any:
        """The value of a key that is not in `changed`."""
        ...

    def touch(self) -> None:
        """The value of the key in hand was changed in place."""
        ...

    def savepoint(self) -> Callable[[], None]:
        """What puts the value of the key in hand back to what it is now, as often as it is called."""
        ...


def put_in_hand(state: StateCell, key: Any) -> Any:
    """Let the state hold a key and its value; returns the value."""
    state.key = key
    state.value = held = state.changed[key] if key in state.changed else state.load(key)
    return held


@dataclass(slots=True)
class CallsAgain:
    """How calls that raised and were made again at once ended: how many passed, and how many raised to the end."""

    passed: int = 0
    failed: int = 0

    def note(self, *, passed: bool) -> None:
        """One more has ended."""
        if passed:
            self.passed += 1
        else:
            self.failed += 1


@dataclass(slots=True)
class Output:
    """Tuples that a task emitted on one stream, laid out as in a frame, not yet routed to tasks.

    `direct_task` is the target of `emit_direct`; None for every other emit. `made` is `Frame.made` once it is known
    (`orders`); before, where outputs on several streams were emitted together: where each tuple stood among all.
    """

    stream: str
    values: list[Any]
    roots: list[Root]
    ends: list[int]
    direct_task: int | None = None
    made: Sequence[int] | None = None


class ColumnOutput(LaidOut, Output):
    """An output whose tuples are columns."""

    def __init__(self, stream: str, columns: Columns) -> None:
        self.stream, self.columns, self.direct_task, self.made = stream, columns, None, None


class Outlet(Protocol):
    """Takes what a task emits in chunks, so that the output of one frame, or call, is never held as a whole."""

    def room_for(self, stream: str, value: Any) -> int:
        """About how many tuples like this one make a chunk."""
        ...

    def send(self, outputs: list[Output]) -> None:
        """Send the output of calls that are over."""
        ...

    def hold(self, outputs: list[Output]) -> None:
        """Hold the output of the call in hand so far: it counts once the call returns.

        Raises:
            ProcessingError: it has emitted more than it may.
        """
        ...

    def settle(self, *, counts: bool) -> None:
        """End the call: what is held of it counts, or is dropped."""
        ...


@dataclass(slots=True)
class Worked:
    """The effects of working one frame.

    Attributes:
        outputs: what was emitted. A tuple whose roots all failed in this frame is not among them.
        done: (frame id, roots) pairs whose tuples are all settled as acked; a manual bolt may finish a frame of
            an earlier call here. Roots stand as in `Frame.roots`: untracked ones, repetitions and tuples of roots
            are among them, and a root counts once per frame.
        failures: failed roots with the reason; the first failure of a root wins.
        extended: roots whose timeout the bolt renewed.
        late_verdicts: second verdicts on a settled tuple; they changed nothing.
        late: tuples that came too late for their window or join.
        dropped: why the first few of those that came too late, and are dropped, did.
        strays: the first few errors that fail no root: of untracked tuples, of calls whose tuple was settled before
            they raised, and of bolts without `auto_fail`. The runtime logs them, because no verdict does.
        stray_count: how many there were.
        outage: why the work ended before the frame did: something outside is not available. What is left waits in the
            task until it is resumed.
    """

    outputs: list[Output] = field(default_factory=list)
    done: list[tuple[int, list[Root]]] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    extended: list[int] = field(default_factory=list)
    late_verdicts: int = 0
    late: int = 0
    dropped: list[Failure] = field(default_factory=list)
    strays: list[Failure] = field(default_factory=list)
    stray_count: int = 0
    outage: BaseException | None = None


# More than 12 attributes: what user code may ask for in `context`, on one page.
@dataclass(slots=True)
class TaskPlace:
    """The `TaskContext` that user code sees; the runtime keeps `attempts` and `epoch_time_s` up to date.

    `root` is that of the tuple in hand; None outside of a call. `retrying_since_s` is when the oldest message that is
    being tried again first went out, in epoch time; None while there is none. Watermarks wait for it, and for what is
    `kept_retrying`: messages with a later attempt of which tuples are kept somewhere, and when they first went out; a
    task that holds these tuples itself need not wait for them. `retries_run` says that a later attempt is in the epoch
    that runs, so that more is known in the next one. `held_back_since_s` is since when a window or join before this one
    has put something off (`Holder.put_off_since_s`): what comes of that is earlier than what has come since.
    `under_way_since_s` is when, by the clock of `run_s`, the oldest message went out that may still bring this one
    something; None: nothing may, or the runtime hands on all that there is before it asks how far time has come.
    `run_s` is for how long the run has run, in seconds: durations go by it, for it neither goes back nor goes on while
    no process runs; None: as `epoch_time_s`.
    `message_timeout_s` is for those who extend the timeout of what they hold; None: there is no timeout to extend.
    `waits` says that the task is resumed after an outage, which fails no tuple then.
    `pinned` are attempts of the frame in hand, which `attempts` forgets once they are over. `again` are first attempts
    that come later than others of their time all the same: of replayed dead letters, and of deferred messages.
    `calls` is how often one call of user code is made while it raises, before its tuples fail (`call_retry`);
    `calls_again` counts what came of that.
    `numbered`: what is emitted together on several streams is to say in which order (`Output.made`).
    `frame` is the one whose tuples are given to calls one by one, or the last such; None where calls have tuples of
    several. `ids_of` finds the message ids of roots, when user code asks; None where they are not known. `named` are
    those of a tuple that is settled while its call goes on. `retry` is what the topology says about failures of the
    component. `before_call` waits until the next call may be made; None: at once. `renamed` has earlier names of
    components, which what a holder remembers may have → their names now.
    """

    topology: str
    component: str
    task_id: int
    task_index: int
    parallelism: int
    epoch_time_s: float = 0.0
    retrying_since_s: float | None = None
    held_back_since_s: float | None = None
    under_way_since_s: float | None = None
    kept_retrying: Mapping[int, float] = field(default_factory=dict)
    retries_run: bool = False
    run_s: float | None = None
    message_timeout_s: float | None = None
    calls: int = 1
    calls_again: CallsAgain = field(default_factory=CallsAgain)
    numbered: bool = False
    attempts: Mapping[int, int] = field(default_factory=dict)
    again: Collection[int] = ()
    root: Root | None = None
    component_tasks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    input_types: tuple[type, ...] = ()
    waits: bool = False
    pinned: Mapping[int, int] = field(default_factory=dict)
    frame: Frame | None = None
    ids_of: Callable[[Sequence[int]], tuple[MessageId, ...]] | None = None
    named: tuple[Root, tuple[MessageId, ...]] | None = None
    retry: Retry | None = None
    before_call: Callable[[], None] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)

    def with_root(self, root: Root) -> TaskPlace:
        """A copy of what is here now, with this tuple in hand. Hot: once for each call of an async bolt."""
        made = TaskPlace(*_VALUES_OF(self))
        made.root = root
        return made

    @property
    def wants_roots(self) -> bool:
        """Whether the messages in hand are to be named even to user code that does not ask for its context."""
        return False

    def must_be_alone(self, root: Root) -> bool:  # noqa: ARG002 - a runtime may know of some
        """Whether nothing else may be in hand together with this tuple."""
        return False

    @classmethod
    def at(cls, plan: Plan, task: Task, **fields: Any) -> Self:
        """That of a task of a plan; `fields` are those of its own that the plan does not say."""
        return cls(
            topology=plan.spec.name,
            component=task.component,
            task_id=task.task_id,
            task_index=task.index,
            parallelism=plan.parallelism(task.component),
            component_tasks=plan.component_tasks,
            **fields,
        )

    def begin(self, epoch_time_s: float) -> None:
        """The task works from here on, at this time; what is logged names what it has in hand."""
        self.epoch_time_s = epoch_time_s
        IN_HAND.set(self)

    def take_in_hand(self, root: Root, tuples: int) -> None:  # noqa: ARG002 - a runtime may want to know
        """Several tuples are given to one call. A runtime may raise, and then they are to be given in smaller parts.

        Args:
            root: of all the tuples together.
            tuples: how many there are.
        """
        self.root = root

    def tasks_of(self, component: str) -> Sequence[int]:
        """See `TaskContext.tasks_of`."""
        return self.component_tasks[component]

    @property
    def attempt(self) -> int:
        """Attempt of the message in hand; attempts that the runtime did not name, and untracked ones, are first."""
        return 0 if self.root is None else self.attempt_of(self.root)

    @property
    def message_ids(self) -> tuple[MessageId, ...]:
        """See `TaskContext.message_ids`."""
        return () if self.root is None else self.ids_of_root(self.root)

    @property
    def message_id(self) -> MessageId | None:
        """See `TaskContext.message_id`."""
        ids = self.message_ids
        if len(ids) > 1:
            raise ProcessingError(
                "what is in hand belongs to several messages, so it has no one id",
                where=self.component,
                got=f"{len(ids)} messages",
                next_step="use context.message_ids",
            )
        return ids[0] if ids else None

    @property
    def source_component(self) -> str:
        """See `TaskContext.source_component`."""
        return self.frame.component if self.root is not None and self.frame is not None else ""

    @property
    def source_stream(self) -> str:
        """See `TaskContext.source_stream`."""
        return self.frame.stream if self.source_component and self.frame is not None else ""

    @property
    def source_task(self) -> int:
        """See `TaskContext.source_task`."""
        return self.frame.source if self.source_component and self.frame is not None else -1

    def takes_as_outage(self, error: BaseException) -> bool:
        """Whether what the component raised is an outage, and no failure of a message."""
        return is_outage(error) if self.retry is None else self.retry.takes_as_outage(error)

    def ids_of_root(self, root: Root) -> tuple[MessageId, ...]:
        """The ids of the messages of a tuple."""
        if self.named is not None and self.named[0] == root:
            return self.named[1]
        roots = roots_of(root)
        return self.ids_of(roots) if roots and self.ids_of is not None else ()

    def comes_again(self, root: Root) -> bool:
        """Whether a tuple is of a message that did not just come from its source; see `again`."""
        return self.attempt_of(root) > 1 or (bool(self.again) and any(one in self.again for one in roots_of(root)))

    def attempt_of(self, root: Root) -> int:
        """Attempt of a tuple: of several roots, the highest."""
        attempts, pinned = self.attempts, self.pinned
        return max((pinned.get(one) or attempts.get(one, 1) for one in roots_of(root)), default=1)


_VALUES_OF = attrgetter(*(one.name for one in fields(TaskPlace)))

IN_HAND: ContextVar[TaskPlace | None] = ContextVar("tupletree_in_hand", default=None)
"""Whose task worked last in this context. Its `root` is None unless a tuple is in hand right now; for logs."""
