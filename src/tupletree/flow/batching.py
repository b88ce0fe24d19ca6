"""Batch bolts: tuples are gathered, and the user's function gets them together.

Owns which tuples are held, and the rules of a batch: as many results as members anchor one by one, any other number to
the whole batch; after a failed batch its members are tried one by one, so that one bad tuple fails alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tupletree.effects import Output, TaskPlace, Worked
from tupletree.failing import FailureMaker, wrong_type
from tupletree.frames import UNTRACKED, Frame, Root, all_failed, join_segments, roots_of
from tupletree.topology.model import BoltSpec, ComponentSpec

__all__ = ["BatchTask"]


@dataclass(slots=True, eq=False)
class _Member:
    """One tuple. `unsettled` counts, per root, the open tuples of the frame it came in."""

    value: Any
    root: Root
    frame_id: int
    unsettled: dict[int, int]


class BatchTask:
    """One task of a batch bolt; shaped like `dispatch.BoltTask`. Not thread-safe."""

    def __init__(self, component: ComponentSpec, place: TaskPlace) -> None:
        spec: BoltSpec = component.body
        self._size = spec.batch_size or 1
        self._returns_many = spec.returns == "many"
        self._place = place
        self._fail = FailureMaker(component.name, place.task_id)
        self._streams = {stream.schema.cls: name for name, stream in component.outputs.items()}
        self._members: list[_Member] = []
        self._call = _bound(spec, component, place)

    @property
    def held(self) -> int:
        """Tuples that wait for their batch."""
        return len(self._members)

    def open(self) -> None:
        """Nothing to open: it is a function."""

    def close(self) -> None:
        """Nothing to close."""

    def tick(self, time_s: float) -> Worked:  # noqa: ARG002 - shaped like BoltTask
        """Batch bolts have no ticks."""
        return Worked()

    def work(self, frame: Frame) -> Worked:
        """Hold the tuples, and work every batch that they make full."""
        unsettled: dict[int, int] = {}
        members = self._members
        for root, values in frame.segments():
            for one in roots_of(root):
                unsettled[one] = unsettled.get(one, 0) + len(values)
            members += [_Member(value, root, frame.id, unsettled) for value in values]
        worked = Worked()
        if len(members) >= self._size:
            full = len(members) - len(members) % self._size
            self._members = members[full:]
            self._work(members[:full], worked)
        return worked

    def flush(self) -> Worked:
        """Work what is held, however little."""
        worked = Worked()
        members, self._members = self._members, []
        self._work(members, worked)
        return worked

    def _work(self, members: list[_Member], worked: Worked) -> None:
        pieces: dict[str, list[tuple[Root, list[Any]]]] = {}
        done: dict[int, list[Root]] = {}
        for start in range(0, len(members), self._size):
            batch = members[start : start + self._size]
            try:
                results = self._results(batch)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                self._one_by_one(batch, error, pieces, done, worked)
            else:
                self._accept(batch, results, pieces, done)
        self._place.root = None
        for stream, emitted in pieces.items():
            kept = [one for one in emitted if not all_failed(one[0], worked.failures)]
            values, roots, ends = join_segments(kept)
            if values:
                worked.outputs.append(Output(stream, values, roots, ends))
        for frame_id, settled in done.items():
            left = [root for root in settled if root not in worked.failures]
            if left:
                worked.done.append((frame_id, left))

    def _one_by_one(
        self,
        batch: list[_Member],
        error: BaseException,
        pieces: dict[str, list[tuple[Root, list[Any]]]],
        done: dict[int, list[Root]],
        worked: Worked,
    ) -> None:
        if len(batch) == 1:
            self._fail.blame(worked, batch[0].root, batch[0].value, error)
            self._settle(batch[0], done)
            return
        for member in batch:
            try:
                results = self._results([member])
            except KeyboardInterrupt:
                raise
            except BaseException as failed:  # noqa: BLE001 - user code may raise anything
                self._fail.blame(worked, member.root, member.value, failed)
                self._settle(member, done)
            else:
                self._accept([member], results, pieces, done)

    def _results(self, batch: list[_Member]) -> list[tuple[Root, Any]]:
        """(anchor, result) of one call."""
        together = tuple(dict.fromkeys(root for member in batch for root in roots_of(member.root)))
        whole: Root = together[0] if len(together) == 1 else together or UNTRACKED
        self._place.root = whole
        answer = self._call([member.value for member in batch])
        results = [] if answer is None else [*answer] if self._returns_many else [answer]
        if len(results) == len(batch):
            anchored = [(member.root, result) for member, result in zip(batch, results) if result is not None]
        else:
            anchored = [(whole, result) for result in results if result is not None]
        for _, result in anchored:
            if type(result) not in self._streams:
                raise wrong_type(result, " or ".join(cls.__name__ for cls in self._streams) or "nothing")
        return anchored

    def _accept(
        self,
        batch: list[_Member],
        results: list[tuple[Root, Any]],
        pieces: dict[str, list[tuple[Root, list[Any]]]],
        done: dict[int, list[Root]],
    ) -> None:
        for root, result in results:
            pieces.setdefault(self._streams[type(result)], []).append((root, [result]))
        for member in batch:
            self._settle(member, done)

    @staticmethod
    def _settle(member: _Member, done: dict[int, list[Root]]) -> None:
        for root in roots_of(member.root):
            member.unsettled[root] -= 1
            if not member.unsettled[root]:
                done.setdefault(member.frame_id, []).append(root)


def _bound(spec: BoltSpec, component: ComponentSpec, place: TaskPlace) -> Callable[[list[Any]], Any]:
    injected: dict[str, object] = {
        name: place if what == "context" else component.resources[what.removeprefix("resource:")]
        for name, what in spec.inject.items()
    }
    target, parameter = spec.target, spec.value_parameter
    if not injected:
        return target
    return lambda values: target(**{parameter: values}, **injected)
