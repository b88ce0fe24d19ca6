"""The spout buffer: messages that the user's spout gave in its own batches, to be emitted within the limits.

Owns the messages that a spout gave and that are not emitted yet, the spout's position after them, and whether its input
is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.bolts.failures import safe_text
from tupletree.errors import EndOfInput, UnusableDataError
from tupletree.ids import MessageId
from tupletree.tasks.edges import RootIds
from tupletree.tasks.spouts.spout_journal import SpoutJournal
from tupletree.topology.components import Emit, Reject, Spout
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import Died

PLAIN = {Emit}

MAX_ASKS = 32
"""How often a spout is asked per emission: many messages that come one by one share a frame, and a slow spout
does not delay the first of them for long."""


@dataclass(slots=True)
class SpoutBatch:
    """A batch, by kind.

    Attributes:
        ids, values: messages with an id.
        untracked: values of messages without one.
        rejects: what the source could not turn into values.
    """

    ids: list[MessageId] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    untracked: list[Any] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)


class SpoutBuffer:
    """The buffer of one spout. After a restart the next task of that spout gets its content.

    Attributes:
        ended: the input is over.
        is_dry: when it was asked last, the spout had nothing.
        has_answered: the spout has answered a call of `next` without an error, if only that there is nothing now.
        position: the spout's snapshot after the last batch it gave; None if it has none.
    """

    def __init__(self) -> None:
        self.ended = False
        self.is_dry = False
        self.has_answered = False
        self.position: Any = None
        self._held: list[Emit[Any] | Reject] = []
        self._taken = 0

    @property
    def held(self) -> int:
        """Messages that wait to be emitted."""
        return len(self._held) - self._taken

    def take(self, spout: Spout[Any], room: int, *, ask: bool) -> list[Emit[Any] | Reject]:
        """Take up to `room` messages; the spout is asked while there is room, it gives something, and `ask` allows it.

        What it gave before it raised is kept.
        """
        batch: list[Emit[Any] | Reject] = self._from_held(room)
        self.is_dry = False
        for _ in range(MAX_ASKS):
            if len(batch) >= room or not ask or self.ended:
                break
            try:
                given = spout.next()
            except EndOfInput:
                self.ended = True
                break
            except BaseException:
                self._held, self._taken = batch, 0
                raise
            if given is None:
                self.is_dry = True
                break
            if not isinstance(given, Sequence):
                batch.append(given)
            elif given:
                self._held, self._taken = [*given], 0
                batch += self._from_held(room - len(batch))
            else:
                self.is_dry = True
                break
            if type(spout).snapshot is not Spout.snapshot:
                self.position = spout.snapshot()
        return batch

    def hold(self, given: Sequence[Emit[Any] | Reject], position: Any) -> None:
        """Add what an async spout gave, and its position after that."""
        self._held, self._taken = [*self._held[self._taken :], *given], 0
        self.position = position

    def _from_held(self, room: int) -> list[Emit[Any] | Reject]:
        batch = self._held[self._taken : self._taken + room]
        self._taken += len(batch)
        if self._taken >= len(self._held):
            self._held, self._taken = [], 0  # else the last batch would stay in memory
        return batch

    def waiting(self) -> list[Emit[Any] | Reject]:
        """The messages that wait to be emitted."""
        return self._held[self._taken :]

    def ids(self) -> list[MessageId]:
        """The ids of the messages that wait to be emitted."""
        return [one.message_id for one in self._held[self._taken :] if one.message_id is not None]

    def let_go(self) -> list[MessageId]:
        """Drop what is held; returns the ids, so that the source can be told."""
        ids = self.ids()
        self._held, self._taken = [], 0
        return ids


def sort(batch: list[Emit[Any] | Reject], component: str, *, tracking: bool) -> SpoutBatch:
    """Sort a batch by kind; without tracking every message is untracked.

    Raises:
        UnusableDataError: something in it is not a message.
    """
    if tracking and set(map(type, batch)) == PLAIN:
        ids = [one.message_id for one in batch]
        if None not in ids:
            return SpoutBatch(ids, [one.value for one in batch])  # type: ignore[arg-type,union-attr]  # just checked
    offered = SpoutBatch()
    for one in batch:
        if isinstance(one, Reject):
            offered.rejects.append(one)
        elif not isinstance(one, Emit):
            raise UnusableDataError(
                "a spout gave something that is not a message",
                where=component,
                got=safe_text(one, 200),
                expected="an Emit, a Reject, a list of them, or None",
            )
        elif one.message_id is None or not tracking:
            offered.untracked.append(one.value)
        else:
            offered.ids.append(one.message_id)
            offered.values.append(one.value)
    return offered


@dataclass(frozen=True)
class SpoutCheckpoint:
    """What one spout machine leaves to its successor after a restart of the topology.

    Attributes:
        pending: its messages; those that were in flight wait for their next attempt.
        draw: for root ids of `pending`.
        spout_buffer: what the spout gave and is not emitted yet, and its position.
        letters_to_store: dead messages whose letters could not be stored; their source is told once they are.
        not_told: dead messages whose letters are stored; their source could not be told.
        not_yet_told: (message id, failure or None) that the spout could not be told: it raised, or was not open.
        journal: what the journal of a durable run knows of the task.
    """

    pending: Pending
    draw: RootIds
    spout_buffer: SpoutBuffer
    letters_to_store: list[Died] = field(default_factory=list)
    not_told: list[Died] = field(default_factory=list)
    not_yet_told: Sequence[tuple[MessageId, Failure | None]] = ()
    journal: SpoutJournal | None = None
