"""What async user code sees during a call: a context, a collector and keyed state that are those of its own call.

A task has one of each, as a bolt that is not async has, and may keep them; a context variable says which call is in
hand, and follows the code through awaits, tasks that it starts and threads that it uses. Owns what a call asks for
until it ends. It refuses to carry that out: the task's machine does, when the call has ended.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from tupletree.bolts.collector import CollectorCall, DeliveredTuple
from tupletree.bolts.effects import IN_HAND, TaskPlace
from tupletree.data.frames import Root
from tupletree.errors import ProcessingError, ProcessingTimeoutError
from tupletree.state.cells import is_immutable
from tupletree.tasks.live_roots import LiveRoots
from tupletree.topology.components import Collector, KeyedState

if TYPE_CHECKING:
    from tupletree.ids import MessageId

PATIENCE_S = 5.0
"""How long a cancelled call may take to end."""

LOOKS = 8
"""Looks within the shortest time that counts."""

LONG_SHARE = 0.25
"""A call that has run for this share of the message timeout takes long."""

LONGEST_S, SHORTEST_S = 1.0, 0.05
"""Seconds between two looks."""


@dataclass(slots=True, eq=False)
class CallContext:
    """One call.

    Attributes:
        place: of the task that it belongs to.
        delivery: the tuple.
        key, is_keyed: of the tuple, if it has state; a tick has none.
        value: of the key: a copy of the call's own, if it can be changed in place.
        held: the value that it started with.
        touched: it has called `touch`: it changed the value in place.
        requests: what it asked its collector for, in order; carried out together when it has ended.
        settled: it asked for a verdict on its own tuple.
        over: it has ended, and no further requests are accepted.
        begun_s: when it was asked for, since the Unix epoch.
        started_s, cancelled_s: when it was asked for, and when to end it (monotonic).
        asked_for_time: it has reset its timeout since its task last looked.
    """

    place: TaskPlace
    delivery: DeliveredTuple
    key: Any = None
    is_keyed: bool = False
    value: Any = None
    held: Any = None
    touched: bool = False
    requests: list[Callable[[], None]] = field(default_factory=list)
    settled: bool = False
    over: bool = False
    begun_s: float = 0.0
    started_s: float = 0.0
    cancelled_s: float | None = None
    asked_for_time: bool = False

    def begin(self) -> None:
        """Make this the call in hand, for the code that runs from here on, and for what it logs."""
        _in_hand.set(self)
        IN_HAND.set(self.place.with_root(self.delivery.root))


_in_hand: ContextVar[CallContext | None] = ContextVar("tupletree_call", default=None)


def _call_of(place: TaskPlace) -> CallContext | None:
    """The call of a task in hand here, if there is one that has not ended."""
    call = _in_hand.get()
    return call if call is not None and call.place is place and not call.over else None


class CallPlace(TaskPlace):
    """The `TaskContext` of an async bolt's task."""

    __slots__ = ()

    @classmethod
    def of(cls, place: TaskPlace) -> CallPlace:
        """The same place, for async calls."""
        return cls(*(getattr(place, one.name) for one in fields(place)))

    @property
    def attempt(self) -> int:
        call = _call_of(self)
        return self.attempt_of(call.delivery.root) if call is not None else 0

    @property
    def message_ids(self) -> tuple[MessageId, ...]:
        call = _call_of(self)
        return self.ids_of_root(call.delivery.root) if call is not None else ()

    @property
    def source_component(self) -> str:
        call = _call_of(self)
        return call.delivery.source[0] if call is not None else ""

    @property
    def source_stream(self) -> str:
        call = _call_of(self)
        return call.delivery.source[1] if call is not None else ""

    @property
    def source_task(self) -> int:
        call = _call_of(self)
        return call.delivery.source[2] if call is not None else -1


class CallState(KeyedState[Any]):
    """The `KeyedState` of an async bolt's task.

    Args:
        place: of the task.
        default: makes the value of a key that was never set.
    """

    def __init__(self, place: TaskPlace, default: Callable[[], Any]) -> None:
        self._place = place
        self._default = default

    @property
    def value(self) -> Any:
        return self._call().value

    @value.setter
    def value(self, value: Any) -> None:
        self._call().value = value

    @property
    def key(self) -> Any:
        return self._call().key

    def touch(self) -> None:
        """See `StateCell.touch`: the call's own value was changed in place."""
        self._call().touched = True

    def clear(self) -> None:
        self._call().value = own_copy(self._default())

    def _call(self) -> CallContext:
        call = _call_of(self._place)
        if call is None:
            raise ProcessingError(
                "keyed state outside of a call has no key",
                where=self._place.component,
                next_step="use it before the call ends; await the tasks that a call starts",
            )
        return call


class CallCollector(Collector[Any]):
    """The `Collector` of an async bolt's task. It raises at once what can be found wrong at once.

    Args:
        place: of the task.
        calls: carries the requests out.
        renewals: roots whose timeout is to be reset now, while the call goes on.
    """

    def __init__(self, place: TaskPlace, calls: CollectorCall, renewals: deque[Root]) -> None:
        self._place = place
        self._calls = calls
        self._renewals = renewals

    def emit(self, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None) -> None:
        self._emit(value, anchors, stream, None)

    def emit_direct(
        self, task_id: int, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None
    ) -> None:
        self._emit(value, anchors, stream, task_id)

    def ack(self, value: object) -> None:
        self._verdict("an ack", value, partial(self._calls.ack, value))

    def fail(self, value: object, error: BaseException | str | None = None) -> None:
        self._verdict("a fail", value, partial(self._calls.fail, value, error))

    def reset_timeout(self, value: object) -> None:
        """See `Collector.reset_timeout`. For the tuple in hand it is done at once, for others when the call ends."""
        call = self._call("a reset_timeout")
        if value is call.delivery.value:
            self._renewals.append(call.delivery.root)
            call.asked_for_time = True
        else:
            call.requests.append(partial(self._calls.extend, value))

    def _emit(self, value: Any, anchors: Sequence[object] | None, stream: str | None, task_id: int | None) -> None:
        call = self._call("an emit")
        self._calls.stream_for(value, stream)
        if anchors is None and call.settled:
            raise self._calls.settled_error(call.delivery.value)
        listed = None if anchors is None else tuple(anchors)
        call.requests.append(partial(self._calls.emit, value, listed, stream, task_id))

    def _verdict(self, action: str, value: object, request: Callable[[], None]) -> None:
        call = self._call(action)
        call.settled = call.settled or value is call.delivery.value
        call.requests.append(request)

    def _call(self, action: str) -> CallContext:
        call = _call_of(self._place)
        if call is None:
            raise self._calls.out_of_call(action)
        return call


class CallWatch:
    """Says which running calls of a task are to be cancelled, and which are given up; it looks from time to time.

    A call is cancelled when all messages of its tuple are over, because nobody waits for its result and it would keep
    its place among the `concurrency` calls for ever, and when it takes longer than `processing_timeout_s` without a
    `reset_timeout`. A call that goes on although it was cancelled is given up after a while. Tuples that wait while
    every call takes long do not time out, or one call that never returns would cost those behind it an attempt.

    Args:
        timeout_s: the message timeout; None: messages never expire.
        limit_s: `processing_timeout_s`; None: calls may take for ever.
    """

    def __init__(self, timeout_s: float | None, limit_s: float | None) -> None:
        self._limit_s = math.inf if limit_s is None else limit_s
        self._long_s = math.inf if timeout_s is None else LONG_SHARE * timeout_s
        shortest_s = min(self._limit_s, self._long_s / LONG_SHARE)
        self._period_s = min(LONGEST_S, max(SHORTEST_S, shortest_s / LOOKS))
        self.due_s = 0.0

    def look(
        self, running: Mapping[int, CallContext], live: LiveRoots | None, now_s: float
    ) -> tuple[list[int], list[int]]:
        """The numbers of the calls that are to be cancelled now, and of those that are given up."""
        if now_s < self.due_s:
            return [], []
        self.due_s = now_s + self._period_s
        to_cancel, given_up = [], []
        for number, call in running.items():
            if call.asked_for_time:
                call.asked_for_time, call.started_s = False, now_s
            if call.cancelled_s is not None:
                if now_s - call.cancelled_s >= PATIENCE_S:
                    given_up.append(number)
            elif now_s - call.started_s >= self._limit_s or (live is not None and live.is_over(call.delivery.root)):
                call.cancelled_s = now_s
                to_cancel.append(number)
        return to_cancel, given_up

    def all_take_long(self, running: Mapping[int, CallContext], now_s: float) -> bool:
        """Whether each of these calls has run for a good part of the message timeout."""
        return all(now_s - call.started_s >= self._long_s for call in running.values())

    def error_of(self, call: CallContext, error: BaseException | None, now_s: float) -> BaseException | None:
        """What a call that ended with `error` fails of: one that was cancelled says why."""
        if error is None or call.cancelled_s is None:
            return error
        if call.cancelled_s - call.started_s >= self._limit_s:
            what = f"took longer than processing_timeout_s ({self._limit_s:g} s) and was cancelled"
        else:
            what = f"ran for {now_s - call.started_s:.1f} s and was cancelled, for its message was over"
        return ProcessingTimeoutError(f"the call {what}").with_traceback(error.__traceback__)


def own_copy(value: Any) -> Any:
    """The value, or a copy of one that could be changed in place."""
    return value if is_immutable(value) else copy.deepcopy(value)
