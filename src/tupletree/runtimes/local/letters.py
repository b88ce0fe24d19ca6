"""Dead letters on their way to the store, which may have no room for a while."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tupletree.errors import is_outage
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.records import Died

logger = logging.getLogger("tupletree.local")

DEAD_LETTERS = "dead letters"
"""The name that an outage of the store is reported under."""


class LetterWriter:
    """Stores the letters of one executor, and tries again when there is no room.

    Args:
        store: makes letters durable; raises ConnectorError if that is not possible now.
        limit_s: how long that may last; None: without limit.

    Attributes:
        wait: whether letters wait to be stored.
    """

    def __init__(self, store: Callable[[Sequence[Died]], None], limit_s: float | None) -> None:
        self._store = store
        self.wait = OutageWait(DEAD_LETTERS, limit_s)

    def is_due(self, now_s: float) -> bool:
        """Whether storing may be tried now."""
        return self.wait.due_s <= now_s

    def store(self, died: Sequence[Died], now_s: float) -> bool:
        """Store letters; False: an outage, try again later. Raises any other error, and OutageLimitError."""
        try:
            self._store(died)
        except Exception as error:
            if not is_outage(error):
                raise
            _log(self.wait.met(error, now_s))
            return False
        _log(self.wait.over(now_s))
        return True


def _log(text: str) -> None:
    if text:
        logger.warning("%s: %s", DEAD_LETTERS, text)
