"""Verdicts: the outcomes of a message and of one attempt, and what a dead letter holds."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from tupletree.texts import encodable, is_encodable


class Outcome(enum.Enum):
    """The outcome of a message so far."""

    OPEN = "open"
    ACKED = "acked"
    RETRYING = "retrying"
    DEAD = "dead"


class FailureKind(enum.Enum):
    """Why one attempt failed."""

    ERROR = "error"  # a bolt raised or called fail
    TIMEOUT = "timeout"  # not completed within the message timeout
    LOST = "lost"  # its worker, task or frame was lost
    POISON = "poison"  # it killed its worker
    REJECTED = "rejected"  # the source could not turn it into a value
    PUBLISH = "publish_failed"  # a sink refused a row of it
    STOPPED = "stopped"  # the topology stopped before it completed


class RetryRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the failing component says about further attempts; None is as the run's options have it.

    Attributes:
        attempts, backoff_s, factor, max_s: see `tupletree.Retry`.
        after_s: the next attempt is not to begin before so many seconds.
        is_service: the pauses are those after failures of services (`service_backoff_initial_ms` and so on).
    """

    attempts: int | None = None
    backoff_s: float | None = None
    factor: float | None = None
    max_s: float | None = None
    after_s: float | None = None
    is_service: bool = False


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why one attempt failed, as text: exceptions never cross a process boundary as objects.

    Attributes:
        kind: the class of failure.
        component, task_id: where; empty and -1 if no component is to blame.
        error_type: the exception's qualified type name ("" if there was none).
        error: its message, or the reason in words.
        traceback: formatted traceback, shortened to a fixed limit.
        failing_tuple: the tuple in hand, rendered and shortened.
        permanent: a retry cannot help.
        retry: how the message is tried again, where that is not as after any failure.
    """

    kind: FailureKind
    component: str = ""
    task_id: int = -1
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    failing_tuple: str = ""
    permanent: bool = False
    retry: RetryRule | None = None

    @property
    def was_reading(self) -> bool:
        """Whether no value of the message was made: what reads it did not survive that, or was too long in it."""
        return self.permanent and self.kind in {FailureKind.POISON, FailureKind.TIMEOUT}

    def __post_init__(self) -> None:
        """Texts come from outside, and must not stop what stores a failure."""
        for name in _TEXTS:
            text: str = getattr(self, name)
            if not is_encodable(text):
                force_setattr(self, name, encodable(text))


_TEXTS = ("component", "error_type", "error", "traceback", "failing_tuple")


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that will not be tried again by itself.

    Times are seconds since the Unix epoch. `payload` is the message's value as JSON-compatible data.
    """

    topology: str
    spout: str
    message_id: Any
    payload: Any
    payload_type: str
    failure: Failure
    attempts: int
    first_emitted_s: float
    died_s: float
    note: str = ""
