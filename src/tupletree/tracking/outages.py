"""Outages: a task waits for something outside that is not available, and tries again until it is.

Owns when to try again, when to give up, and what is said about it. It refuses to wait: callers hold the clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tupletree.errors import OutageLimitError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.5
"""Work goes on within two seconds of the end of an outage, however long it lasted."""

_PART = re.compile(r"\n\s*(?=(?:got|expected|next): )")

SAY_AGAIN_S = 30.0
MAX_ERROR_TEXT = 500


@dataclass(frozen=True)
class Outage:
    """An outage that goes on. Times are monotonic seconds.

    Attributes:
        component: what waits.
        error: what the last call raised.
        since_s: when the first call raised.
        next_s: when the call is made again.
        tries: calls that raised.
    """

    component: str
    error: str
    since_s: float
    next_s: float
    tries: int


@dataclass(frozen=True)
class ShownOutage:
    """An outage as status, progress records and metrics show it.

    Attributes:
        component: the spout, bolt or sink that waits; `dead letters` for their store.
        error: what the last call raised.
        for_s: how long it has lasted.
        next_try_s: in how many seconds the call is made again.
    """

    component: str
    error: str
    for_s: float
    next_try_s: float

    @classmethod
    def of(cls, outage: Outage, now_s: float) -> ShownOutage:
        """As it is now."""
        return cls(outage.component, outage.error, max(0.0, now_s - outage.since_s), max(0.0, outage.next_s - now_s))

    def __str__(self) -> str:
        return (
            f"waiting for {self.component}: {self.error} since {self.for_s:,.0f} s, next try in {self.next_try_s:.1f} s"
        )


class OutageWait:
    """Whether one task waits, and until when. Other threads may read `current` at any time.

    Args:
        component: whose task it is.
        limit_s: how long an outage may last; None: as long as it takes.

    Attributes:
        component: as given.
        current: the outage that goes on; None: there is none.
        count: outages so far.
    """

    def __init__(self, component: str, limit_s: float | None = None) -> None:
        self.current: Outage | None = None
        self.count = 0
        self.component = component
        self._limit_s = math.inf if limit_s is None else limit_s
        self._say_again_s = 0.0

    @property
    def due_s(self) -> float:
        """When the call is to be made again; -inf: at any time."""
        return -math.inf if self.current is None else self.current.next_s

    def met(self, error: BaseException | str, now_s: float) -> str:
        """A call raised. Returns what is to be logged, which is nothing most times.

        Raises:
            OutageLimitError: it has lasted too long.
        """
        text = error if isinstance(error, str) else error_text(error)
        before = self.current
        if before is None:
            self.count += 1
            self.current = Outage(self.component, text, now_s, now_s + FIRST_PAUSE_S, 1)
            self._say_again_s = now_s + SAY_AGAIN_S
            return (
                f"it waits, for something outside is not available: {text}; no attempt is counted, and the call is "
                f"made again every {FIRST_PAUSE_S:g} to {LONGEST_PAUSE_S:g} s"
            )
        lasted_s = now_s - before.since_s
        # The exponent stays small: an outage may last for days.
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(before.tries, 10), LONGEST_PAUSE_S)
        pause_s = min(pause_s, max(FIRST_PAUSE_S, before.since_s + self._limit_s - now_s))
        self.current = replace(before, error=text, next_s=now_s + pause_s, tries=before.tries + 1)
        if lasted_s >= self._limit_s:
            raise OutageLimitError(
                f"{self.component!r} waited for something that is not available",
                got=f"{text}, for {lasted_s:.0f} s",
                expected=f"an end within outage_limit_s = {self._limit_s:g} s",
                next_step="restore what is missing, then start the run again: its messages are open, none is dead",
            )
        if now_s < self._say_again_s:
            return ""
        self._say_again_s = now_s + SAY_AGAIN_S
        return f"it has waited for {lasted_s:.0f} s, next try in {pause_s:g} s: {text}"

    def over(self, now_s: float) -> str:
        """The call was made without an outage. Returns what is to be logged."""
        before, self.current = self.current, None
        if before is None:
            return ""
        return f"it goes on: the outage is over after {now_s - before.since_s:.1f} s ({before.error})"


def shown_outages(outages: Iterable[Outage | None], now_s: float) -> tuple[ShownOutage, ...]:
    """Those that go on, the longest first; one of each component."""
    current = sorted((one for one in outages if one is not None), key=lambda one: (one.since_s, one.component))
    first = {one.component: one for one in reversed(current)}
    return tuple(ShownOutage.of(one, now_s) for one in current if one is first[one.component])


def error_text(error: BaseException) -> str:
    """What was raised, in one line."""
    try:
        # The parts of an error of ours are lines of their own elsewhere.
        text = " ".join(_PART.sub("; ", str(error)).split())
    except Exception as broken:  # noqa: BLE001 - user code; a report on an error must not become another one
        text = f"<its text raised {type(broken).__name__}>"
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    shown = shown if len(shown) <= MAX_ERROR_TEXT else shown[:MAX_ERROR_TEXT] + "…"
    return shown.encode("utf-8", "backslashreplace").decode()
