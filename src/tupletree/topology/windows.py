"""Windows and joins as users declare them: what a window bolt gets, and the settings of both kinds.

Plain records. Which tuples are in which window is decided in `tupletree.bolts`; whether settings make sense, in
`window_check`.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)

Timestamp: TypeAlias = "str | Callable[[Any], dt.datetime | float]"
"""When a tuple happened: the name of a field, or a function of the tuple. A datetime with a zone, or seconds since the
Unix epoch."""

Partition: TypeAlias = "str | Callable[[Any], object]"
"""Which partition of its source a tuple is from, say a file: the name of a field, or a function of the tuple."""

Late: TypeAlias = Literal["fail", "drop", "emit"]
"""What happens to a tuple whose windows are all over: it fails for good, it is acked, counted and logged, or it is
emitted as it is, on the stream of its own class."""

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Window(Generic[T_co]):
    """What a window bolt is called with. Iterating it gives its tuples.

    Attributes:
        tuples: all of them; by time, and by arrival where times are equal (count windows: by arrival).
        new: those that no window before this one held.
        expiring: those that no later window will hold; they are acked when the call has returned.
        start_s: where it begins, seconds since the Unix epoch. Of a session: the time of its first tuple; of a count
            window: when its first tuple arrived.
        end_s: where it ends; a tuple of this very time is not in it. Of a session: `gap_s` after its last tuple, or
            `max_length_s` after its first, if that is earlier; of a count window: when its last tuple arrived.
        key: what the bolt's inputs are grouped by, with `per_key=True` (a tuple for several fields); else None.

    >>> window = Window(["a", "b"], end_s=60.0)
    >>> len(window), [*window], window.end
    (2, ['a', 'b'], datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.timezone.utc))
    """

    __slots__ = ("end_s", "expiring", "key", "new", "start_s", "tuples")

    def __init__(
        self,
        tuples: Sequence[T_co],
        *,
        new: Sequence[T_co] | None = None,
        expiring: Sequence[T_co] | None = None,
        start_s: float = 0.0,
        end_s: float = 0.0,
        key: Any = None,
    ) -> None:
        self.tuples = tuples
        self.new = tuples if new is None else new
        self.expiring = tuples if expiring is None else expiring
        self.start_s = start_s
        self.end_s = end_s
        self.key = key

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.tuples)

    def __len__(self) -> int:
        return len(self.tuples)

    def __repr__(self) -> str:
        key = "" if self.key is None else f" of {self.key!r}"
        return f"<window{key} from {_shown(self.start_s)} to {_shown(self.end_s)}: {len(self.tuples)} tuples>"

    @property
    def start(self) -> dt.datetime:
        """`start_s` as a datetime in UTC. Raises OverflowError before year 1."""
        return EPOCH + dt.timedelta(seconds=self.start_s)

    @property
    def end(self) -> dt.datetime:
        """`end_s` as a datetime in UTC. Raises OverflowError after year 9999."""
        return EPOCH + dt.timedelta(seconds=self.end_s)


def _shown(time_s: float) -> str:
    try:
        return (EPOCH + dt.timedelta(seconds=time_s)).isoformat()
    except OverflowError:
        return f"{time_s:g} s"


@dataclass(frozen=True)
class WindowSpec:
    """The settings of a window bolt; see `window_bolt`. One of `length_s`, `count` and `gap_s` is set.

    Attributes:
        as_list: the function takes a list of tuples instead of a `Window`.
    """

    length_s: float | None = None
    slide_s: float | None = None
    count: int | None = None
    slide_count: int | None = None
    gap_s: float | None = None
    max_length_s: float | None = None
    timestamp: Timestamp | None = None
    lag_s: float = 0.0
    idle_s: float | None = None
    partition: Partition | None = None
    retry_hold_s: float = 600.0
    late: Late = "drop"
    max_ahead_s: float | None = None
    per_key: bool = False
    extend_timeout: bool = False
    as_list: bool = False

    @property
    def longest_hold_s(self) -> float:
        """How long a tuple is held, if time goes on; 0 where only other tuples release it, infinite without a limit."""
        if self.gap_s is not None:
            return math.inf if self.max_length_s is None else self.max_length_s + self.lag_s
        return self.length_s + self.lag_s if self.length_s is not None else 0.0


@dataclass(frozen=True)
class JoinSpec:
    """The settings of a join bolt; see `join_bolt`.

    Attributes:
        parameters: names of the parameters that take the left and the right tuple.
        sides: the classes that each of them takes.
        optional: which of them may be None, because nothing matched.
    """

    within_s: float
    timestamp: Timestamp | None = None
    lag_s: float = 0.0
    idle_s: float | None = None
    partition: Partition | None = None
    retry_hold_s: float = 600.0
    late: Late = "drop"
    max_ahead_s: float | None = None
    extend_timeout: bool = False
    parameters: tuple[str, str] = ("", "")
    sides: tuple[tuple[type, ...], tuple[type, ...]] = ((), ())
    optional: tuple[bool, bool] = (False, False)

    @property
    def per_key(self) -> bool:
        """Joins are by key."""
        return True

    @property
    def longest_hold_s(self) -> float:
        """How long a tuple is held, if time goes on."""
        return self.within_s + self.lag_s

    def side_of(self, cls: type) -> int | None:
        """0 for left, 1 for right, None for neither."""
        for side, accepted in enumerate(self.sides):
            if issubclass(cls, accepted):
                return side
        return None


def holding_text(holding: WindowSpec | JoinSpec) -> str:
    """What decides which tuples come together. How long to wait for them, and what becomes of late ones, may change.

    A function that gives the time is known by its name only.
    """
    timestamp = holding.timestamp
    named = timestamp if timestamp is None or isinstance(timestamp, str) else timestamp.__qualname__
    by = "" if named is None else f", timestamp={named}"
    if isinstance(holding, JoinSpec):
        return f"join(within_s={holding.within_s:g}{by})"
    if holding.gap_s is not None:
        longest = "" if holding.max_length_s is None else f", max_length_s={holding.max_length_s:g}"
        size = f"gap_s={holding.gap_s:g}{longest}"
    elif holding.length_s is not None:
        slide_s = holding.length_s if holding.slide_s is None else holding.slide_s
        size = f"length_s={holding.length_s:g}, slide_s={slide_s:g}"
    else:
        size = f"count={holding.count}, slide_count={holding.slide_count or holding.count}"
    return f"window({size}{by}, per_key={holding.per_key})"
