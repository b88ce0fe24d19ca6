"""The task of a bolt that holds tuples beyond a call, by its style. The runtimes use this."""

from __future__ import annotations

from tupletree.bolts.batch import BatchTask
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.held import Holder
from tupletree.bolts.holding import HoldingTask
from tupletree.bolts.joins import JoinTask
from tupletree.bolts.sessions import SessionWindowTask
from tupletree.bolts.windows import CountWindowTask, TimeWindowTask
from tupletree.state.keys import KeyFunctions
from tupletree.topology.model import ComponentSpec
from tupletree.topology.windows import WindowSpec


def holder_of(component: ComponentSpec, place: TaskPlace, keys: KeyFunctions | None = None) -> Holder | None:
    """A task of this bolt that holds its inputs; None for a bolt that settles each tuple in its call.

    Args:
        component: the bolt.
        place: its context object.
        keys: how the keys of its tuples are known, if it `is_keyed`.
    """
    match component.body.style:
        case "batch":
            return BatchTask(component, place)
        case "window":
            return _window_task(component, place, keys)
        case "join":
            return JoinTask(component, place, keys or {})
        case "holding":
            return HoldingTask(component, place)
    return None


def _window_task(component: ComponentSpec, place: TaskPlace, keys: KeyFunctions | None) -> Holder:
    spec: WindowSpec = component.body.holding
    if spec.gap_s is not None:
        return SessionWindowTask(component, place, keys)
    return (CountWindowTask if spec.length_s is None else TimeWindowTask)(component, place, keys)
