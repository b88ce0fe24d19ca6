"""What windows by time and by count have in common: their function is called for each, at once or later.

Owns which calls are put off, because a tuple of the window waits for its next attempt (`Holder.restore`) or others may
be about to come again, and how they outlast the task. A tuple is settled once no window needs it, one that was put off
included.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tupletree.bolts.calls import CallingHolder, CallSession, TimedHolder
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.held import HeldTuple
from tupletree.bolts.held_marks import marked, marks, members_by_name, names
from tupletree.data.frames import Frame
from tupletree.topology.model import BoltSpec, ComponentSpec
from tupletree.topology.windows import Window, WindowSpec

KeyFunctions = Mapping[tuple[str, str], Callable[[list[Any]], list[Any]]]
"""(component, stream) of an input → function tuples → keys."""


@dataclass(slots=True)
class WindowCall:
    """One window that is over: what its function is called with, or will be once none of its tuples waits."""

    key: Any
    start_s: float
    end_s: float
    members: list[HeldTuple]
    new: list[HeldTuple]
    expiring: list[HeldTuple]
    reopened_us: int | None = None
    """When the first tuple of a later attempt came to it after it was over."""


class WindowCalls(CallingHolder):
    """What windows by time and by count have in common."""

    def __init__(self, component: ComponentSpec, place: TaskPlace, keys: KeyFunctions | None) -> None:
        super().__init__(component, place)
        body: BoltSpec = component.body
        assert isinstance(body.holding, WindowSpec)
        self._spec = body.holding
        self._keys = keys if self._spec.per_key else None
        self._call = self._calls.bound(body.value_parameter)
        self._windows_put_off: list[WindowCall] = []
        self._calls_put_off: dict[HeldTuple, int] = {}  # how many of these windows hold it
        self._expired: set[HeldTuple] = set()  # of these: they are in no other window any more

    def _key_of(self, member: HeldTuple) -> Any:
        """The key of a tuple; whatever a tuple without one raises comes out."""
        return None if self._keys is None else self._keys[member.source]([member.value])[0]

    def _call_or_put_off(self, session: CallSession, over: WindowCall) -> bool:
        """Call the function for a window, or put that off; False if it raised.

        It is put off as `Holder.restore` says, and where the call, or one before it, meets an outage.
        """
        if not (session.met_outage() or (self._waiting and self._waits(over.members))):
            succeeded = self._called(session, over)
            if not session.met_outage():
                return succeeded
        self._put_window_off(over)
        self._spare(session, over.members)
        return True

    def _called(self, session: CallSession, over: WindowCall) -> bool:
        window = Window(
            [member.value for member in over.members],
            new=[member.value for member in over.new],
            expiring=[member.value for member in over.expiring],
            start_s=over.start_s,
            end_s=over.end_s,
            key=over.key,
        )
        return session.call(over.members, window, self._call, window.tuples if self._spec.as_list else window)

    def _expire(self, session: CallSession, members: list[HeldTuple]) -> None:
        """No later window will hold these: they are settled, unless an earlier one that does was put off."""
        if not self._calls_put_off:
            session.settle(members)
            return
        stay = [member for member in members if member in self._calls_put_off]
        self._expired.update(stay)
        session.settle([member for member in members if member not in self._calls_put_off])

    @property
    def _looks_again(self) -> bool:
        """See `TimedHolder`."""
        return any(over.reopened_us is not None for over in self._windows_put_off)

    def _put_off(self) -> Iterable[HeldTuple]:
        return (member for member in self._calls_put_off if member.open)

    def _put_window_off(self, over: WindowCall) -> None:
        self._windows_put_off.append(over)
        for member in over.members:
            self._calls_put_off[member] = self._calls_put_off.get(member, 0) + 1

    def _call_put_off(self, session: CallSession, *, at_once: bool = False) -> None:
        """Call the function for the windows none of whose tuples waits any more.

        Args:
            session: the calls in hand.
            at_once: windows that are called again do not wait for others that may come to them.
        """
        windows, self._windows_put_off = self._windows_put_off, []
        self._calls.is_away = False
        for over in windows:
            for member in over.members:
                self._calls_put_off[member] -= 1
                if not self._calls_put_off[member]:
                    del self._calls_put_off[member]
            for left in self._left_of(over):
                self._call_left(session, left, at_once=at_once)

    def _left_of(self, over: WindowCall) -> Iterable[WindowCall]:
        """What a window that was put off is without the tuples of messages that died; nothing, if all did."""
        left = _of_open(over)
        return [left] if left.members else []

    def _call_left(self, session: CallSession, left: WindowCall, *, at_once: bool) -> None:
        if session.met_outage() or self._waits(left.members) or (not at_once and self._may_come(left.reopened_us)):
            self._put_window_off(left)
            return
        succeeded = self._called(session, left)
        if session.met_outage():
            self._put_window_off(left)
        elif succeeded:
            done = [member for member in left.members if member not in self._calls_put_off]
            session.settle([member for member in done if member in self._expired])
        else:
            session.settle(left.members)
        self._purge(session)

    def _memory_of_put_off(self) -> list[Any]:
        """See `_restore_put_off`."""
        open_windows = [left for left in map(_of_open, self._windows_put_off) if left.members]
        known = names(member for over in open_windows for member in over.members)
        expired = marks(self._expired)
        stored: list[Any] = []
        for over in open_windows:
            new, expiring = set(over.new), set(over.expiring)
            entries = [[*known[member], member in new, member in expiring] for member in over.members]
            stored.append([over.start_s, over.end_s, over.reopened_us, entries])
        return [stored, expired]

    def _restore_put_off(self, members: Sequence[HeldTuple], stored: Sequence[Any]) -> set[HeldTuple]:
        """Put off again what was; returns tuples that are held for nothing else."""
        if not stored or not stored[0]:
            return set()
        windows, expired = stored
        known = members_by_name(members)
        for start_s, end_s, reopened_us, entries in windows:
            found = [
                (known[frame_id, position], is_new, is_expiring)
                for frame_id, position, is_new, is_expiring in entries
                if (frame_id, position) in known
            ]
            if found:
                over = WindowCall(
                    self._key_of(found[0][0]),
                    start_s,
                    end_s,
                    [member for member, _, _ in found],
                    [member for member, is_new, _ in found if is_new],
                    [member for member, _, is_expiring in found if is_expiring],
                    reopened_us,
                )
                self._put_window_off(over)
        self._expired = marked(members, expired)
        return self._expired


class TimedWindowCalls(WindowCalls, TimedHolder):
    """What windows of a length and sessions have in common: they are over when time has come to their end."""

    def work(self, frame: Frame) -> Worked:
        """Hold a frame's tuples in their windows; those that came too late are settled."""
        session = CallSession(self._calls)
        for member, key, time_us in self._taken(session, frame):
            self._place_in_window(session, key, member, time_us)
        self._purge(session)
        return session.end()

    def advance(self) -> Worked:
        """Call the function for every window that is over by now."""
        reached_us, session = self._reached_us(), CallSession(self._calls)
        self._call_put_off(session)
        while (end_us := self._ends.next_us) is not None and end_us <= reached_us:
            self._fire(session)
        self._over_us = max(self._over_us, reached_us)
        self._renew(session)
        return session.end()

    def flush(self) -> Worked:
        """Call the function for every window that holds a tuple.

        Time does not move: a tuple that comes after all is in a window of its own.
        """
        session = CallSession(self._calls)
        self._call_put_off(session, at_once=True)
        while self._ends.next_us is not None:
            self._fire(session)
        return session.end()

    @abstractmethod
    def _place_in_window(self, session: CallSession, key: Any, member: HeldTuple, time_us: int) -> None:
        """A tuple came, of this time: it is held, or settled because it came too late."""

    @abstractmethod
    def _fire(self, session: CallSession) -> None:
        """Call the function for the windows that are over next, of all keys."""


def _of_open(over: WindowCall) -> WindowCall:
    """The same window without the tuples of messages that died."""
    if all(member.open for member in over.members):
        return over
    members, new, expiring = (
        [member for member in part if member.open] for part in (over.members, over.new, over.expiring)
    )
    return replace(over, members=members, new=new, expiring=expiring)
