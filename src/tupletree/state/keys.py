"""Keys of keyed state: how the tuples of a frame become the keys that a bolt's state is kept under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from tupletree.topology.model import ComponentSpec, TopologySpec
from tupletree.topology.streams import Schema

KeyFunctions = Mapping[tuple[str, str], Callable[[list[Any]], list[Any]]]
"""(component, stream) of an input → function tuples → canonical keys."""


def key_functions(spec: TopologySpec, component: ComponentSpec, task_index: int = 0) -> KeyFunctions:
    """The key functions of a bolt with state: the key is what its inputs are grouped by, or the task's index."""
    if not component.body.is_keyed:
        return {(source.component, source.stream): _constantly(task_index) for source in component.inputs}
    return {
        (source.component, source.stream): column_keys(
            spec.components[source.component].outputs[source.stream].schema, source.grouping.fields
        )
        for source in component.inputs
    }


def ordered_keys(spec: TopologySpec, component: ComponentSpec) -> KeyFunctions:
    """The key functions of the inputs that are grouped by `fields(…, ordered=True)`."""
    return {
        (source.component, source.stream): column_keys(
            spec.components[source.component].outputs[source.stream].schema, source.grouping.fields
        )
        for source in component.inputs
        if source.grouping.ordered
    }


def _constantly(key: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [key] * len(values)


def key_types(spec: TopologySpec, component: ComponentSpec) -> list[Any]:
    """The declared types of the key fields of a bolt with state, of all of its inputs."""
    if not component.body.state.is_keyed:
        return [int]
    return [
        spec.components[source.component].outputs[source.stream].schema.fields[field]
        for source in component.inputs
        for field in source.grouping.fields
    ]


def column_keys(schema: Schema, fields: tuple[str, ...]) -> Callable[[list[Any]], list[Any]]:
    """A function tuples → canonical keys.

    Exact text and booleans are canonical as they are, so a whole column of them is taken at once.
    """
    key_of = schema.key_of(fields)
    kind = schema.fields[fields[0]]
    if len(fields) > 1 or kind not in (str, bool, bytes):
        return lambda values: list(map(key_of, values))
    get = attrgetter(fields[0])
    exact = {kind}

    def keys_of(values: list[Any]) -> list[Any]:
        raw = list(map(get, values))
        return raw if set(map(type, raw)) <= exact else list(map(key_of, values))

    return keys_of
