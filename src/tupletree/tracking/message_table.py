"""The tables of `Pending`: messages by spout task, and the queue of those that wait for a retry.

Owns where a message is kept and in what order retries come. Decides nothing: `pending` does.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tupletree.tracking.outcomes import Failure, Outcome
from tupletree.tracking.records import Died, MessageStatus

if TYPE_CHECKING:
    from tupletree.ids import MessageId

AWAITING = -1
"""The ticket of a message that its source is to emit again."""


class SpoutMessages:
    """The messages of one spout task, by key.

    Attributes:
        messages: in flight or in the retry queue.
        queued: how many of `messages` are in the retry queue.
        awaiting: messages that the source is to emit again, oldest failure first.
        unconfirmed: settled ids that the source has yet to confirm.
    """

    __slots__ = ("awaiting", "by_source", "messages", "name", "number", "queued", "unconfirmed")

    def __init__(self, number: int, name: str, by_source: bool) -> None:
        self.number = number
        self.name = name
        self.by_source = by_source
        self.messages: dict[Hashable, OpenMessage] = {}
        self.queued = 0
        self.awaiting: dict[Hashable, OpenMessage] = {}
        self.unconfirmed: dict[Hashable, Outcome] = {}

    def find(self, key: Hashable) -> OpenMessage | None:
        """Return the open message with this key, wherever it is."""
        return self.messages.get(key) or self.awaiting.get(key)

    def retrying_since_s(self, running: Container[int] | None = None, given_up_s: float = -math.inf) -> float | None:
        """When the oldest message first went out that waits for another attempt, since the Unix epoch.

        Args:
            running: later attempts, by root, that are out indeed, while others still wait somewhere; None: all are out.
            given_up_s: messages that failed by then (monotonic), and that the source is to emit again, do not count.
        """
        waiting = [message for message in self.awaiting.values() if message.failed_s > given_up_s]
        if running is not None or self.queued:
            waiting += [
                message
                for message in self.messages.values()
                if message.waits or (running is not None and message.attempt > 1 and message.root not in running)
            ]
        return min((message.first_wall_s for message in waiting), default=None)

    def oldest_first_s(self) -> float | None:
        """When its oldest open message was first emitted (monotonic); None: none is open.

        They are in the order of their emission, but for those that the source emits again.
        """
        first = self.messages.values() if self.by_source else itertools.islice(self.messages.values(), 1)
        return min((message.first_s for message in (*first, *self.awaiting.values())), default=None)

    def knows_none_of(self, keys: Sequence[Any]) -> bool:
        """Whether nothing is known of messages with these keys."""
        return all(known.keys().isdisjoint(keys) for known in (self.messages, self.awaiting, self.unconfirmed) if known)


# Not tracked by the garbage collector: with 100,000 open messages its passes would cost more than the work. Safe
# as long as nothing that an entry holds leads back to the entry; so it names its task by number.
class OpenMessage(msgspec.Struct, gc=False, eq=False):
    """One open message.

    Attributes:
        attempt: attempts so far, the one in flight included.
        root: of the latest attempt; 0 before the first.
        first_s, first_wall_s: first emission, monotonic and since the Unix epoch.
        failure, failed_s: the latest failure and its monotonic time.
        due_s, ticket: place in the retry queue; the ticket is 0 in flight, or AWAITING.
        made: its number in the order of first emission, if one was asked for (`Pending.number`); else 0.
    """

    spout_task: int
    key: Hashable
    message_id: MessageId
    value: Any
    attempt: int
    root: int
    first_s: float
    first_wall_s: float
    by_source: bool
    failure: Failure | None = None
    failed_s: float = 0.0
    due_s: float = 0.0
    ticket: int = 0
    made: int = 0

    @property
    def waits(self) -> bool:
        """Whether no attempt is out."""
        return self.ticket != 0


def status_of(message: OpenMessage) -> MessageStatus:
    """The status of an open message."""
    return MessageStatus(
        message.spout_task,
        message.message_id,
        Outcome.RETRYING if message.waits else Outcome.OPEN,
        message.root,
        message.attempt,
        message.due_s if message.ticket > 0 else None,
        message.first_wall_s,
        message.failure,
    )


def died_of(message: OpenMessage, spout: str, failure: Failure, wall_s: float) -> Died:
    """The end of a message that will not be tried again by itself."""
    return Died(
        message.spout_task,
        spout,
        message.message_id,
        message.value,
        failure,
        message.attempt,
        message.first_wall_s,
        wall_s,
        message.root,
    )


class RetryQueue:
    """Messages by due time, and in order of arrival where due times are equal.

    Attributes:
        last_ticket: of the message that came last; each has the next number.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, OpenMessage]] = []  # an item is stale when the message's ticket is another
        self.last_ticket = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, message: OpenMessage, due_s: float) -> None:
        """Add a message that is not in the queue."""
        self.last_ticket += 1
        message.ticket = self.last_ticket
        message.due_s = due_s
        heapq.heappush(self._heap, (due_s, message.ticket, message))

    def remove(self, message: OpenMessage) -> None:
        """Take a message out before its time; its place is cleared when it comes up."""
        message.ticket = 0
        self._drop_stale()

    def pop(self, now_s: float) -> OpenMessage | None:
        """Take the first message that is due."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now_s:
            return None
        message = heapq.heappop(self._heap)[2]
        message.ticket = 0
        return message

    def next_due_s(self) -> float | None:
        """When `pop` will have something; None while the queue is empty."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    @property
    def first_s(self) -> float | None:
        """The first time in the queue, also of a message that left it; any thread may ask."""
        try:
            return self._heap[0][0]
        except IndexError:
            return None

    def _drop_stale(self) -> None:
        heap = self._heap
        while heap and heap[0][2].ticket != heap[0][1]:
            heapq.heappop(heap)
