"""How many messages may be in flight where the user sets no limit: as many as the topology's pace allows.

Owns the limit of one spout task. Messages in flight wait for each other, and their timeouts run meanwhile. So the limit
starts low and doubles with each measured message, up to the usual number, as long as the last message of those in
flight would wait for less than a quarter of the message timeout; and beyond that number, where messages are quick, for
they share what a frame and a step cost, as long as it would wait for a few milliseconds. Where no tuple waits for a
task, more messages may go out: a call that hangs, or a tuple that a bolt keeps, does not stop the others.
"""

from __future__ import annotations

import math
from collections.abc import Container

from tupletree.config import Options
from tupletree.texts import counted
from tupletree.topology.limits import limit_set
from tupletree.topology.model import BoltSpec, TopologySpec
from tupletree.topology.ordering import ordered_inputs

HIGHEST = 8_192
"""Messages in flight at the most, however quick they are."""

QUICK_S = 0.005
"""Beyond the usual number: how long the last message in flight may wait for those before it."""

WAITING_SHARE = 0.25
"""Of the message timeout: how long the last message in flight may wait for those before it."""

IDLE_S = 0.01
"""How long no tuple must wait anywhere before more messages go out beyond the limit: verdicts may be on their way."""

REST_S = 0.25
"""How long nothing is measured after a measure that left the limit as it was."""


class PendingLimit:
    """See the module docstring.

    Args:
        least, usual: the bounds of the limit, but for quick messages.
        timeout_s: the message timeout.
        needs_idle: some bolt may hold messages beyond its calls, so that nothing comes back before others come.

    Attributes:
        value: messages that may be in flight, without those that are only being written; at most `HIGHEST`.
        needs_idle: as given: without `reached`, this limit cannot be kept to.
    """

    __slots__ = (
        "_count",
        "_idle_s",
        "_least",
        "_next_s",
        "_probe",
        "_since_s",
        "_timeout_s",
        "_usual",
        "needs_idle",
        "value",
    )

    def __init__(self, least: int, usual: int, timeout_s: float, *, needs_idle: bool = False) -> None:
        self.value = self._least = least
        self._usual = usual
        self._timeout_s = timeout_s
        self.needs_idle = needs_idle
        self._probe = 0  # the root that is measured; 0: none
        self._since_s = 0.0
        self._count = 0
        self._next_s = -math.inf
        self._idle_s = math.inf  # since when no tuple waits

    @classmethod
    def of(cls, topology: TopologySpec, spout: str, options: Options, usual: int) -> PendingLimit | None:
        """The limit of a task of this spout; None where the number is fixed.

        It is fixed where the user sets it, where nothing times out, and where batches and windows need many messages,
        or messages wait behind a key.
        """
        if limit_set(topology.components[spout], options) is not None:
            return None
        if options.message_timeout_s is None or not options.acker_tasks:
            return None
        least, by_hand = 1, False
        for component in topology.components.values():
            bolt = component.body
            if not isinstance(bolt, BoltSpec):
                continue
            if bolt.is_holder or ordered_inputs(component):
                return None
            by_hand = by_hand or not (bolt.auto_ack and bolt.auto_fail)
            tasks = component.parallelism or 1
            if bolt.is_async:
                least = max(least, tasks * bolt.concurrency)
            elif bolt.blocking:
                least = max(least, tasks)
        return cls(min(least, usual), usual, options.message_timeout_s, needs_idle=by_hand)

    def launched(self, root: int, in_flight: int, now_s: float) -> None:
        """Note that messages were emitted, the last of them under this root; so many are in flight now."""
        if not self._probe and now_s >= self._next_s:
            self._probe, self._since_s, self._count = root, now_s, in_flight

    def ended(self, roots: Container[int], now_s: float) -> None:
        """Note that the attempts under these roots are over, and did not time out."""
        if not self._probe or self._probe not in roots:
            return
        self._probe = 0
        each_s = max(1e-9, (now_s - self._since_s) / max(1, self._count))
        most = max(self._usual, min(HIGHEST, int(QUICK_S / each_s)))
        wanted = 1 + int(WAITING_SHARE * self._timeout_s / each_s)
        value = max(self._least, min(most, wanted, 2 * self.value))
        if self._usual <= value <= self.value:
            self._next_s = now_s + REST_S
        self.value = value

    def expired(self) -> None:
        """Note that an attempt timed out: there were too many, so start again from the lowest limit."""
        self.value = self._least
        self._probe = 0
        self._next_s = -math.inf

    def reached(self, now_s: float, *, is_idle: bool) -> None:
        """Note that the limit is reached, and whether no tuple waits for a task or is being worked."""
        if not is_idle:
            self._idle_s = math.inf
        elif self._idle_s == math.inf:
            self._idle_s = now_s
        elif now_s - self._idle_s >= IDLE_S:
            self._idle_s = now_s
            self.value = max(self.value, min(self._usual, 2 * self.value))


SLOW_S = 0.001
"""Calls shorter than this are not the reason of a timeout."""


SAFE_SHARE = 0.25
"""Of the timeout, for messages to wait for each other."""


def timeout_text(
    count: int, timeout_s: float, in_flight: int, *, limit_set_by: str, slowest: tuple[str, float] | None
) -> str:
    """The text about timeouts for the log.

    Args:
        count: attempts that timed out so far.
        timeout_s: the message timeout.
        in_flight: messages of this spout task that were in flight when these timed out.
        limit_set_by: the setting by which the user limits messages in flight; empty if there is none.
        slowest: the bolt whose calls take longest, and seconds per call; None if none was measured.

    >>> text = timeout_text(3, 30.0, 128, limit_set_by="max_spout_pending", slowest=("geocode", 0.5))
    >>> text[:60]
    '3 attempts timed out after 30 s, with 128 messages in flight'
    >>> text[62:131]
    "calls of 'geocode' take 0.5 s, 64 s for all of them one after another"
    """
    what = (
        f"{counted(count, 'attempt')} timed out after {timeout_s:g} s, with {counted(in_flight, 'message')} in flight"
    )
    if slowest is None or slowest[1] < SLOW_S:
        return (
            f"{what}: no bolt is slow, as far as is measured, so look for a call that hangs, or a tuple that a bolt "
            "neither acks nor fails"
        )
    name, call_s = slowest
    fit = max(1, int(SAFE_SHARE * timeout_s / call_s))
    lower = f"Lower {limit_set_by} to {fit} or unset it, so that it adapts; or let" if limit_set_by else "Let"
    return (
        f"{what}: calls of {name!r} take {call_s:.2g} s, {in_flight * call_s:.3g} s for all of them one after another. "
        f"{lower} calls run side by side (parallelism=N with blocking=True, or async def with concurrency=N); or raise "
        "message_timeout_s"
    )
