"""Facts: what happened to a message, one record each, in one shape for all runtimes.

A runtime makes them where it decides: the local one in a spout's machine as verdicts come, the Spark one from what its
journal says of each epoch. `tupletree why`, the history of a local run and the test kit read them. Refuses to keep any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from tupletree.ids import hex_id
from tupletree.texts import moment_text
from tupletree.tracking.message_ids import id_text, plain_id
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.records import Died, Released, RetryAt, SourceRetry

if TYPE_CHECKING:
    from tupletree.ids import MessageId

What: TypeAlias = Literal["emitted", "retried", "failed", "acked", "dead", "put back", "open", "in flight", "dropped"]
"""What happened: its first attempt went out, a later one did; an attempt failed; it was acked, or is dead; it was given
to a later epoch without counting an attempt; it is without an outcome still, at the end of an epoch or of the run; it
is in an epoch that is not settled; its dead letter was dropped, for it was handled elsewhere."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a message. Times are seconds since the Unix epoch.

    Attributes:
        time_s: when.
        what: see `What`.
        spout: whose message it is.
        message_id: as `message_ids.plain_id` writes it.
        attempt: which attempt.
        root: the root id of that attempt; 0 if it is not known.
        failure: of `failed` and `dead`, why.
        next_s: of `failed`: when the runtime makes the next attempt, if that is known.
        by_source: of `failed`: its source was asked to emit it again.
        epoch: in which epoch; -1 where there are none.
        note: more about it, in words.
    """

    time_s: float
    what: What
    spout: str
    message_id: Any
    attempt: int
    root: int = 0
    failure: Failure | None = None
    next_s: float | None = None
    by_source: bool = False
    epoch: int = -1
    note: str = ""

    @property
    def detail(self) -> str:
        """Why, and what comes next, in one line; empty if there is nothing to say."""
        parts = [] if self.failure is None else [failed_in(self.failure)]
        if self.by_source:
            parts.append(f"its source is asked to emit it again, as attempt {self.attempt + 1}")
        elif self.next_s is not None:
            parts.append(f"attempt {self.attempt + 1} from {moment_text(self.next_s)}{self._reason()}")
        return "; ".join([*parts, *([self.note] if self.note else [])])

    def _reason(self) -> str:
        """Why the next attempt is at that time, where that is not as after any failure."""
        rule = None if self.failure is None else self.failure.retry
        if rule is None:
            return ""
        where = "" if self.failure is None else self.failure.component
        if rule.after_s is not None:
            return f" ({where} asked to wait for {rule.after_s:g} s)"
        if rule.is_service:
            return " (the pause after an error of a service)"
        of = f" of {rule.attempts}" if rule.attempts is not None else ""
        return f" (as the retry policy of {where} says{of and f': {self.attempt + 1}{of} attempts'})"

    def is_about(self, spellings: Iterable[str]) -> bool:
        """Whether one of these texts names its message (`ID`, `SPOUT/ID`) or the root of its attempt."""
        text = id_text(self.message_id)
        return not {text, f"{self.spout}/{text}", hex_id(self.root)}.isdisjoint(spellings)


class FactMaker:
    """Makes the facts about the messages of one spout.

    Args:
        spout: its name.
        of_all: whether facts of all messages are wanted, or of those with an attempt that failed.

    Attributes:
        of_all: as given; the caller goes by it.
    """

    def __init__(self, spout: str, *, of_all: bool = False) -> None:
        self.of_all = of_all
        self._spout = spout

    def sent(self, message_id: MessageId, attempt: int, root: int, wall_s: float) -> Fact:
        """An attempt went out."""
        what: What = "emitted" if attempt == 1 else "retried"
        return self._fact(wall_s, what, message_id, attempt, root)

    def acked(self, message_id: MessageId, attempt: int, root: int, wall_s: float) -> Fact:
        """A message is done."""
        return self._fact(wall_s, "acked", message_id, attempt, root)

    def failed(self, what: RetryAt | SourceRetry | Died, failure: Failure, now_s: float, wall_s: float) -> Fact:
        """An attempt failed, and this comes of it."""
        if isinstance(what, Died):
            return self.died(what)
        return Fact(
            time_s=wall_s,
            what="failed",
            spout=self._spout,
            message_id=plain_id(what.message_id),
            attempt=what.attempt_next - 1,
            root=what.root,
            failure=failure,
            next_s=wall_s + max(0.0, what.due_s - now_s) if isinstance(what, RetryAt) else None,
            by_source=isinstance(what, SourceRetry),
        )

    def died(self, died: Died) -> Fact:
        """A message is dead."""
        return Fact(
            time_s=died.died_s,
            what="dead",
            spout=self._spout,
            message_id=plain_id(died.message_id),
            attempt=died.attempts,
            root=died.root,
            failure=died.failure,
        )

    def left(self, released: Sequence[Released], wall_s: float, *, stays: bool = False) -> list[Fact]:
        """The run ends without an outcome of these messages; `stays`: they are emitted again at the next start."""
        note = "the run stopped before it ended, and " + (
            "its next start emits it again" if stays else "it was failed to its source"
        )
        return [
            Fact(
                time_s=wall_s,
                what="open",
                spout=self._spout,
                message_id=plain_id(one.message_id),
                attempt=one.attempt,
                root=one.root,
                note=note,
            )
            for one in released
        ]

    def _fact(self, time_s: float, what: What, message_id: MessageId, attempt: int, root: int) -> Fact:
        return Fact(
            time_s=time_s, what=what, spout=self._spout, message_id=plain_id(message_id), attempt=attempt, root=root
        )


def failed_in(failure: Failure) -> str:
    """Where and why an attempt failed, in one line."""
    where = f"{failure.component} task {failure.task_id}: " if failure.component else ""
    return f"{where}{failure.error_type or failure.kind.value}: {failure.error}".partition("\n")[0]
