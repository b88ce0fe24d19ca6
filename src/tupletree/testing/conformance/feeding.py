"""Spouts of the suite: they give scripted messages, and record everything that they are told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.topology.components import AsyncSpout, Emit, Reject, Spout, TaskContext
from tupletree.tracking.outcomes import Failure

T = TypeVar("T")

STILL_INACTIVE = "still inactive"
"""An event of the suite's own: everything is up, and the spouts were not activated yet."""


@dataclass
class Heard:
    """What the tasks of one spout gave and were told.

    Attributes:
        events: open, activate, next, deactivate and close, in order of time, over all tasks.
        given: how often each message was emitted by the spout itself.
        acked: how often each was acked.
        failed: each `fail`, in order of time.
    """

    events: list[str] = field(default_factory=list)
    given: Counter[MessageId] = field(default_factory=Counter)
    acked: Counter[MessageId] = field(default_factory=Counter)
    failed: list[tuple[MessageId, Failure]] = field(default_factory=list)


_HEARD: dict[str, Heard] = {}
"""By key. A runtime copies spouts, one for each task, so what they are told is kept beside them, in their process."""


def heard(key: str) -> Heard:
    """What the feed of this key was told so far."""
    return _HEARD[key]


class Feed(Spout[T], Generic[T]):
    """Gives its messages in one batch, then ends. Several tasks share them.

    Args:
        key: unique in the process; names the record.
        message_type: class of the values.
        messages: what to give.
    """

    def __init__(self, key: str, message_type: type[T], messages: Sequence[Emit[T] | Reject]) -> None:
        self.key = key
        self.message_type = message_type
        self.messages = tuple(messages)
        _HEARD[key] = Heard()

    def open(self, context: TaskContext) -> None:
        """Take this task's share."""
        self.left = list(self.messages[context.task_index :: context.parallelism])
        self.tell("open")

    def tell(self, event: str) -> None:
        """Record that something happened."""
        _HEARD[self.key].events.append(event)

    def next(self) -> list[Emit[T] | Reject] | None:
        """Give everything at once."""
        self.tell("next")
        if not self.left:
            raise EndOfInput
        given, self.left = self.left, []
        _HEARD[self.key].given.update(one.message_id for one in given if one.message_id is not None)
        return given

    def snapshot(self) -> int:
        """How many messages are left to give."""
        return len(self.left)

    def restore(self, position: int) -> None:
        """Go on with the last `position` messages."""
        self.left = self.left[len(self.left) - position :]

    def ack(self, message_id: MessageId) -> None:
        """Record it."""
        _HEARD[self.key].acked[message_id] += 1

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """Record it."""
        _HEARD[self.key].failed.append((message_id, failure))

    def activate(self) -> None:
        """Record it."""
        self.tell("activate")

    def deactivate(self) -> None:
        """Record it."""
        self.tell("deactivate")

    def close(self) -> None:
        """Record it."""
        self.tell("close")


class Replaying(Feed[T], Generic[T]):
    """A queue: a message stays in it until it is acked or dead, and is given again when an attempt failed."""

    def open(self, context: TaskContext) -> None:
        """Take this task's share."""
        super().open(context)
        self.unsettled = {one.message_id: one for one in self.left}

    def next(self) -> list[Emit[T] | Reject] | None:
        """Give what is there now; the input is over when nothing can come back any more."""
        if self.unsettled and not self.left:
            return None
        return super().next()

    def ack(self, message_id: MessageId) -> None:
        """Take it out of the queue."""
        super().ack(message_id)
        self.unsettled.pop(message_id, None)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        """Give it again, unless the failure is final."""
        super().fail(message_id, failure)
        if failure.permanent:
            self.unsettled.pop(message_id, None)
        else:
            self.left.append(self.unsettled[message_id])


class AsyncFeed(AsyncSpout[T], Generic[T]):
    """Does what another feed does, and waits a little each time.

    Args:
        inner: the other feed, which is this one's alone.
    """

    def __init__(self, inner: Feed[T]) -> None:
        self.message_type = inner.message_type
        self._inner = inner

    async def open(self, context: TaskContext) -> None:
        """See `Feed`."""
        await asyncio.sleep(0)
        self._inner.open(context)

    async def next(self) -> list[Emit[T] | Reject] | None:
        """See `Feed`."""
        await asyncio.sleep(0)
        return self._inner.next()

    async def ack(self, message_id: MessageId) -> None:
        """See `Feed`."""
        await asyncio.sleep(0)
        self._inner.ack(message_id)

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        """See `Feed`."""
        await asyncio.sleep(0)
        self._inner.fail(message_id, failure)

    async def activate(self) -> None:
        """See `Feed`."""
        await asyncio.sleep(0)
        self._inner.activate()

    def deactivate(self) -> None:
        """See `Feed`; not everything must wait."""
        self._inner.deactivate()

    async def close(self) -> None:
        """See `Feed`."""
        await asyncio.sleep(0)
        self._inner.close()
