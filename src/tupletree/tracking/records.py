"""What `Pending` answers with: one small record per event of a message, and what it counts.

Plain data. The records are valid for good, and nothing in them changes later; only the counters grow.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import msgspec

from tupletree.tracking.message_ids import plain_id
from tupletree.tracking.outcomes import DeadLetter, Failure, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tupletree.ids import MessageId


class Emission(msgspec.Struct, frozen=True, gc=False):
    """One attempt of a message goes out, under a root id of its own; root 0 is untracked."""

    root: int
    spout_task: int
    message_id: MessageId | None
    value: Any
    attempt: int


class Joined(msgspec.Struct, frozen=True, gc=False):
    """The source delivered a message again that is still open: nothing new goes out.

    `root` is that of its latest attempt (0 if it has had none since a dead letter was brought back).
    """

    root: int
    spout_task: int
    message_id: MessageId


class AlreadySettled(msgspec.Struct, frozen=True, gc=False):
    """The source delivered a message again that is settled but not confirmed: tell it the outcome again."""

    outcome: Outcome
    spout_task: int
    message_id: MessageId


class EmittedMessages(msgspec.Struct, frozen=True):
    """What `emit_many` sends out, as parallel lists, and what it holds back.

    Attributes:
        roots: one per message that goes out; 0 is untracked.
        message_ids: their ids.
        values: their values.
        attempts: their attempt numbers.
        known: messages that the source delivered again; they do not go out.
    """

    roots: list[int]
    message_ids: Sequence[MessageId | None]
    values: list[Any]
    attempts: list[int]
    known: list[Joined | AlreadySettled]


class Acked(msgspec.Struct, frozen=True, gc=False):
    """The message's tree completed. `latency_s` counts from its first emission."""

    spout_task: int
    message_id: MessageId
    latency_s: float
    attempt: int


class RetryAt(msgspec.Struct, frozen=True, gc=False):
    """The attempt under `root` failed; `due` will give out attempt `attempt_next` from `due_s` (monotonic) on."""

    spout_task: int
    message_id: MessageId
    attempt_next: int
    due_s: float
    root: int


class SourceRetry(msgspec.Struct, frozen=True, gc=False):
    """The attempt under `root` failed: tell the source, which emits it again as attempt `attempt_next`."""

    spout_task: int
    message_id: MessageId
    attempt_next: int
    failure: Failure
    root: int


class Died(msgspec.Struct, frozen=True, gc=False):
    """The message will not be tried again by itself. Times are seconds since the Unix epoch."""

    spout_task: int
    spout: str
    message_id: MessageId
    value: Any
    failure: Failure
    attempts: int
    first_emitted_s: float
    died_s: float
    root: int

    def letter(self, topology: str, payload: Any, payload_type: str, note: str = "") -> DeadLetter:
        """Make the dead letter; `payload` is the value as JSON-compatible data."""
        return DeadLetter(
            topology=topology,
            spout=self.spout,
            message_id=plain_id(self.message_id),
            payload=payload,
            payload_type=payload_type,
            failure=self.failure,
            attempts=self.attempts,
            first_emitted_s=self.first_emitted_s,
            died_s=self.died_s,
            note=note,
        )


class Released(msgspec.Struct, frozen=True, gc=False):
    """An open message that was given back to its source unsettled."""

    spout_task: int
    message_id: MessageId
    attempt: int
    root: int


class MessageStatus(msgspec.Struct, frozen=True, gc=False):
    """The status of one message.

    Attributes:
        outcome: OPEN (in flight), RETRYING (waiting for its next attempt), or ACKED or DEAD (not yet confirmed).
        root: of the latest attempt; 0 if none is known.
        attempt: number of the latest attempt; 0 if none is known.
        due_s: monotonic time of the next attempt; None unless the runtime is to retry it.
        first_emitted_s: seconds since the Unix epoch; None once settled.
        failure: why the attempt before failed, if one did.
    """

    spout_task: int
    message_id: MessageId
    outcome: Outcome
    root: int = 0
    attempt: int = 0
    due_s: float | None = None
    first_emitted_s: float | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class PendingCounters:
    """Totals since construction.

    Attributes:
        emitted: distinct tracked messages.
        untracked: emissions without a message id.
        joined: redeliveries of open messages.
        already_settled: redeliveries of settled messages.
        acked, dead: messages by their final outcome.
        replayed: dead letters that went out again, each time: they are in `dead` no longer.
        failed: attempts.
        retried: emissions of an attempt after the first.
        put_back: attempts taken back without counting.
        late_verdicts: verdicts about roots that are not in flight; they changed nothing.
    """

    emitted: int = 0
    untracked: int = 0
    joined: int = 0
    already_settled: int = 0
    acked: int = 0
    dead: int = 0
    failed: int = 0
    retried: int = 0
    put_back: int = 0
    late_verdicts: int = 0
    replayed: int = 0

    def add(self, others: PendingCounters) -> None:
        """Add each of these numbers to its own."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(others, one.name))
