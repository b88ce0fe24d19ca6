"""What a log keeps of `Pending`, as typed plain data, and how base and deltas fold into one.

A base and a delta have the same shape: a base is the change from nothing. Records hold absolute state, so applying
one twice does no harm. Refuses bytes: how these records are written is the log's business (msgspec encodes them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tupletree.errors import InternalError
from tupletree.tracking.message_ids import id_from_key, id_from_plain, message_key, plain_id
from tupletree.tracking.message_table import AWAITING, OpenMessage, SpoutMessages
from tupletree.tracking.outcomes import Failure, Outcome

Encode: TypeAlias = Callable[[int, Any], Any]
"""(spout task, value) → JSON-compatible data."""

Decode: TypeAlias = Callable[[int, Any], Any]
"""(spout task, what `Encode` gave) → value."""

PlainId: TypeAlias = Any
"""A message id as `message_ids.plain_id` writes it."""

After: TypeAlias = Mapping[tuple[int, Hashable], "OpenMessage | None"]

AT_ONCE = 0.0
"""The due time of a message that was deferred to the head of the queue."""


class WaitingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its next attempt. Times are seconds since the Unix epoch.

    Attributes:
        attempt: attempts so far.
        root: of the latest attempt.
        due_s: when the runtime tries again (`AT_ONCE`: before all others); None: the source emits it again.
        by_source: whose turn it is after the next failure.
        failure: why the latest attempt failed, if it did.
        made: see `OpenMessage`.
    """

    spout_task: int
    message_id: PlainId
    value: Any
    attempt: int
    root: int
    due_s: float | None
    first_emitted_s: float
    by_source: bool
    failure: Failure | None
    made: int = 0


class PendingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since the last base or delta.

    Attributes:
        waiting: messages that began to wait, or whose waiting changed.
        gone: (spout task, message id) of messages that wait no more.
        settled: (spout task, message id, outcome) of ids that the source has yet to confirm.
        confirmed: (spout task, message id) of ids that it has.
    """

    waiting: list[WaitingRecord] = []
    gone: list[tuple[int, PlainId]] = []
    settled: list[tuple[int, PlainId, Outcome]] = []
    confirmed: list[tuple[int, PlainId]] = []


class _Launched(NamedTuple):
    """An attempt that is in no log yet, of a message that goes out again.

    Attributes:
        root: of the attempt.
        value_before: the value while it waited; a source that emits it again may give one that only a log can say.
        by_runtime: whether the runtime makes the attempt, and not the source.
    """

    root: int
    value_before: Any
    by_runtime: bool


class ChangeLog:
    """Records which ids changed, so that a delta costs as much as the change and not as what is open.

    Args:
        tasks: the spout tasks by number; the live dictionary.
        enabled: False records nothing, and then there are bases but no deltas.
    """

    def __init__(self, tasks: Mapping[int, SpoutMessages], *, enabled: bool) -> None:
        self._tasks = tasks
        self._enabled = enabled
        # Per (spout task, key) that changed: was it there at the last base or delta? If it neither was nor is, a
        # delta need not name it.
        self._waiting: dict[tuple[int, Hashable], bool] = {}
        self._settled: dict[tuple[int, Hashable], bool] = {}
        self._unlogged: dict[tuple[int, Hashable], _Launched] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._settled)

    def note_waiting(self, message: OpenMessage, *, was_there: bool) -> None:
        """A message starts to wait, or stops."""
        if self._enabled:
            self._waiting.setdefault((message.spout_task, message.key), was_there)

    def note_launched(self, message: OpenMessage, value_before: Any, *, by_runtime: bool) -> None:
        """A message that waited goes out again. Until its attempt is logged, the log says that it waits."""
        if self._enabled:
            self.note_waiting(message, was_there=True)
            self._unlogged[message.spout_task, message.key] = _Launched(message.root, value_before, by_runtime)

    def note_logged(self, message: OpenMessage) -> None:
        """The attempt that is out is in a log of the caller's."""
        self._unlogged.pop((message.spout_task, message.key), None)

    def _is_unlogged(self, place: tuple[int, Hashable]) -> bool:
        """Whether an attempt of this message is out that is in no log."""
        if place not in self._unlogged:
            return False
        message = self._tasks[place[0]].find(place[1])
        return message is not None and not message.waits and message.root == self._unlogged[place].root

    def note_settled(self, spout_task: int, key: Hashable, *, was_there: bool) -> None:
        """An id becomes unconfirmed, changes its outcome, or is confirmed."""
        if self._enabled:
            self._settled.setdefault((spout_task, key), was_there)

    @property
    def has_confirmed(self) -> bool:
        """Whether an id was confirmed that the last base or delta has as unconfirmed."""
        return any(
            was_there and key not in self._tasks[number].unconfirmed
            for (number, key), was_there in self._settled.items()
        )

    def clear(self) -> None:
        """Count changes from here."""
        self._unlogged = {place: one for place, one in self._unlogged.items() if self._is_unlogged(place)}
        self._waiting = dict.fromkeys(self._unlogged, True)
        self._settled.clear()

    def base(
        self,
        encode: Encode,
        now_s: float,
        wall_s: float,
        after: After,
        unconfirmed: Mapping[tuple[int, Hashable], Outcome],
    ) -> PendingChanges:
        """Write down all that waits and all that is unconfirmed; see `changes` for the arguments."""
        messages = [
            one
            for task in self._tasks.values()
            for one in (*task.messages.values(), *task.awaiting.values())
            if one.waits and (task.number, one.key) not in after
        ]
        for (number, key), attempt in self._unlogged.items():
            launched = self._tasks[number].find(key)
            if launched is not None and self._is_unlogged((number, key)):
                messages.append(_before_launch(launched, attempt))
        messages += [message for message in after.values() if message is not None]
        before = {
            (task.number, key): outcome for task in self._tasks.values() for key, outcome in task.unconfirmed.items()
        }
        settled = {**before, **unconfirmed}
        return PendingChanges(
            waiting=_records(messages, encode, now_s, wall_s),
            settled=[(number, plain_id(id_from_key(key)), outcome) for (number, key), outcome in settled.items()],
        )

    def changes(
        self,
        encode: Encode,
        now_s: float,
        wall_s: float,
        after: After,
        unconfirmed: Mapping[tuple[int, Hashable], Outcome],
    ) -> PendingChanges:
        """Write down what changed; it goes on being counted as changed until `clear`.

        Args:
            encode: for values.
            now_s: monotonic.
            wall_s: seconds since the Unix epoch.
            after: (spout task, key) → the message as it will wait, or None if it will wait no more; of those that are
                about to change.
            unconfirmed: (spout task, key) → outcome, of ids that are about to become unconfirmed.
        """
        if not self._enabled:
            raise InternalError("changes were taken that were not recorded", expected="record_changes=True")
        waiting: list[OpenMessage] = []
        gone: list[tuple[int, PlainId]] = []
        # What is about to wait was in flight before, and what is about to wait no more was there.
        there = {key: message is None for key, message in after.items()}
        for (number, key), was_there in {**self._waiting, **there, **self._waiting}.items():
            if self._is_unlogged((number, key)):
                if not was_there:
                    launched = self._tasks[number].messages[key]
                    waiting.append(_before_launch(launched, self._unlogged[number, key]))
                continue
            message = after[number, key] if (number, key) in after else self._tasks[number].find(key)
            if message is not None and message.waits:
                waiting.append(message)
            elif was_there:
                gone.append((number, plain_id(id_from_key(key))))
        settled: list[tuple[int, PlainId, Outcome]] = []
        confirmed: list[tuple[int, PlainId]] = []
        for (number, key), was_there in self._settled.items():
            if (number, key) in unconfirmed:
                continue
            outcome = self._tasks[number].unconfirmed.get(key)
            if outcome is not None:
                settled.append((number, plain_id(id_from_key(key)), outcome))
            elif was_there:
                confirmed.append((number, plain_id(id_from_key(key))))
        settled += [(number, plain_id(id_from_key(key)), outcome) for (number, key), outcome in unconfirmed.items()]
        records = _records(waiting, encode, now_s, wall_s)
        return PendingChanges(waiting=records, gone=gone, settled=settled, confirmed=confirmed)


def fold(changes: Iterable[PendingChanges]) -> PendingChanges:
    """Fold a base and its deltas, oldest first, into one base."""
    waiting: dict[Hashable, WaitingRecord] = {}
    settled: dict[Hashable, tuple[int, PlainId, Outcome]] = {}
    for change in changes:
        for spout_task, plain in change.gone:
            waiting.pop(_key(spout_task, plain), None)
        for record in change.waiting:
            key = _key(record.spout_task, record.message_id)
            waiting.pop(key, None)  # so that it is ordered by its latest change
            waiting[key] = record
        for spout_task, plain in change.confirmed:
            settled.pop(_key(spout_task, plain), None)
        for spout_task, plain, outcome in change.settled:
            settled[_key(spout_task, plain)] = (spout_task, plain, outcome)
    return PendingChanges(waiting=list(waiting.values()), settled=list(settled.values()))


def message_of(record: WaitingRecord, decode: Decode, now_s: float, wall_s: float) -> OpenMessage:
    """Make the message that a record describes; wall clock times become monotonic ones."""
    message_id = id_from_plain(record.message_id)
    message = OpenMessage(
        record.spout_task,
        message_key(message_id),
        message_id,
        decode(record.spout_task, record.value),
        record.attempt,
        record.root,
        now_s - max(0.0, wall_s - record.first_emitted_s),
        record.first_emitted_s,
        record.by_source,
        record.failure,
        failed_s=now_s,
        made=record.made,
    )
    if record.due_s is None:
        message.ticket = AWAITING
    else:
        message.due_s = -math.inf if record.due_s == AT_ONCE else now_s + record.due_s - wall_s
    return message


def _before_launch(message: OpenMessage, launched: _Launched) -> OpenMessage:
    """A message that goes out again, as it was before."""
    before = copy(message)
    before.attempt -= 1
    before.value = launched.value_before
    before.ticket, before.due_s = (1, -math.inf) if launched.by_runtime else (AWAITING, 0.0)
    return before


def _key(spout_task: int, plain: PlainId) -> Hashable:
    return spout_task, message_key(id_from_plain(plain))


def _records(messages: list[OpenMessage], encode: Encode, now_s: float, wall_s: float) -> list[WaitingRecord]:
    """Write messages down in the order of the retry queue; monotonic due times become wall clock times."""
    records: list[WaitingRecord] = []
    for message in sorted(messages, key=lambda one: (one.due_s, one.ticket)):
        due_s: float | None = None
        if message.ticket != AWAITING:
            due_s = AT_ONCE if message.due_s == -math.inf else wall_s + message.due_s - now_s
        records.append(
            WaitingRecord(
                spout_task=message.spout_task,
                message_id=plain_id(message.message_id),
                value=encode(message.spout_task, message.value),
                attempt=message.attempt,
                root=message.root,
                due_s=due_s,
                first_emitted_s=message.first_wall_s,
                by_source=message.by_source,
                failure=message.failure,
                made=message.made,
            )
        )
    return records
