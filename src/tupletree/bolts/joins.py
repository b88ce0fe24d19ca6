"""Join bolts: tuples of two streams are held, and the user's function gets each pair that belongs together.

Owns which tuples match, and when nothing can match one any more. A pure state machine: a `Holder`, whose only clock is
the runtime's epoch time. A tuple is kept until time has passed it by the width of the join; with event time, one that
is older than the watermark is late (the rule of an interval join: Flink's, say).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.bolts.calls import CallSession, TimedHolder
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.event_time import BEFORE_ALL, micros
from tupletree.bolts.held import HeldFrame, HeldTuple
from tupletree.bolts.held_marks import marked, marks, members_by_name, names
from tupletree.bolts.window_calls import KeyFunctions
from tupletree.data.frames import Frame
from tupletree.topology.model import BoltSpec, ComponentSpec
from tupletree.topology.windows import JoinSpec

LEFT, RIGHT = 0, 1


@dataclass(slots=True, eq=False)
class _Entry:
    """One held tuple."""

    member: HeldTuple
    time_us: int
    matched: bool = False
    pairs_put_off: int = 0
    reopened_us: int | None = None
    """When it came, as one of a later attempt, after time had passed it."""


@dataclass(slots=True)
class _Group:
    """Tuples of one key by side and time."""

    times: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    entries: tuple[list[_Entry], list[_Entry]] = field(default_factory=lambda: ([], []))


class JoinTask(TimedHolder):
    """One task of a join bolt: a `Holder`. What is over next is the use of the oldest tuples.

    Args:
        component: the bolt.
        place: its context object.
        keys: how the key of an input's tuple is known.
    """

    def __init__(self, component: ComponentSpec, place: TaskPlace, keys: KeyFunctions) -> None:
        super().__init__(component, place)
        body: BoltSpec = component.body
        assert isinstance(body.holding, JoinSpec)
        self._spec = body.holding
        self._keys = keys
        self._within_us = micros(body.holding.within_s)
        self._call = self._calls.bound(*body.holding.parameters)
        self._groups: dict[Any, _Group] = {}
        # One of the two waits (`Holder.restore`). Pairs are called, and tuples let go of, once it does not.
        self._pairs_put_off: list[tuple[_Entry, _Entry]] = []
        self._exits_put_off: list[_Entry] = []
        self._again: set[Any] = set()  # keys of tuples that stay although time has passed them; see `_may_come`

    def work(self, frame: Frame) -> Worked:
        """Match a frame's tuples with those that are held, and hold them too."""
        session, now_us = CallSession(self._calls), self._now_us()
        for member, key, time_us in self._taken(session, frame):
            if time_us < self._over_us and not self._place.comes_again(member.root):
                self._too_late(session, member, time_us, time_us, "what it should match may be gone")
            else:
                entered = self._enter(key, member, time_us)
                if time_us < self._over_us:
                    entered[1].reopened_us = now_us
                self._match(session, entered, key)
                self._purge(session)
        self._purge(session)
        return session.end()

    def advance(self) -> Worked:
        """Let go of what nothing can match any more."""
        reached_us, session = self._reached_us(), CallSession(self._calls)
        self._call_put_off(session)
        self._expire(session, reached_us)
        self._over_us = max(self._over_us, reached_us)
        self._renew(session)
        return session.end()

    def flush(self) -> Worked:
        """Let go of everything."""
        session = CallSession(self._calls)
        self._call_put_off(session)
        self._expire(session, None)
        return session.end()

    def memory(self) -> Any:
        """How far time has come, for an outer join what was matched, and pairs that are to be called."""
        matched: list[HeldTuple] = []
        if any(self._spec.optional):
            sides = [side for group in self._groups.values() for side in group.entries]
            matched = [one.member for side in (*sides, self._exits_put_off) for one in side if one.matched]
        pairs = [pair for pair in self._pairs_put_off if pair[LEFT].member.open and pair[RIGHT].member.open]
        known = names(one.member for pair in pairs for one in pair)
        put_off = [[known[left.member], known[right.member]] for left, right in pairs]
        return [self._renew_at_s, self._over_us, self._watermark.memory(), marks(matched), put_off]

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:
        matches: list[Any] = []
        put_off: list[Any] = []
        if memory is not None:
            self._renew_at_s, self._over_us, watermark, matches, put_off = memory
            self._watermark.restore(watermark, self._place.renamed)
        members = self._holdings.restore(held)
        self._begin(members, waiting)
        matched = marked(members, matches)
        entries: dict[HeldTuple, _Entry] = {}
        for member in members:
            time_us = self._time_of_held(member)
            _, entry = self._enter(self._key_of(member), member, time_us)
            entry.matched = member in matched
            if time_us + self._within_us < self._over_us:
                entry.reopened_us = micros(member.since_s)
            entries[member] = entry
        known = members_by_name(members) if put_off else {}
        for names_of_pair in put_off:
            left, right = (known.get((frame_id, position)) for frame_id, position in names_of_pair)
            if left is not None and right is not None:
                self._put_pair_off(entries[left], entries[right])

    def forget(self, roots: Collection[int]) -> None:
        if not self._holdings.forget(roots):
            return
        for key, group in [*self._groups.items()]:
            for side in (LEFT, RIGHT):
                kept = [entry for entry in group.entries[side] if entry.member.open]
                group.entries[side][:] = kept
                group.times[side][:] = [entry.time_us for entry in kept]
            self._drop_if_empty(key, group)

    def _key_of(self, member: HeldTuple) -> Any:
        return self._keys[member.source]([member.value])[0]

    def _lasts(self) -> Iterable[tuple[HeldTuple, int]]:
        entries = (entry for group in self._groups.values() for side in group.entries for entry in side)
        return ((entry.member, entry.time_us + self._within_us) for entry in entries)

    @property
    def _looks_again(self) -> bool:
        return bool(self._again)

    def _put_off(self) -> Iterable[HeldTuple]:
        for pair in self._pairs_put_off:
            yield from (entry.member for entry in pair if entry.member.open)
        yield from (entry.member for entry in self._exits_put_off if entry.member.open)

    def _put_pair_off(self, left: _Entry, right: _Entry) -> None:
        self._pairs_put_off.append((left, right))
        left.pairs_put_off += 1
        right.pairs_put_off += 1

    def _call_put_off(self, session: CallSession) -> None:
        """Call the function for the pairs of which none waits any more."""
        pairs, self._pairs_put_off = self._pairs_put_off, []
        self._calls.is_away = False
        for pair in pairs:
            for one in pair:
                one.pairs_put_off -= 1
            left, right = pair[LEFT].member, pair[RIGHT].member
            if not (left.open and right.open):
                continue  # the other one died
            if session.met_outage() or self._waits((left, right)):
                self._put_pair_off(*pair)
                continue
            succeeded = session.call((left, right), (left.value, right.value), self._call, left.value, right.value)
            if session.met_outage():
                self._put_pair_off(*pair)
            elif succeeded:
                pair[LEFT].matched = pair[RIGHT].matched = True
            else:
                session.settle((left, right))
                self._purge(session)

    def _enter(self, key: Any, member: HeldTuple, time_us: int) -> tuple[int, _Entry]:
        """Hold a tuple; returns its side and entry."""
        side = self._spec.side_of(type(member.value))
        assert side is not None
        entry = _Entry(member, time_us)
        group = self._groups.setdefault(key, _Group())
        at = bisect_right(group.times[side], time_us)
        group.times[side].insert(at, time_us)
        group.entries[side].insert(at, entry)
        self._ends.put_earlier(key, time_us + self._within_us + 1)
        return side, entry

    def _match(self, session: CallSession, entered: tuple[int, _Entry], key: Any) -> None:
        side, entry = entered
        group = self._groups[key]
        times, others = group.times[1 - side], group.entries[1 - side]
        first = bisect_left(times, entry.time_us - self._within_us)
        for other in others[first : bisect_right(times, entry.time_us + self._within_us)]:
            pair = (entry, other) if side == LEFT else (other, entry)
            left, right = pair[LEFT].member, pair[RIGHT].member
            if session.met_outage() or (self._waiting and self._waits((left, right))):
                self._put_pair_off(*pair)
                self._spare(session, (left, right))
                continue
            succeeded = session.call((left, right), (left.value, right.value), self._call, left.value, right.value)
            if session.met_outage():
                self._put_pair_off(*pair)
            elif succeeded:
                entry.matched = other.matched = True
            else:
                session.settle((left, right))
                _take_out(group, side, entry)
                _take_out(group, 1 - side, other)
                self._drop_if_empty(key, group)
                return

    def _expire(self, session: CallSession, reached_us: int | None) -> None:
        """Let go of what is of no more use at a time; None: of everything."""
        again, self._again = self._again, set()
        for key in again.intersection(self._groups) if reached_us is not None else ():
            self._let_go(session, key, self._groups[key], reached_us or 0)
        self._purge(session)
        while (next_us := self._ends.next_us) is not None and (reached_us is None or next_us <= reached_us):
            if session.met_outage():
                break  # what takes part in calls that are put off stays
            due_us, keys = self._ends.take_next()
            for key in keys:
                group = self._groups[key]
                self._let_go(
                    session, key, group, due_us if reached_us is None else reached_us, at_once=reached_us is None
                )
            self._purge(session)

    def _let_go(self, session: CallSession, key: Any, group: _Group, reached_us: int, *, at_once: bool = False) -> None:
        """Let go of what is of no more use; `at_once`: also of what others may match that come again."""
        due_us = BEFORE_ALL
        for side in (LEFT, RIGHT):
            times, entries = group.times[side], group.entries[side]
            gone = entries[: bisect_left(times, reached_us - self._within_us)]
            if not gone:
                continue
            del times[: len(gone)], entries[: len(gone)]
            reopened = [] if at_once else [one for one in gone if one.reopened_us is not None]
            stay = [one for one in reopened if self._may_come(one.reopened_us)]
            if stay:
                times[:0], entries[:0] = [one.time_us for one in stay], stay
                self._again.add(key)
                due_us = reached_us + 1
                gone = [one for one in gone if one not in stay]
            if self._waiting:
                self._exits_put_off += [one for one in gone if self._must_stay(one)]
                gone = [one for one in gone if not self._must_stay(one)]
            done = self._call_alone(session, side, gone)
            if len(done) < len(gone):
                back = sorted([*gone[len(done) :], *entries[: len(stay)]], key=lambda one: one.time_us)
                times[: len(stay)], entries[: len(stay)] = [one.time_us for one in back], back
                self._again.add(key)
                due_us = reached_us + 1
            session.settle([entry.member for entry in done])
        oldest = min((times[0] for times in group.times if times), default=None)
        if oldest is not None:
            self._ends.put(key, max(due_us, oldest + self._within_us + 1))
        self._drop_if_empty(key, group)

    def _call_alone(self, session: CallSession, side: int, gone: list[_Entry]) -> list[_Entry]:
        """Call the function for those that nothing has matched, where it wants them; gives those before an outage."""
        for number, entry in enumerate(gone):
            if session.met_outage():
                return gone[:number]
            if self._spec.optional[1 - side] and not entry.matched:
                value = entry.member.value
                session.call((entry.member,), value, self._call, *((value, None) if side == LEFT else (None, value)))
                if session.met_outage():
                    return gone[:number]
        return gone

    def _must_stay(self, entry: _Entry) -> bool:
        return entry.pairs_put_off > 0 or self._waits((entry.member,))

    def _drop_if_empty(self, key: Any, group: _Group) -> None:
        if not (group.times[LEFT] or group.times[RIGHT]):
            del self._groups[key]
            self._ends.remove(key)


def _take_out(group: _Group, side: int, entry: _Entry) -> None:
    at = bisect_left(group.times[side], entry.time_us)
    while group.entries[side][at] is not entry:
        at += 1
    del group.times[side][at], group.entries[side][at]
