"""One turn of a holding bolt: calls of the user's function, and what is emitted, settled and failed by them.

Owns how a function is called with tuples of several messages, that what it gives is anchored to all of them, and what
every task that does so has in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from tupletree.bolts.call_retry import retrying_call
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.event_time import (
    BEFORE_ALL,
    BY_RUN,
    BY_WALL,
    TimeHold,
    Watermark,
    micros,
    partition_function,
    seconds,
    shown,
    timestamp_function,
)
from tupletree.bolts.failures import FailureMaker, wrong_type
from tupletree.bolts.held import BaseHolder, HeldTuple, HolderSession, Holdings, together, waits_for
from tupletree.bolts.timers import Timers
from tupletree.data.frames import Frame, Root, roots_of
from tupletree.errors import PermanentError
from tupletree.topology.model import BoltSpec, ComponentSpec
from tupletree.topology.windows import JoinSpec, Late, WindowSpec

RENEW_AFTER = 1 / 3
"""Of the message timeout: when timeouts of held messages that must not expire are reset."""


FAR_AHEAD_US = 60_000_000
"""A timestamp that is so far ahead of the clock is not one of a clock that is a little fast."""

DROPPED_SHOWN = 2
"""Of so many late tuples of a frame the log may say why."""

LOOK_AGAIN_S = 0.5
"""How often windows that are called again look whether all messages that may be theirs have come again."""


class HolderCalls:
    """Makes the turns of one task.

    Attributes:
        is_away: a call met an outage, and the calls that were put off because of it have not been made.
    """

    def __init__(self, component: ComponentSpec, place: TaskPlace, holdings: Holdings) -> None:
        spec: BoltSpec = component.body
        self.place = place
        self.holdings = holdings
        self.fail = FailureMaker(component.name, place.task_id, component.retry)
        self.streams = {stream.schema.cls: name for name, stream in component.outputs.items()}
        self.returns_many = spec.returns == "many"
        self.is_away = False
        injected: dict[str, object] = {
            name: place if what == "context" else component.resources[what.removeprefix("resource:")]
            for name, what in spec.inject.items()
        }
        self._target = spec.target
        self._injected = injected
        self.results: Callable[..., list[Any]] = retrying_call(self._results, place)
        """What a call of a function from `bound` with these values gave."""

    def bound(self, *parameters: str) -> Callable[..., Any]:
        """The user's function, called with the values of these parameters."""
        target, injected = self._target, self._injected
        if not injected:
            return target
        return lambda *values: target(**dict(zip(parameters, values, strict=True)), **injected)

    def _results(self, function: Callable[..., Any], *values: Any) -> list[Any]:
        # A list is handed out as a copy, for a call that is made again must find it as it was.
        answer = function(*(value.copy() if type(value) is list else value for value in values))
        return [] if answer is None else [*answer] if self.returns_many else [answer]

    def check(self, results: Sequence[Any]) -> None:
        """Raise ProcessingError if a result is of no stream."""
        for result in results:
            if type(result) not in self.streams:
                raise wrong_type(result, " or ".join(cls.__name__ for cls in self.streams) or "nothing")


class CallSession(HolderSession):
    """What one call of a holder by windows or joins comes to."""

    def __init__(self, calls: HolderCalls) -> None:
        super().__init__(calls.holdings, calls.fail, calls.streams)
        self._calls = calls
        self._failing = False

    def met_outage(self) -> bool:
        """Whether a call met an outage, in this turn or before; until it is over none is made but those put off."""
        return self._calls.is_away

    def take_failing(self) -> bool:
        """Whether any message failed since this was asked last."""
        failing, self._failing = self._failing, False
        return failing

    def call(self, members: Sequence[HeldTuple], shown: object, function: Callable[..., Any], *values: Any) -> bool:
        """Call the function; what it gives is anchored to the members. False if it raised, and so failed them all.

        A call that meets an outage fails nobody: `met_outage` is true then, and the caller puts the call off.

        Args:
            members: the tuples that the call is about.
            shown: what a failure names as the failing tuple.
            function: from `HolderCalls.bound`.
            values: what it is called with.
        """
        calls = self._calls
        calls.place.root = whole = together(members)
        try:
            results = calls.results(function, *values)
            calls.check(results)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            if calls.place.waits and calls.place.takes_as_outage(error):
                self.worked.outage, calls.is_away = error, True
                return True
            self.blame(whole, shown, error)
            return False
        finally:
            calls.place.root = None
        for result in results:
            self.emit(whole, result)
        return True

    def refuse(self, member: HeldTuple, error: Exception) -> None:
        """Fail a tuple that cannot be taken."""
        self.blame(member.root, member.value, error)
        self.settle((member,))

    def too_late(self, member: HeldTuple, late: Late, reason: PermanentError) -> None:
        """Settle a tuple that came too late."""
        self.worked.late += 1
        if late == "emit":
            self.emit(member.root, member.value)
        elif late == "drop":
            if len(self.worked.dropped) < DROPPED_SHOWN:
                self.worked.dropped.append(self._calls.fail.of(member.value, reason))
        else:
            self.blame(member.root, member.value, reason)
        self.settle((member,))

    def blame(self, root: Root, shown: object, error: BaseException) -> None:
        self._failing = True
        super().blame(root, shown, error)


class CallingHolder(BaseHolder, ABC):
    """What the tasks of windows and joins have in common; see `Holder`."""

    def __init__(self, component: ComponentSpec, place: TaskPlace) -> None:
        super().__init__(place)
        self._calls = HolderCalls(component, place, self._holdings)
        self._extends = component.body.holding.extend_timeout
        self._renew_at_s = 0.0
        self._waiting: Collection[int] = ()  # messages whose next attempt is to come; see `Holder.restore`

    def until_s(self, root: int | None = None) -> float | None:  # noqa: ARG002 - those that go by time know more
        return None

    def resume(self) -> Worked:
        """See `Holder`: the calls that were put off because of an outage."""
        session = CallSession(self._calls)
        self._call_put_off(session)
        return session.end()

    def waiting(self) -> list[int]:
        """See `Holder`: all that is held, for windows and pairs are made of it."""
        if not self._calls.is_away:
            return []
        return [one for held in self._holdings.held() for root in held.frame.roots for one in roots_of(root)]

    @abstractmethod
    def _call_put_off(self, session: CallSession) -> None:
        """Make the calls that were put off and need not wait any more; put them off again where there is an outage."""

    @abstractmethod
    def forget(self, roots: Collection[int]) -> None:
        """See `Holder`."""

    @abstractmethod
    def _put_off(self) -> Iterable[HeldTuple]:
        """Tuples that take part in what is put off because another one waits; see `Holder.restore`."""

    @property
    def put_off_since_s(self) -> float | None:
        return min((member.since_s for member in self._put_off()), default=None)

    def _may_come(self, reopened_us: int | None) -> bool:  # noqa: ARG002 - those that go by time know more
        """Whether what was in use when a later attempt came (None: none did) may be about to come again as well."""
        return False

    def _waits(self, members: Iterable[HeldTuple]) -> bool:
        """Whether any of these waits for another attempt of its message."""
        waiting = self._waiting
        return bool(waiting) and any(waits_for(member, waiting) for member in members)

    def _spare(self, session: CallSession, members: Iterable[HeldTuple]) -> None:
        """Reset the timeouts of these messages, except those that wait themselves: others delay them."""
        roots = dict.fromkeys(root for member in members for root in roots_of(member.root))
        session.worked.extended += [root for root in roots if root not in self._waiting]

    def _renew(self, session: CallSession) -> None:
        """Reset timeouts, of all held messages if that is wanted, and of those that wait for another one."""
        timeout_s = self._place.message_timeout_s
        if timeout_s is None or not self.is_holding:
            return
        put_off = [] if self._extends else [*self._put_off()]
        if not (self._extends or put_off) or self._place.epoch_time_s < self._renew_at_s:
            return
        self._renew_at_s = self._place.epoch_time_s + timeout_s * RENEW_AFTER
        if self._extends:
            held = (root for one in self._holdings.held() for root in one.frame.roots)
            roots = dict.fromkeys(one for root in held for one in roots_of(root))
            session.worked.extended += [root for root in roots if root not in self._waiting]
        else:
            self._spare(session, put_off)

    def _due_at(self, due_us: int | None) -> float | None:
        """When to be called, for this or to renew timeouts."""
        if self._calls.is_away:
            return self._place.epoch_time_s
        due_s = None if due_us is None else seconds(due_us)
        if self._place.message_timeout_s is None or not self.is_holding:
            return due_s
        if not (self._extends or any(True for _ in self._put_off())):
            return due_s
        return self._renew_at_s if due_s is None else min(due_s, self._renew_at_s)

    def _purge(self, session: CallSession) -> None:
        """Let go of what else is held for messages that failed just now: they will come again."""
        if session.take_failing():
            self.forget(session.worked.failures.keys())

    def _now_us(self) -> int:
        return micros(self._place.epoch_time_s)

    def _ran_us(self) -> int:
        """The run's clock; see `TaskPlace.run_s`."""
        run_s = self._place.run_s
        return micros(self._place.epoch_time_s if run_s is None else run_s)


class TimedHolder(CallingHolder):
    """What the tasks of windows by time and of joins have in common: how far time has come, and what it brings."""

    def __init__(self, component: ComponentSpec, place: TaskPlace) -> None:
        super().__init__(component, place)
        spec: WindowSpec | JoinSpec = component.body.holding
        self._time_of = timestamp_function(spec.timestamp) if spec.timestamp is not None else None
        self._watermark = Watermark(
            [(source.component, source.stream) for source in component.inputs],
            lag_us=micros(spec.lag_s),
            idle_us=micros(spec.idle_s) if spec.idle_s is not None else None,
            hold_us=micros(spec.retry_hold_s),
            partition_of=partition_function(spec.partition) if spec.partition is not None else None,
        )
        self._stirred = False  # tuples came since the watermark was looked at
        self._over_us = BEFORE_ALL  # time has come this far
        self._hold_us = micros(spec.retry_hold_s)
        self._late = spec.late
        self._lag_us = micros(spec.lag_s)
        self._max_ahead_us = None if spec.max_ahead_s is None else micros(spec.max_ahead_s)
        self._ends = Timers()  # when something is over
        self._kept_since_s: float | None = None  # when the oldest message went out that is tried again elsewhere
        self._retries_run = False

    @property
    def due_s(self) -> float | None:
        if self._stirred:
            return self._place.epoch_time_s
        due_us = self._ends.next_us
        if due_us is not None and self._time_of is not None:
            due_us = self._watermark.reaches(due_us, self._now_us(), self._ran_us(), self._holds())
        due_s = self._due_at(due_us)
        if self._looks_again or (self._place.held_back_since_s is not None and self.is_holding):
            look_s = self._place.epoch_time_s + LOOK_AGAIN_S
            return look_s if due_s is None else min(due_s, look_s)
        return due_s

    @property
    def goes_by_event_time(self) -> bool:
        return self._time_of is not None

    def until_s(self, root: int | None = None) -> float | None:
        if root is None:
            until_us = self._ends.next_us
        else:
            until_us = max(
                (time_us for member, time_us in self._lasts() if root in roots_of(member.root)), default=None
            )
        return None if until_us is None else seconds(until_us)

    @abstractmethod
    def _lasts(self) -> Iterable[tuple[HeldTuple, int]]:
        """What is held, and when time has passed the last use of it; but not what is put off."""

    @property
    def watermark_us(self) -> int | None:
        return None if self._time_of is None or self._watermark.current == BEFORE_ALL else self._watermark.current

    @property
    def _looks_again(self) -> bool:
        """Whether anything waits for others that may come again (`_may_come`)."""
        return False

    def _may_come(self, reopened_us: int | None) -> bool:
        """See `CallingHolder`: while a message that first went out before is tried again, as long as it may."""
        retrying_us = self._retrying_since_us()
        if reopened_us is None or retrying_us is None:
            return False
        return retrying_us <= reopened_us and self._now_us() - reopened_us < self._hold_us

    @abstractmethod
    def _key_of(self, member: HeldTuple) -> Any:
        """The key of a tuple; whatever a tuple without one raises comes out."""

    def _taken(self, session: CallSession, frame: Frame) -> Iterator[tuple[HeldTuple, Any, int]]:
        """Hold a frame's tuples; gives each with its key and its time, but for those that are settled at once."""
        now_us, ran_us, partition_of = self._now_us(), self._ran_us(), self._watermark.partition_of
        for member in self._holdings.take(frame, self._place.epoch_time_s):
            if not member.open:
                continue  # it failed with one before it
            try:
                time_us = self._time_of(member.value) if self._time_of is not None else max(now_us, self._over_us)
                key = self._key_of(member)
                partition = None if partition_of is None else partition_of(member.value)
            except Exception as error:  # noqa: BLE001 - user code; it becomes this tuple's failure
                session.refuse(member, error)
                continue
            if self._time_of is not None:
                if self._is_ahead(session, member, time_us):
                    continue
                self._watermark.saw(member.source, time_us, ran_us, partition)
                self._stirred = True
            yield member, key, time_us

    def _time_of_held(self, member: HeldTuple) -> int:
        """The time of a tuple that was held before."""
        return self._time_of(member.value) if self._time_of is not None else micros(member.since_s)

    def _is_ahead(self, session: CallSession, member: HeldTuple, time_us: int) -> bool:
        """Whether a tuple's timestamp is farther ahead of the clock than it may be; then the tuple is settled."""
        if self._max_ahead_us is None or time_us - self._now_us() <= self._max_ahead_us:
            return False
        reason = PermanentError(
            "the tuple's timestamp is too far ahead of the clock",
            where=self._place.component,
            got=f"a tuple of {shown(time_us)}",
            expected=f"none after {shown(self._now_us() + self._max_ahead_us)}",
            next_step="correct the timestamp before the window, or raise max_ahead_s",
        )
        session.too_late(member, "emit" if self._late == "emit" else "fail", reason)
        return True

    def _too_late(self, session: CallSession, member: HeldTuple, time_us: int, needed_us: int, what: str) -> None:
        """A tuple came too late.

        Args:
            session: the calls in hand.
            member: the tuple.
            time_us: its time.
            needed_us: the watermark at which it would have been in time.
            what: what it came too late for.
        """
        now_us, latest_us = self._now_us(), self._over_us + self._lag_us
        lag_s = seconds(self._lag_us + self._over_us - needed_us)
        if latest_us > now_us + FAR_AHEAD_US and self._max_ahead_us is None:
            advice = (
                f"a timestamp that is ahead of the clock, {shown(latest_us)}, moved the watermark: set max_ahead_s, "
                "or correct timestamps before the window"
            )
        else:
            advice = (
                f"it came {seconds(latest_us - time_us):g} s of event time behind a later one: a lag_s above {lag_s:g} "
                "would have waited for it; or take late tuples from a stream of their own: late='emit'"
            )
        reason = PermanentError(
            f"the tuple came too late: {what}",
            where=self._place.component,
            got=f"a tuple of {shown(time_us)}",
            expected=f"none before {shown(self._over_us)}, the watermark",
            next_step=advice,
        )
        session.too_late(member, self._late, reason)

    def _begin(self, members: Sequence[HeldTuple], waiting: Collection[int]) -> None:
        """An epoch begins, with these tuples held."""
        self._waiting = waiting
        place = self._place
        self._retries_run = place.retries_run
        if place.kept_retrying:
            own = {root for member in members for root in roots_of(member.root)}
            elsewhere = {root: since_s for root, since_s in place.kept_retrying.items() if root not in own}
            self._kept_since_s = min(elsewhere.values(), default=None)
            self._retries_run = self._retries_run or any(root not in waiting for root in elsewhere)
        self._watermark.wait(self._ran_us())

    def _retrying_since_us(self) -> int | None:
        sinces = [one for one in (self._place.retrying_since_s, self._kept_since_s) if one is not None]
        return micros(min(sinces)) if sinces else None

    def _reached_us(self) -> int:
        """How far time comes now; `_over_us` follows when all that this brings has been done."""
        if self._time_of is None:
            self._stirred = False
            return max(self._now_us(), self._over_us)
        # With an attempt under way the next epoch knows more, and time may have come further without anything new.
        self._stirred = self._retries_run and self.is_holding
        return self._watermark.advance(self._now_us(), self._ran_us(), self._holds())

    def _holds(self) -> list[TimeHold]:
        """What holds the watermark back: what is tried again, what is put off before it, and what is under way."""
        place = self._place
        put_off_us = None if place.held_back_since_s is None else micros(place.held_back_since_s)
        holds = [(since_us, BY_WALL) for since_us in (self._retrying_since_us(), put_off_us) if since_us is not None]
        if place.under_way_since_s is not None:
            holds.append((micros(place.under_way_since_s), BY_RUN))
        return holds
