"""How much windows and joins hold, against what the options of a run allow.

Pure: a built topology and options in, findings out.
"""

from __future__ import annotations

import math

from tupletree.config import Options
from tupletree.errors import Finding, TopologyError
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.topology.spout_limits import limit_set, max_pending
from tupletree.topology.windows import WindowSpec

__all__ = ["refuse_stuck"]


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
