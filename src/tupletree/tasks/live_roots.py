"""Which attempts are open, for tasks that are about to work on their tuples.

Owns the answers to "is any message of this tuple still open?" and "what does its source call it?". A tuple whose
messages are all over (acked, failed, timed out or given back) is not worked. The check costs a look-up per root, so it
is done where a tuple may have waited for long, and for a while after any attempt failed; otherwise it costs nothing.

Spout machines write on their threads, bolts read on theirs. A reader may be a moment late, which costs a call.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from itertools import filterfalse
from typing import TYPE_CHECKING

from tupletree.data.frames import UNTRACKED, Frame, Root, all_failed, ids_in, picked, roots_of
from tupletree.tasks.pace import Pace

if TYPE_CHECKING:
    from tupletree.ids import MessageId

MAX_ENDED = 10_000
"""Failed attempts of a spout task whose message ids are remembered for calls that still work on them."""

WITHOUT_TIMEOUT_S = 30.0
"""How long the check goes on after a failed attempt where messages never expire."""


class LiveRoots:
    """The open attempts of one run.

    Attributes:
        doubtful_until_s: until then (monotonic) tuples of failed attempts may still arrive.
        paces: bolt → how long its calls take, where that is measured.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self.doubtful_until_s = -math.inf
        self.paces: dict[str, Pace] = {}
        self._period_s = 2.0 * (WITHOUT_TIMEOUT_S if timeout_s is None else timeout_s)
        self._in_flight: dict[int, Container[int]] = {}
        self._id_of: dict[int, Callable[[int], MessageId | None]] = {}
        self._first_s: dict[int, Callable[[int], float | None]] = {}
        self._ended: dict[int, OrderedDict[int, MessageId]] = {}

    def register(
        self,
        spout_task: int,
        in_flight: Container[int],
        id_of: Callable[[int], MessageId | None] = lambda _: None,
        first_s: Callable[[int], float | None] = lambda _: None,
    ) -> None:
        """Add the open attempts of a spout task.

        Args:
            spout_task: its number.
            in_flight: the attempts, as a collection that changes with them.
            id_of: the message id of one of them; None for any other. Any thread may call it.
            first_s: the same for the time of its message's first emission, monotonic.
        """
        self._in_flight[spout_task] = in_flight
        self._id_of[spout_task] = id_of
        self._first_s[spout_task] = first_s
        self._ended[spout_task] = OrderedDict()

    def note_failed(self, now_s: float) -> None:
        """Note that an attempt failed."""
        self.doubtful_until_s = now_s + self._period_s

    def remember(self, spout_task: int, root: int) -> None:
        """Note that an attempt is about to fail: a call that works on it may still ask for its message id.

        Only the thread of the spout task calls it.
        """
        message_id = self._id_of[spout_task](root)
        if message_id is not None:
            ended = self._ended[spout_task]
            ended[root] = message_id
            if len(ended) > MAX_ENDED:
                ended.popitem(last=False)

    def ids_of(self, roots: Sequence[int]) -> tuple[MessageId, ...]:
        """The message ids of open attempts, and of those that failed last."""
        found = (self._found(root) for root in roots)
        return tuple(message_id for message_id in found if message_id is not None)

    def _found(self, root: int) -> MessageId | None:
        for task, id_of in self._id_of.items():
            message_id = id_of(root)
            if message_id is None:
                message_id = self._ended[task].get(root)
            if message_id is not None:
                return message_id
        return None

    def first_s(self, root: int) -> float | None:
        """When the message of an open attempt was first emitted (monotonic); None for any other."""
        found = (first_s(root) for first_s in self._first_s.values())
        return next((one for one in found if one is not None), None)

    def slowest(self) -> tuple[str, float] | None:
        """The bolt whose calls take longest, and seconds per call; None if none was measured."""
        measured = [(pace.tuple_s, name) for name, pace in self.paces.items() if pace.tuple_s]
        if not measured:
            return None
        tuple_s, name = max(measured)
        return name, tuple_s

    def is_over(self, root: Root) -> bool:
        """Whether all messages of a tuple are over. An untracked one is never over."""
        ones = roots_of(root)
        return bool(ones) and not any(one in live for live in self._in_flight.values() for one in ones)

    def still_wanted(self, frame: Frame) -> Frame:
        """The frame without tuples whose messages are over; the same frame if there are none."""
        roots = frame.roots
        # What is left of a long frame is looked through for each slice of it, and almost always all of it is open.
        closed = set(ids_in(roots))
        for live in self._in_flight.values():
            closed = set(filterfalse(live.__contains__, closed))
        closed.discard(UNTRACKED)
        if not closed:
            return frame
        over = [all_failed(root, closed) for root in roots]
        return picked(frame, [not gone for gone in over]) if any(over) else frame
