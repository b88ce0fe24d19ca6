"""Batch bolts: tuples are gathered, and the user's function gets them together.

Owns when a batch is worked, and the rules of a batch: as many results as members anchor one by one, any other number to
the whole batch; after a failed batch its members are tried one by one, so that one bad tuple fails alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tupletree.bolts.calls import HolderCalls
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.held import BaseHolder, HeldFrame, HeldTuple, HolderSession, together, waits_for
from tupletree.data.frames import Frame, Root, roots_of
from tupletree.topology.model import BoltSpec, ComponentSpec


class BatchTask(BaseHolder):
    """One task of a batch bolt: a `Holder`."""

    def __init__(self, component: ComponentSpec, place: TaskPlace) -> None:
        super().__init__(place)
        spec: BoltSpec = component.body
        self._size = spec.batch_size or 1
        self._max_age_s = spec.batch_max_age_s
        self._members: list[HeldTuple] = []
        self._is_left = False  # an outage has left some
        self._calls = HolderCalls(component, place, self._holdings)
        self._call = self._calls.bound(spec.value_parameter)

    @property
    def is_holding(self) -> bool:
        return bool(self._members)

    @property
    def held_count(self) -> int:
        return len(self._members)

    def until_s(self, root: int | None = None) -> float | None:  # noqa: ARG002 - a batch is let go of as a whole
        return self.due_s

    @property
    def put_off_since_s(self) -> float | None:
        return min((member.since_s for member in self._members), default=None)

    @property
    def due_s(self) -> float | None:
        """When the oldest member is old enough for a batch that is not full; a full one may come out of `restore`."""
        if self._members and (self._is_left or len(self._members) >= self._size):
            return self._members[0].since_s
        if not self._members or self._max_age_s is None:
            return None
        return self._members[0].since_s + self._max_age_s

    def work(self, frame: Frame) -> Worked:
        """Hold the tuples, and work every batch that they make full."""
        self._members += self._holdings.take(frame, self._place.epoch_time_s)
        members = self._members
        if len(members) < self._size:
            return Worked()
        full = len(members) - len(members) % self._size
        self._members = members[full:]
        return self._work(members[:full])

    def advance(self) -> Worked:
        """Work what is held if it is old enough."""
        due_s = self.due_s
        return self.flush() if due_s is not None and due_s <= self._place.epoch_time_s else Worked()

    def flush(self) -> Worked:
        """Work all that is held."""
        members, self._members, self._is_left = self._members, [], False
        return self._work(members)

    def resume(self) -> Worked:
        """See `Holder`: what an outage left makes the first batches, of any size."""
        return self.flush()

    def waiting(self) -> list[int]:
        return [root for member in self._members for root in roots_of(member.root)]

    def memory(self) -> Any:
        """Whether an outage has left the tuples: see `Holder`."""
        return True if self._is_left and self._members else None

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:
        """See `Holder`. Those that wait are in no batch until then: which tuples make a batch is not guaranteed."""
        self._is_left = memory is True
        self._members = [member for member in self._holdings.restore(held) if not waits_for(member, waiting)]

    def forget(self, roots: Collection[int]) -> None:
        if self._holdings.forget(roots):
            self._members = [member for member in self._members if member.open]

    def _work(self, members: list[HeldTuple]) -> Worked:
        session = HolderSession(self._holdings, self._calls.fail, self._calls.streams)
        for start in range(0, len(members), self._size):
            batch = members[start : start + self._size]
            try:
                results = self._results(batch)
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                left = 0 if self._meets(error, session.worked) else self._one_by_one(batch, error, session)
                if session.worked.outage is not None:
                    self._is_left = True
                    self._members = members[start + left :] + self._members
                    members = members[: start + left]
                    break
            else:
                self._emit(results, session)
        self._place.root = None
        session.settle(members)
        return session.end()

    def _one_by_one(self, batch: list[HeldTuple], error: BaseException, session: HolderSession) -> int:
        """After a failed batch; how many members were worked until there was an outage."""
        if len(batch) == 1:
            session.blame(batch[0].root, batch[0].value, error)
            return 1
        for index, member in enumerate(batch):
            try:
                results = self._results([member])
            except BaseException as failed:  # noqa: BLE001 - user code may raise anything
                if self._meets(failed, session.worked):
                    return index
                session.blame(member.root, member.value, failed)
            else:
                self._emit(results, session)
        return len(batch)

    def _results(self, batch: list[HeldTuple]) -> list[tuple[Root, Any]]:
        """(anchor, result) of one call."""
        whole = together(batch)
        self._place.take_in_hand(whole, len(batch))
        results = self._calls.results(self._call, [member.value for member in batch])
        if len(results) == len(batch):
            anchored = [(member.root, result) for member, result in zip(batch, results) if result is not None]
        else:
            anchored = [(whole, result) for result in results if result is not None]
        self._calls.check([result for _, result in anchored])
        return anchored

    def _emit(self, results: list[tuple[Root, Any]], session: HolderSession) -> None:
        for root, result in results:
            session.emit(root, result)
