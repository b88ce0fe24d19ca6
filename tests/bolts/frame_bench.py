"""A bolt on the bench: one task, frames in by hand, effects out to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tupletree import Topology
from tupletree.bolts.effects import StateCell, TaskPlace, Worked
from tupletree.bolts.plain import BoltTask
from tupletree.data.frames import Frame, Root, join_segments
from tupletree.sources.items import items
from tupletree.state.cells import ValueCell
from tupletree.topology.model import ComponentSpec, TopologySpec


class Word(msgspec.Struct, frozen=True):
    text: str


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


class Bad(msgspec.Struct, frozen=True):
    text: str


Segment = tuple[Root, list[Any]]


def component_of(bolt: Any, *, resources: Mapping[str, Any] | None = None, keyed: bool = False) -> ComponentSpec:
    """The bolt as a topology describes it, reading words from a spout."""
    return topology_of(bolt, resources=resources, keyed=keyed).components["bolt"]


def topology_of(bolt: Any, *, resources: Mapping[str, Any] | None = None, keyed: bool = False) -> TopologySpec:
    """A spout of words, and the bolt."""
    topology = Topology("bench")
    words = topology.spout("words", items([Word("a")]))
    handle = topology.bolt("bolt", bolt, resources=resources)
    for schema in handle.draft.outputs:
        handle.stream(schema.cls, unconsumed=True)
    if keyed:
        handle.fields(words, "text")
    else:
        handle.shuffle(words)
    return topology.build()


def task_of(
    bolt: Any,
    *,
    resources: Mapping[str, Any] | None = None,
    attempts: Mapping[int, int] | None = None,
    state: ValueCell[Any] | None = None,
    component: ComponentSpec | None = None,
) -> BoltTask:
    """An open task of the bolt; with `state`, keyed by the word's text."""
    spec = component or component_of(bolt, resources=resources, keyed=state is not None)
    place = TaskPlace("bench", "bolt", 7, 0, 1, attempts=attempts or {})
    cell: StateCell | None = state
    task = BoltTask(spec, place, cell, {("words", "Word"): keys_of})
    task.open()
    return task


def keys_of(values: list[Any]) -> list[Any]:
    """A word's text; a word that holds a number has no key."""
    keys = [value.text for value in values]
    if any(type(key) is not str for key in keys):
        raise TypeError(f"key field Word.text: got {keys!r}, expected str")
    return keys


def frame(*segments: Segment, edge: int = 99) -> Frame:
    """A frame of words; neighbours with one root become one segment."""
    values, roots, ends = join_segments(list(segments))
    return Frame(7, "words", "Word", values, roots, ends, edge)


def words(*texts: str) -> list[Word]:
    return [Word(text) for text in texts]


def emitted(worked: Worked) -> list[tuple[Root, Any]]:
    """Every tuple that came out with its root, stream by stream."""
    return [
        (root, value)
        for output in worked.outputs
        for root, values in Frame(0, "", "", output.values, output.roots, output.ends, 1).segments()
        for value in values
    ]


def done(worked: Worked) -> dict[int, set[Root]]:
    """Frame → tracked roots that are done in it."""
    found: dict[int, set[Root]] = {}
    for edge, roots in worked.done:
        for root in roots:
            found.setdefault(edge, set()).update(one for one in (root if isinstance(root, tuple) else (root,)) if one)
    return found
