"""What Spark is given to run, and the words by which its UI shows it.

A job's description names topology, epoch and run; the details of its stages and the nodes of its plan name components.
The job group stays the query's own: it is what stopping the query cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tupletree.plan import Plan, Stage
from tupletree.runtimes.spark.program import Control
from tupletree.runtimes.spark.stage import place_anew, run_stage

__all__ = ["describe_job", "placing_function", "stage_function"]


def describe_job(context: Any, plan: Plan, control: Control) -> None:
    """Name the next job of this thread, in the UI, its REST API and event logs.

    Args:
        context: the Spark context.
        plan: what the job runs.
        control: which epoch and run; an epoch below 0 is the rehearsal.
    """
    what = f"epoch {control.epoch}, run {control.run}" if control.epoch >= 0 else "rehearsal"
    context.setJobDescription(f"{plan.spec.name}: {what}")
    lines = [f"{plan.spec.name}: {what}, generation {control.generation}", *map(_named, plan.stages)]
    context.setLocalProperty("callSite.long", "\n".join(lines))


def stage_function(blob: bytes, control: bytes, stage: Stage) -> Callable[[Any], Any]:
    """The function that Spark runs for a stage, named after its components: the plan in the UI shows the name."""
    index = stage.index

    def run(batches: Any) -> Any:
        return run_stage(blob, control, index, batches)

    run.__name__ = _named(stage)
    return run


def placing_function(blob: bytes) -> Callable[[Any], Any]:
    """The function that places the frames of an epoch for another number of partitions."""

    def place(batches: Any) -> Any:
        return place_anew(blob, batches)

    place.__name__ = "place anew"
    return place


def _named(stage: Stage) -> str:
    return f"stage {stage.index}: {', '.join(stage.components)}"
