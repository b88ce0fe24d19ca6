"""What can be known to be wrong with windows and joins before they run.

Owns the judgement of their settings: alone, among the streams they read, and against the options of a run. Pure:
descriptions in, findings out.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tupletree.config import Options
from tupletree.errors import Finding, TopologyError
from tupletree.topology import hints
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.topology.windows import JoinSpec, WindowSpec

__all__ = ["holding_faults", "input_faults", "max_pending", "refuse_stuck"]

Fault = tuple[str, str, str]
"""(what, got, next step)."""

TIMES = (dt.datetime, float, int, decimal.Decimal)
SHORTEST_S = 1e-6

MANY_PENDING = 100_000
"""Messages that a spout task may have open, unless set otherwise, where windows and joins hold them."""


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
    if (window.length_s is None) is (window.count is None):
        yield (
            "a window has a length_s or a count",
            f"length_s={window.length_s}, count={window.count}",
            "say one of them",
        )
    elif window.length_s is not None:
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
        if isinstance(name, str):
            declared = stream.schema.fields.get(name)
            if declared is None:
                yield Finding(
                    f"the timestamp of {source}: {stream.schema.cls.__qualname__} has no field {name!r}",
                    where,
                    expected=hints.one_of(stream.schema.fields),
                    next_step=hints.did_you_mean(name, stream.schema.fields),
                )
            elif not _is_time(declared):
                yield Finding(
                    f"the timestamp of {source}: field {name!r} is no time",
                    where,
                    got=hints.text_of(declared),
                    expected="a datetime with a zone, or seconds since the Unix epoch",
                    next_step="give a function: timestamp=lambda one: ...",
                )
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


def _is_time(declared: Any) -> bool:
    kinds = [kind for kind in hints.members(declared) if kind is not hints.NONE_TYPE]
    return all(isinstance(kind, type) and issubclass(kind, TIMES) and kind is not bool for kind in kinds)


def max_pending(topology: TopologySpec, options: Options, usual: int) -> int:
    """How many messages a spout task may have open.

    What windows and joins hold is open. With a limit below what is in a window by event time, the tuple that ends it
    would never come; so where nothing is set it is a high one.

    Args:
        topology: a built topology.
        options: of this run.
        usual: the runtime's choice where nothing is held.
    """
    if options.max_spout_pending is not None:
        return options.max_spout_pending
    bolts = (component.body for component in topology.components.values())
    holds = any(isinstance(bolt, BoltSpec) and bolt.holding is not None for bolt in bolts)
    return max(usual, MANY_PENDING) if holds else usual


def refuse_stuck(topology: TopologySpec, options: Options, pending: int | None) -> None:
    """Refuse windows and joins that would hold messages for longer than they may be open, or wait for more than may be.

    Args:
        topology: a built topology.
        options: of this run.
        pending: messages that one spout task may have open; None if nothing limits them, or it is not known yet.

    Raises:
        TopologyError: with every finding.
    """
    findings: list[Finding] = []
    for component in topology.components.values():
        holding = component.body.holding if isinstance(component.body, BoltSpec) else None
        if holding is None:
            continue
        where = f"bolt {component.name!r}" + (f" ({component.where})" if component.where else "")
        timeout_s, longest_s = options.message_timeout_s, holding.longest_hold_s
        if timeout_s is not None and longest_s >= timeout_s and not holding.extend_timeout:
            findings.append(
                Finding(
                    "messages would time out while they wait here",
                    where,
                    got=f"held for {longest_s:g} s, message_timeout_s={timeout_s:g}",
                    next_step="say extend_timeout=True, or raise message_timeout_s",
                )
            )
        count = holding.count if isinstance(holding, WindowSpec) else None
        room = _messages_at_a_time(topology, component, pending) if count is not None else None
        if count is not None and room is not None and count > room:
            findings.append(
                Finding(
                    "the window never fills",
                    where,
                    got=f"count={count}, but at most {room} messages may be open",
                    next_step="raise max_spout_pending, or make the window smaller",
                )
            )
    if findings:
        raise TopologyError(f"topology {topology.name!r} cannot run like this", findings=findings)


def _messages_at_a_time(topology: TopologySpec, component: ComponentSpec, limit: int | None) -> int | None:
    """How many tuples may wait here at a time; None where one message may come as many tuples, or nothing limits it."""
    if limit is None:
        return None
    spouts: set[str] = set()
    upstream, met = [component], {component.name}
    while upstream:
        for source in upstream.pop().inputs:
            producer = topology.components[source.component]
            if producer.kind == "spout":
                spouts.add(producer.name)
            elif producer.body.returns == "many" or producer.body.can_collect or source.grouping.kind == "all":
                return None
            elif producer.name not in met:
                met.add(producer.name)
                upstream.append(producer)
    return sum(limit * (topology.components[name].parallelism or 1) for name in spouts)
