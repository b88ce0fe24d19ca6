"""Sending tuples on: from what a task emitted to frames with edge ids, for spouts and bolts.

Owns edge ids. An edge id is drawn per frame, that is per target task and emit; all roots of the frame share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tupletree.bolts.effects import ColumnOutput, Output, Worked
from tupletree.data.frames import ColumnFrame, Frame, Root, roots_of, segments_of
from tupletree.errors import ProcessingError
from tupletree.ids import RandomBits
from tupletree.routing.groupings import Batch, Router
from tupletree.routing.plan import Plan, Task
from tupletree.tasks.edges import combined
from tupletree.tasks.making import MakingOrder, Numbers
from tupletree.tasks.outbox import Outbox
from tupletree.tracking.acker import Delta
from tupletree.tracking.tree import draw_edges

Refused = tuple[Root, Any, Exception]
"""(root, tuple, why it could not be routed)."""


class Emitter:
    """Routes what one task emits to the tasks that read it.

    Attributes:
        ordering: how the task treats numbers in the order of making.
    """

    def __init__(self, plan: Plan, task: Task, random_bits: RandomBits) -> None:
        self.ordering = MakingOrder(plan, task.component, Numbers())
        self._component, self._task = task.component, task.task_id
        streams = plan.spec.components[task.component].outputs
        self._routers = {stream: Router.of(plan, task.task_id, stream) for stream in streams}
        self._random_bits = random_bits

    def send(self, output: Output, out: Outbox, sent: list[tuple[int, Sequence[Root]]] | None = None) -> list[Refused]:
        """Put frames for all targets into the outbox, and their edges into the trees of their roots, or into `sent`.

        Returns:
            The tuples that could not be routed; they went to no task.
        """
        if isinstance(output, ColumnOutput):
            return self._send_columns(output, out)
        batches, refused = self._distribute(output)
        for batch, edge in zip(batches, self._edges(len(batches))):
            out.frames.append(
                Frame(
                    batch.task,
                    self._component,
                    output.stream,
                    batch.values,
                    batch.roots,
                    batch.ends,
                    edge,
                    batch.made,
                    self._task,
                )
            )
            if sent is None:
                out.add_delta(edge, batch.roots)
            else:
                sent.append((edge, batch.roots))
        return refused

    def _send_columns(self, output: ColumnOutput, out: Outbox) -> list[Refused]:
        from tupletree.routing.column_groupings import route_columns  # code that has columns has imported pyarrow

        batches, errors = route_columns(self._routers[output.stream], output.columns)
        for (task, columns), edge in zip(batches, self._edges(len(batches))):
            frame = ColumnFrame(task, self._component, output.stream, columns, edge, self._task)
            out.frames.append(frame)
            out.add_delta(edge, frame.roots)
        if not errors:
            return []
        rows = [*_rows(output)]
        return [(*rows[position], error) for position, error in errors]

    def launch(self, output: Output, out: Outbox) -> tuple[list[Delta], list[Refused]]:
        """Do what `send` does for a spout, whose trees are to be opened with the values that come back.

        Returns:
            (XOR of first edges, roots) for every root that went to a task, and the tuples that could not be routed.
        """
        batches, refused = self._distribute(output)
        while True:
            edges = self._edges(len(batches))
            if len(batches) == 1 and batches[0].roots is output.roots:
                first: list[Delta] = [(edges[0], output.roots)]  # type: ignore[list-item]  # each once, none untracked
                break
            first = combined((edge, batch.roots) for edge, batch in zip(edges, batches))
            if all(value for value, _ in first):  # else the edges of some tuples would cancel out: draw again
                break
        out.frames += [
            Frame(one.task, self._component, output.stream, one.values, one.roots, one.ends, edge, one.made, self._task)
            for one, edge in zip(batches, edges)
        ]
        return first, refused

    def _edges(self, count: int) -> list[int]:
        return draw_edges(count, self._random_bits)

    def _distribute(self, output: Output) -> tuple[list[Batch], list[Refused]]:
        router = self._routers[output.stream]
        values, roots, ends, made = output.values, output.roots, output.ends, output.made
        if output.direct_task is not None:
            try:
                return [router.route_direct(output.direct_task, values, roots, ends, made)], []
            except ProcessingError as error:
                return [], [(root, value, error) for root, value in _rows(output)]
        batches, errors = router.route(values, roots, ends, made)
        if not errors:
            return batches, []
        rows = [*_rows(output)]
        return batches, [(*rows[position], error) for position, error in errors]


def _rows(output: Output) -> Iterator[tuple[Root, Any]]:
    for root, part in segments_of(output.values, output.roots, output.ends):
        for value in part:
            yield root, value


class DeferredDeltas:
    """The edges of one task's messages that are acked only when the task has finished them."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of messages with deferred edges."""
        return len(self._values)

    def add(self, edge: int, roots: Iterable[int]) -> None:
        """Defer an edge of these messages, each named once."""
        deferred = self._values
        for root in roots:
            deferred[root] = deferred.get(root, 0) ^ edge

    def carry_out(self, sent: Iterable[tuple[int, Sequence[Root]]], worked: Worked, out: Outbox) -> None:
        """Put the deltas of what is done into the outbox, with those of what was emitted for it, and keep the rest.

        Args:
            sent: (edge, roots) of the frames that went out with this call.
            worked: the effects of the call.
            out: where deltas go.
        """
        deferred = self._values
        for edge, roots in sent:
            self.add(edge, _distinct(roots))
        for frame_id, roots in worked.done:
            for root in _distinct(roots):
                out.add_delta(frame_id ^ deferred.pop(root, 0), [root])
        self.forget(worked.failures)

    def forget(self, roots: Iterable[int]) -> None:
        """Drop the edges of these messages, which failed."""
        for root in roots:
            self._values.pop(root, None)


def _distinct(roots: Sequence[Root]) -> set[int]:
    return {one for entry in roots for one in roots_of(entry)}
