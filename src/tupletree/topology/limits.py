"""How many messages a spout task may have open, and whether what windows and joins hold fits.

Pure: a built topology and the options of a run in, a number or findings out. The local runtime measures how many may be
in flight where nobody says a number (`tasks/pending_limit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tupletree.config import Options
from tupletree.errors import Finding, TopologyError
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.topology.windows import WindowSpec

MANY_PENDING = 100_000
"""Messages that a spout task may have open, unless set otherwise, where windows and joins hold them."""

MOST_PENDING = 1_000_000_000


def limit_set(spout: ComponentSpec, options: Options) -> int | None:
    """What the user set: its own `pending=`, else `max_spout_pending`; None if neither is set."""
    return options.max_spout_pending if spout.pending is None else spout.pending


def setting_of_limit(spout: ComponentSpec, options: Options) -> str:
    """The setting by which the user limits it; empty if there is none."""
    if spout.pending is not None:
        return f"pending= of {spout.name!r}"
    return "" if options.max_spout_pending is None else "max_spout_pending"


def max_pending(topology: TopologySpec, spout: str, options: Options, usual: int) -> int:
    """How many messages a task of a spout may have open.

    What windows and joins hold is open. With a limit below what is in a window by event time, the tuple that ends it
    would never come; so where nothing is set it is a high one.

    Args:
        topology: a built topology.
        spout: name of the spout.
        options: of this run.
        usual: the runtime's choice where nothing is held.
    """
    limit = limit_set(topology.components[spout], options)
    if limit is not None:
        return limit
    bolts = (component.body for component in topology.components.values())
    holds = any(isinstance(bolt, BoltSpec) and bolt.holding is not None for bolt in bolts)
    return max(usual, MANY_PENDING) if holds else usual


def pending_faults(pending: object, where: str) -> Iterator[Finding]:
    """What is wrong with what a spout is given as `pending=`."""
    if pending is not None and (type(pending) is not int or not 1 <= pending <= MOST_PENDING):
        yield Finding(
            "pending= is out of range",
            where,
            repr(pending),
            f"a whole number of messages from 1 to {MOST_PENDING:,}",
            "leave it out for the limit that max_spout_pending gives, or that the runtime chooses",
        )


def refuse_stuck(topology: TopologySpec, options: Options, usual: int | None) -> None:
    """Refuse windows and joins that would hold messages for longer than they may be open, or wait for more than may be.

    Args:
        topology: a built topology.
        options: of this run.
        usual: messages that a spout task may have open where nothing is set and held; None if that is not known yet.

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
            is_endless = longest_s == math.inf
            held = "held as long as a session lasts" if is_endless else f"held for {longest_s:g} s"
            limit = ", with max_length_s" if is_endless else ""
            findings.append(
                Finding(
                    "messages would time out while they wait here",
                    where,
                    got=f"{held}, message_timeout_s={timeout_s:g}",
                    next_step=f"say extend_timeout=True, or raise message_timeout_s{limit}",
                )
            )
        count = holding.count if isinstance(holding, WindowSpec) else None
        room = _messages_at_a_time(topology, component, options, usual) if count is not None else None
        if count is not None and room is not None and count > room:
            findings.append(
                Finding(
                    "the window never fills",
                    where,
                    got=f"count={count}, but at most {room} messages may be open",
                    next_step="raise max_spout_pending or the `pending=` of its spouts, or make the window smaller",
                )
            )
    if findings:
        raise TopologyError(f"topology {topology.name!r} cannot run like this", findings=findings)


def _messages_at_a_time(
    topology: TopologySpec, component: ComponentSpec, options: Options, usual: int | None
) -> int | None:
    """How many tuples may wait here at a time; None where one message may come as many tuples, or nothing limits it."""
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
    room = 0
    for name in spouts:
        spout = topology.components[name]
        limit = limit_set(spout, options) if usual is None else max_pending(topology, name, options, usual)
        if limit is None:
            return None
        room += limit * (spout.parallelism or 1)
    return room
