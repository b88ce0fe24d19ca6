"""Calls of the user's spout by its task; the source may not be available for a while.

Owns the order of callbacks, and that none is lost: one that raised is made again, by this task after an outage, by the
next one after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Any

from tupletree.errors import ConnectorError, UnavailableAtStartError, is_outage
from tupletree.ids import MessageId
from tupletree.topology.components import Spout
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.records import Acked

START_S = 60.0
"""A first `next` that has waited for so long has reached its source: a connection that cannot be made fails earlier."""


def refuse_unavailable(error: BaseException, waited_s: float = 0.0) -> None:
    """A spout whose `next` has not returned yet raised this. Raises UnavailableAtStartError if it is an outage.

    Args:
        error: what it raised.
        waited_s: since the spout was first asked; after `START_S` it is no longer the start.
    """
    if waited_s < START_S and is_outage(error) and isinstance(error, ConnectorError):
        raise UnavailableAtStartError(error.what, findings=error.findings) from error


class SourceCalls:
    """The callbacks of one task.

    Attributes:
        not_yet_told: (message id, failure; None: it was acked) of the callbacks that are still to be made, in order.
        notes: for the log.
        flushes: the spout has a `flush`.
    """

    def __init__(self, spout: Spout[Any], wait: OutageWait) -> None:
        self.not_yet_told: deque[tuple[MessageId, Failure | None]] = deque()
        self.notes: list[str] = []
        self.flushes = type(spout).flush is not Spout.flush
        self._spout = spout
        self._wait = wait

    def take_notes(self) -> list[str]:
        """Take the lines for the log."""
        notes, self.notes = self.notes, []
        return [text for text in notes if text]

    def meet(self, error: BaseException, now_s: float) -> None:
        """Handle the error of a call: wait for the end of an outage, or raise any other error."""
        if not is_outage(error):
            raise error
        self.notes.append(self._wait.met(error, now_s))

    def over(self, now_s: float) -> None:
        """Note that the call that met an outage was made."""
        if self._wait.current is not None:
            self.notes.append(self._wait.over(now_s))

    def try_to(self, call: Callable[[], None], now_s: float) -> bool:
        """Make a call; False if it met an outage."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - what is no outage comes out
            self.meet(error, now_s)
            return False
        return True

    def ack(self, acked: Sequence[Acked], now_s: float) -> None:
        """Tell the spout of messages that were acked."""
        if self.not_yet_told or self._wait.current is not None:
            self.not_yet_told.extend((one.message_id, None) for one in acked)
            return
        ack = self._spout.ack
        coming = iter(acked)
        try:
            for one in coming:
                ack(one.message_id)
        except BaseException as error:  # noqa: BLE001 - what is no outage comes out
            left = acked[len(acked) - 1 - length_hint(coming) :]
            self.not_yet_told.extend((one.message_id, None) for one in left)
            self.meet(error, now_s)

    def fail(self, message_id: MessageId, failure: Failure, now_s: float) -> None:
        """Tell the spout of a failure. If it raises an error that is no outage, the caller must have it told again."""
        waits = bool(self.not_yet_told) or self._wait.current is not None
        if waits or not self.try_to(lambda: self._spout.fail(message_id, failure), now_s):
            self.not_yet_told.append((message_id, failure))

    def tell(self, now_s: float) -> bool:
        """Make the callbacks that are still to be made, and have them made durable; False if there was an outage."""
        while self.not_yet_told:
            message_id, failure = self.not_yet_told[0]
            if not self.try_to(lambda: self._call(message_id, failure), now_s):  # noqa: B023 - called at once
                return False
            self.not_yet_told.popleft()
        return not self.flushes or self.try_to(self._spout.flush, now_s)

    def tell_last(self) -> int:
        """Make the last callbacks, as the task ends; how many could not be made."""
        not_told = 0
        for message_id, failure in self.not_yet_told:
            try:
                self._call(message_id, failure)
            except Exception:  # noqa: BLE001 - counted; the others are to hear all the same
                not_told += 1
        self.not_yet_told.clear()
        if self.flushes:
            try:
                self._spout.flush()
            except Exception:  # noqa: BLE001 - as above; how many it concerns is not known
                not_told += 1
        return not_told

    def restore(self, not_yet_told: Iterable[tuple[MessageId, Failure | None]]) -> None:
        """Add the callbacks that the previous task could not make."""
        self.not_yet_told.extend(not_yet_told)

    def _call(self, message_id: MessageId, failure: Failure | None) -> None:
        if failure is None:
            self._spout.ack(message_id)
        else:
            self._spout.fail(message_id, failure)
