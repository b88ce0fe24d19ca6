"""The task of an async spout: as that of a plain spout, while the user's code runs in calls beside it.

Owns the calls of the user's spout that are not done yet: a queue of callbacks, which are awaited one after the other,
and one `next`, whose messages are emitted when it has ended. It refuses to run anything: it asks for calls
in the outbox, and gets their results as mail.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from tupletree.config import Options
from tupletree.errors import ConnectorError, EndOfInput, is_outage
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan, Task
from tupletree.tasks.mail import Finished, Mail, Now
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.source_calls import SourceCalls, refuse_unavailable
from tupletree.tasks.spout import SpoutMachine, SpoutSurroundings
from tupletree.tasks.spouts.spout_buffer import SpoutCheckpoint
from tupletree.topology.components import AsyncSpout, Emit, Reject, Spout, TaskContext
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.records import Acked, Released

Given = tuple[Sequence[Emit[Any] | Reject], Any]
"""(messages, the spout's position after them)."""


class OpeningError(ConnectorError):
    """An async spout could not be opened, which is known only after `start` has returned."""


class AsyncSpoutMachine(SpoutMachine):
    """See `SpoutMachine`, whose arguments it takes. Its end waits for callbacks that are due.

    After `stop` the outbox holds an ending, which cancels a `next` that waits, does what is due, and closes the spout.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        spout: AsyncSpout[Any],
        options: Options,
        surroundings: SpoutSurroundings,
        *,
        spout_checkpoint: SpoutCheckpoint | None = None,
        active: bool = True,
        was_open: bool = False,
    ) -> None:
        self._spout_calls = _SpoutCalls(spout, task.component)
        super().__init__(
            plan,
            task,
            self._spout_calls,
            options,
            surroundings,
            spout_checkpoint=spout_checkpoint,
            active=active,
            was_open=was_open,
        )
        self._not_told: Sequence[tuple[MessageId, Failure | None]] = (
            spout_checkpoint.not_yet_told if spout_checkpoint is not None else ()
        )
        # Its spout is the queue of callbacks, which never raises; what the user's raised comes back as mail.
        self._calls_out = _AcksTogether(self._spout_calls, OutageWait(task.component))
        self._hears_acks = type(spout).ack is not AsyncSpout.ack
        self._idle_s = options.spout_idle_wait_ms / 1000.0
        self._is_abandoned = False
        self._ask_at_s = 0.0
        self._calls = 0
        self._callbacks: int | None = None  # the call that makes them
        self._next: int | None = None  # the call of `next` that runs
        self._first_asked_s = math.inf

    # --- life -------------------------------------------------------------------------------------------------

    def start(self, now: Now, out: Outbox) -> None:
        """Ask for the spout to be opened; when it is, it is asked for messages."""
        super().start(now, out)
        for message_id, failure in self._not_told:
            if failure is None:
                self._spout_calls.ack(message_id)
            else:
                self._spout_calls.fail(message_id, failure)
        self._go_on(now, out)

    def _restore_not_told(self) -> None:
        """Nothing: `start` does it, when it has asked for the spout to be opened."""

    def stop(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - it sends nothing
        """Have the spout closed, after all its callbacks."""
        calls = self._spout_calls
        cancelled = [self._next, None if calls.is_open else self._callbacks]
        out.endings.append((self.task.task_id, [one for one in cancelled if one is not None], calls.end))

    def abandon(self, now: Now, out: Outbox) -> list[Released]:
        """See `SpoutMachine`. What a `next` gives from now on is failed by the ending."""
        self._take_given(now)
        self._is_abandoned = True
        return super().abandon(now, out)

    def hand_over(self, now: Now, out: Outbox) -> SpoutCheckpoint:
        """See `SpoutMachine`; what the spout has given is included."""
        self._take_given(now)
        spout_checkpoint = super().hand_over(now, out)
        return replace(spout_checkpoint, not_yet_told=self._spout_calls.give_back())

    # --- questions --------------------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """Whether nothing is in flight or left to emit, and all callbacks are made."""
        return super().is_drained and self._callbacks is None and not self._spout_calls.due

    @property
    def all_told(self) -> bool:
        return self._callbacks is None and not self._spout_calls.due

    def committed(self, now: Now, out: Outbox) -> None:
        """See `SpoutMachine`; the calls are made beside it."""
        super().committed(now, out)
        self._go_on(now, out)

    def next_due_s(self) -> float | None:
        """The next retry, or the next call of the spout."""
        if self._spout_calls.due and self._callbacks is None:
            return max(0.0, self.wait.due_s)
        due_s = super().next_due_s()
        if self._next is None and self._ask_at_s and self._pulling and not self.ended:
            return self._ask_at_s if due_s is None else min(due_s, self._ask_at_s)
        return due_s

    def _may_call(self, now: Now, out: Outbox) -> bool:  # noqa: ARG002 - its calls are made beside it
        return self._is_open

    def _ask(self, room: int, now: Now, out: Outbox) -> list[Emit[Any] | Reject]:  # noqa: ARG002 - as above
        asks = self._pulling and self.wait.due_s <= now.monotonic_s
        return self._spout_buffer.take(self.spout, room, ask=asks)

    def _hear_outage(self, error: BaseException | None, now: Now, out: Outbox) -> bool:
        """Whether a call met an outage: it is made again. A spout that was never open ends the run instead."""
        is_away = error is not None and is_outage(error) and self._spout_calls.is_open
        text = self.wait.met(error, now.monotonic_s) if error is not None and is_away else ""
        if error is None and self.wait.current is not None:
            text = self.wait.over(now.monotonic_s)
        self._note(text, out)
        return is_away

    # --- calls ------------------------------------------------------------------------------------------------

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:
        """See `SpoutMachine`; a spout that had room for messages is asked for them."""
        self._spout_calls.is_wanted = False
        worked = super().poll(now, out, paused=paused)
        self._go_on(now, out)
        return worked

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        """Take the results of calls, and the mail of spouts.

        Raises what the user's spout raised: it is infrastructure.
        """
        for one in mail:
            if not isinstance(one, Finished):
                super().receive([one], now, out)
            elif one.call == self._next:
                self._next = None
                is_first = not self._spout_buffer.has_answered
                if one.error is None or isinstance(one.error, EndOfInput):
                    self._spout_buffer.has_answered = True
                elif not self._spout_buffer.has_answered:
                    refuse_unavailable(one.error, waited_s=now.monotonic_s - self._first_asked_s)
                if self._hear_outage(one.error, now, out):
                    self._ask_at_s = self.wait.due_s
                else:
                    self._hear_next(one.error, now, is_first=is_first)
            elif one.call == self._callbacks:
                self._callbacks = None
                if not self._hear_outage(one.error, now, out) and one.error is not None:
                    raise self._fault(one.error)
        self._go_on(now, out)

    def _go_on(self, now: Now, out: Outbox) -> None:
        calls = self._spout_calls
        if self._callbacks is None and calls.due and now.monotonic_s >= self.wait.due_s:
            self._callbacks = self._call(calls.run_due, out)
        asks = calls.is_wanted and self._pulling and not self.ended and now.monotonic_s >= self._ask_at_s
        if asks and self._next is None and not calls.before_next:
            self._ask_at_s = 0.0
            calls.is_wanted = calls.was_told_to_retry = False
            self._next = self._call(calls.ask, out)
            self._first_asked_s = min(self._first_asked_s, now.monotonic_s)

    def _call(self, what: Callable[[], Any], out: Outbox) -> int:
        self._calls += 1
        out.calls.append((self.task.task_id, self._calls, what))
        return self._calls

    def _hear_next(self, error: BaseException | None, now: Now, *, is_first: bool) -> None:
        if error is None:
            if not self._is_abandoned:
                self._take_given(now)
                if is_first:
                    self._ask_at_s = 0.0
        elif not isinstance(error, EndOfInput):
            raise self._fault(error)
        elif not self._spout_calls.was_told_to_retry:  # else it is asked again: it may have this message to emit
            self._spout_buffer.ended = True

    def _take_given(self, now: Now) -> None:
        given = self._spout_calls.take_given()
        if given is not None:
            self._spout_buffer.hold(*given)
            if not given[0]:
                self._ask_at_s = now.monotonic_s + self._idle_s

    def _fault(self, error: BaseException) -> BaseException:
        """The error to raise: never one that would end a thread or the program."""
        what = f"{self.task.component!r} {'failed' if self._spout_calls.is_open else 'cannot be opened'}"
        text = f"{what}: {type(error).__name__}: {error}"
        if not self._spout_calls.is_open:
            fault: BaseException = OpeningError(text)
        elif isinstance(error, Exception):
            return error
        else:
            fault = ConnectorError(text)
        fault.__cause__ = error
        return fault


class _AcksTogether(SourceCalls):
    """See `SourceCalls`: acks that come together are one entry of the queue of callbacks."""

    def __init__(self, spout_calls: _SpoutCalls, wait: OutageWait) -> None:
        super().__init__(spout_calls, wait)
        self._spout_calls = spout_calls

    def ack(self, acked: Sequence[Acked], now_s: float) -> None:  # noqa: ARG002 - the queue takes them at any time
        if acked:
            self._spout_calls.ack_all([one.message_id for one in acked])


class _Acks(msgspec.Struct, eq=False):
    """Acks of these messages, one after the other: those whose callbacks are made are taken out. No `next` waits."""

    message_ids: deque[MessageId]


class _SpoutCall(msgspec.Struct, frozen=True, eq=False):
    """A callback other than an ack; a `next` waits for it unless it is a flush. `failed`: what a `fail` tells of."""

    callback: Callable[[], Any]
    failed: tuple[MessageId, Failure] | None = None
    is_flush: bool = False

    @property
    def is_made_again(self) -> bool:
        """Whether it is made again after an outage."""
        return self.is_flush or self.failed is not None

    @property
    def asks_to_retry(self) -> bool:
        return self.failed is not None and not self.failed[1].permanent


# More than 12 attributes: the spout as its event loop sees it: what it gave, and callbacks that are due.
class _SpoutCalls(Spout[Any]):
    """The user's spout as its machine sees it: no call takes time, and callbacks are due from then on.

    The machine adds on its own thread, while calls on the event loop's thread remove. Each field has one writer at a
    time, or is a queue that both may use.

    Attributes:
        is_open: `open` has returned.
        is_wanted: the machine has room for messages.
        is_given_up: what is due is not for this spout any more.
        skips_retries: failures that are not final go to another spout.
        due: callbacks that have not returned, in order.
        before_next: one entry for each of these that a `next` waits for.
        was_told_to_retry: since the last `next` was started.
    """

    def __init__(self, spout: AsyncSpout[Any], component: str) -> None:
        self.is_open = self.is_wanted = self.was_told_to_retry = False
        self.is_given_up = self.skips_retries = False
        self.due: deque[_SpoutCall | _Acks] = deque()
        self.before_next: deque[None] = deque()
        self._spout = spout
        self._component = component
        self._given: Given | None = None
        self._is_ending = False
        self._has_position = type(spout).snapshot is not AsyncSpout.snapshot
        self._flushes = type(spout).flush is not AsyncSpout.flush

    # What the machine calls.

    def open(self, context: TaskContext) -> None:
        async def open_it() -> None:
            await _done(self._spout.open(context))
            self.is_open = True

        self._add(_SpoutCall(open_it))

    def next(self) -> None:
        self.is_wanted = True

    def ack(self, message_id: MessageId) -> None:
        self.ack_all([message_id])

    def ack_all(self, message_ids: Iterable[MessageId]) -> None:
        self.due.append(_Acks(deque(message_ids)))

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.was_told_to_retry = self.was_told_to_retry or not failure.permanent
        self._add(_SpoutCall(partial(self._spout.fail, message_id, failure), (message_id, failure)))

    def activate(self) -> None:
        self._add(_SpoutCall(self._spout.activate))

    def deactivate(self) -> None:
        self._add(_SpoutCall(self._spout.deactivate))

    def restore(self, position: Any) -> None:
        self._add(_SpoutCall(partial(self._spout.restore, position)))

    def take_given(self) -> Given | None:
        """What a `next` that has ended gave, once; no other `next` starts before this call."""
        given = self._given
        if given is not None:
            self._given = None
        return given

    def give_back(self) -> list[tuple[MessageId, Failure | None]]:
        """Take the final verdicts, for another spout, because this one is not open.

        Failures that are not final are dropped: the other one is told of these in any case.
        """
        self.skips_retries = True
        if self.is_open:
            return []
        self.is_given_up = True
        verdicts: list[tuple[MessageId, Failure | None]] = []
        for one in [*self.due]:
            if isinstance(one, _Acks):
                verdicts += [(message_id, None) for message_id in [*one.message_ids]]  # a call may remove some
            elif one.failed is not None and not one.asks_to_retry:
                verdicts.append(one.failed)
        return verdicts

    def _add(self, call: _SpoutCall) -> None:
        if not call.is_flush:
            self.before_next.append(None)
        self.due.append(call)

    # What runs as calls.

    async def ask(self) -> list[Any]:
        """Ask for messages."""
        answer = await self._spout.next()
        position = self._spout.snapshot() if self._has_position else None
        several = answer if isinstance(answer, Sequence) else [] if answer is None else [answer]
        self._given = several, position
        return []

    async def run_due(self) -> list[Any]:
        """Make due callbacks, one after the other. One that raises is done too, except a verdict in an outage.

        After a series of verdicts the spout makes them durable.
        """
        while self.due and not self.is_given_up:
            call = self.due[0]
            if isinstance(call, _Acks):
                await self._tell_acked(call.message_ids)
                if call.message_ids:
                    break  # they are for another spout
            else:
                try:
                    if not (self.skips_retries and call.asks_to_retry):
                        await _done(call.callback())
                except BaseException as error:
                    if not call.is_made_again or not self._will_repeat(error):
                        self._take_out(call)
                    raise
            self._take_out(call)
            is_last = _is_verdict(call) and not (self.due and _is_verdict(self.due[0]))
            if is_last and self._flushes and self.is_open:
                self.due.appendleft(_SpoutCall(self._spout.flush, is_flush=True))
        return []

    async def _tell_acked(self, message_ids: deque[MessageId]) -> None:
        ack = self._spout.ack
        while message_ids and not self.is_given_up:
            try:
                answer = ack(message_ids[0])
                if answer is not None:
                    await _done(answer)
            except BaseException as error:
                if not self._will_repeat(error):
                    message_ids.popleft()
                raise
            message_ids.popleft()

    def _will_repeat(self, error: BaseException) -> bool:
        """Whether a verdict that met this is told again."""
        return is_outage(error) and not self._is_ending

    def _take_out(self, call: _SpoutCall | _Acks) -> None:
        self.due.popleft()
        if isinstance(call, _SpoutCall) and not call.is_flush:
            self.before_next.popleft()

    async def end(self) -> list[Any]:
        """Make due callbacks, fail what was not taken, and close. An error stops none of these steps."""
        self._is_ending = True
        if not self.is_open or self.is_given_up:
            self.due.clear()
            self.is_given_up = False
        given = self.take_given()
        text = "the topology stopped before it accepted this"
        stopped = Failure(kind=FailureKind.STOPPED, component=self._component, error=text)
        for one in given[0] if given is not None else ():
            if one.message_id is not None:
                self._add(_SpoutCall(partial(self._spout.fail, one.message_id, stopped)))
        if self.is_open:
            self.deactivate()
        self._add(_SpoutCall(self._spout.close))
        errors: list[BaseException] = []
        while self.due:
            try:
                await self.run_due()
            except BaseException as error:  # noqa: BLE001 - also one that is cancelled leaves the others due
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("an async spout could not end", errors)
        return []


def _is_verdict(call: _SpoutCall | _Acks) -> bool:
    return isinstance(call, _Acks) or call.failed is not None


async def _done(called: Any) -> None:
    if inspect.isawaitable(called):
        await called
