"""Probes: parts of a topology that report what they do, and otherwise do the same.

Owns the points between machines and components that a test can observe: attempts that go out and how they end, what a
bolt's call came to, rows that a sink wrote, what a source was told. It refuses to judge; a `Probe` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from tupletree.bolts.effects import Worked
from tupletree.data.frames import Frame
from tupletree.ids import MessageId, RandomBits
from tupletree.tasks.async_bolt import AsyncBoltMachine
from tupletree.tasks.bolt import BoltMachine
from tupletree.tasks.machine import EmittingMachine
from tupletree.tasks.outbox import Outbox
from tupletree.topology.components import AsyncSpout, Emit, Reject, Sink, SinkBatch, Spout, TaskContext
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import (
    Acked,
    AlreadySettled,
    Died,
    Emission,
    EmittedMessages,
    Joined,
    Released,
    RetryAt,
    SourceRetry,
)
from tupletree.tracking.retry import RetryPolicy


class Probe(Protocol):
    """Is told of everything, as it happens."""

    def launched(self, emissions: Iterable[Emission]) -> None:
        """Attempts go out."""

    def acked(self, roots: Sequence[int], acked: Sequence[Acked]) -> None:
        """Messages end as acked, of the attempts under these roots."""

    def failed(self, root: int, what: RetryAt | SourceRetry | Died) -> None:
        """An attempt failed."""

    def given_up(self, died: Sequence[Died]) -> None:
        """Messages that their source does not emit again are dead."""

    def released(self, released: Sequence[Released]) -> None:
        """Messages go back to their source unsettled, because the topology stops."""

    def told(self, spout_task: int, message_id: MessageId, failure: Failure | None) -> None:
        """A source's `ack` (no failure) or `fail` was called."""

    def worked(self, task: int, worked: Worked) -> None:
        """A bolt's call ended with this; its frames are in the outbox."""

    def cut(self, head: Frame, rest: Frame) -> None:
        """A frame is worked in two parts."""

    def written(self, sink_task: int, rows: Sequence[Any], made: Sequence[int] | None) -> None:
        """A sink wrote rows; `made`: see `SinkBatch`."""


class ProbedPending(Pending):
    """See `Pending`."""

    probe: Probe

    def __init__(self, policy: RetryPolicy, random_bits: RandomBits, random: Callable[[], float]) -> None:
        super().__init__(policy, random_bits, random)
        self._single: set[int] = set()  # shown by `emit`, which `emit_many` calls for what is not plain

    def emit(
        self, spout_task: int, message_id: MessageId | None, value: Any, now_s: float, wall_s: float
    ) -> Emission | Joined | AlreadySettled:
        """See `Pending`."""
        result = super().emit(spout_task, message_id, value, now_s, wall_s)
        if isinstance(result, Emission) and result.root:
            self._single.add(result.root)
            self.probe.launched([result])
        return result

    def emit_many(
        self, spout_task: int, message_ids: Sequence[MessageId | None], values: list[Any], now_s: float, wall_s: float
    ) -> EmittedMessages:
        """See `Pending`."""
        self._single.clear()
        emitted = super().emit_many(spout_task, message_ids, values, now_s, wall_s)
        rows = zip(emitted.roots, emitted.message_ids, emitted.values, emitted.attempts)
        self.probe.launched(
            Emission(root, spout_task, one, value, attempt)
            for root, one, value, attempt in rows
            if root and root not in self._single
        )
        return emitted

    def due(self, now_s: float, limit: int) -> list[Emission]:
        """See `Pending`."""
        emissions = super().due(now_s, limit)
        self.probe.launched(emissions)
        return emissions

    def ack_many(self, roots: Iterable[int], now_s: float) -> list[Acked]:
        """See `Pending`."""
        roots = list(roots)
        acked = super().ack_many(roots, now_s)
        self.probe.acked(roots, acked)
        return acked

    def fail(self, root: int, failure: Failure, now_s: float, wall_s: float) -> RetryAt | SourceRetry | Died | None:
        """See `Pending`."""
        what = super().fail(root, failure, now_s, wall_s)
        if what is not None:
            self.probe.failed(root, what)
        return what

    def give_up(self, spout_task: int, now_s: float, wall_s: float, *, silent_for_s: float = 0.0) -> list[Died]:
        """See `Pending`."""
        died = super().give_up(spout_task, now_s, wall_s, silent_for_s=silent_for_s)
        self.probe.given_up(died)
        return died

    def release(self) -> list[Released]:
        """See `Pending`."""
        released = super().release()
        self.probe.released(released)
        return released


class ProbedSpout(Spout[Any]):
    """A user's spout, and what it is told."""

    def __init__(self, inner: Spout[Any], probe: Probe) -> None:
        self._inner = inner
        self._probe = probe
        self._task = -1

    def open(self, context: TaskContext) -> None:
        """See `Spout`."""
        self._task = context.task_id
        self._inner.open(context)

    def next(self) -> Emit[Any] | Reject | Sequence[Emit[Any] | Reject] | None:
        """See `Spout`."""
        return self._inner.next()

    def ack(self, message_id: MessageId) -> None:
        """See `Spout`."""
        self._probe.told(self._task, message_id, None)
        self._inner.ack(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """See `Spout`."""
        self._probe.told(self._task, message_id, failure)
        self._inner.fail(message_id, failure)

    def activate(self) -> None:
        """See `Spout`."""
        self._inner.activate()

    def deactivate(self) -> None:
        """See `Spout`."""
        self._inner.deactivate()

    def snapshot(self) -> Any:
        """See `Spout`."""
        return self._inner.snapshot()

    def restore(self, position: Any) -> None:
        """See `Spout`."""
        self._inner.restore(position)

    def close(self) -> None:
        """See `Spout`."""
        self._inner.close()


class ProbedAsyncSpout(AsyncSpout[Any]):
    """A user's async spout, and what it has been told."""

    def __init__(self, inner: AsyncSpout[Any], probe: Probe) -> None:
        self._inner = inner
        self._probe = probe
        self._task = -1

    async def open(self, context: TaskContext) -> None:
        """See `AsyncSpout`."""
        self._task = context.task_id
        await _done(self._inner.open(context))

    async def next(self) -> Emit[Any] | Reject | Sequence[Emit[Any] | Reject] | None:
        """See `AsyncSpout`."""
        return await self._inner.next()

    async def ack(self, message_id: MessageId) -> None:
        """See `AsyncSpout`."""
        await _done(self._inner.ack(message_id))
        self._probe.told(self._task, message_id, None)

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        """See `AsyncSpout`."""
        await _done(self._inner.fail(message_id, failure))
        self._probe.told(self._task, message_id, failure)

    async def activate(self) -> None:
        """See `AsyncSpout`."""
        await _done(self._inner.activate())

    async def deactivate(self) -> None:
        """See `AsyncSpout`."""
        await _done(self._inner.deactivate())

    def snapshot(self) -> Any:
        """See `AsyncSpout`."""
        return self._inner.snapshot()

    def restore(self, position: Any) -> None:
        """See `AsyncSpout`."""
        self._inner.restore(position)

    async def close(self) -> None:
        """See `AsyncSpout`."""
        await _done(self._inner.close())


async def _done(called: Awaitable[None] | None) -> None:
    if called is not None:
        await called


class ProbedSink(Sink[Any]):
    """Takes the place of a sink: rows are reported to the probe instead of being written anywhere."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._task = -1

    def open(self, context: TaskContext) -> None:
        """See `Sink`."""
        self._task = context.task_id

    def write(self, batch: SinkBatch[Any]) -> None:
        """See `Sink`."""
        self._probe.written(self._task, batch.rows, batch.made)


class _Probed(EmittingMachine):
    probe: Probe

    def carry_out(self, worked: Worked, out: Outbox) -> None:
        super().carry_out(worked, out)
        self.probe.worked(self.task.task_id, worked)


class ProbedBolt(_Probed, BoltMachine):
    """See `BoltMachine`."""

    def cut(self, frame: Frame, tuples: int, out: Outbox) -> tuple[Frame, Frame]:
        """See `Machine.cut`."""
        head, rest = super().cut(frame, tuples, out)
        self.probe.cut(head, rest)
        return head, rest


class ProbedAsyncBolt(_Probed, AsyncBoltMachine):
    """See `AsyncBoltMachine`."""
