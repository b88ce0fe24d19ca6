"""Messages without an outcome, by what they wait for: what the summary of a stopped run says about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tupletree.texts import moment_text
from tupletree.tracking.pending import Pending


@dataclass(frozen=True)
class OpenMessages:
    """How many messages are open, and why.

    Attributes:
        in_flight: those with an attempt under way.
        waiting: those that wait for their next attempt.
        awaited: those that their source was asked to emit again.
        next_attempt_s: when the first of `waiting` is due, since the Unix epoch; None if none waits.
    """

    in_flight: int = 0
    waiting: int = 0
    awaited: int = 0
    next_attempt_s: float | None = None

    @property
    def total(self) -> int:
        """All of them."""
        return self.in_flight + self.waiting + self.awaited

    def of_all(self, count: int) -> OpenMessages:
        """The same for so many messages; those that were not counted are in flight."""
        return replace(self, in_flight=max(0, count - self.waiting - self.awaited)) if count else NOTHING_OPEN

    def text(self) -> str:
        """Why they are open, in words; empty if none is."""
        parts = []
        if self.in_flight:
            parts.append(f"{self.in_flight:,} in flight")
        if self.waiting:
            parts.append(f"{self.waiting:,} waiting for another attempt{_first_at(self.next_attempt_s)}")
        if self.awaited:
            parts.append(f"{self.awaited:,} that their source was asked to emit again")
        return ", ".join(parts)


NOTHING_OPEN = OpenMessages()


def open_messages(
    accounts: Mapping[int, Pending], now_s: float, wall_s: float, rows: Mapping[int, int] | None = None
) -> OpenMessages:
    """Count the open messages.

    Args:
        accounts: spout task → the accounts that its messages are in.
        now_s: monotonic.
        wall_s: the same moment, since the Unix epoch.
        rows: spout task → rows in flight that are in no account.
    """
    open_now = sum(pending.open_count(task) for task, pending in accounts.items())
    in_flight = sum(pending.in_flight(task) for task, pending in accounts.items())
    awaited = sum(pending.awaiting_source(task) for task, pending in accounts.items())
    dues_s = [due_s for pending in accounts.values() if (due_s := pending.next_due_s()) is not None]
    waiting = open_now - in_flight
    due_s = min(dues_s, default=None) if waiting else None
    next_s = None if due_s is None else wall_s + (max(0.0, due_s - now_s) if math.isfinite(due_s) else 0.0)
    return OpenMessages(in_flight + sum((rows or {}).values()), waiting, awaited, next_s)


def _first_at(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f" (the first at {moment_text(seconds)})"
