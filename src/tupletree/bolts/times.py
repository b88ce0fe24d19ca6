"""Times as whole microseconds since the Unix epoch, in which windows are exact.

Owns how a timestamp becomes such a number, and which are refused: a datetime without zone names no moment.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from tupletree.errors import ProcessingError
from tupletree.failing import safe_text
from tupletree.topology.windows import Timestamp

__all__ = ["BEFORE_ALL", "micros", "seconds", "shown", "timestamp_function"]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
PER_SECOND = 1_000_000

BEFORE_ALL = -(1 << 62)
"""Earlier than any time: 146,000 years before the Unix epoch."""

FARTHEST_S = 1 << 41
"""No timestamp is farther from the Unix epoch: 69,000 years."""


def micros(time_s: float) -> int:
    """Microseconds of a number of seconds."""
    return round(time_s * PER_SECOND)


def seconds(time_us: int) -> float:
    """Seconds of a number of microseconds."""
    return time_us / PER_SECOND


def shown(time_us: int) -> str:
    """A time for people."""
    try:
        return (EPOCH + time_us * MICROSECOND).isoformat()
    except OverflowError:
        return f"{seconds(time_us):.6f} s after 1970"


def timestamp_function(timestamp: Timestamp) -> Callable[[Any], int]:
    """A function tuple → microseconds since the Unix epoch; it raises ProcessingError for what is no moment in time.

    A datetime counts by its zone, so the two hours that a clock shows twice in autumn are two hours.
    """
    get = attrgetter(timestamp) if isinstance(timestamp, str) else timestamp

    def time_of(value: Any) -> int:
        time = get(value)
        if isinstance(time, dt.datetime):
            if time.tzinfo is not None and time.utcoffset() is not None:
                return (time - EPOCH) // MICROSECOND
            raise _no_time(time, "a datetime without a zone", "give it one: `.replace(tzinfo=datetime.UTC)`, say")
        is_number = isinstance(time, float | int | decimal.Decimal) and not isinstance(time, bool)
        if is_number and math.isfinite(time) and -FARTHEST_S < time < FARTHEST_S:
            return round(time * PER_SECOND)
        raise _no_time(time, safe_text(time, 100), "take such tuples out before, or give the timestamp as a function")

    return time_of


def _no_time(time: object, got: str, next_step: str) -> ProcessingError:
    return ProcessingError(
        "the tuple's timestamp names no moment in time",
        got=f"{got} ({safe_text(time, 100)})" if isinstance(time, dt.datetime) else got,
        expected="a datetime with a zone, or seconds since the Unix epoch",
        next_step=next_step,
    )
