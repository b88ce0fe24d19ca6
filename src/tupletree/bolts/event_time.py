"""Times as whole microseconds since the Unix epoch, in which windows are exact.

Owns how a timestamp becomes such a number, and which are refused: a datetime without zone names no moment.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from tupletree.bolts.failures import safe_text
from tupletree.errors import ProcessingError
from tupletree.topology.windows import Partition, Timestamp

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
PER_SECOND = 1_000_000

BEFORE_ALL = -(1 << 62)
"""Earlier than any time: 146,000 years before the Unix epoch."""

AFTER_ALL = 1 << 62
"""Later than any time."""

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


def partition_function(partition: Partition) -> Callable[[Any], str]:
    """A function tuple → name of the partition of its source that it is from; it raises what the user's raises."""
    get = attrgetter(partition) if isinstance(partition, str) else partition
    return lambda value: str(get(value))


class _Partitions:
    """How far each partition of one input has come. One that is silent for longer than `idle_us` is forgotten."""

    def __init__(self, idle_us: int, since_us: int) -> None:
        self._idle_us = idle_us
        self._since_us = since_us  # when the first was heard of: others have as long to be heard of
        self._seen: dict[str, tuple[int, int]] = {}  # latest, when it was heard of by the run's clock

    def saw(self, name: str, time_us: int, ran_us: int) -> None:
        latest, heard_us = self._seen.get(name, (BEFORE_ALL, ran_us))
        self._seen[name] = max(latest, time_us) if ran_us - heard_us <= self._idle_us else time_us, ran_us

    def least(self, ran_us: int) -> int:
        """How far the one has come that is farthest behind; the input was heard of just now, so there is one."""
        if ran_us - self._since_us <= self._idle_us:
            return BEFORE_ALL
        for name in [name for name, (_, heard_us) in self._seen.items() if ran_us - heard_us > self._idle_us]:
            del self._seen[name]
        return min(latest for latest, _ in self._seen.values())

    def holds_until(self, time_us: int, ran_us: int) -> int | None:
        """When, by the run's clock, the next that is behind this time is silent for too long; None: none is behind."""
        if ran_us - self._since_us <= self._idle_us:
            return self._since_us + self._idle_us + 1
        ends = [heard_us + self._idle_us + 1 for latest, heard_us in self._seen.values() if latest < time_us]
        return min((end_us for end_us in ends if end_us > ran_us), default=None)

    def memory(self) -> list[Any]:
        return [self._since_us, [[name, latest, heard] for name, (latest, heard) in self._seen.items()]]

    def restore(self, memory: Sequence[Any]) -> None:
        self._since_us, seen = memory
        self._seen = {name: (latest, heard_us) for name, latest, heard_us in seen}


HISTORY_STEP_US = 5_000
HISTORY_SHARE = 8
HISTORY_LENGTH = 192
"""How finely the past is remembered: in steps of so many microseconds, or of this part of its age where that is more.
It is thinned out when it has so many entries."""

TimeHold = tuple[int, int]
"""(since when, microseconds; by which clock) something holds the watermark back."""

BY_WALL, BY_RUN = 0, 2
"""Seconds since the Unix epoch, and the run's clock: positions in an entry of the history."""


class Watermark:
    """One task's watermark.

    Args:
        inputs: (component, stream) of each input.
        lag_us: how far behind a later one a tuple may come.
        idle_us: how long an input must be silent to go on with the clock; None: it never does.
        hold_us: how long a message in retry holds the watermark back.
        partition_of: which partition a tuple is from, if they are of any; needs `idle_us`.

    Attributes:
        current: the watermark.
        partition_of: as given.
    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, str]],
        *,
        lag_us: int,
        idle_us: int | None,
        hold_us: int,
        partition_of: Callable[[Any], str] | None = None,
    ) -> None:
        self.current = BEFORE_ALL
        self._lag_us = lag_us
        self._idle_us = idle_us
        self._hold_us = hold_us
        self._latest = dict.fromkeys(inputs, BEFORE_ALL)
        self._heard_us: dict[tuple[str, str], int] = {}  # by the run's clock
        self.partition_of = partition_of
        self._partitions: dict[tuple[str, str], _Partitions] = {}
        self._limit_us: int | None = None
        # (time, watermark that it would have been, the run's clock then), rising in all three
        self._history: list[tuple[int, int, int]] = []

    def saw(self, source: tuple[str, str], time_us: int, ran_us: int, partition: str | None = None) -> None:
        """A tuple with this timestamp came on this input."""
        self._latest[source] = max(self._latest[source], time_us)
        self._heard_us[source] = ran_us
        if partition is not None and self._idle_us is not None:
            if source not in self._partitions:
                self._partitions[source] = _Partitions(self._idle_us, ran_us)
            self._partitions[source].saw(partition, time_us, ran_us)

    def advance(self, now_us: int, ran_us: int, holds: Sequence[TimeHold] = ()) -> int:
        """Bring it up to date.

        Args:
            now_us: the time.
            ran_us: the run's clock.
            holds: since when messages are under way that may bring earlier tuples.
        """
        free = self._free(ran_us)
        self._remember(now_us, ran_us, free)
        if self._limit_us is not None:
            free = min(free, self._limit_us)
        self.current = max(self.current, min(free, self._held_at(ran_us, holds)))
        return self.current

    def _held_at(self, ran_us: int, holds: Sequence[TimeHold]) -> int:
        """Where it is held; after all times if nothing holds it."""
        if not holds:
            return AFTER_ALL
        held = min(self._as_of(since_us, clock) for since_us, clock in holds)
        return max(held, self._as_of(ran_us - self._hold_us, BY_RUN))

    def reaches(self, time_us: int, now_us: int, ran_us: int, holds: Sequence[TimeHold] = ()) -> int | None:
        """When to look whether the clock alone has brought it to a time; None: only tuples will."""
        if all(latest == BEFORE_ALL for latest in self._latest.values()):
            return None
        waits = [self._input_reaches(source, time_us + self._lag_us, ran_us) for source in self._latest]
        if any(wait is None for wait in waits):
            return None
        wait = max(wait for wait in waits if wait is not None)
        if wait > 0 or self._held_at(ran_us, holds) >= time_us:
            return now_us + wait
        at = bisect_left(self._history, time_us, key=lambda entry: entry[1])
        reached_us = self._history[at][2] if at < len(self._history) else ran_us
        return now_us + reached_us + self._hold_us + 1 - ran_us

    def wait(self, ran_us: int) -> None:
        """Do not move on account of what is still to come, until there is another one after this.

        So where work is done in epochs: whether a message of this epoch is to be tried again is known in the next one.
        """
        self._limit_us = self._free(ran_us)

    def memory(self) -> list[Any]:
        """What must outlive it, as plain data; see `restore`."""
        return [
            self.current,
            [[*source, latest, self._heard_us.get(source)] for source, latest in self._latest.items()],
            [list(entry) for entry in self._history],
            [[*source, partitions.memory()] for source, partitions in self._partitions.items()],
        ]

    def restore(self, memory: Sequence[Any], renamed: Mapping[str, str]) -> None:
        """Go on where another one was. Inputs that are no longer there are forgotten.

        Args:
            memory: as it was given.
            renamed: earlier names of components → their names now.
        """
        self.current, inputs, history, *later = memory
        self._history = [(time_us, watermark, ran_us) for time_us, watermark, ran_us in history]
        for component, stream, latest, heard in inputs:
            source = renamed.get(component, component), stream
            if source in self._latest:
                self._latest[source] = latest
                if heard is not None:
                    self._heard_us[source] = heard
        for component, stream, partitions in later[0] if later else ():
            source = renamed.get(component, component), stream
            if self.partition_of is not None and source in self._latest and self._idle_us is not None:
                self._partitions[source] = _Partitions(self._idle_us, 0)
                self._partitions[source].restore(partitions)

    def _free(self, ran_us: int) -> int:
        """What it would be if no message were tried again."""
        reached = [self._input_at(source, ran_us) for source in self._latest]
        known = [time_us for time_us in reached if time_us is not None]
        lowest = min(known, default=BEFORE_ALL)
        return lowest - self._lag_us if lowest > BEFORE_ALL else BEFORE_ALL

    def _input_at(self, source: tuple[str, str], ran_us: int) -> int | None:
        """How far an input has come; None if it says nothing, for it never had a tuple and is taken to be idle."""
        latest = self._latest[source]
        silent_us = ran_us - self._heard_us.setdefault(source, ran_us)
        if self._idle_us is None or silent_us <= self._idle_us:
            return self._partitions[source].least(ran_us) if source in self._partitions else latest
        return None if latest == BEFORE_ALL else latest + silent_us - self._idle_us

    def _input_reaches(self, source: tuple[str, str], time_us: int, ran_us: int) -> int | None:
        """In how long an input has come to a time by itself; negative if it could have before."""
        latest = self._latest[source]
        if source in self._partitions:
            until_us = self._partitions[source].holds_until(time_us, ran_us)
            if until_us is not None:
                return until_us - ran_us
        if latest >= time_us:
            return 0
        if self._idle_us is None:
            return None
        idle_at_us = self._heard_us.get(source, ran_us) + self._idle_us
        # An input without a tuple is out of the way once it is idle, which is just after that time.
        return idle_at_us + (1 if latest == BEFORE_ALL else time_us - latest) - ran_us

    def _remember(self, now_us: int, ran_us: int, free: int) -> None:
        history = self._history
        if history and (free <= history[-1][1] or now_us < history[-1][0] or ran_us < history[-1][2]):
            return
        if history and ran_us - history[-1][2] < min(HISTORY_STEP_US, self._hold_us // HISTORY_LENGTH):
            return
        history.append((now_us, free, ran_us))
        old = bisect_right(history, ran_us - self._hold_us, key=lambda entry: entry[2]) - 1
        if old > 0:
            del history[:old]
        if len(history) > HISTORY_LENGTH:
            self._thin_out(ran_us)

    def _thin_out(self, ran_us: int) -> None:
        kept = self._history[:1]
        for entry in self._history[1:]:
            if entry[2] - kept[-1][2] >= max(HISTORY_STEP_US, (ran_us - entry[2]) // HISTORY_SHARE):
                kept.append(entry)
        self._history = kept

    def _as_of(self, clock_us: int, clock: int) -> int:
        """What it was just before: tuples of a message may have moved it at the very time at which it went out.

        Args:
            clock_us: when.
            clock: by which of an entry's clocks: its position.
        """
        at = bisect_left(self._history, clock_us, key=lambda entry: entry[clock]) - 1
        return self._history[at][1] if at >= 0 else BEFORE_ALL
