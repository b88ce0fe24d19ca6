"""Instances: the object of a spout or sink that one task works with, the same on every runtime."""

from __future__ import annotations

import copy
from typing import Any

from tupletree.errors import TopologyError
from tupletree.topology.model import ComponentSpec


def own_instance(component: ComponentSpec, *, shared: bool) -> Any:
    """A new object for one task of a spout or sink, made at each start of the topology.

    Args:
        component: the spout or sink.
        shared: it shares what it holds (queues, clients) with the user's object: for a single task. Several tasks
            get deep copies.

    Raises:
        TopologyError: it cannot be copied.
    """
    try:
        return copy.copy(component.body) if shared else copy.deepcopy(component.body)
    except Exception as error:
        raise TopologyError(
            f"a {component.kind} cannot be copied for its tasks",
            where=f"{component.kind} {component.name!r} ({component.where})",
            got=f"{type(error).__name__}: {error}",
            next_step="acquire locks, files and connections in `open`, not in `__init__`",
        ) from error
