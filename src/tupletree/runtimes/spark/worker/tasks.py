"""Which bolt is worked by which kind of task, of those that settle each tuple in its call."""

from __future__ import annotations

from tupletree.bolts.arrow import ArrowTask
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.plain import BoltTask
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.worker.async_bolts import AsyncBoltTask
from tupletree.runtimes.spark.worker.keyed_task import StatefulTask
from tupletree.runtimes.spark.worker.pacing import Pacing
from tupletree.topology.model import ComponentSpec

BoltWork = BoltTask | ArrowTask

TASKS = (BoltTask, ArrowTask)


def task_of(
    plan: Plan, component: ComponentSpec, place: TaskPlace, state: StatefulTask | None, limit_s: float | None
) -> BoltWork:
    """A task of a bolt that is no holder; `limit_s` is how long one of its calls may take."""
    rate = component.max_rate
    pacing = None if rate is None else Pacing(rate / plan.parallelism(component.name))
    cell, keys = (state.cell, state.key_functions) if state is not None else (None, None)
    if component.body.is_vectorised:
        return ArrowTask(plan.spec, component, place, cell, keys)
    if component.body.is_async:
        return AsyncBoltTask(component, place, cell, keys, limit_s=limit_s, pacing=pacing)
    place.before_call = pacing.wait if pacing is not None else None
    return BoltTask(component, place, cell, keys)
