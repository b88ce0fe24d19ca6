"""What a durable run stores of one spout task: which messages are open, how far the source was read, what it is told.

Owns what has changed since the last cut, and the acks that wait until a cut is durable. A cut is taken between two
steps of the task, so position, messages and counters in it are of one moment. It stores nothing: the runtime does, and
says when that is done.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from copy import copy
from typing import Any, TypeAlias

import msgspec

from tupletree.ids import MessageId
from tupletree.tasks.mail import Now
from tupletree.topology.components import Emit, Reject
from tupletree.tracking.message_ids import message_key, plain_id
from tupletree.tracking.message_table import OpenMessage, SpoutMessages
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.pending_log import AT_ONCE, WaitingRecord
from tupletree.tracking.records import Acked, Died, PendingCounters

MAX_NOT_YET_TOLD = 100_000
"""Acks that wait for a commit, above which the spout emits nothing: memory is limited."""

NEVER = 0.0
"""When a message was first emitted that has not been emitted yet."""

GIVEN = -1
"""In place of the attempts that a message has had: it was given, and is not emitted yet."""

Told: TypeAlias = "tuple[MessageId, Failure | None]"


class SpoutCut(msgspec.Struct, frozen=True):
    """A spout task at one moment, as far as it changed since the last cut.

    Attributes:
        spout_task: which task.
        position: of the source, after everything that it gave; None: it has none.
        counters: a copy.
        changed: key → the message as it is to be emitted again, with its value as it is; None: it is not open any more.
        outcomes: (message id, failure or None) that the source is to be told, or was told, since the last cut.
        all_told: the source was told, for good, all that earlier cuts have in `outcomes`.
    """

    spout_task: int
    position: Any
    counters: PendingCounters
    changed: dict[Hashable, WaitingRecord | None]
    outcomes: list[Told]
    all_told: bool

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed that must be stored soon."""
        return not (self.changed or self.outcomes)


class SpoutJournal:
    """The part of one spout task. It outlives the machines of a run, and is used on the task's thread.

    Attributes:
        blocked: nothing can be stored now, so the spout emits nothing. Any thread may set it.
    """

    def __init__(self, stored: dict[Hashable, int] | None = None) -> None:
        self.blocked = False
        self._stored: dict[Hashable, int] = stored or {}  # message → attempts, or GIVEN, as of the last cut
        self._dying: dict[int, Died] = {}  # by root: dead, and its letter is not stored yet
        self._outcomes: list[Told] = []
        self._acked: list[Acked] = []
        self._waiting: list[Acked] = []  # acks that a cut has

    @property
    def holds_up(self) -> bool:
        """Whether the spout is to emit nothing for now."""
        return self.blocked or len(self._acked) + len(self._waiting) >= MAX_NOT_YET_TOLD

    def acked(self, acked: Sequence[Acked]) -> None:
        """These messages are acked; their source is told when a cut that knows it is durable."""
        self._acked += acked
        self._outcomes += [(one.message_id, None) for one in acked]

    def dying(self, died: Died) -> None:
        """A message is dead, and its letter is to be stored: until then it is open here."""
        self._dying[died.root] = died

    def dead(self, died: Died, failure: Failure) -> None:
        """Its letter is stored."""
        self._dying.pop(died.root, None)
        self._outcomes.append((died.message_id, failure))

    def cut(
        self,
        spout_task: int,
        messages: SpoutMessages,
        given: Sequence[Emit[Any] | Reject],
        counters: PendingCounters,
        position: Any,
        now: Now,
        *,
        all_told: bool,
    ) -> SpoutCut:
        """What changed since the last cut.

        Args:
            spout_task: the task.
            messages: its open messages.
            given: what its spout gave, and is not emitted yet.
            counters: as they are.
            position: of the spout, after what it gave.
            now: the time.
            all_told: the spout was told all that earlier cuts have.
        """
        stored = self._stored
        known: dict[Hashable, int] = {}
        changed: dict[Hashable, WaitingRecord | None] = {}
        for one in given:
            if one.message_id is not None:
                key = message_key(one.message_id)
                known[key] = GIVEN
                if stored.get(key) != GIVEN:
                    changed[key] = _of_given(one, messages)
        for died in self._dying.values():
            key = message_key(died.message_id)
            known[key] = done = died.attempts - 1
            if stored.get(key) != done:
                changed[key] = _of_dying(died, messages)
        for table in (messages.messages, messages.awaiting):
            for key, message in table.items():  # of one that is there twice, this is further on
                known[key] = done = message.attempt - (message.ticket == 0)
                if stored.get(key) != done:
                    changed[key] = _of_message(message, done, now)
                elif key in changed:
                    del changed[key]
        for key in stored.keys() - known.keys():
            changed[key] = None
        self._stored = known
        outcomes, self._outcomes = self._outcomes, []
        self._waiting += self._acked
        self._acked = []
        return SpoutCut(spout_task, position, copy(counters), changed, outcomes, all_told)

    def release(self) -> list[Acked]:
        """All cuts are durable: the acks in them, to be told."""
        released, self._waiting = self._waiting, []
        return released


def _of_message(message: OpenMessage, done: int, now: Now) -> WaitingRecord:
    """An attempt that is out is lost with the process, and not counted: nothing in it has failed."""
    waits = message.ticket > 0 and math.isfinite(message.due_s)
    return WaitingRecord(
        spout_task=message.spout_task,
        message_id=plain_id(message.message_id),
        value=message.value,
        attempt=done,
        root=message.root,
        # One that its source is to emit again is emitted by the runtime: the source may not know of it any more.
        due_s=now.wall_s + message.due_s - now.monotonic_s if waits else AT_ONCE,
        first_emitted_s=message.first_wall_s,
        by_source=message.by_source,
        failure=message.failure,
        made=message.made,
    )


def _of_dying(died: Died, messages: SpoutMessages) -> WaitingRecord:
    is_reject = died.failure.kind is FailureKind.REJECTED
    return WaitingRecord(
        spout_task=died.spout_task,
        message_id=plain_id(died.message_id),
        value=died.value,
        attempt=0 if is_reject else died.attempts - 1,
        root=died.root,
        due_s=AT_ONCE,
        first_emitted_s=died.first_emitted_s,
        by_source=messages.by_source,
        failure=died.failure,
    )


def _of_given(one: Emit[Any] | Reject, messages: SpoutMessages) -> WaitingRecord:
    assert one.message_id is not None
    rejected = None
    if isinstance(one, Reject):
        rejected = Failure(kind=FailureKind.REJECTED, component=messages.name, error=one.reason, permanent=True)
    return WaitingRecord(
        spout_task=messages.number,
        message_id=plain_id(one.message_id),
        value=one.payload if isinstance(one, Reject) else one.value,
        attempt=0,
        root=0,
        due_s=AT_ONCE,
        first_emitted_s=NEVER,
        by_source=messages.by_source,
        failure=rejected,
    )
