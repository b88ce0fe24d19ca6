"""Decorators for bolts that hold tuples for a time: windows and joins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from tupletree.topology.decorators import FunctionBolt, classes_of, decorate
from tupletree.topology.signatures import BoltSettings
from tupletree.topology.windows import JoinSpec, Late, Partition, Timestamp, WindowSpec

P = ParamSpec("P")
R = TypeVar("R")


def window_bolt(
    *,
    length_s: float | None = None,
    slide_s: float | None = None,
    count: int | None = None,
    slide_count: int | None = None,
    gap_s: float | None = None,
    max_length_s: float | None = None,
    per_key: bool = False,
    timestamp: Timestamp | None = None,
    lag_s: float = 0.0,
    idle_s: float | None = None,
    partition: Partition | None = None,
    late: Late = "drop",
    max_ahead_s: float | None = None,
    retry_hold_s: float = 600.0,
    extend_timeout: bool = False,
    outputs: type | tuple[type, ...] = (),
    blocking: bool = False,
) -> Callable[[Callable[P, R]], FunctionBolt[P, R]]:
    """Make a function a bolt on windows: `def worst(logins: Window[Login]) -> Alarm`, or with a `list[Login]`.

    It is called once for each window that holds a tuple, when the window is over. What it gives is anchored to all
    tuples of the window; a tuple is acked after the last window that holds it. If it raises, all messages of the window
    fail, and with their next attempt it is called again for the same tuples.

    Windows by time begin at multiples of `slide_s` since the Unix epoch. Without `timestamp` they go by the time at
    which a tuple arrives; with it, by *event time*: a window is over once the watermark, that is the latest timestamp
    of every input stream less `lag_s`, has reached its end. A count window is over after each `slide_count` tuples and
    holds the last `count`, at first fewer. A session holds a run of tuples, each less than `gap_s` after the one before
    it, and is over once time has come to `gap_s` after its last. When the input has ended, or the topology drains, all
    are over.

    Args:
        length_s: length of a window.
        slide_s: from the start of one window to that of the next; None is `length_s`, so that windows tumble.
        count: tuples in a window.
        slide_count: tuples from one window to the next; None is `count`.
        gap_s: of a session: tuples whose times are less than that apart are in the same one. A tuple between two
            sessions that are not over makes one of them.
        max_length_s: a session that lasts longer is cut: what is so much later than its first tuple, or more, is in
            the next one. None: it lasts, and holds its messages, as long as tuples come.
        per_key: a window for each key, that is for each value of the fields that the inputs are grouped by.
        timestamp: a field with the time at which a tuple happened, or a function of the tuple. A datetime with a zone,
            or a number of seconds since the Unix epoch; a tuple with anything else fails, datetimes without zone too.
        lag_s: how far behind a later one a tuple may come.
        idle_s: after so many seconds without a tuple on an input, the watermark goes on with the clock. None: it waits.
        partition: which part of its source a tuple is from, where several are read side by side: a field, or a function
            of the tuple. The watermark is that of the part which is farthest behind, without those that were silent for
            `idle_s`, which must be set; and for `idle_s` after the first tuple it stays, until all are heard of.
        late: what happens to a tuple whose windows are all over: by default it is dropped, that is acked, and counted
            and logged as late.
        max_ahead_s: how far ahead of the clock a timestamp may be. A tuple beyond that does not move the watermark, and
            fails for good; with `late="emit"` it goes where late ones go. None: as far as it likes.
        retry_hold_s: how long a message that is under way to the window, or is tried again, holds the watermark back,
            at most. Time in which no process runs does not count. Windows that were over before it came are called
            again, with what comes again.
        extend_timeout: restart the message timeout of what is held, again and again, for as long as it is held.
        outputs: as for `bolt`.
        blocking: as for `bolt`.

    >>> import msgspec
    >>> from tupletree import Window
    >>> class Word(msgspec.Struct):
    ...     word: str
    >>> class Seen(msgspec.Struct):
    ...     words: int
    >>> @window_bolt(length_s=60.0)
    ... def seen(words: Window[Word]) -> Seen:
    ...     return Seen(len(words))
    >>> seen(Window([Word("a"), Word("b")]))
    Seen(words=2)
    """
    window = WindowSpec(
        length_s=length_s,
        slide_s=slide_s,
        count=count,
        slide_count=slide_count,
        gap_s=gap_s,
        max_length_s=max_length_s,
        timestamp=timestamp,
        lag_s=lag_s,
        idle_s=idle_s,
        partition=partition,
        retry_hold_s=retry_hold_s,
        late=late,
        max_ahead_s=max_ahead_s,
        per_key=per_key,
        extend_timeout=extend_timeout,
    )
    return _decorator("window", window, outputs, blocking=blocking)


def join_bolt(
    *,
    within_s: float,
    timestamp: Timestamp | None = None,
    lag_s: float = 0.0,
    idle_s: float | None = None,
    partition: Partition | None = None,
    late: Late = "drop",
    max_ahead_s: float | None = None,
    retry_hold_s: float = 600.0,
    extend_timeout: bool = False,
    outputs: type | tuple[type, ...] = (),
    blocking: bool = False,
) -> Callable[[Callable[P, R]], FunctionBolt[P, R]]:
    """Make a function a bolt that joins two streams: `def match(order: Order, payment: Payment) -> Paid`.

    It is called for each pair of equal keys whose times are at most `within_s` apart. The key is what the inputs are
    grouped by: `.fields(orders, "order_id").fields(payments, "order")`. What it gives is anchored to both tuples. A
    tuple is acked once nothing can match it any more.

    The hints say which join it is. With `payment: Payment | None` it is also called, with None, for an order that
    nothing matched (left outer); so for the other side (right outer), or for both.

    Args:
        within_s: how far apart the times of two tuples may be, either way.
        timestamp: as for `window_bolt`.
        lag_s: as for `window_bolt`.
        idle_s: as for `window_bolt`.
        partition: as for `window_bolt`.
        late: what happens to a tuple that is older than the watermark, because what it should match may have been
            released; as for `window_bolt`.
        max_ahead_s: as for `window_bolt`.
        retry_hold_s: as for `window_bolt`.
        extend_timeout: as for `window_bolt`.
        outputs: as for `bolt`.
        blocking: as for `bolt`.
    """
    join = JoinSpec(
        within_s=within_s,
        timestamp=timestamp,
        lag_s=lag_s,
        idle_s=idle_s,
        partition=partition,
        retry_hold_s=retry_hold_s,
        late=late,
        max_ahead_s=max_ahead_s,
        extend_timeout=extend_timeout,
    )
    return _decorator("join", join, outputs, blocking=blocking)


def _decorator(
    style: Literal["window", "join"],
    holding: WindowSpec | JoinSpec,
    outputs: type | tuple[type, ...],
    *,
    blocking: bool,
) -> Callable[[Callable[P, R]], FunctionBolt[P, R]]:
    settings = BoltSettings(style=style, holding=holding, outputs=classes_of(outputs), blocking=blocking)
    return functools.partial(decorate, settings=settings)
