"""Bolts that hold tuples by hand: `HoldingBolt` says when which tuples are released, and with what.

Owns what a release means: values anchored to all tuples of it, which are then acked, or failed together. Refuses to
keep anything of the user's object beyond its life: what an earlier instance held is given to the next, through `take`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.failures import FailureMaker, wrong_type
from tupletree.bolts.held import BaseHolder, HeldFrame, HeldTuple, HolderSession, together, waits_for
from tupletree.data.frames import Frame, roots_of
from tupletree.errors import ProcessingError
from tupletree.topology.components import HoldingBolt, Release
from tupletree.topology.model import BoltSpec, ComponentSpec


class HoldingTask(BaseHolder):
    """One task of a `HoldingBolt`: a `Holder`."""

    def __init__(self, component: ComponentSpec, place: TaskPlace) -> None:
        super().__init__(place)
        spec: BoltSpec = component.body
        self._make: Callable[[], HoldingBolt[Any]] = spec.target
        self._streams = {stream.schema.cls: name for name, stream in component.outputs.items()}
        self._fail = FailureMaker(component.name, place.task_id, component.retry)
        self._bolt: HoldingBolt[Any] | None = None
        self._new: list[HeldTuple] = []  # not given to the bolt yet: restored, or left by an outage
        self._must_flush = False  # an outage was met by `flush`
        self._is_away = False
        self._due_at_end_s: float | None = None  # what the bolt said last; it is asked for after its end, too

    # --- questions --------------------------------------------------------------------------------------------

    def until_s(self, root: int | None = None) -> float | None:
        """See `Holder`. Only the bolt knows, and it is asked on its own thread."""
        return None if root is None else self.due_s

    @property
    def due_s(self) -> float | None:
        """See `Holder`. What was restored is due at once: when to check depends on it."""
        if self._new:
            return self._new[0].since_s
        if not self.is_holding:
            return None
        return self._bolt.due_s() if self._bolt is not None else self._due_at_end_s

    def waiting(self) -> list[int]:
        return [root for member in self._new for root in roots_of(member.root)] if self._is_away else []

    # --- life -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the bolt and open it."""
        self._bolt = self._make()
        self._bolt.open(self._place)

    def close(self) -> None:
        bolt, self._bolt = self._bolt, None
        if bolt is not None:
            try:
                self._due_at_end_s = bolt.due_s()
            finally:
                bolt.close()

    def memory(self) -> Any:
        """See `Holder`: nothing but the tuples."""
        return None

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:  # noqa: ARG002 - see `memory`
        """See `Holder`. The bolt does not get to know of tuples that wait."""
        self._new = [member for member in self._holdings.restore(held) if not waits_for(member, waiting)]

    def forget(self, roots: Collection[int]) -> None:
        gone = self._holdings.forget(roots)
        if not gone:
            return
        unknown = {id(member) for member in self._new}
        self._new = [member for member in self._new if member.open]
        known = [member for member in gone if id(member) not in unknown]
        if known and self._bolt is not None:
            self._bolt.forget(known)

    # --- work -------------------------------------------------------------------------------------------------

    def work(self, frame: Frame) -> Worked:
        """Give the tuples to the bolt."""
        self._new += self._holdings.take(frame, self._place.epoch_time_s)
        return self._call()

    def advance(self) -> Worked:
        """Let the bolt release what is due."""
        return self._call(check=True)

    def flush(self) -> Worked:
        """Let the bolt release what it can."""
        self._must_flush = True
        return self._call(check=True)

    def resume(self) -> Worked:
        return self._call(check=True)

    def _call(self, *, check: bool = False) -> Worked:
        bolt = self._bolt
        assert bolt is not None, "a task is opened before it works"
        session = _ReleaseSession(self._holdings, self._fail, self._streams)
        new, self._new, self._is_away = self._new, [], False
        if new:
            self._new = self._give(new, bolt, session)
        if check and session.worked.outage is None:
            call = bolt.flush if self._must_flush else bolt.check
            try:
                session.release(call(self._place.epoch_time_s))
                self._must_flush = False
            except BaseException as error:  # noqa: BLE001 - user code may raise anything
                if not self._meets(error, session.worked):
                    failed = [*self._holdings.members()]
                    session.refuse(failed, error)
                    bolt.forget(failed)
        self._is_away = session.worked.outage is not None
        self._place.root = None
        return session.end()

    def _give(self, new: list[HeldTuple], bolt: HoldingBolt[Any], session: _ReleaseSession) -> list[HeldTuple]:
        """Call `take` for these, or for each alone after it raised; returns those that an outage left."""
        try:
            session.release(bolt.take(new))
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            if self._meets(error, session.worked):
                return new
            if len(new) == 1:
                session.refuse(new, error)
                bolt.forget(new)  # it may have kept them before it raised
                return []
        else:
            return []
        for index, member in enumerate(new):
            left = self._give([member], bolt, session)
            if left:
                return new[index:]
        return []


class _ReleaseSession(HolderSession):
    """What one call of the task comes to."""

    def release(self, releases: Iterable[Release]) -> None:
        """Take what a call of the bolt gives; all of it, or nothing if the call raises."""
        for one in [*releases]:
            members: list[Any] = [*one.tuples]
            if strangers := [member for member in members if not isinstance(member, HeldTuple)]:
                raise ProcessingError(
                    "a release names what is no held tuple",
                    got=repr(strangers[0])[:100],
                    expected="the objects that `take` was given",
                )
            members = [member for member in members if member.open]
            if not members:
                continue
            if one.error is not None:
                self.refuse(members, one.error)
                continue
            unknown = [value for value in one.values if type(value) not in self._streams]
            if unknown:
                self.refuse(members, wrong_type(unknown[0], " or ".join(cls.__name__ for cls in self._streams)))
                continue
            whole = together(members)
            for value in one.values:
                self.emit(whole, value)
            self.settle(members)

    def refuse(self, members: Sequence[HeldTuple], error: BaseException) -> None:
        """Fail these tuples."""
        for member in members:
            self.blame(member.root, member.value, error)
        self.settle(members)
