"""Holds: what an open message waits for, or how many wait for the same, in one shape for all runtimes.

`tupletree why` says it of one message; status, progress records and metrics say how many are held by what. Pure data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tupletree.texts import moment_text

HoldKind: TypeAlias = Literal[
    "retry", "source", "held", "call", "work", "turn", "key", "order", "queue", "outage", "rate", "write", "epoch"
]
"""It waits for its next attempt, or for its source to emit it again; a batch, window, join or a bolt that settles by
hand keeps it; an async call, or another one, is under way with it; it waits for one of the calls to end, or behind its
key; for what its source emitted before it, to come; for its task to have time; for the end of an outage; for its bolt's
`max_rate`; for its rows to be written; for the end of its epoch, which takes long."""


@dataclass(frozen=True)
class Hold:
    """What holds a message, or several. Times are seconds since the Unix epoch.

    Attributes:
        kind: see `HoldKind`.
        component: who holds it.
        count: how many are held so: messages (`retry`, `source`, `write`, `epoch`), tuples or calls.
        since_s: since when; of several, since when the first of them.
        until_s: until when, as far as is known; of several, the first. By the clock, or `in_event_time`.
        in_event_time: whether `until_s` is.
        watermark_s: how far event time has come there, if that is known.
        attempt: of `retry`: the number of the next one.
        key: of `key`: which; of `epoch`: its number.
        message: of `key`, where that is known instead: behind which message.
    """

    kind: HoldKind
    component: str
    count: int = 1
    since_s: float | None = None
    until_s: float | None = None
    in_event_time: bool = False
    watermark_s: float | None = None
    attempt: int = 0
    key: str = ""
    message: str = ""

    def __str__(self) -> str:
        """What holds one message."""
        since = "" if self.since_s is None else f" since {moment_text(self.since_s)}"
        at = "" if self.until_s is None else f" at {moment_text(self.until_s)}"
        by = self.component
        match self.kind:
            case "retry":
                return f"waiting for attempt {self.attempt}{at}"
            case "source":
                return "waiting for its source to emit it again"
            case "held":
                return f"held by {by}{since}{self._until()}"
            case "call":
                return f"in an async call of {by}{since}"
            case "work":
                return f"in a call of {by}{since}"
            case "turn":
                return f"waiting for one of the calls of {by} to end"
            case "key":
                behind = f"message {self.message}" if self.message else f"key {self.key}"
                return f"waiting for a call of {by}, behind {behind}"
            case "order":
                return f"waiting for a call of {by}, until what its source emitted before has come there"
            case "queue":
                return f"in the queue of {by}"
            case "outage":
                return f"waiting for {by}, which waits for the end of an outage{since}"
            case "rate":
                return f"waiting for its turn at {by}, by its max_rate"
            case "write":
                return "done but for its rows, which wait to be written"
            case "epoch":
                return f"in epoch {self.key}, which is worked{since}"

    def counted(self) -> str:
        """What holds several."""
        number, many = f"{self.count:,}", self.count != 1
        messages, tuples = ("messages", "tuples") if many else ("message", "tuple")
        first = "" if self.until_s is None else f", the first{' at' if self.kind == 'retry' else self._until()}"
        first += f" {moment_text(self.until_s)}" if self.kind == "retry" and self.until_s is not None else ""
        since = "" if self.since_s is None else f", the first since {moment_text(self.since_s)}"
        by = self.component
        match self.kind:
            case "retry":
                return f"{number} {messages} waiting for another attempt{first}"
            case "source":
                return f"{number} {messages} that {by} is to emit again"
            case "held":
                return f"{number} {tuples} held by {by}{first or since}"
            case "call":
                return f"{number} async {'calls' if many else 'call'} of {by} under way{since}"
            case "write":
                return f"{number} {messages} whose rows wait to be written"
            case "epoch":
                began = "" if self.since_s is None else f" since {moment_text(self.since_s)}"
                return f"{number} {messages} in epoch {self.key}, which is worked{began} and counts when it ends"
            case "outage":
                return f"{number} {tuples} waiting for {by}, which waits for the end of an outage"
            case "rate":
                return f"{number} {tuples} waiting for their turn at {by}, by its max_rate"
            case "key":
                return f"{number} {tuples} waiting for a call of {by}, each behind its key"
            case "order":
                return f"{number} {tuples} waiting for a call of {by}, until what was emitted before has come there"
            case "turn":
                return f"{number} {tuples} waiting for calls of {by} to end"
            case _:
                return f"{number} {tuples} at {by}"

    def _until(self) -> str:
        if self.until_s is None:
            return ""
        if not self.in_event_time:
            return f" until {moment_text(self.until_s)}"
        come = "" if self.watermark_s is None else f"; it has come to {moment_text(self.watermark_s)}"
        return f" until event time is {moment_text(self.until_s)}{come}"


def added_up(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Holds of one kind and component as one each: of their counts the sum, of their times the first."""
    found: dict[tuple[HoldKind, str], Hold] = {}
    for one in holds:
        known = found.get((one.kind, one.component))
        if known is not None:
            one = replace(
                known,
                count=known.count + one.count,
                since_s=_first(known.since_s, one.since_s),
                until_s=_first(known.until_s, one.until_s),
                watermark_s=_first(known.watermark_s, one.watermark_s),
            )
        found[one.kind, one.component] = one
    return tuple(one for one in found.values() if one.count)


def _first(one: float | None, other: float | None) -> float | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)
