"""What users write and what runtimes call: Spout, Bolt, Sink, and what is injected into them.

Base classes and calling contracts only; the runtimes own the implementations of `Collector`, `TaskContext` and
`KeyedState`. Nothing here starts a thread or reads a clock.

Stream classes come from the generic argument (`Spout[Line]`, `Sink[Count]`) or the hints of `Bolt.process`; a library
component whose classes are known per instance only says them in `message_type`, `input_types` and `output_types`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from tupletree.errors import ProcessingError
from tupletree.ids import MessageId

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tupletree.errors import Finding
    from tupletree.tracking.outcomes import Failure

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
V = TypeVar("V")


RESOURCE = "tupletree-resource"

Resource = Annotated[T, RESOURCE]
"""`Resource[Connection]` on a bolt's parameter asks for the object that `Topology.bolt(resources=...)` names like the
parameter; for a type checker it is a plain `Connection`."""


class Tick(msgspec.Struct, frozen=True, gc=False):
    """What a function bolt that asked for ticks gets among its tuples: `def f(value: Word | Tick)`. Never anchored.

    Attributes:
        time_s: the runtime's notion of now, seconds since the Unix epoch.
    """

    time_s: float


@dataclass(slots=True)
class Emit(Generic[T]):
    """One message from a spout. `message_id=None` means untracked: acked on emit, never pending, never retried."""

    value: T
    message_id: MessageId | None = None


@dataclass(slots=True)
class Reject:
    """A message that the source received but cannot turn into a value (undecodable bytes, say).

    It counts as emitted and goes straight to the dead letters with `payload` and `reason`; the stream goes on.
    """

    payload: bytes
    message_id: MessageId
    reason: str


class Spout(Generic[T]):
    """Where messages come from. Subclass it; only `next` must be written.

    One instance serves one task. The runtime calls every method of an instance from one thread at a time, in the
    order open, activate, then any of next/ack/fail/snapshot, deactivate, close. `next` must not block for longer
    than the idle wait (100 ms): return None when nothing is there yet.
    """

    def faults(self) -> Sequence[Finding]:
        """What would make `open` fail here and now, as far as a cheap check can tell; `tupletree check` asks."""
        return ()

    def open(self, context: TaskContext) -> None:
        """Acquire what is needed. Called once, before anything else but `restore`'s data is at hand."""

    @abstractmethod
    def next(self) -> Emit[T] | Reject | Sequence[Emit[T] | Reject] | None:
        """Return one message, several, or None when there is nothing now.

        A batch may be of any length; runtimes never ask again before the pending limit allows another message. What is
        beyond it waits in the runtime; on Spark all of a batch is taken of a source that has a position. Raises
        `EndOfInput` when there will be no more messages.
        """

    def ack(self, message_id: MessageId) -> None:
        """The message's tree completed. May come again after a crash: treat that as harmless."""

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """The message is dead (`replay="runtime"`), or one attempt failed (`replay="source"`).

        A failure with `permanent=True` is final: the message is in the dead letters and must not be emitted again.
        Any other is the request to emit it again, with the same id.
        """

    def flush(self) -> None:
        """Make durable at the source what `ack` and `fail` told, for sources where many at once cost little more.

        Called after some of these, and also when there were none. On Spark a message is forgotten only when this has
        returned. It is called again after a ConnectorError.
        """

    def value_of(self, payload: bytes) -> T:  # noqa: ARG002 - for those that override it
        """The value of a record that was a `Reject` once, as its dead letter is replayed: the class may be another now.

        Called on the topology's object, which may not be open: it may use only what the constructor was given.

        Raises:
            Exception: it cannot become one; the letter stays, and the log says why. By default always.
        """
        raise ProcessingError("its source could not turn it into a message, so it is for the source to give it again")

    def activate(self) -> None:
        """Messages may flow (again)."""

    def deactivate(self) -> None:
        """No `next` until `activate`, or at all when a run ends: acks and fails of what is under way still come."""

    def snapshot(self) -> Any:
        """The position after the last message returned, as JSON-compatible data; None if there is no position."""
        return None

    def restore(self, position: Any) -> None:
        """Continue after `position` (what `snapshot` gave). Called after `open`, before the first `next`."""

    def close(self) -> None:
        """Release everything. Called once, also after an error."""


class AsyncSpout(Generic[T]):
    """A source that waits: a `Spout` whose methods run on the run's event loop, on Spark in the driver.

    One instance serves one task. Every method but `snapshot` and `restore` may be async. `open`, `activate`,
    `deactivate`, `ack`, `fail` and `flush` are called one after the other, in the order of what they tell of, and each
    is awaited before the next; `close` comes last. One `next` at a time goes on beside them, but none is started before
    what is due of them, acks aside, is done: a source that hears `fail` is asked again only after that.

    A `next` that waits is not interrupted while the spout is paused or drains; what it still gives is kept, and goes
    out. When the run stops or restarts it is cancelled, and waited for before `close`. Messages that it gives even then
    are told by `fail`.
    """

    def open(self, context: TaskContext) -> Awaitable[None] | None:  # noqa: ARG002 - for those that need it
        """Acquire what is needed. Called once, before anything else."""
        return None

    @abstractmethod
    async def next(self) -> Emit[T] | Reject | Sequence[Emit[T] | Reject] | None:
        """Wait for one message, or several. None asks to be called again: at first at once, then after the idle wait.

        A source that is away before the first call has returned, or waited for 60 s, ends the start; later it is waited
        for. So give None once when the source has been reached and has nothing.

        A batch may be of any length. Raises `EndOfInput` when there will be no more messages; anything else brings the
        topology down, to be restarted.
        """

    def ack(self, message_id: MessageId) -> Awaitable[None] | None:  # noqa: ARG002 - for those that need it
        """See `Spout.ack`."""
        return None

    def fail(self, message_id: MessageId, failure: Failure) -> Awaitable[None] | None:  # noqa: ARG002 - for those that need it
        """See `Spout.fail`."""
        return None

    def flush(self) -> Awaitable[None] | None:
        """See `Spout.flush`; only called after `ack` or `fail`."""
        return None

    def not_told(self) -> Collection[MessageId]:
        """Messages of which the source does not know what became of them, although `flush` has returned.

        It delivers them again: its leases were over, say. On Spark their outcomes are kept until they are not among
        these any more, also over restarts. A source that has this method is asked for messages again after a restart
        although its input had ended.
        """
        return ()

    def activate(self) -> Awaitable[None] | None:
        """Messages may flow (again)."""
        return None

    def deactivate(self) -> Awaitable[None] | None:
        """No `next` is started until `activate`; one may still wait, and acks and fails still come."""
        return None

    def snapshot(self) -> Any:
        """See `Spout.snapshot`. Called as soon as `next` has returned."""
        return None

    def restore(self, position: Any) -> None:
        """See `Spout.restore`."""

    def close(self) -> Awaitable[None] | None:
        """Release everything. Called once, also after an error."""
        return None


class Bolt(Generic[T]):
    """A bolt with a life cycle. One instance per task (on Spark: per task and run, so only declared state lasts).

    A `process` without the parameter `collector` gives its outputs back; calls of an async one go on side by side on
    Spark, too, which those that have a collector do not.

    `process` returns or yields its outputs, or uses the collector. With `auto_ack` (the default) the tuple is acked
    when `process` returned, unless the bolt settled it already; an exception fails it.

    With `async def process` all methods run on the run's event loop, and any of them may be async. Up to `concurrency`
    calls of `process` and `tick` go on at a time; with keyed state one per key, and each works on a copy of its own
    value, which is kept if it succeeds. What a call asks of its collector counts when it ends, all together;
    `reset_timeout` of its own tuple counts at once. When the bolt stops or is restarted, calls that run are cancelled.
    With `ordered` what calls emit, ack and fail counts in the order of their tuples, whichever ends first.
    """

    auto_ack: bool = True
    auto_fail: bool = True
    blocking: bool = False
    concurrency: int = 1
    ordered: bool = False
    tick_interval_s: float | None = None
    state_default: Callable[[], Any] | None = None
    """Makes the first value, for the attribute annotated `KeyedState[V]` or `TaskState[V]`, which is set before `open`.
    `MapState` and `ListState` need none."""
    state_ttl_s: float | None = None
    """Seconds after which a key's state expires unless it changes; see `bolt`."""
    input_types: tuple[type, ...] = ()
    output_types: tuple[type, ...] = ()

    def open(self, context: TaskContext) -> Awaitable[None] | None:  # noqa: ARG002 - for those that need it
        """Acquire what is needed, before the first tuple."""
        return None

    @abstractmethod
    def process(self, value: T, *args: Any, **kwargs: Any) -> Any:
        """Work on one tuple: `process(self, value: T, collector: Collector[U])`, or `process(self, value: T) -> U`."""

    def tick(self, collector: Collector[Any]) -> Any:
        """Time passed; called for bolts that asked for ticks."""

    def close(self) -> Awaitable[None] | None:
        """Release everything. Called once, also after an error."""
        return None


class Held(Protocol[T_co]):
    """A tuple that a `HoldingBolt` keeps; it names the tuple in a `Release`.

    Attributes:
        value: the tuple.
        since_s: when the task got it, by the runtime's notion of now.
    """

    @property
    def value(self) -> T_co:
        """See above."""

    @property
    def since_s(self) -> float:
        """See above."""


@dataclass(frozen=True, slots=True)
class Release:
    """Tuples that a `HoldingBolt` keeps no longer.

    Attributes:
        tuples: they are acked.
        values: what is emitted, anchored to all of them.
        error: they fail of it; nothing is emitted.
    """

    tuples: Sequence[Held[Any]]
    values: Sequence[Any] = ()
    error: BaseException | None = None


class HoldingBolt(Generic[T]):
    """A bolt that keeps tuples beyond the call that brought them, on Spark across epochs and restarts.

    What it keeps stays open: each of its methods gives `Release`s, which say what became of tuples. One instance per
    task (on Spark: per task and run), one call at a time, plain functions. An instance that follows another one is
    given what that one kept, in one call of `take`: nothing else lasts. Kept tuples time out like any others.

    What `take` raises fails the tuples it was called with, after it was called for each of them alone; what `check` or
    `flush` raises fails all that is kept. A `ConnectorError` is an outage: the call is made again.
    """

    blocking: bool = False
    input_types: tuple[type, ...] = ()
    output_types: tuple[type, ...] = ()

    def open(self, context: TaskContext) -> None:
        """Acquire what is needed, before the first tuple."""

    @abstractmethod
    def take(self, tuples: Sequence[Held[T]]) -> Iterable[Release]:
        """Keep tuples, or release them, or others, at once."""

    def due_s(self) -> float | None:
        """When `check` is to be called, by the runtime's notion of now; None: not before the next `take`."""
        return None

    def check(self, time_s: float) -> Iterable[Release]:  # noqa: ARG002 - for those that need it
        """Release what is due."""
        return ()

    def flush(self, time_s: float) -> Iterable[Release]:
        """The topology drains: release what can be released now."""
        return self.check(time_s)

    def forget(self, tuples: Sequence[Held[T]]) -> None:
        """The messages of these are over, or a call failed them: they are not kept any more."""

    def close(self) -> None:
        """Release everything that was acquired. Called once, also after an error."""


class TaskContext(Protocol):
    """Where a component is running. Read-only; valid during the call it is used in."""

    @property
    def topology(self) -> str:
        """The topology's name."""

    @property
    def component(self) -> str:
        """The component's name."""

    @property
    def task_id(self) -> int:
        """Sequential id of this task, unique in the topology."""

    @property
    def task_index(self) -> int:
        """0-based number of this task within its component."""

    @property
    def parallelism(self) -> int:
        """Number of tasks of this component."""

    @property
    def attempt(self) -> int:
        """Attempt number of the message in hand, from 1 (of a multi-anchored tuple: the highest). 0 outside."""

    @property
    def message_id(self) -> MessageId | None:
        """What the source calls the message in hand; None outside of a call, and of an untracked tuple.

        It is the same in every attempt, so a call that a service is to carry out once can be named by it; where a
        message becomes several tuples, add what distinguishes them. Ids are unique within one spout task.

        Raises:
            ProcessingError: the tuple, or the call, belongs to several messages: see `message_ids`.
        """

    @property
    def message_ids(self) -> tuple[MessageId, ...]:
        """Ids of all messages that the tuple in hand is anchored to, or all tuples of the call; empty as above.

        They stand in no particular order, which may be another in the next attempt.
        """

    @property
    def source_component(self) -> str:
        """The component that emitted the tuple in hand.

        "" outside of a call, for a tick, and in batch bolts, windows and joins, whose calls have tuples of several.
        """

    @property
    def source_stream(self) -> str:
        """The stream on which it was emitted; "" where `source_component` is."""

    @property
    def source_task(self) -> int:
        """Id of the task that emitted it, which `emit_direct` takes; -1 where `source_component` is ""."""

    def tasks_of(self, component: str) -> Sequence[int]:
        """Ids of the tasks of a component, by index: whom `Collector.emit_direct` can name. Raises KeyError."""

    @property
    def epoch_time_s(self) -> float:
        """The runtime's notion of now, seconds since the Unix epoch; the same again when an epoch runs again."""


class SinkContext(TaskContext, Protocol):
    """Where a sink is running."""

    @property
    def input_types(self) -> tuple[type, ...]:
        """The classes of the streams that this sink reads, in the order of its inputs."""


class Collector(Protocol[T_contra]):
    """Explicit control over emits and verdicts. Tuples are named by the very object that was passed in.

    While a call runs, its bolt may use it on threads of its own too; they must be done before the call returns.
    """

    def emit(self, value: T_contra, *, anchors: Sequence[object] | None = None, stream: str | None = None) -> None:
        """Emit a tuple anchored to the tuple in hand (None), to the given ones, or to nothing (empty).

        Raises TupleSettledError if an anchor was acked or failed before. `stream` is needed only where one class
        serves two streams.
        """

    def emit_direct(
        self,
        task_id: int,
        value: T_contra,
        *,
        anchors: Sequence[object] | None = None,
        stream: str | None = None,
    ) -> None:
        """Emit to one task of a consumer that subscribed with `direct`."""

    def ack(self, value: object) -> None:
        """Settle this tuple as done. A second verdict is counted and changes nothing."""

    def fail(self, value: object, error: BaseException | str | None = None) -> None:
        """Settle this tuple as failed."""

    def reset_timeout(self, value: object) -> None:
        """Restart the message timeout of this tuple's roots."""


class KeyedState(Protocol[V]):
    """One value per key; the key is that of the tuple in hand (the fields it was grouped by)."""

    @property
    def value(self) -> V:
        """The key's value; the declared default for a key never set. Mutating it in place counts as setting it."""

    @value.setter
    def value(self, value: V) -> None: ...

    @property
    def key(self) -> object:
        """The key in hand: the grouping field's value, or a tuple of several."""

    def clear(self) -> None:
        """Remove the key."""


class Anchored(NamedTuple):
    """What an Arrow bolt returns where its rows are not those of its input, one by one.

    Attributes:
        batch: the rows it made.
        rows: for each of them, the number of the input row that it came of: a numpy or Arrow array of integers, or a
            list of them. An Arrow list array, or a list of lists, for rows that came of several.
    """

    batch: pa.RecordBatch
    rows: Any


class KeyedBatch(Protocol[V]):
    """Keyed state for an Arrow bolt: the values of all keys in the batch. The key is what its inputs are grouped by."""

    @property
    def keys(self) -> list[Any]:
        """Each key in the batch once, in the order of their first rows: a field's value, or a tuple of several."""

    @property
    def codes(self) -> npt.NDArray[np.int64]:
        """For each row of the batch, the position of its key in `keys`."""

    @property
    def first(self) -> npt.NDArray[np.int64]:
        """For each key its first row in the batch."""

    @property
    def values(self) -> list[V]:
        """For each key its value, the declared default where none was set."""

    @values.setter
    def values(self, values: list[V]) -> None:
        """Set all of them. They count once the call has returned; what was changed in place is set as well."""

    def anchored(self, batch: pa.RecordBatch) -> Anchored:
        """A batch with one row per key, in the order of `keys`, each anchored to all rows of its key."""


class TaskState(Protocol[V]):
    """One value per task of the bolt, for any keys and groupings of its tuples.

    It stays with the task's index, so the bolt's parallelism can change only while no message is open.
    """

    @property
    def value(self) -> V:
        """The task's value; the declared default if it was never set. Mutating it in place counts as setting it."""

    @value.setter
    def value(self, value: V) -> None: ...

    def clear(self) -> None:
        """Remove the value."""


@dataclass(frozen=True)
class SinkBatch(Generic[T_co]):
    """Rows for one sink task; iterating gives the rows.

    Attributes:
        id: stable when the batch is written again, and no other batch's, in no other run either.
        rows: what to write, never empty.
        writer: the run and sink task that it comes from; a restart of the run is the same writer on Spark, and
            another one locally.
        number: batches of one writer come in the order of their numbers, one at a time. On Spark it is the epoch.
        run: names the run, the same for all its sink tasks; a restart on the same state directory is the same run.
        made: for each row its number in the order in which values were made, for sinks that are `ordered`; else None.
            Of two rows of one run and one key the one with the higher number is newer, and of two with the same number
            the one that comes later. What a later run makes is newer than all of an earlier one.
        message_ids: for each row the ids of the messages that it is anchored to, for sinks that ask by
            `names_messages`; else None. Empty for an untracked row. A message that died while others of its row were
            acked may be missing.
    """

    id: str
    rows: Sequence[T_co]
    writer: str = ""
    number: int = 0
    run: str = ""
    made: Sequence[int] | None = None
    message_ids: Sequence[tuple[MessageId, ...]] | None = None

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class Sink(Generic[T]):
    """Where results go. File sinks (JSON Lines, Parquet) have their own two-step protocol in `tupletree.sinks`.

    A plain `Sink` is called with rows whose messages completed. One instance serves one task; all its methods are
    called by one thread (on Spark: of the driver). After a crash a batch comes again with the same id.

    Attributes:
        promise: "at_least_once", or "exactly_once" for a sink that writes a batch which comes again only once; such a
            sink has to name the rows that it refuses.
        gathers: each batch costs much (a file, a transaction), so that rows may wait a moment for more.
        ordered: batches say in which order their rows' values were made (`SinkBatch.made`). Rows come as their messages
            complete, so a sink that keeps the last row of a key must go by that.
        names_messages: batches say which messages their rows belong to (`SinkBatch.message_ids`).
    """

    promise: str = "at_least_once"
    gathers: bool = False
    ordered: bool = False
    names_messages: bool = False

    def open(self, context: SinkContext) -> None:
        """Acquire what is needed."""

    @abstractmethod
    def write(self, batch: SinkBatch[T]) -> None:
        """Write the rows.

        Raises:
            SinkRowsError: (`tupletree.sinks`) these rows cannot be written, and nothing was; the others come again.
            ConnectorError: nothing can be written now. The batch comes again, with the same id, until it can be: no
                message fails of it. So it does at the next start of the run on Spark.
            Exception: anything else fails the rows. On Spark the batch is tried again first, and then, with
                `promise="at_least_once"`, by halves, whose ids are derived from the batch's, to find the rows to blame.
        """

    def newest_batch(self, writer: str) -> int | None:  # noqa: ARG002 - this one does not know
        """The number of the newest batch of a writer that is there; None: there is none, or it is not known.

        A sink that goes by `SinkBatch.number` must say it: a start on Spark is refused where the sink has more than the
        state directory knows of (an older copy of it), because new batches would look like those that are there.

        Raises:
            ConnectorError: it cannot be found out now.
        """
        return None

    def close(self) -> None:
        """Release everything."""
