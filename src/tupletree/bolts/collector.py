"""Calls with a `Collector`: bolts that emit, anchor, ack and fail by hand.

Owns the handles of tuples that are not settled yet, and the rules of verdicts:

- The first verdict of a tuple wins; a later one is counted and changes nothing. An error after the verdict is a stray.
- When a call raises, what it emitted for its own tuple only is dropped. What it anchored to other tuples stays, because
  their verdicts stay too: a tuple that was acked must not lose what was emitted for it.
- A tuple is named by the object that was given to the bolt. Where one object was delivered several times, it
  names the delivery in hand first, then the oldest that is open; listed n times as an anchor, it names n of them.
- A tuple whose messages are over (they failed or expired elsewhere) can still be named, because a bolt may anchor to it
  among others that are open; but its verdict changes nothing. Whether the bolt keeps it cannot be known, so only the
  `MAX_OVER` that were the last to be over are remembered.
- A verdict or an emit outside of a call is an error, because it would not be carried out. A thread or future may drop
  that error, so it is a stray, too: of the next result, or told when the task is closed.
- A call that met an outage is no verdict: its tuple is taken back unchanged, and is worked again after it.
- A call that raised may be made again at once (`call_retry`), if all that it did can be taken back: it gave no verdict,
  and anchored to no other tuple, for the bolt may have noted what it settled or passed on. Only a tuple that would fail
  is worked again.
- A bolt may use its collector on threads of its own while it is called. No lock is taken, for each emit and verdict
  would pay for it: what threads share is only appended to and taken from its front, in one step each, never replaced.
  Verdicts are taken before emits, because a tuple is emitted before its anchor is acked. One thread at a time takes
  out: it has the turn. Another that asks to leave early does not wait: the one that has the turn does it for both.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tupletree.bolts.call_retry import may_pass
from tupletree.bolts.chunks import CHECK
from tupletree.bolts.effects import Outlet, Output, StateCell, TaskPlace, Worked
from tupletree.bolts.failures import FailureMaker, safe_text, wrong_type
from tupletree.data.frames import (
    UNTRACKED,
    Frame,
    Root,
    all_failed,
    carrier,
    join_segments,
    made_of,
    newest,
    plain_root,
    roots_of,
)
from tupletree.errors import ProcessingError, TupleSettledError
from tupletree.topology.components import Tick
from tupletree.topology.model import ComponentSpec

MAX_OVER = 10_000
"""Objects of messages that are over which one task remembers, to let them be named."""


@dataclass(slots=True)
class _Emitted:
    value: Any
    root: Root
    stream: str
    direct_task: int | None


@dataclass(frozen=True, slots=True)
class _Before:
    """What there is before a call that may be made again: verdicts so far, and how state is put back."""

    verdicts: int
    undo: Callable[[], None] | None


# More than 12 attributes: the state of one call, which its methods judge as a whole; one object is used again for each.
class CollectorCall:
    """Runs frames through a bolt that has a collector, for one task."""

    def __init__(self, component: ComponentSpec, place: TaskPlace, fail: FailureMaker) -> None:
        self._returns = component.body.returns
        self._auto_ack = component.body.auto_ack
        self._auto_fail = component.body.auto_fail
        self._streams = {stream.name: stream.schema.cls for stream in component.outputs.values()}
        self._names: dict[type, list[str]] = {}
        for name, cls in self._streams.items():
            self._names.setdefault(cls, []).append(name)
        self._place = place
        self._fail = fail
        self._open: dict[int, list[DeliveredTuple]] = {}
        self._over: dict[int, list[DeliveredTuple]] = {}  # the last to be over comes last
        self._current: DeliveredTuple | None = None
        self._emitted: list[_Emitted] = []
        self._mark = 0  # what comes behind it was emitted by the call in hand
        self._worked: Worked | None = None
        self._done: list[tuple[int, Root]] = []  # (frame id, root)
        self._verdicts = 0
        self._out_of_call: deque[ProcessingError] = deque()  # raised since the last result, on any thread
        self._outage: BaseException | None = None
        self._rest: list[DeliveredTuple] = []  # what an outage left
        self._rest_keys: list[Any] | None = None
        self._told: set[int] = set()  # failed in this frame, and taken by `_settled`
        self._asked: deque[Callable[[], Worked]] = deque()  # to leave early
        self._turn: list[None] = [None]  # empty while a thread does what is asked
        self.leave_early: Callable[[Callable[[], Worked]], None] | None = None
        """Hears of each verdict and renewal as it is given. It may call what it is given, once, for what can leave now,
        before the call in hand ends."""
        self.collector = _Collector(self)

    def run(
        self,
        frame: Frame,
        call: Callable[[Any], Any],
        state: StateCell | None,
        keys: Sequence[Any] | None,
        worked: Worked,
    ) -> None:
        """Call the bolt for every tuple of the frame and add what came of it to `worked`.

        The state's value of the last call that failed its tuple is not taken back.
        """
        for _ in self.parts(frame, call, state, keys, worked, None):
            pass

    def parts(
        self,
        frame: Frame,
        call: Callable[[Any], Any],
        state: StateCell | None,
        keys: Sequence[Any] | None,
        worked: Worked,
        outlet: Outlet | None,
    ) -> Iterator[Worked]:
        """As `run`, but gives what finished calls emitted whenever it makes a part, if there is an outlet for it.

        One call is never cut.
        """
        yield from self._parts(deliveries_of(frame), call, state, keys, worked, outlet)

    def resume_parts(
        self,
        call: Callable[[Any], Any],
        state: StateCell | None,
        time_s: float,
        worked: Worked,
        outlet: Outlet | None,
    ) -> Iterator[Worked]:
        """Go on with what an outage left, in parts as `parts` gives them: the call that met it is made again."""
        rest, keys = self._rest, self._rest_keys
        self._rest, self._rest_keys = [], None
        if state is not None and keys is not None:
            state.prepare(keys, time_s)
        yield from self._parts(rest, call, state, keys, worked, outlet)

    def waiting(self) -> list[int]:
        """Roots of what an outage left."""
        return [root for delivery in self._rest for root in roots_of(delivery.root)]

    def _parts(
        self,
        deliveries: list[DeliveredTuple],
        call: Callable[[Any], Any],
        state: StateCell | None,
        keys: Sequence[Any] | None,
        worked: Worked,
        outlet: Outlet | None,
    ) -> Iterator[Worked]:
        self._begin(worked)
        self._told.clear()
        room = CHECK if outlet is not None else sys.maxsize
        try:
            for index, delivery in enumerate(deliveries):
                if all_failed(delivery.root, worked.failures):
                    continue
                if state is None or keys is None:
                    self.hold(delivery)
                    self._one(delivery, call, worked)
                else:
                    self._keyed(delivery, call, worked, state, keys[index])
                if self._outage is not None:
                    worked.outage, self._outage = self._outage, None
                    self._rest = deliveries[index:]
                    self._rest_keys = None if keys is None else [*keys[index:]]
                    break
                if len(self._emitted) >= room and outlet is not None:
                    last = self._emitted[-1]
                    room = max(1, outlet.room_for(last.stream, last.value))
                    if len(self._emitted) >= room:
                        yield Worked(outputs=self._outputs(worked))
            self._finish(worked)
        finally:
            self._end()

    def hold(self, delivery: DeliveredTuple) -> None:
        """Give a tuple to the bolt: from now on it can be settled and anchored to."""
        self._over.pop(id(delivery.value), None)
        name = id(delivery.value)
        deliveries = self._open.get(name)
        if deliveries is None:
            self._open[name] = [delivery]
        else:
            deliveries.append(delivery)
            if self._open.get(name) is not deliveries:  # another thread has settled the last before, just now
                self._open[name] = [delivery]

    @contextmanager
    def several(self, worked: Worked) -> Iterator[None]:
        """Within it `run_one` is called with this `worked`, which has what came of all of them at the end."""
        self._begin(worked)
        try:
            yield
            self._finish(worked)
        finally:
            self._end()

    @property
    def is_full(self) -> bool:
        """Whether so much was emitted within `several` that it goes out before further calls are made."""
        return len(self._emitted) >= CHECK

    def run_one(self, delivery: DeliveredTuple, call: Callable[[Any], Any], worked: Worked) -> bool:
        """Call the bolt for one tuple that it holds; False if that raised before the tuple was settled.

        Outside of `several` it is the only one.
        """
        if self._worked is None:
            with self.several(worked):
                return self.run_one(delivery, call, worked)
        try:
            return self._one(delivery, call, worked)
        finally:
            self._place.root = None

    def unsettled(self) -> list[int]:
        """Roots of the tuples that are neither acked nor failed, each once."""
        held = (delivery for deliveries in self._open.values() for delivery in deliveries)
        return list(dict.fromkeys(root for delivery in held for root in roots_of(delivery.root)))

    def purge(self, roots: Collection[int], running: Collection[DeliveredTuple] = ()) -> None:
        """These roots are over: wait no longer for verdicts on tuples of theirs alone, unless a call runs for them."""
        for name, deliveries in [*self._open.items()]:
            if all(all_failed(one.root, roots) and one not in running for one in deliveries):
                self._over[name] = self._open.pop(name)
        for name in [*islice(self._over, max(0, len(self._over) - MAX_OVER))]:
            del self._over[name]

    def _keyed(
        self, delivery: DeliveredTuple, call: Callable[[Any], Any], worked: Worked, state: StateCell, key: Any
    ) -> None:
        """One call with the key's value in hand, which is taken back unless the call failed."""
        state.key = key
        try:
            state.value = held = state.changed[key] if key in state.changed else state.load(key)
        except BaseException as error:  # noqa: BLE001 - the user's default raised; the bolt never saw this tuple
            self._fail.blame(worked, delivery.root, delivery.value, error)
            return
        self.hold(delivery)
        if self._one(delivery, call, worked, state) and state.value is not held:
            state.changed[key] = state.value

    def forget(self, value: object) -> None:
        """Drop an untracked tuple that need not be settled (a tick)."""
        self._open.pop(id(value), None)

    def _one(
        self, delivery: DeliveredTuple, call: Callable[[Any], Any], worked: Worked, state: StateCell | None = None
    ) -> bool:
        """One call; False if it raised before its tuple was settled."""
        self._current = delivery
        self._place.root = delivery.root
        before = None if self._place.calls == 1 else self._before(delivery, state)
        self._mark = len(self._emitted)
        try:
            result = call(delivery.value)
            if result is not None:
                for value in self._results(result):
                    self.emit(value, None, None, None)
        except BaseException as error:  # noqa: BLE001 - GeneratorExit, SystemExit and the like are the user's failures
            last = error if before is None else self._retry_call(delivery, call, before, error)
            if last is not None:
                return self._raised(delivery, last, worked)
        finally:
            self._current = None
        if self._auto_ack and delivery.open:
            self._settle(delivery)
        return True

    def _before(self, delivery: DeliveredTuple, state: StateCell | None) -> _Before | None:
        """What there is before a call that may be made again; None if it may not."""
        if not (self._auto_fail and roots_of(delivery.root)):
            return None
        return _Before(self._verdicts, None if state is None else state.savepoint())

    def _retry_call(
        self, delivery: DeliveredTuple, call: Callable[[Any], Any], before: _Before, error: BaseException
    ) -> BaseException | None:
        """Make a call again that raised, as often as that may be; what it raised last, None once it returned."""
        own = set(roots_of(delivery.root))
        for number in range(self._place.calls):
            is_alone = all(own.issuperset(roots_of(one.root)) for one in self._emitted[self._mark :])
            is_over = number == self._place.calls - 1
            if is_over or not (may_pass(error, self._place) and is_alone and self._verdicts == before.verdicts):
                if number:
                    self._place.calls_again.note(passed=False)
                break
            self._wait_for_turn()
            del self._emitted[self._mark :]
            self._turn.append(None)
            if before.undo is not None:
                before.undo()
            try:
                result = call(delivery.value)
                if result is not None:
                    for value in self._results(result):
                        self.emit(value, None, None, None)
            except BaseException as raised:  # noqa: BLE001 - as in the first call
                error = raised
            else:
                self._place.calls_again.note(passed=True)
                return None
        if self._place.takes_as_outage(error) and before.undo is not None:
            before.undo()
        return error

    def _raised(self, delivery: DeliveredTuple, error: BaseException, worked: Worked) -> bool:
        if not delivery.open:
            worked.late_verdicts += 1
            self._fail.stray(worked, delivery.value, error)
            return True
        self._wait_for_turn()
        try:
            self._take_back(delivery.root)
        finally:
            self._turn.append(None)
        if self._place.waits and self._place.takes_as_outage(error) and type(delivery.value) is not Tick:
            self._outage = error
            self.let_go(delivery)
        elif self._auto_fail:
            self._fail_now(delivery, error, worked)
        else:
            self._fail.stray(worked, delivery.value, error)
        return False

    def _results(self, result: Any) -> Iterable[Any]:
        if self._returns == "many" or hasattr(result, "__next__"):
            several: Iterable[Any] = result
            return several
        return (result,)

    def _held(self, value: object) -> list[DeliveredTuple]:
        """The open deliveries of an object: the one in hand first, then the oldest first."""
        deliveries = self._open.get(id(value)) or self._over.get(id(value), [])
        current = self._current
        if len(deliveries) > 1 and current is not None and current.open and current.value is value:
            return [current, *(one for one in deliveries if one is not current)]
        return deliveries

    def _settle(self, delivery: DeliveredTuple) -> bool:
        """Take the delivery out, and name the root as done once all its tuples of the frame are settled.

        False if another thread has just settled it.
        """
        if not self.let_go(delivery):
            return False
        self._verdicts += 1
        delivery.settle(self._done)
        return True

    def let_go(self, delivery: DeliveredTuple) -> bool:
        """The bolt holds this tuple no longer; it stays open. False if it was not held any more."""
        name = id(delivery.value)
        named = self._open if name in self._open else self._over
        try:
            deliveries = named[name]
            deliveries.remove(delivery)
        except (KeyError, ValueError):
            return False
        if not deliveries:
            named.pop(name, None)
            if deliveries:  # it was held again just now
                named[name] = deliveries
        return True

    def _fail_now(self, delivery: DeliveredTuple, error: BaseException | str | None, worked: Worked) -> bool:
        if not self._settle(delivery):
            return False
        self._fail.blame(worked, delivery.root, delivery.value, error)
        return True

    def _begin(self, worked: Worked) -> None:
        del self._emitted[:]
        del self._done[:]
        self._asked.clear()
        self._worked = worked

    def _end(self) -> None:
        self._wait_for_turn()
        self._worked = self._place.root = None
        self._turn.append(None)

    def _finish(self, worked: Worked) -> None:
        self._wait_for_turn()
        try:
            done = self._taken_done(worked)
            worked.outputs += self._outputs(worked)
            worked.done += done
        finally:
            self._turn.append(None)
        self.tell_out_of_call(worked)

    def tell_out_of_call(self, worked: Worked) -> None:
        """Add what was asked of the collector outside of calls, and not done, as strays."""
        while self._out_of_call:
            self._fail.stray(worked, "a use of the collector", self._out_of_call.popleft())

    def _wait_for_turn(self) -> None:
        """Take the turn. It is taken already only if a thread of the bolt's own has outlived the call."""
        while True:
            try:
                self._turn.pop()
            except IndexError:
                continue
            return

    def _taken_done(self, worked: Worked) -> list[tuple[int, list[Root]]]:
        """Take out what is done so far, without what failed. To be called before `_outputs`."""
        taken = self._done[:]
        del self._done[: len(taken)]
        by_frame: dict[int, list[Root]] = {}
        for frame_id, root in taken:
            if root not in worked.failures:
                by_frame.setdefault(frame_id, []).append(root)
        return [*by_frame.items()]

    def _take_back(self, root: Root) -> list[_Emitted]:
        """Take out what the call in hand emitted for the messages of this root alone."""
        own = set(roots_of(root))
        start, end = self._mark, len(self._emitted)
        mine = self._emitted[start:end]
        self._emitted[start:end] = [one for one in mine if not own.issuperset(roots_of(one.root))]
        return [one for one in mine if own.issuperset(roots_of(one.root))]

    def _outputs(self, worked: Worked) -> list[Output]:
        """Take out what was emitted so far, as outputs, without what belongs only to failed roots."""
        failed = worked.failures
        by_target: dict[tuple[str, int | None], list[tuple[Root, list[Any]]]] = {}
        places: dict[tuple[str, int | None], list[int]] = {}  # where in what was emitted, if that matters
        is_numbered = self._place.numbered
        taken = self._emitted[:]
        del self._emitted[: len(taken)]
        for place, emitted in enumerate(taken):
            if not all_failed(emitted.root, failed):
                target = emitted.stream, emitted.direct_task
                by_target.setdefault(target, []).append((emitted.root, [emitted.value]))
                if is_numbered:
                    places.setdefault(target, []).append(place)
        return [
            Output(stream, *join_segments(pieces), direct_task, places.get((stream, direct_task)))
            for (stream, direct_task), pieces in by_target.items()
        ]

    def _in_call(self, action: str) -> Worked:
        if self._worked is None:
            raise self.out_of_call(action)
        return self._worked

    def out_of_call(self, action: str) -> ProcessingError:
        """The error for a collector that is used when no call would carry it out."""
        error = ProcessingError(
            f"{action} outside of a call has no effect",
            where=self._place.component,
            next_step="keep the tuples, and use the collector in a later call of `process`; or wait for the bolt's own "
            "threads before the call returns",
        )
        self._out_of_call.append(error)
        return error

    def _tell(self, what: Callable[[], Worked]) -> None:
        if self.leave_early is None:
            return
        self._asked.append(what)
        while self._asked:  # and again after the turn: another may have asked meanwhile
            try:
                self._turn.pop()
            except IndexError:
                return  # the thread that has it looks again once it has given it back
            try:
                while self._asked:
                    take = self._asked.popleft()
                    if self._worked is not None:
                        self.leave_early(take)
            finally:
                self._turn.append(None)

    def _settled(self) -> Worked:
        """What is final although a call is in hand, taken out of what will come of the frame.

        What the call emitted for its own open tuple alone is not: it would be taken back if the call raised.
        """
        worked = self._worked
        assert worked is not None
        done = self._taken_done(worked)
        current = self._current
        kept = self._take_back(current.root) if current is not None and current.open else []
        failures = worked.failures.copy()
        early = Worked(failures={root: why for root, why in failures.items() if root not in self._told}, done=done)
        self._told.update(early.failures)
        early.outputs = self._outputs(worked)
        self._mark = 0
        self._emitted[:0] = kept
        return early

    def _renewed(self) -> Worked:
        """The timeouts to renew so far."""
        worked = self._worked
        assert worked is not None
        taken = worked.extended[:]
        del worked.extended[: len(taken)]
        return Worked(extended=taken)

    # What the user's collector asks for.

    def emit(self, value: Any, anchors: Sequence[object] | None, stream: str | None, direct_task: int | None) -> None:
        """See `Collector.emit`."""
        self._in_call("an emit")
        name = self.stream_for(value, stream)
        # Two anchors with one root make one edge: a root is named once however often it is anchored to.
        found: dict[int, None] = {}
        made: int | None = None
        if anchors is None:
            current = self._current
            if current is None:  # between two calls of a frame
                raise self.out_of_call("an emit")
            if not current.open:
                raise self.settled_error(current.value)
            found = dict.fromkeys(roots_of(current.root))
            made = made_of(current.root)
        else:
            listed: dict[int, int] = {}
            for anchor in anchors:
                held = self._held(anchor)
                if not held:
                    raise self.settled_error(anchor)
                before = listed.get(id(anchor), 0)
                listed[id(anchor)] = before + 1
                try:
                    anchored = held[min(before, len(held) - 1)].root
                except IndexError:  # another thread has just settled it
                    raise self.settled_error(anchor) from None
                found.update(dict.fromkeys(roots_of(anchored)))
                made = newest(made, made_of(anchored))
        roots = tuple(found)
        root: Root = roots[0] if len(roots) == 1 else roots or UNTRACKED
        if made is not None:
            root = carrier(plain_root(root), made)
        self._emitted.append(_Emitted(value, root, name, direct_task))

    def settled_error(self, anchor: object) -> TupleSettledError:
        """The error for an emit that is anchored to a tuple that is not open."""
        return TupleSettledError(
            "emit anchored to a tuple that is not open: it was acked or failed, or never handed to this task, or its "
            "messages have long been over",
            where=self._place.component,
            got=safe_text(anchor, 200),
            next_step="emit before you ack, or anchor to the tuples that are still open",
        )

    def stream_for(self, value: Any, stream: str | None) -> str:
        """Which stream a value goes to. Raises ProcessingError if that is not clear. Any thread may ask."""
        if stream is not None:
            if self._streams.get(stream) is not type(value):
                expected = ", ".join(f"{name}: {cls.__name__}" for name, cls in self._streams.items())
                raise wrong_type(value, f"a declared stream and its class ({expected or 'none'}); asked: {stream!r}")
            return stream
        names = self._names.get(type(value))
        if names is None:
            raise wrong_type(value, " or ".join(cls.__name__ for cls in self._names) or "nothing")
        if len(names) > 1:
            raise ProcessingError(
                "an emit does not say which stream it means",
                where=self._place.component,
                got=safe_text(value, 200),
                expected=f"stream= one of {', '.join(names)}",
            )
        return names[0]

    def ack(self, value: object) -> None:
        """See `Collector.ack`."""
        worked = self._in_call("an ack")
        held = self._held(value)
        if held and (self._settle(held[0]) or any(self._settle(one) for one in self._held(value)[:])):
            self._tell(self._settled)
        else:
            worked.late_verdicts += 1

    def fail(self, value: object, error: BaseException | str | None) -> None:
        """See `Collector.fail`."""
        worked = self._in_call("a fail")
        held = self._held(value)
        if held and (
            self._fail_now(held[0], error, worked)
            or any(self._fail_now(one, error, worked) for one in self._held(value)[:])
        ):
            self._tell(self._settled)
        else:
            worked.late_verdicts += 1

    def extend(self, value: object) -> None:
        """See `Collector.reset_timeout`."""
        worked = self._in_call("a reset_timeout")
        for delivery in self._held(value):
            worked.extended.extend(roots_of(delivery.root))
        self._tell(self._renewed)


class _Collector:
    """The object that user code holds; see `tupletree.topology.components.Collector`."""

    def __init__(self, calls: CollectorCall) -> None:
        self._calls = calls

    def emit(self, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None) -> None:
        self._calls.emit(value, anchors, stream, None)

    def emit_direct(
        self, task_id: int, value: Any, *, anchors: Sequence[object] | None = None, stream: str | None = None
    ) -> None:
        self._calls.emit(value, anchors, stream, task_id)

    def ack(self, value: object) -> None:
        self._calls.ack(value)

    def fail(self, value: object, error: BaseException | str | None = None) -> None:
        self._calls.fail(value, error)

    def reset_timeout(self, value: object) -> None:
        self._calls.extend(value)


@dataclass(slots=True, eq=False)
class DeliveredTuple:
    """One tuple. `unsettled` counts, per root, the open tuples of the frame it came in; they share it."""

    value: Any
    root: Root
    frame_id: int
    unsettled: dict[int, int]
    open: bool = True
    source: tuple[str, str, int] = ("", "", -1)  # component, stream and task

    def settle(self, done: list[tuple[int, Root]]) -> None:
        """Close it, and add to `done` (with the frame id) the roots that have no open tuple left in its frame."""
        self.open = False
        for root in roots_of(self.root):
            # No other thread runs between these two lines: there is neither a call in them nor a jump back.
            self.unsettled[root] = left = self.unsettled[root] - 1
            if not left:
                done.append((self.frame_id, root))


def deliveries_of(frame: Frame) -> list[DeliveredTuple]:
    """The tuples of a frame, in order.

    >>> first, second = deliveries_of(Frame(0, "lines", "Line", ["a", "b"], [7], [2], 99))
    >>> done = []
    >>> second.settle(done), done
    (None, [])
    >>> first.settle(done), done
    (None, [(99, 7)])
    """
    unsettled: dict[int, int] = {}
    deliveries: list[DeliveredTuple] = []
    source = frame.component, frame.stream, frame.source
    for root, values in frame.segments():
        for one in roots_of(root):
            unsettled[one] = unsettled.get(one, 0) + len(values)
        deliveries += [DeliveredTuple(value, root, frame.id, unsettled, True, source) for value in values]
    return deliveries
