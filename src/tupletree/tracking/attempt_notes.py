"""What a log says of attempts that failed and are made again: the first of each kind, and then a few.

Pure: time comes in. Refuses to know of dead letters, which hold the whole history of their message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tupletree.tracking.message_ids import id_text, plain_id
from tupletree.tracking.outcomes import Failure

if TYPE_CHECKING:
    from tupletree.ids import MessageId

QUIET_S = 10.0
"""Seconds after a note without another one about the same component and error; the next says how many there were."""

MAX_KINDS = 256
MAX_ERROR = 300


class AttemptNotes:
    """Decides which failed attempts are worth a line."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], tuple[float, int]] = {}

    def of(self, message_id: MessageId, attempt: int, failure: Failure, now_s: float) -> str | None:
        """The line for an attempt that failed, or None.

        Args:
            message_id: whose attempt.
            attempt: its number.
            failure: why.
            now_s: monotonic.
        """
        kind = failure.component, failure.error_type, failure.kind.value
        quiet_until_s, not_yet_told = self._kinds.get(kind, (now_s, 0))
        if now_s < quiet_until_s:
            self._kinds[kind] = quiet_until_s, not_yet_told + 1
            return None
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = now_s + QUIET_S, 0
        error = f"{failure.error_type}: {failure.error}" if failure.error_type else failure.error
        more = f" ({not_yet_told} more like this since the last such line)" if not_yet_told else ""
        message = id_text(plain_id(message_id))
        return (
            f"attempt {attempt} of message {message} failed ({failure.kind.value}) and is made again: "
            f"{error[:MAX_ERROR]}{more}"
        )
