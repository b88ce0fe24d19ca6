"""Window bolts: tuples are held, and the user's function gets those of a window together when it is over.

Owns which windows a tuple is in, when a window is over, and which tuples no later window needs. A pure state machine: a
`Holder`, whose only clock is the runtime's epoch time.

Windows by time are half open, begin at multiples of the slide since the Unix epoch, and are over, per task, in order of
their ends (Akidau et al., "The Dataflow Model", VLDB 2015: assignment by event time, triggering by watermark).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.bolts.calls import CallSession
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.event_time import BEFORE_ALL, micros, seconds
from tupletree.bolts.held import HeldFrame, HeldTuple
from tupletree.bolts.held_marks import marked, marks
from tupletree.bolts.window_calls import KeyFunctions, TimedWindowCalls, WindowCall, WindowCalls
from tupletree.data.frames import Frame
from tupletree.topology.model import ComponentSpec


@dataclass(slots=True, eq=False)
class _Timed:
    """One tuple in windows by time. `first_end_us`: end of the first window that it is in and that was not over."""

    member: HeldTuple
    time_us: int
    first_end_us: int


@dataclass(slots=True)
class _TimeGroup:
    """Tuples of one key by time."""

    times: list[int] = field(default_factory=list)
    entries: list[_Timed] = field(default_factory=list)


class TimeWindowTask(TimedWindowCalls):
    """One task of a bolt on windows of a length: a `Holder`. What is over next are windows, by their ends."""

    def __init__(self, component: ComponentSpec, place: TaskPlace, keys: KeyFunctions | None = None) -> None:
        super().__init__(component, place, keys)
        spec = self._spec
        assert spec.length_s is not None
        self._length_us = micros(spec.length_s)
        self._slide_us = micros(spec.slide_s) if spec.slide_s is not None else self._length_us
        self._groups: dict[Any, _TimeGroup] = {}

    def _place_in_window(self, session: CallSession, key: Any, member: HeldTuple, time_us: int) -> None:
        over_us = self._over_us
        is_behind = self._first_end(time_us) <= over_us
        if is_behind and self._place.comes_again(member.root):
            self._come_again(key, member, time_us)
        elif is_behind and self._last_end(time_us) <= over_us:
            what = "every window that would hold it is over"
            self._too_late(session, member, time_us, self._last_end(time_us), what)
        else:
            self._enter(key, member, time_us, over_us)

    def memory(self) -> Any:
        """The watermark, which windows are over, and what was over when frames came with tuples of such windows."""
        almost_late: dict[int, int] = {}
        for group in self._groups.values():
            for entry in group.entries:
                if entry.first_end_us != self._first_end(entry.time_us):
                    almost_late[entry.member.origin.id] = entry.first_end_us - self._slide_us
        put_off = self._memory_of_put_off()
        return [self._renew_at_s, self._over_us, self._watermark.memory(), [*almost_late.items()], put_off]

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:
        over_at: dict[int, int] = {}
        put_off: Sequence[Any] = ()
        if memory is not None:
            self._renew_at_s, self._over_us, watermark, almost_late, put_off = memory
            self._watermark.restore(watermark, self._place.renamed)
            over_at = dict(almost_late)
        members = self._holdings.restore(held)
        self._begin(members, waiting)
        expired = self._restore_put_off(members, put_off)
        for member in members:
            if member in expired:
                continue
            over_us = over_at.get(member.origin.id, BEFORE_ALL)
            self._enter(self._key_of(member), member, self._time_of_held(member), over_us)

    def forget(self, roots: Collection[int]) -> None:
        if self._holdings.forget(roots):
            for key, group in [*self._groups.items()]:
                group.entries = [entry for entry in group.entries if entry.member.open]
                group.times = [entry.time_us for entry in group.entries]
                if not group.entries:
                    self._drop(key)

    def _lasts(self) -> Iterable[tuple[HeldTuple, int]]:
        entries = (entry for group in self._groups.values() for entry in group.entries)
        return ((entry.member, self._last_end(entry.time_us)) for entry in entries)

    def _enter(self, key: Any, member: HeldTuple, time_us: int, over_us: int) -> None:
        """Put a tuple in its windows; what was accepted once (see `restore`) has at least its last one before it."""
        first_end_us = max(self._first_end(time_us), self._end_after(over_us))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _TimeGroup()
        at = bisect_right(group.times, time_us)
        group.times.insert(at, time_us)
        group.entries.insert(at, _Timed(member, time_us, first_end_us))
        due_us = max(first_end_us, self._end_after(self._over_us))
        self._ends.put_earlier(key, min(due_us, self._last_end(time_us)))

    def _come_again(self, key: Any, member: HeldTuple, time_us: int) -> None:
        """A tuple of a later attempt is not late: its windows that are over are called again, with what comes again."""
        end_us, last_us, now_us = self._first_end(time_us), self._last_end(time_us), self._now_us()
        if last_us > self._over_us:
            self._enter(key, member, time_us, self._over_us)
        else:
            self._expired.add(member)
        open_again = {(over.end_s, over.key): over for over in self._windows_put_off}
        while end_us <= min(last_us, self._over_us):
            over = open_again.get((seconds(end_us), key))
            if over is None:
                over = WindowCall(key, seconds(end_us - self._length_us), seconds(end_us), [], [], [], now_us)
                self._windows_put_off.append(over)
            at = bisect_right(over.members, time_us, key=self._time_of_held)
            over.members.insert(at, member)
            if end_us == self._first_end(time_us):
                over.new.append(member)
            if end_us == last_us:
                over.expiring.append(member)
            self._calls_put_off[member] = self._calls_put_off.get(member, 0) + 1
            end_us += self._slide_us

    def _fire(self, session: CallSession) -> None:
        end_us, keys = self._ends.take_next()
        start_us = end_us - self._length_us
        for key in keys:
            group = self._groups[key]
            held = group.entries[: bisect_left(group.times, end_us)]
            leaving = bisect_left(group.times, start_us + self._slide_us)
            if held:
                members = [entry.member for entry in held]
                new = [entry.member for entry in held if entry.first_end_us >= end_us]
                over = WindowCall(key, seconds(start_us), seconds(end_us), members, new, members[:leaving])
                if self._call_or_put_off(session, over):
                    self._expire(session, members[:leaving])
                else:
                    leaving = len(members)
                    session.settle(members)
            # Not a new list: there may be very many tuples of later windows.
            del group.entries[:leaving], group.times[:leaving]
            if group.entries:
                self._ends.put(key, max(self._first_end(group.times[0]), end_us + self._slide_us))
            else:
                self._drop(key)
        self._purge(session)

    def _drop(self, key: Any) -> None:
        """No tuple of this key is held any more."""
        del self._groups[key]
        self._ends.remove(key)

    def _first_end(self, time_us: int) -> int:
        """End of the first window that holds this time."""
        after = time_us - self._length_us
        return after - after % self._slide_us + self._slide_us + self._length_us

    def _last_end(self, time_us: int) -> int:
        """End of the last window that holds this time."""
        return time_us - time_us % self._slide_us + self._length_us

    def _end_after(self, time_us: int) -> int:
        """The first end of any window after this time."""
        return time_us - (time_us - self._length_us) % self._slide_us + self._slide_us


@dataclass(slots=True)
class _CountGroup:
    """Tuples of one key by arrival; the last `fresh` of them were in no window yet."""

    members: list[HeldTuple] = field(default_factory=list)
    fresh: int = 0


class CountWindowTask(WindowCalls):
    """One task of a bolt on windows by count: a `Holder`."""

    def __init__(self, component: ComponentSpec, place: TaskPlace, keys: KeyFunctions | None = None) -> None:
        super().__init__(component, place, keys)
        assert self._spec.count is not None
        self._count = self._spec.count
        self._slide = self._spec.slide_count or self._count
        self._stay = self._count - self._slide  # tuples that the next window holds as well
        self._groups: dict[Any, _CountGroup] = {}

    def work(self, frame: Frame) -> Worked:
        """Hold a frame's tuples, and call the function for every window that they make full."""
        session = CallSession(self._calls)
        for member in self._holdings.take(frame, self._place.epoch_time_s):
            if not member.open:
                continue
            try:
                key = self._key_of(member)
            except Exception as error:  # noqa: BLE001 - it becomes this tuple's failure
                session.refuse(member, error)
                continue
            group = self._groups.setdefault(key, _CountGroup())
            group.members.append(member)
            group.fresh += 1
            if group.fresh == self._slide:
                self._fire(key, group, session)
        self._purge(session)
        return session.end()

    def advance(self) -> Worked:
        """Call the function for windows that are full since a `restore`: time brings no others."""
        session = CallSession(self._calls)
        self._call_put_off(session)
        for key, group in [*self._groups.items()]:
            while group.fresh >= self._slide:
                self._fire(key, group, session)
        self._renew(session)
        return session.end()

    @property
    def due_s(self) -> float | None:
        return self._due_at(None)

    def flush(self) -> Worked:
        """Call the function for what was in no window yet, and let go of everything."""
        session = CallSession(self._calls)
        self._call_put_off(session)
        for key, group in [*self._groups.items()]:
            while group.fresh >= self._slide:
                self._fire(key, group, session)
            if group.fresh:
                members = group.members[-self._count :]
                self._call_with(key, members, group.fresh, len(members), session)
            self._expire(session, group.members)
        self._groups.clear()
        return session.end()

    def memory(self) -> Any:
        """Which tuples were in a window already."""
        groups = self._groups.values()
        seen = [one for group in groups for one in group.members[: len(group.members) - group.fresh]]
        return [self._renew_at_s, marks(seen), self._memory_of_put_off()] if self.is_holding else None

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:
        self._waiting = waiting
        self._renew_at_s, seen, put_off = memory or (0.0, (), ())
        members = self._holdings.restore(held)
        old = marked(members, seen)
        expired = self._restore_put_off(members, put_off)
        for member in members:
            if member in expired:
                continue
            group = self._groups.setdefault(self._key_of(member), _CountGroup())
            group.members.append(member)
            group.fresh += member not in old

    def forget(self, roots: Collection[int]) -> None:
        if not self._holdings.forget(roots):
            return
        for key, group in [*self._groups.items()]:
            fresh = group.members[len(group.members) - group.fresh :]
            group.fresh = sum(member.open for member in fresh)
            group.members = [member for member in group.members if member.open]
            if not group.members:
                del self._groups[key]

    def _fire(self, key: Any, group: _CountGroup, session: CallSession) -> None:
        """Call the function for the next full window of a key."""
        end = len(group.members) - group.fresh + self._slide
        leaving = max(0, end - self._stay)
        start = max(0, end - self._count)
        if self._call_with(key, group.members[start:end], self._slide, leaving - start, session):
            self._expire(session, group.members[:leaving])
        else:
            leaving = end
            session.settle(group.members[:leaving])
        del group.members[:leaving]
        group.fresh -= self._slide
        if not group.members:
            del self._groups[key]
        self._purge(session)

    def _call_with(self, key: Any, members: list[HeldTuple], new: int, leaving: int, session: CallSession) -> bool:
        times = members[0].since_s, members[-1].since_s
        over = WindowCall(key, *times, members, members[len(members) - new :], members[:leaving])
        return self._call_or_put_off(session, over)
