"""The task of an async bolt: up to `concurrency` calls at a time, the effects of each carried out as it ends.

Owns which tuples wait and which are being worked on; with keyed state, the tuples of one key wait for each other, so
that a key has one call at a time, in the order in which its tuples came. It refuses to run anything: it asks for calls
in the outbox, and gets their results as mail. All code of the user runs in such calls, `open` and `close` too.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final

from tupletree.bolts.collector import CollectorCall, DeliveredTuple, deliveries_of
from tupletree.bolts.effects import StateCell, Worked
from tupletree.bolts.failures import safe_text
from tupletree.config import Options
from tupletree.data.frames import UNTRACKED, Frame, Root, all_failed, roots_of
from tupletree.errors import InternalError, ProcessingTimeoutError
from tupletree.ids import RandomBits
from tupletree.routing.plan import Plan, Task
from tupletree.state.cells import is_immutable
from tupletree.state.keys import key_functions
from tupletree.tasks.async_context import CallCollector, CallContext, CallPlace, CallState, CallWatch, own_copy
from tupletree.tasks.emitter import DeferredDeltas
from tupletree.tasks.in_order import OrderedInput
from tupletree.tasks.machine import EmittingMachine
from tupletree.tasks.mail import DropRoots, Finished, Mail, Now
from tupletree.tasks.making import carried
from tupletree.tasks.outbox import Outbox
from tupletree.topology.components import Tick
from tupletree.topology.model import BoltSpec
from tupletree.topology.states import view_of
from tupletree.tracking.holds import Hold
from tupletree.tracking.work_done import WorkDone

OPENING = 0
"""The number of the call that opens a class bolt."""

LOOK_S = 0.1
"""How late at most a timeout is reset after a call asked for it."""

NO_KEY: Final = object()


# More than 12 attributes: one machine: tuples that wait and calls that run are one state.
class AsyncBoltMachine(EmittingMachine):
    """See `Machine` and `EmittingMachine`. What a call asks of its collector counts when the call ends, all together.

    Args:
        plan, task, options, random_bits, attempts: as for `EmittingMachine`.
        cell: the task's keyed state, if the bolt declares state. A call works on a copy of its key's value, which takes
            the value's place if the call succeeds.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        options: Options,
        *,
        random_bits: RandomBits,
        attempts: dict[int, int],
        cell: StateCell | None = None,
    ) -> None:
        super().__init__(plan, task, options, random_bits=random_bits, attempts=attempts)
        component = plan.spec.components[task.component]
        spec: BoltSpec = component.body
        self.place = CallPlace.of(self.place)
        self._deferred = DeferredDeltas()
        self._spec = spec
        self._resources = component.resources
        self._calls = CollectorCall(component, self.place, self._fail)
        self._renewals: deque[Root] = deque()
        self._collector = CallCollector(self.place, self._calls, self._renewals)
        self._cell = cell
        self._state = view_of(spec.state, CallState(self.place, spec.state.default)) if spec.state is not None else None
        self._keys_of = key_functions(plan.spec, component, task.index) if cell is not None else {}
        self._process: Callable[[Any], Any] | None = None
        self._tick: Callable[[Any], Any] | None = None
        self._close: Callable[[], Any] | None = None
        self._opening = self._ticking = False
        self._ready: deque[tuple[DeliveredTuple, Any]] = deque()
        self._lines: dict[Any, deque[DeliveredTuple]] = {}  # of keys with a call; what is in no queue may start
        self._running: dict[int, CallContext] = {}
        self._turns: OrderedDict[DeliveredTuple, None] = OrderedDict()  # whose results leave in order, as it came
        self._ended: dict[DeliveredTuple, tuple[int, CallContext, BaseException | None]] = {}  # not their turn yet
        self._started = OPENING
        self._looked_s = 0.0
        self._watch = CallWatch(options.message_timeout_s, options.processing_timeout_s)
        self.done = self._done = WorkDone()
        self._now_s = 0.0
        self._probe = 0  # the call that probes whether an outage is over
        if spec.style == "function":
            injected = {name: self._injected(what) for name, what in spec.inject.items()}
            parameter = spec.value_parameter
            self._process = lambda value: spec.target(**{parameter: value}, **injected)
            self._tick = self._process if Tick in spec.input_types else None

    # --- start and stop ---------------------------------------------------------------------------------------

    def start(self, now: Now, out: Outbox) -> None:
        """Ask for a class bolt to be opened; tuples wait until it is."""
        self._begin(now)
        self.place.ids_of = self._ids_of
        self._in_order = self._order(one_by_one=True)
        if self._process is None:
            self._ask_to_open(out)

    def _begin(self, now: Now) -> None:
        self.place.epoch_time_s, self._now_s = now.wall_s, now.monotonic_s
        self._since_s = now.monotonic_s

    def stop(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - it sends nothing
        """Cancel the calls that run, and close a class bolt when they have ended."""
        cancelled = [*self._running, *([OPENING] if self._opening else [])]
        if cancelled or self._close is not None:
            out.endings.append((self.task.task_id, cancelled, self._end))

    def _ask_to_open(self, out: Outbox) -> None:
        self._opening = True
        out.calls.append((self.task.task_id, OPENING, self._open))

    async def _open(self) -> list[Any]:
        bolt = self._spec.target()
        for name, what in self._spec.inject.items():
            setattr(bolt, name, self._injected(what))
        try:
            await _ended(bolt.open(self.place))
        except BaseException:
            with contextlib.suppress(Exception):  # it was never open; the error of `open` says why
                await _ended(bolt.close())
            raise
        process, tick, collector = bolt.process, bolt.tick, self._collector
        self._process = (lambda value: process(value, collector)) if self._spec.takes_collector else process
        self._tick = lambda _: tick(collector)
        self._close = bolt.close
        return []

    async def _end(self) -> list[Any]:
        if self._close is not None:
            await _ended(self._close())
        return []

    def _injected(self, what: str) -> object:
        known = {"state": self._state, "context": self.place, "collector": self._collector}
        return known[what] if what in known else self._resources[what.removeprefix("resource:")]

    # --- questions --------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return len(self._running)

    @property
    def held(self) -> int:
        """Tuples that wait for a call or for its end."""
        return len(self._ready) + sum(map(len, self._lines.values())) + len(self._running) + len(self._ended)

    @property
    def is_busy(self) -> bool:
        """Whether any call runs or is to be made."""
        return self.held > 0 or (self._in_order is not None and self._in_order.is_holding)

    def next_due_s(self) -> float | None:
        """When to look whether a call reset a timeout, or whether a message is over."""
        dues = [self._watch.due_s] if self._running else []
        if self._running and self._spec.can_collect:
            dues.append(self._looked_s + LOOK_S)
        if self._orphan_check is not None:
            dues.append(self._orphan_check.due_s)
        if self.wait.current is not None:
            dues += [] if self._is_probing else [self.wait.due_s]
            dues += [] if self._renewal_s is None else [self._renew_at_s]
        elif self._limit is not None and self._ready:
            dues += [self._limit.due_s] if len(self._running) < self._spec.concurrency else []
            dues += [] if self._renewal_s is None else [self._renew_at_s]
        if self._in_order is not None and self._in_order.is_holding:
            dues.append(self._looked_s + self._in_order.look_in_s)
            dues += [] if self._renewal_s is None else [self._renew_at_s]
        return min(dues, default=None)

    def held_roots(self) -> list[int]:
        waiting = self._in_order.waiting_roots() if self._in_order is not None else ()
        return [*self._calls.unsettled(), *self._waiting_roots(), *waiting]

    def holds(self, root: int, now: Now) -> list[Hold]:
        name, away = self.task.component, self.wait.current
        since_s = None if away is None else away.since_s - now.monotonic_s + now.wall_s
        found = [
            Hold("call", name, since_s=call.begun_s)
            for call in self._running.values()
            if root in roots_of(call.delivery.root)
        ]
        found += [Hold("turn", name) for delivery in self._ended if root in roots_of(delivery.root)]
        for delivery, _ in self._ready:
            if root in roots_of(delivery.root):
                found.append(Hold("turn", name) if away is None else Hold("outage", name, since_s=since_s))
        for key, line in self._lines.items():
            if any(root in roots_of(delivery.root) for delivery in line):
                found.append(Hold("key", name, key=safe_text(key, 100)))
        found += [] if self._in_order is None else self._in_order.holds(root)
        if not found and root in self._calls.unsettled():
            found.append(Hold("held", name))
        return found

    def held_now(self) -> list[Hold]:
        name, behind = self.task.component, sum([len(line) for line in self._lines.values()])
        running = [call.begun_s for call in self._running.values()]
        found = [Hold("call", name, len(running), since_s=min(running))] if running else []
        found += (
            [Hold("turn" if self.wait.current is None else "outage", name, len(self._ready))] if self._ready else []
        )
        found += [Hold("key", name, behind)] if behind else []
        return found if self._in_order is None else [*found, *self._in_order.held_now()]

    def _waiting_roots(self) -> list[int]:
        """Roots of the tuples that wait for a call."""
        waiting = [*(one for one, _ in self._ready), *(one for line in self._lines.values() for one in line)]
        return [root for one in waiting for root in roots_of(one.root)]

    def purge(self, roots: AbstractSet[int], gone: AbstractSet[int]) -> None:
        """See `EmittingMachine`. Calls that run go on."""
        super().purge(roots, gone)
        self._calls.purge(gone, {*(call.delivery for call in self._running.values()), *self._ended})
        for key, line in self._lines.items():
            for one in line if self._turns else ():
                if all_failed(one.root, gone):
                    self._turns.pop(one, None)
            self._lines[key] = deque(one for one in line if not all_failed(one.root, gone))
        for _ in range(len(self._ready)):
            delivery, key = self._ready.popleft()
            if all_failed(delivery.root, gone):
                self._turns.pop(delivery, None)
                self._next_in_line(key)
            else:
                self._ready.append((delivery, key))

    # --- calls ------------------------------------------------------------------------------------------------

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:
        """Queue the tuples, and start as many as may run."""
        self._begin(now)
        self.worked += len(frame.values)
        worked = Worked()
        if self._in_order is not None:
            self._take_in_order(frame, self._in_order)
            self._line_up_next(self._in_order, worked)
        else:
            if self._under_way is not None:
                self._keep_frame(frame, self._under_way)
            self._line_up_all(frame, worked)
        self._go_on(worked, out)

    def _line_up_next(self, in_order: OrderedInput, worked: Worked) -> bool:
        """Line up what may be called now; whether there was anything."""
        came = False
        while (frame := in_order.next_frame(0)) is not None:
            came = True
            self._line_up_all(frame, worked)
        return came

    def _line_up_all(self, frame: Frame, worked: Worked) -> None:
        if self._emitter.ordering.inherits:
            frame = carried(frame)
        for delivery in deliveries_of(frame):
            try:
                key = self._key_of(frame, delivery.value)
            except Exception as error:  # noqa: BLE001 - user code; it becomes this tuple's failure
                self._fail.blame(worked, delivery.root, delivery.value, error)
            else:
                if self._spec.ordered:
                    self._turns[delivery] = None
                self._line_up(delivery, key)

    def tick(self, now: Now, out: Outbox) -> None:
        """Call the bolt's tick, before the tuples that wait; not while the last tick runs."""
        self._begin(now)
        if self._tick is not None and not self._ticking and self.wait.current is None:
            self._ticking = True
            tick = DeliveredTuple(Tick(now.wall_s), UNTRACKED, 0, {})
            if self._spec.state is not None and not self._spec.state.is_keyed:
                self._line_up(tick, self.task.index)  # one call at a time has the task's state
            else:
                self._ready.appendleft((tick, NO_KEY))
            self._go_on(Worked(), out)

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        """Settle the tuples of calls that ended, and start further calls."""
        self._begin(now)
        self._renew(out)
        left = deque(mail)
        if self._orphan_check is not None:
            self._orphan_check.receive(one for one in mail if isinstance(one, DropRoots))
            left = deque(one for one in mail if not isinstance(one, DropRoots))
        while True:
            worked = Worked()
            with self._calls.several(worked):  # what ended together goes out together: a frame for each costs more
                while left and not self._calls.is_full:
                    self._hear(left.popleft(), worked, out)
            self._go_on(worked, out)
            if not left:
                break

    def _hear(self, one: Mail, worked: Worked, out: Outbox) -> None:
        if not isinstance(one, Finished):
            raise InternalError("an async bolt got mail that is not for bolts", got=type(one).__name__)
        if one.call == OPENING:
            self._note_opened(one.error, worked, out)
        elif one.call in self._running:
            self._note_in_turn(one.call, one.error, worked, out)

    def _note_in_turn(self, number: int, error: BaseException | None, worked: Worked, out: Outbox) -> None:
        """A call ended: take its results, or keep them until those of all tuples before it have been taken."""
        call = self._running.pop(number)
        self._done.note(1, self._now_s - call.started_s)
        is_outage = error is not None and self.place.takes_as_outage(error) and not call.settled
        if call.delivery not in self._turns or is_outage:
            self._note_ended(number, call, error, worked, out)
            return
        self._ended[call.delivery] = number, call, error
        self._take_turns(worked, out)

    def _take_turns(self, worked: Worked, out: Outbox) -> None:
        while self._turns and (first := next(iter(self._turns))) in self._ended:
            del self._turns[first]
            self._note_ended(*self._ended.pop(first), worked, out)

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:  # noqa: ARG002 - pauses are for spouts
        """Reset the timeouts that calls have reset, and those of tuples that wait; try again what met an outage."""
        self._looked_s = now.monotonic_s
        if self._running and self._watch.due_s <= now.monotonic_s:
            self._look_at_calls(now, out)
        is_limited = self._limit is not None and bool(self._ready)
        if self.wait.current is not None or is_limited:
            self._begin(now)
            if self._must_renew(now):
                probe = self._running.get(self._probe)  # its message waits for the end of the outage, too
                out.extend([*self._waiting_roots(), *(roots_of(probe.delivery.root) if probe is not None else ())])
            may_start = self._limit is None or self._limit.due_s <= now.monotonic_s
            if self.wait.due_s <= now.monotonic_s and not self._is_probing and may_start:
                self._go_on(Worked(), out)
        asked = self._orphan_check is not None and self._orphan_check.poll(now.monotonic_s, out)
        if self._in_order is not None and self._in_order.is_holding:
            self._in_order.look(now.monotonic_s)
            if self._must_renew(now):
                out.extend([*self._in_order.waiting_roots(), *self._waiting_roots()])
            if self._line_up_next(self._in_order, worked := Worked()):
                self._begin(now)
                self._go_on(worked, out)
                return True
        return self._renew(out) or asked

    def _look_at_calls(self, now: Now, out: Outbox) -> None:
        """Have calls cancelled that take too long or for which nobody waits; a call that goes on even so is let go."""
        to_cancel, given_up = self._watch.look(self._running, self.live, now.monotonic_s)
        if len(self._running) >= self._spec.concurrency and self._watch.all_take_long(self._running, now.monotonic_s):
            out.extend(self._waiting_roots())
        if to_cancel:
            out.cancels.append((self.task.task_id, to_cancel))
        if not given_up:
            return
        self._begin(now)
        worked = Worked()
        for number in given_up:
            self._note_in_turn(number, ProcessingTimeoutError(), worked, out)
        self._note(f"{len(given_up)} calls go on although they were cancelled; their results are dropped", out)
        self._go_on(worked, out)

    def _renew(self, out: Outbox) -> bool:
        count = len(self._renewals)
        for _ in range(count):
            out.extend(roots_of(self._renewals.popleft()))
        return count > 0

    def _key_of(self, frame: Frame, value: Any) -> Any:
        return self._keys_of[frame.component, frame.stream]([value])[0] if self._cell is not None else NO_KEY

    def _line_up(self, delivery: DeliveredTuple, key: Any) -> None:
        if key is NO_KEY:
            self._ready.append((delivery, key))
        elif key in self._lines:
            self._lines[key].append(delivery)
        else:
            self._lines[key] = deque()
            self._ready.append((delivery, key))

    def _next_in_line(self, key: Any) -> None:
        if key is NO_KEY:
            return
        if self._lines[key]:
            self._ready.append((self._lines[key].popleft(), key))
        else:
            del self._lines[key]

    def _go_on(self, worked: Worked, out: Outbox) -> None:
        """Start the calls that may start now, and carry out the effects of those that ended."""
        if self._ended:  # those before them may have gone without a call
            self._take_turns(worked, out)
        is_away = self.wait.current is not None
        if is_away and self.wait.due_s > self._now_s:
            pass
        elif self._process is None:
            if (self._ready or is_away) and not self._opening:
                self._ask_to_open(out)
        else:
            is_next = self._is_next_wanted()
            if is_away and not is_next and not self._running:
                self._note(self.wait.over(self._now_s), out)  # no other call runs that would probe
            if is_away and is_next and not self._is_probing:
                self._start(*self._ready.popleft(), worked, out)
                self._probe = self._started
            while self.wait.current is None and len(self._running) < self._spec.concurrency and self._is_next_wanted():
                if self._limit is not None and not self._limit.take(1, self._now_s):
                    break
                self._start(*self._ready.popleft(), worked, out)
        self.carry_out(worked, out)
        if self._in_order is not None and self._line_up_next(self._in_order, worked := Worked()):
            self._go_on(worked, out)

    def _is_next_wanted(self) -> bool:
        """Drop the next tuples whose messages are over; whether one is left."""
        while self._ready:
            delivery, key = self._ready[0]
            if self.live is None or not self.live.is_over(delivery.root):
                return True
            self._ready.popleft()
            self._turns.pop(delivery, None)
            self._next_in_line(key)
            if self._kept_frames is not None:
                self._kept_frames.settle((), roots_of(delivery.root))
        return False

    @property
    def _is_probing(self) -> bool:
        return self._opening or self._probe in self._running

    def _wait_for(self, error: BaseException, out: Outbox) -> None:
        if self.wait.current is None:
            self._renew_at_s, self._probe = self._now_s, 0
        self._note(self.wait.met(error, self._now_s), out)

    def _start(self, delivery: DeliveredTuple, key: Any, worked: Worked, out: Outbox) -> None:
        is_keyed = key is not NO_KEY
        call = CallContext(self.place, delivery, key if is_keyed else None, is_keyed=is_keyed)
        if is_keyed:
            assert self._cell is not None
            self._cell.prepare([key], self.place.epoch_time_s)
            changed = self._cell.changed
            try:
                call.value = call.held = own_copy(changed[key] if key in changed else self._cell.load(key))
            except BaseException as error:  # noqa: BLE001 - the user's default raised; the bolt never saw this tuple
                self._fail.blame(worked, delivery.root, delivery.value, error)
                self._turns.pop(delivery, None)
                self._note_tick_over(delivery)
                self._next_in_line(key)
                return
        call.begun_s = self.place.epoch_time_s
        call.started_s = self._now_s
        self._calls.hold(delivery)
        self._started += 1
        self._running[self._started] = call
        what = self._tick if type(delivery.value) is Tick else self._process
        assert what is not None
        out.calls.append((self.task.task_id, self._started, partial(self._run, call, what)))

    async def _run(self, call: CallContext, what: Callable[[Any], Any]) -> list[Any]:
        """The call itself: its results go to its collector, in order with what it emits by hand."""
        call.begin()
        try:
            called = what(call.delivery.value)
            if inspect.isasyncgen(called):
                async for value in called:
                    if value is not None:
                        self._collector.emit(value)
                return []
            answer = await _ended(called)
            several = self._spec.returns == "many" or hasattr(answer, "__next__")
            if answer is not None:
                for value in answer if several else (answer,):
                    if value is not None:
                        self._collector.emit(value)
        finally:
            call.over = True
        return []

    def _note_opened(self, error: BaseException | None, worked: Worked, out: Outbox) -> None:
        """A bolt that cannot be opened fails the tuples that wait, and is tried again when others come."""
        self._opening = False
        if error is not None and self.place.takes_as_outage(error):
            self._wait_for(error, out)
            return
        self._note(self.wait.over(self._now_s), out)
        if error is None:
            return
        self._note_closed(error, out)
        waiting = [*(delivery for delivery, _ in self._ready), *(one for line in self._lines.values() for one in line)]
        self._ready.clear()
        self._lines.clear()
        self._turns.clear()
        for delivery in waiting:
            self._fail.blame(worked, delivery.root, "(the bolt could not be opened)", error)

    def _note_ended(
        self, number: int, call: CallContext, error: BaseException | None, worked: Worked, out: Outbox
    ) -> None:
        error = self._watch.error_of(call, error, self._now_s)
        if (
            error is not None
            and self.place.takes_as_outage(error)
            and not call.settled
            and type(call.delivery.value) is not Tick
        ):
            # The call's requests are dropped, its value of the state was a copy: the tuple is worked again unchanged.
            self._calls.let_go(call.delivery)
            self._ready.appendleft((call.delivery, call.key if call.is_keyed else NO_KEY))
            if self.wait.current is None or number == self._probe:
                self._wait_for(error, out)
            return
        if number == self._probe and call.cancelled_s is None:  # one that was cancelled did not find out
            self._note(self.wait.over(self._now_s), out)

        def carry_out(_: Any) -> None:
            for request in call.requests:
                request()
            if error is not None:
                raise error

        succeeded = self._calls.run_one(call.delivery, carry_out, worked)
        self._note_tick_over(call.delivery)
        if call.is_keyed:
            if succeeded and not (call.value is call.held and is_immutable(call.value)):
                self._take_back(call)
            self._next_in_line(call.key)

    def _note_tick_over(self, delivery: DeliveredTuple) -> None:
        if type(delivery.value) is Tick:
            self._ticking = False
            self._calls.forget(delivery.value)

    def _take_back(self, call: CallContext) -> None:
        cell = self._cell
        assert cell is not None
        cell.prepare([call.key], self.place.epoch_time_s)
        if call.key not in cell.changed and not is_immutable(call.value):
            # It expired meanwhile, and the cell can only change a value that exists.
            with contextlib.suppress(
                Exception
            ):  # the user's default raised; it is not needed, since a value is set next
                cell.load(call.key)
        cell.changed[call.key] = call.value
        if call.touched:
            cell.key = call.key
            cell.touch()


async def _ended(called: Any) -> Any:
    """The result of a function that may be async or not."""
    return await called if inspect.isawaitable(called) else called
