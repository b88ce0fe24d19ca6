"""Session windows: a run of tuples whose times are near each other, which is over when nothing has come for a while.

Owns which tuples of a key are one session, when it is over, and where one that lasts too long is cut. A pure state
machine: a `Holder`, whose only clock is the runtime's epoch time.

A session is no more than what its tuples are: those of a key in the order of their times, parted where two are `gap_s`
or more from each other (Akidau et al., "The Dataflow Model", VLDB 2015: sessions are windows that merge). So it does
not matter in which order they come, and a tuple that goes, because its message failed, parts what it held together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.bolts.calls import CallSession
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.event_time import micros, seconds
from tupletree.bolts.held import HeldFrame, HeldTuple
from tupletree.bolts.window_calls import KeyFunctions, TimedWindowCalls, WindowCall
from tupletree.topology.model import ComponentSpec


@dataclass(slots=True)
class _Sessions:
    """The open sessions of a key. Their tuples by time, and of each session when its first and last tuple were."""

    times: list[int] = field(default_factory=list)
    members: list[HeldTuple] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)

    def near(self, time_us: int, gap_us: int) -> tuple[int, int]:
        """From which to before which session a tuple of this time would be part of: of none, one or two."""
        start = bisect_right(self.lasts, time_us - gap_us)
        return start, max(start, bisect_left(self.firsts, time_us + gap_us))

    def add(self, member: HeldTuple, time_us: int, gap_us: int) -> None:
        """A tuple more: it begins a session, is in one, or makes one of two."""
        at = bisect_right(self.times, time_us)
        self.times.insert(at, time_us)
        self.members.insert(at, member)
        start, end = self.near(time_us, gap_us)
        self.firsts[start:end] = [min(time_us, *self.firsts[start:end])] if end > start else [time_us]
        self.lasts[start:end] = [max(time_us, *self.lasts[start:end])] if end > start else [time_us]

    def drop_first(self, count: int) -> None:
        """So many of the first session are over: all of it, or what was cut off."""
        del self.times[:count], self.members[:count]
        if self.times and self.times[0] <= self.lasts[0]:
            self.firsts[0] = self.times[0]
        else:
            del self.firsts[0], self.lasts[0]


class SessionWindowTask(TimedWindowCalls):
    """One task of a bolt on session windows: a `Holder`. What is over next are the first sessions of keys."""

    def __init__(self, component: ComponentSpec, place: TaskPlace, keys: KeyFunctions | None = None) -> None:
        super().__init__(component, place, keys)
        spec = self._spec
        assert spec.gap_s is not None
        self._gap_us = micros(spec.gap_s)
        self._longest_us = None if spec.max_length_s is None else micros(spec.max_length_s)
        self._groups: dict[Any, _Sessions] = {}

    def memory(self) -> Any:
        """The watermark, and which sessions were over."""
        return [self._renew_at_s, self._over_us, self._watermark.memory(), self._memory_of_put_off()]

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:
        put_off: Sequence[Any] = ()
        if memory is not None:
            self._renew_at_s, self._over_us, watermark, put_off = memory
            self._watermark.restore(watermark, self._place.renamed)
        members = self._holdings.restore(held)
        self._begin(members, waiting)
        expired = self._restore_put_off(members, put_off)
        for member in members:
            if member not in expired:
                self._enter(self._key_of(member), member, self._time_of_held(member))

    def forget(self, roots: Collection[int]) -> None:
        if self._holdings.forget(roots):
            for key, group in [*self._groups.items()]:
                if not all(member.open for member in group.members):
                    del self._groups[key]
                    self._ends.remove(key)
                    for time_us, member in zip(group.times, group.members, strict=True):
                        if member.open:
                            self._enter(key, member, time_us)

    def _lasts(self) -> Iterable[tuple[HeldTuple, int]]:
        for group in self._groups.values():
            for start, stop in self._parts(group.times):
                end_us = self._end(group.times[start], group.times[stop - 1])
                yield from ((member, end_us) for member in group.members[start:stop])

    def _place_in_window(self, session: CallSession, key: Any, member: HeldTuple, time_us: int) -> None:
        if self._place.comes_again(member.root):
            self._come_again(key, member, time_us)
        elif self._is_over(key, time_us):
            self._too_late(session, member, time_us, time_us + self._gap_us, "its session is over")
        else:
            self._enter(key, member, time_us)

    def _is_over(self, key: Any, time_us: int) -> bool:
        """Whether what a tuple of this time would be part of is over: it is late, then."""
        if time_us + self._gap_us > self._over_us:
            return False
        group = self._groups.get(key)
        if group is None:
            return True
        start, end = group.near(time_us, self._gap_us)
        return start == end

    def _enter(self, key: Any, member: HeldTuple, time_us: int) -> None:
        """Put a tuple in the open sessions of its key."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Sessions()
        group.add(member, time_us, self._gap_us)
        self._ends.put(key, self._end(group.firsts[0], group.lasts[0]))

    def _come_again(self, key: Any, member: HeldTuple, time_us: int) -> None:
        """A tuple of a later attempt is not late: what it was part of is called again, with what comes again.

        What was put off and is near it becomes one session with it, and with the open ones that it is near.
        """
        near = [over for over in self._windows_put_off if over.key == key and self._is_near(over, time_us)]
        for over in near:
            self._take_back(over)
        times = {one: self._time_of_held(one) for over in near for one in over.members if one.open}
        times[member] = time_us
        if not self._is_over(key, time_us):
            for one, one_us in times.items():
                self._enter(key, one, one_us)
            return
        members = sorted(times, key=times.__getitem__)
        since_us = min([over.reopened_us for over in near if over.reopened_us is not None], default=self._now_us())
        self._expired.update(members)
        self._put_window_off(self._call_of(key, members, [*map(times.__getitem__, members)], since_us))

    def _is_near(self, over: WindowCall, time_us: int) -> bool:
        return micros(over.start_s) - self._gap_us < time_us < micros(over.end_s)

    def _take_back(self, over: WindowCall) -> None:
        """What was to be called later is not to be called like that."""
        self._windows_put_off = [one for one in self._windows_put_off if one is not over]
        for member in over.members:
            del self._calls_put_off[member]
            self._expired.discard(member)

    def _left_of(self, over: WindowCall) -> Iterator[WindowCall]:
        """See `WindowCalls`: what a tuple held together that is gone is more than one session."""
        members = [member for member in over.members if member.open]
        times = [*map(self._time_of_held, members)]
        for start, stop in self._parts(times):
            yield self._call_of(over.key, members[start:stop], times[start:stop], over.reopened_us)

    def _call_of(
        self, key: Any, members: list[HeldTuple], times: Sequence[int], reopened_us: int | None = None
    ) -> WindowCall:
        end_us = self._end(times[0], times[-1])
        return WindowCall(key, seconds(times[0]), seconds(end_us), members, members, members, reopened_us)

    def _fire(self, session: CallSession) -> None:
        """See `TimedWindowCalls`: the first session of each of these keys, as far as it is not cut."""
        _, keys = self._ends.take_next()
        for key in keys:
            group = self._groups[key]
            count = bisect_left(group.times, self._stop(group.firsts[0], group.lasts[0]))
            members = group.members[:count]
            over = self._call_of(key, members, group.times[:count])
            if self._call_or_put_off(session, over):
                self._expire(session, members)
            else:
                session.settle(members)
            group.drop_first(count)
            if group.times:
                self._ends.put(key, self._end(group.firsts[0], group.lasts[0]))
            else:
                del self._groups[key]
        self._purge(session)

    def _parts(self, times: Sequence[int]) -> Iterator[tuple[int, int]]:
        """From which to before which of these tuples each session is, in the order of their times."""
        start, count = 0, len(times)
        while start < count:
            stop = start + 1
            while stop < count and times[stop] < self._end(times[start], times[stop - 1]):
                stop += 1
            yield start, stop
            start = stop

    def _end(self, first_us: int, last_us: int) -> int:
        """When a session with these tuples is over."""
        end_us = last_us + self._gap_us
        return end_us if self._longest_us is None else min(end_us, first_us + self._longest_us)

    def _stop(self, first_us: int, last_us: int) -> int:
        """The first moment that is in no such session."""
        return last_us + 1 if self._longest_us is None else min(last_us + 1, first_us + self._longest_us)
