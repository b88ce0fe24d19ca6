"""Which bolts hold tuples beyond a call, and the task that does it for each. The runtimes ask here."""

from __future__ import annotations

from tupletree.effects import TaskPlace
from tupletree.flow.batching import BatchTask
from tupletree.holding import Holder
from tupletree.topology.model import ComponentSpec

__all__ = ["holder_of"]


def holder_of(component: ComponentSpec, place: TaskPlace) -> Holder | None:
    """A task of this bolt that holds its inputs; None for a bolt that settles each tuple in its call."""
    return BatchTask(component, place) if component.body.style == "batch" else None
