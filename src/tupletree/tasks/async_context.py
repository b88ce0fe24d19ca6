"""What async user code sees during a call: a context, a collector and keyed state that are those of its own call.

A task has one of each, as a bolt that is not async has, and may keep them; a context variable says which call is in
hand, and follows the code through awaits, tasks that it starts and threads that it uses. Owns what a call asks for
until it ends. It refuses to carry that out: the task's machine does, when the call has ended.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from tupletree.bolts.collector import CollectorCall, Delivery
from tupletree.bolts.effects import IN_HAND, TaskPlace
from tupletree.data.frames import Root
from tupletree.errors import ProcessingError
from tupletree.state.cells import is_immutable

if TYPE_CHECKING:
    from tupletree.topology.components import MessageId

__all__ = ["CallCollector", "CallContext", "CallPlace", "CallState"]


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
    """

    place: TaskPlace
    delivery: Delivery
    key: Any = None
    is_keyed: bool = False
    value: Any = None
    held: Any = None
    touched: bool = False
    requests: list[Callable[[], None]] = field(default_factory=list)
    settled: bool = False
    over: bool = False
    begun_s: float = 0.0

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
        """See `TaskContext.attempt`."""
        call = _call_of(self)
        return self.attempt_of(call.delivery.root) if call is not None else 0

    @property
    def message_ids(self) -> tuple[MessageId, ...]:
        """See `TaskContext.message_ids`."""
        call = _call_of(self)
        return self.ids_of_root(call.delivery.root) if call is not None else ()

    @property
    def source_component(self) -> str:
        """See `TaskContext.source_component`."""
        call = _call_of(self)
        return call.delivery.source[0] if call is not None else ""

    @property
    def source_stream(self) -> str:
        """See `TaskContext.source_stream`."""
        call = _call_of(self)
        return call.delivery.source[1] if call is not None else ""

    @property
    def source_task(self) -> int:
        """See `TaskContext.source_task`."""
        call = _call_of(self)
        return call.delivery.source[2] if call is not None else -1


class CallState:
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
        """See `KeyedState.value`."""
        return self._call().value

    @value.setter
    def value(self, value: Any) -> None:
        self._call().value = value

    @property
    def key(self) -> Any:
        """See `KeyedState.key`."""
        return self._call().key

    def touch(self) -> None:
        """See `StateCell.touch`: the call's own value was changed in place."""
        self._call().touched = True

    def clear(self) -> None:
        """See `KeyedState.clear`."""
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


class CallCollector:
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
        """See `Collector.emit`."""
        self._emit(value, anchors, stream, None)

    def emit_direct(
        self, task_id: int, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None
    ) -> None:
        """See `Collector.emit_direct`."""
        self._emit(value, anchors, stream, task_id)

    def ack(self, value: object) -> None:
        """See `Collector.ack`."""
        self._verdict("an ack", value, partial(self._calls.ack, value))

    def fail(self, value: object, error: BaseException | str | None = None) -> None:
        """See `Collector.fail`."""
        self._verdict("a fail", value, partial(self._calls.fail, value, error))

    def reset_timeout(self, value: object) -> None:
        """See `Collector.reset_timeout`. For the tuple in hand it is done at once, for others when the call ends."""
        call = self._call("a reset_timeout")
        if value is call.delivery.value:
            self._renewals.append(call.delivery.root)
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


def own_copy(value: Any) -> Any:
    """The value, or a copy of one that could be changed in place."""
    return value if is_immutable(value) else copy.deepcopy(value)
