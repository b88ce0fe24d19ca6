"""What can be known to be wrong with windows and joins before they run.

Owns the judgement of their settings: alone, and among the streams they read; against the options of a run see
`limits`. Pure: descriptions in, findings out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tupletree.errors import Finding
from tupletree.topology import hints
from tupletree.topology.model import BoltSpec, ComponentSpec
from tupletree.topology.windows import JoinSpec, WindowSpec

Fault = tuple[str, str, str]
"""(what, got, next step)."""

SHORTEST_S = 1e-6


def holding_faults(holding: WindowSpec | JoinSpec, inputs: Sequence[type], outputs: Sequence[Any]) -> Iterator[Fault]:
    """Faults of the settings by themselves.

    Args:
        holding: the settings.
        inputs: the classes that the bolt takes.
        outputs: the classes that its function emits.
    """
    if isinstance(holding, WindowSpec):
        yield from _window_faults(holding)
    else:
        yield from _span("within_s", holding.within_s)
        left, right = holding.sides
        if any(issubclass(one, other) or issubclass(other, one) for one in left for other in right):
            yield (
                "both sides of the join take the same class",
                " and ".join(hints.text_of(one[0]) for one in holding.sides),
                "give one of the streams a class of its own",
            )
    for name, seconds in (("lag_s", holding.lag_s), ("retry_hold_s", holding.retry_hold_s)):
        if not 0 <= seconds < math.inf:
            yield f"{name} is not right", repr(seconds), "give seconds, 0 or more"
    for name, limit in (("idle_s", holding.idle_s), ("max_ahead_s", holding.max_ahead_s)):
        if limit is not None:
            yield from _span(name, limit)
    sets_event_time = (
        holding.lag_s or holding.idle_s is not None or holding.late != "drop" or holding.max_ahead_s is not None
    )
    if holding.timestamp is None and sets_event_time:
        yield (
            "lag_s, idle_s, late and max_ahead_s are for event time, and nothing says when a tuple happened",
            "no timestamp",
            'name the field: timestamp="at"',
        )
    if holding.partition is not None and (holding.timestamp is None or holding.idle_s is None):
        yield (
            "partition is for event time, and one that has ended would hold the watermark for ever",
            f"timestamp={holding.timestamp!r}, idle_s={holding.idle_s}",
            "set timestamp, and how long a partition may be silent: idle_s=60",
        )
    if holding.late not in ("fail", "drop", "emit"):
        yield "late is not right", repr(holding.late), "say 'fail', 'drop' or 'emit'"
    both = [cls for cls in inputs if cls in outputs]
    if holding.late == "emit" and both:
        yield (
            "late tuples would come out among the results",
            f"{hints.text_of(both[0])} both taken and emitted",
            "give the results a class of their own",
        )


def _window_faults(window: WindowSpec) -> Iterator[Fault]:
    sizes = {"length_s": window.length_s, "count": window.count, "gap_s": window.gap_s}
    if sum(size is not None for size in sizes.values()) != 1:
        yield (
            "a window has a length_s, a count or a gap_s",
            ", ".join(f"{name}={size}" for name, size in sizes.items()),
            "say one of them: length_s for windows by time, count for windows by count, gap_s for sessions",
        )
        return
    if window.gap_s is not None:
        yield from _session_faults(window, window.gap_s)
        return
    if window.max_length_s is not None:
        yield "max_length_s is for sessions", repr(window.max_length_s), "say gap_s, or leave it out"
    if window.length_s is not None:
        yield from _span("length_s", window.length_s)
        if window.slide_count is not None:
            yield "slide_count is for count windows", repr(window.slide_count), "say slide_s"
        if window.slide_s is not None:
            yield from _span("slide_s", window.slide_s)
            if window.slide_s > window.length_s:
                yield (
                    "slide_s is longer than the window, so tuples between windows would be in none",
                    f"length_s={window.length_s}, slide_s={window.slide_s}",
                    "say at most length_s",
                )
    else:
        assert window.count is not None
        yield from _number("count", window.count)
        if window.slide_s is not None:
            yield "slide_s is for windows by time", repr(window.slide_s), "say slide_count"
        if window.timestamp is not None:
            yield "a count window goes by arrival", f"timestamp={window.timestamp!r}", "leave the timestamp out"
        if window.slide_count is not None:
            yield from _number("slide_count", window.slide_count)
            if window.slide_count > window.count:
                yield (
                    "slide_count is more than the window holds, so tuples between windows would be in none",
                    f"count={window.count}, slide_count={window.slide_count}",
                    "say at most count",
                )


def _session_faults(window: WindowSpec, gap_s: float) -> Iterator[Fault]:
    yield from _span("gap_s", gap_s)
    for name, slide in (("slide_s", window.slide_s), ("slide_count", window.slide_count)):
        if slide is not None:
            yield f"sessions do not slide, so they have no {name}", repr(slide), "leave it out"
    if window.max_length_s is not None:
        yield from _span("max_length_s", window.max_length_s)
        if window.max_length_s < gap_s:
            yield (
                "max_length_s is shorter than the gap, so every session would be cut before it can be over",
                f"gap_s={gap_s}, max_length_s={window.max_length_s}",
                "say at least gap_s",
            )


def _span(name: str, seconds: float) -> Iterator[Fault]:
    if not SHORTEST_S <= seconds < math.inf:
        yield f"{name} is not right", repr(seconds), "give seconds, a microsecond or more"


def _number(name: str, number: int) -> Iterator[Fault]:
    if number < 1:
        yield f"{name} is too small", repr(number), "say at least 1"


def input_faults(component: ComponentSpec, by_name: Mapping[str, ComponentSpec], where: str) -> Iterator[Finding]:
    """Faults between a window or join bolt and the streams that it reads."""
    bolt = component.body
    if not isinstance(bolt, BoltSpec) or bolt.holding is None:
        return
    holding, seen = bolt.holding, set[int]()
    for subscription in component.inputs:
        producer = by_name.get(subscription.component)
        stream = producer.outputs.get(subscription.stream) if producer is not None else None
        if stream is None or not stream.schema.is_read:
            continue
        source = f"{subscription.component}.{subscription.stream}"
        name = holding.timestamp
        if isinstance(name, str) and (fault := stream.schema.time_fault(name)) is not None:
            yield replace(fault, what=f"the timestamp of {source}: {fault.what}", where=where)
        part = holding.partition
        if isinstance(part, str) and part not in stream.schema.fields:
            what = f"the partition of {source}: {stream.schema.cls.__qualname__} has no field {part!r}"
            yield Finding.unknown(what, where, part, stream.schema.fields)
        if isinstance(holding, JoinSpec) and (side := holding.side_of(stream.schema.cls)) is not None:
            seen.add(side)
    if isinstance(holding, JoinSpec) and seen and len(seen) < 2:
        missing = holding.sides[1 - seen.pop()]
        yield Finding(
            "a join needs both sides",
            where,
            got="nothing for the other one",
            expected=" | ".join(hints.text_of(cls) for cls in missing),
            next_step="subscribe to it, by the fields that are its key",
        )
