"""What a run says when messages time out: why that may be, and what to change."""

from __future__ import annotations

__all__ = ["timeout_text"]

SLOW_S = 0.001
"""Calls below this are no reason for a timeout."""

SAFE_SHARE = 0.25
"""Of the timeout, for messages to wait for each other."""


def timeout_text(
    count: int, timeout_s: float, in_flight: int, *, is_limit_set: bool, slowest: tuple[str, float] | None
) -> str:
    """Words for the log.

    Args:
        count: attempts that timed out so far.
        timeout_s: the message timeout.
        in_flight: messages of this spout task that were in flight when these timed out.
        is_limit_set: whether the user set `max_spout_pending`.
        slowest: the bolt whose calls take longest, and seconds per call; None if none was measured.

    >>> text = timeout_text(3, 30.0, 128, is_limit_set=True, slowest=("geocode", 0.5))
    >>> text[:60]
    '3 attempts timed out after 30 s, with 128 messages in flight'
    >>> text[62:131]
    "calls of 'geocode' take 0.5 s, 64 s for all of them one after another"
    """
    what = f"{count} attempts timed out after {timeout_s:g} s, with {in_flight} messages in flight"
    if slowest is None or slowest[1] < SLOW_S:
        return (
            f"{what}: no bolt is slow, as far as is measured, so look for a call that hangs, or a tuple that a bolt "
            "neither acks nor fails"
        )
    name, call_s = slowest
    fit = max(1, int(SAFE_SHARE * timeout_s / call_s))
    lower = f"Lower max_spout_pending to {fit} or unset it, so that it adapts; or let" if is_limit_set else "Let"
    return (
        f"{what}: calls of {name!r} take {call_s:.2g} s, {in_flight * call_s:.3g} s for all of them one after another. "
        f"{lower} calls run side by side (parallelism=N with blocking=True, or async def with concurrency=N); or raise "
        "message_timeout_s"
    )
