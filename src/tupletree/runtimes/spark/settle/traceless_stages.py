"""Whether a plan's first stage leaves no trace but what it sends: another run of an epoch may start from its frames.

What a stage keeps as state, holds, carries on or writes belongs to one run. And of what it sends all that
came of one message must be known by its root alone: a row that came of several, what an object remembered of earlier
tuples, and what was emitted unanchored would still have in it what the new run leaves out. Ticks are a trace, too, but
not every epoch has them, so the caller minds those. Pure.

Never more than one stage: if Spark loses what some of its tasks sent, it executes these again, and bolts need not say
the same twice. A second stage that had worked what the lost ones sent before would send that on beside the new.
"""

from __future__ import annotations

from tupletree.routing.plan import Plan
from tupletree.topology.model import BoltSpec, ComponentSpec


def traceless_stages(plan: Plan) -> int:
    """How many stages at the beginning of a plan leave no trace: 0 or 1, and never all: the last one sends nothing."""
    if any(source.grouping.ordered for component in plan.spec.components.values() for source in component.inputs):
        return 0  # what is told of the order of keys is part of a run
    carried = {name for link in plan.links if link.carried for name in (link.producer, link.consumer)}
    first = plan.stages[0].components if len(plan.stages) > 1 else ()
    leaves_none = not any(name in carried or _leaves_trace(plan.spec.components[name]) for name in first)
    return int(bool(first) and leaves_none)


def _leaves_trace(component: ComponentSpec) -> bool:
    body = component.body
    if component.kind != "bolt":
        return component.kind == "sink"
    assert isinstance(body, BoltSpec), "bolts have such a body"
    is_of_one = body.takes_many_rows or (body.style == "function" and "collector" not in body.inject.values())
    return not is_of_one or body.state is not None
