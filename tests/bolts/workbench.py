"""A bolt of the library on the bench: frames in, rows with their roots out."""

from __future__ import annotations

from typing import Any

from tupletree import Topology
from tupletree.bolts.arrow import ArrowTask
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.data.frames import Frame, Root, segments_of
from tupletree.sources import items
from tupletree.state.cells import ValueCell
from tupletree.state.encoding import ValueEncoding
from tupletree.state.keys import key_functions
from tupletree.topology.model import TopologySpec

__all__ = ["Bench", "built"]


def built(message: type, bolt: Any, keys: tuple[str, ...] = ()) -> TopologySpec:
    """A spout of messages, and the bolt, grouped by its key if it has one."""
    topology = Topology("bench")
    source = topology.spout("source", items([], message_type=message))
    handle = topology.bolt("bolt", bolt)
    for schema in handle.draft.outputs:
        handle.stream(schema.cls, unconsumed=True)
    if keys:
        handle.fields(source, *keys)
    else:
        handle.shuffle(source)
    return topology.build()


class Bench:
    """One task of a bolt."""

    def __init__(self, message: type, bolt: Any, keys: tuple[str, ...] = ()) -> None:
        spec = built(message, bolt, keys)
        component = spec.components["bolt"]
        state = component.body.state
        self.cell: Any = ValueCell({}, state.default) if state is not None else None
        functions = key_functions(spec, component) if state is not None else None
        self._task = ArrowTask(spec, component, TaskPlace("bench", "bolt", 7, 0, 1), self.cell, functions)
        self._name = message.__name__
        self._encoding = ValueEncoding(state.value_type) if state is not None else None

    def work(self, *segments: tuple[Root, list[Any]]) -> Worked:
        """Work a frame of these tuples."""
        values = [value for _, part in segments for value in part]
        self._store()
        ends = [sum(len(part) for _, part in segments[: number + 1]) for number in range(len(segments))]
        return self._task.work(Frame(7, "source", self._name, values, [root for root, _ in segments], ends, 99))

    def _store(self) -> None:
        """Let the state be what a later epoch would read of it."""
        if self._encoding is not None and self.cell.changed:
            packed = self._encoding.encode([*self.cell.changed.values()])
            read_back = self._encoding.decode(len(packed), b"".join(packed))
            self.cell.changed.update(zip(list(self.cell.changed), read_back, strict=True))

    def rows(self, *segments: tuple[Root, list[Any]]) -> list[tuple[Root, Any]]:
        """(root, row) of everything that comes of a frame, none of which may fail."""
        worked = self.work(*segments)
        assert not worked.failures, worked.failures
        return [
            (root, row)
            for output in worked.outputs
            for root, part in segments_of(output.values, output.roots, output.ends)
            for row in part
        ]
