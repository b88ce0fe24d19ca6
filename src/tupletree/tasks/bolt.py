"""The bolt task: frames in, frames and deltas out.

Owns what `bolts` does not know: where outputs go, their edge ids, and what is sent to the ackers: per frame one
value per root: the frame's own edge XOR the edges of all frames that the root's tuples went on in.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from tupletree.bolts.effects import StateCell, Worked
from tupletree.bolts.factory import holder_of
from tupletree.bolts.held import Holder
from tupletree.bolts.plain import BoltTask
from tupletree.config import Options
from tupletree.data.frames import Frame, cut, roots_of, without
from tupletree.errors import InternalError
from tupletree.ids import RandomBits
from tupletree.routing.plan import Plan, Task
from tupletree.state.keys import key_functions
from tupletree.tasks.emitter import DeferredDeltas
from tupletree.tasks.in_order import OrderedInput
from tupletree.tasks.machine import EmittingMachine
from tupletree.tasks.mail import DropRoots, Mail, Now
from tupletree.tasks.making import carried
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.pace import Pace
from tupletree.tracking.holds import Hold
from tupletree.tracking.rate_limit import RateLimit
from tupletree.tracking.tree import draw_edges
from tupletree.tracking.work_done import WorkDone

if TYPE_CHECKING:
    from tupletree.bolts.arrow import ArrowTask

LOOK_AGAIN_S = 0.1
"""How often windows and joins that hold something look whether it is time to do something about it."""

PATIENCE_S = 10.0
"""How long they wait, at the end of the input, for messages that are tried again or on their way somewhere else."""

EPOCH_TIME_GRAIN_S = 1e-6
"""Seconds since the Unix epoch are exact to a quarter of this in our century."""


class EffectSender(Protocol):
    """Carries effects out while a task is at work, on the thread of the task."""

    def is_due(self) -> bool:
        """Whether the work in hand has taken so long that what is settled should not wait for its end."""
        ...

    def send(self) -> None:
        """Carry out what is in the outbox."""
        ...


# More than 12 attributes: one machine: what is held, out and in hand of a task is one state.
class BoltMachine(EmittingMachine):
    """See `Machine`. What user code raises fails messages; only what its `close` raises comes out.

    Args:
        plan, task, options, random_bits, attempts: as for `EmittingMachine`.
        cell: the task's keyed state, if the bolt declares state.
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
        self._is_open = False
        self.place.waits = True
        self._waiting: deque[Frame] = deque()  # behind what an outage left
        self._owes_for_outage = False
        is_keyed = cell is not None or component.body.is_keyed
        keys = key_functions(plan.spec, component, task.index) if is_keyed else None
        self._holder = holder_of(component, self.place, keys)
        is_cut = self._limit is not None  # parts of a frame are worked in different steps
        if self._holder is not None or is_cut or not (component.body.auto_ack and component.body.auto_fail):
            self._deferred = DeferredDeltas()
        self.done = self.measured = WorkDone()
        self._from_epoch_time_s = 0.0
        self._holding = component.body.holding
        self._worked_s = self._seen_s = 0.0
        self._is_counted = False  # whether others know what it holds
        self._tell_at_s = 0.0
        self._bolt: BoltTask | Holder | ArrowTask
        if self._holder is not None:
            self._bolt = self._holder
        elif component.body.is_vectorised:
            from tupletree.bolts.arrow import ArrowTask  # others must not wait for pyarrow

            self._bolt = ArrowTask(plan.spec, component, self.place, cell, keys)
        else:
            self._bolt = BoltTask(component, self.place, cell, keys)
        if isinstance(self._bolt, BoltTask):  # what holds tuples, or takes columns, is given whole frames
            self.pace = Pace()
            self._bolt.leave_early(self._leave_early)
        self.sender: EffectSender | None = None
        self._out: Outbox | None = None  # of the frame in hand
        self._told: set[int] = set()  # failed while it is in hand, and its acker knows
        self._cut_roots: set[int] = set()  # with tuples in what was worked of a frame and in what was not
        self._cut_failed: set[int] = set()
        self._stopped_in: Frame | None = None  # the frame in which a bolt met an outage that keeps none otherwise
        self.is_timed = self._holder is not None or self._orphan_check is not None or self._limit is not None

    def start(self, now: Now, out: Outbox) -> None:
        """Open the bolt. One that cannot be opened fails its messages, and is tried again with each frame."""
        self.place.begin(now.wall_s)
        if self.live is not None and self.pace is not None:
            self.live.paces[self.task.component] = self.pace
        self.place.ids_of = self._ids_of
        self._in_order = self._order()
        if self._in_order is not None and isinstance(self._bolt, BoltTask):
            self.is_timed = True
            self._bolt.put_behind(self._in_order.behind)
        error = self._try_to_open()
        if error is not None and self.place.takes_as_outage(error):
            self._wait_for(error, now, out)
        elif error is not None:
            self._note_closed(error, out)

    def stop(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - closing emits nothing
        """Close the bolt."""
        try:
            if self._is_open:
                self._bolt.close()
        finally:
            if isinstance(self._bolt, BoltTask):
                self.carry_out(self._bolt.out_of_call(), out)

    def _try_to_open(self) -> BaseException | None:
        try:
            self._bolt.open()
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            with contextlib.suppress(Exception):  # it was never open; the error of `open` says why
                self._bolt.close()
            return error
        self._is_open = True
        return None

    def _opened_for(self, frame: Frame, now: Now, out: Outbox) -> bool:
        """Whether the bolt is open by now; if not, the frame's messages have failed, or wait."""
        error = self._try_to_open()
        if error is None:
            return True
        if self.place.takes_as_outage(error):
            self._waiting.appendleft(frame)
            self._wait_for(error, now, out)
            return False
        worked = Worked()
        for root in frame.roots:
            self._fail.blame(worked, root, "(the bolt could not be opened)", error)
        self.carry_out(worked, out)
        if self._in_order is None:  # there, the frame has come already, and is taken when all of it is settled
            self.skip(frame)
        return False

    def work(self, frame: Frame, now: Now, out: Outbox) -> None:
        """Work a frame, or let it wait for the end of an outage behind those that came before it."""
        if self._in_order is not None:
            self._take_in_order(frame, self._in_order)
            self._work_in_order(self._in_order, now, out)
        elif self.is_waiting or self._limit is not None:
            self._waiting.append(frame)
            if self._limit is not None and self.wait.current is None:
                self._work_allowed(self._limit, now, out)
        else:
            self._work(frame, now, out)

    def _work_in_order(self, in_order: OrderedInput, now: Now, out: Outbox) -> bool:
        """Work what may be worked now, for a few milliseconds; whether there was anything."""
        worked = False
        while not self.is_waiting:
            if self._limit is not None and self._limit.due_s > now.monotonic_s:
                break
            frame = in_order.next_frame(1 if self._limit is not None or self.pace is None else self.pace.limit)
            if frame is None:
                break
            if self._limit is not None:
                self._limit.take(len(frame.values), now.monotonic_s)
            self._work(frame, now, out)
            worked = True
            if self.sender is not None and self.sender.is_due():
                break
        return worked

    def _work_allowed(self, limit: RateLimit, now: Now, out: Outbox) -> bool:
        """Work of the first frame that waits what the rate allows, for a few milliseconds; whether that was any."""
        frame = self._waiting.popleft()
        if self.live is not None:
            frame = self.live.still_wanted(frame)
        size = len(frame.values)
        taken = limit.take(size if self.pace is None else min(size, self.pace.limit), now.monotonic_s) if size else 0
        if taken < size:
            frame, rest = self.cut(frame, taken, out) if taken else (frame, frame)
            self._waiting.appendleft(rest)
        if taken or not size:
            self._work(frame, now, out)
        return bool(taken) or not size

    def _work(self, frame: Frame, now: Now, out: Outbox) -> None:
        self.place.begin(now.wall_s)
        if not (self._is_open or self._opened_for(frame, now, out)):
            return
        if self._cut_failed:
            frame = without(frame, self._cut_failed)
        self.worked += len(frame.values)
        self._look(now)
        under_way = self._under_way
        keeps = self._deferred is not None and self._holding is None
        if under_way is not None:
            since_s = under_way.since_s(frame)
            self._since_s = now.monotonic_s if since_s is None else since_s
            if self._in_order is not None:
                keeps = True  # since it came
            elif keeps:
                self._keep_frame(frame, under_way)
        self._worked_s = now.monotonic_s
        self._is_counted = False
        attempts = self.place.attempts
        if attempts:  # a call that lasts longer than its message must not see another number in the end
            ones = (one for root in frame.roots for one in roots_of(root) if one in attempts)
            self.place.pinned = {one: attempts.get(one, 1) for one in ones}
        self._out = out
        if self._emitter.ordering.inherits:
            frame = carried(frame)
        worked = self._bolt.work(frame)
        if self._in_order is not None:
            self._in_order.take_back(worked)
        self._out = None
        if self._told:
            for root in self._told:
                worked.failures.pop(root, None)
            self._cut_failed |= self._told & self._cut_roots
            self._told.clear()
        if self._cut_roots:
            self._cut_failed |= worked.failures.keys() & self._cut_roots
        self._take(worked, now, out)
        if under_way is not None and not keeps:
            if worked.outage is None:
                under_way.taken(frame.id)
            else:
                self._stopped_in = frame

    def cut(self, frame: Frame, tuples: int, out: Outbox) -> tuple[Frame, Frame]:
        """See `Machine.cut`.

        A root is done with a frame once. So if roots have tuples on both sides, the rest becomes a frame of its own, as
        if this task had emitted it: the roots on both sides are done with the first part when it is worked, but not
        before their acker knows of the rest.
        """
        head, rest, both = cut(frame, tuples)
        self._cut_failed &= both
        self._cut_roots = both
        if both:
            (rest.id,) = draw_edges(1, self._random_bits)
            alone = {one for root in rest.roots for one in roots_of(root)} - both
            if alone:
                out.add_delta(frame.id ^ rest.id, [*alone])
            if self._deferred is not None:
                self._deferred.add(rest.id, both)
            else:
                out.add_delta(rest.id, [*both])
        if self._under_way is not None:
            self._under_way.cut(head, rest)
        return head, rest

    def _leave_early(self, settled: Callable[[], Worked]) -> None:
        """A call that takes long has settled something, or renewed a timeout: let that leave before the call ends."""
        if self.sender is not None and self._out is not None and self.sender.is_due():
            root = self.place.root
            if root is not None:  # the message may be over before the call is
                self.place.named = root, self.place.ids_of_root(root)
            worked = settled()
            if self._in_order is not None:
                self._in_order.take_back(worked)
            self._told.update(worked.failures)
            self.carry_out(worked, self._out)
            self.sender.send()

    # --- outages ----------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether tuples wait because of an outage."""
        return bool(self._waiting) or self.wait.current is not None

    def _take(self, worked: Worked, now: Now, out: Outbox) -> None:
        """Carry out what came of a call; where it met an outage, wait for the end of that."""
        if worked.outage is None:
            self.carry_out(worked, out)
            return
        if self._deferred is None:
            # What messages emitted in calls before the one that met it may not be told before they are done here.
            self._deferred, self._owes_for_outage = DeferredDeltas(), True
        self.carry_out(worked, out)
        self._wait_for(worked.outage, now, out)

    def _wait_for(self, error: BaseException, now: Now, out: Outbox) -> None:
        if self.wait.current is None:
            self._renew_at_s = now.monotonic_s
            out.timed.append(self.task.task_id)
        self._note(self.wait.met(error, now.monotonic_s), out)

    def _go_on(self, now: Now, out: Outbox) -> bool:
        """Make the call again that met an outage, if it is time; then work what waits, a frame at a time."""
        if self._must_renew(now):
            out.extend([*self._waiting_roots()])
        if self.wait.due_s > now.monotonic_s:
            return False
        if self.wait.current is not None:
            tries = self.wait.current.tries
            if self._is_open:
                self.place.begin(now.wall_s)
                self._look(now)
                self._resume(now, out)
            elif self._waiting:
                self._work(self._waiting.popleft(), now, out)
            else:
                error = self._try_to_open()
                if error is not None and self.place.takes_as_outage(error):
                    self._wait_for(error, now, out)
            if self.wait.current.tries > tries:
                return False
            self._note(self.wait.over(now.monotonic_s), out)
        elif self._waiting and self._limit is not None:
            return self._work_allowed(self._limit, now, out)
        elif self._waiting:
            self._work(self._waiting.popleft(), now, out)
        if self._owes_for_outage and not self.is_waiting and not self._deferred:
            self._deferred, self._owes_for_outage = None, False
        return True

    def _resume(self, now: Now, out: Outbox) -> None:
        frame, under_way = self._stopped_in, self._under_way
        if frame is None or under_way is None:
            self._take(self._bolt.resume(), now, out)
            return
        since_s = under_way.since_s(frame)
        self._since_s = now.monotonic_s if since_s is None else since_s
        worked = self._bolt.resume()
        self._take(worked, now, out)
        if worked.outage is None:
            self._stopped_in = None
            under_way.taken(frame.id)

    def _waiting_roots(self) -> Iterable[int]:
        """The messages that wait for the end of an outage."""
        roots = [root for frame in self._waiting for root in frame.roots]
        return dict.fromkeys([*(one for root in roots for one in roots_of(root)), *self._bolt.waiting()])

    def tick(self, now: Now, out: Outbox) -> None:
        """Tell the bolt that time passed."""
        self.place.begin(now.wall_s)
        self._since_s = now.monotonic_s
        if self._is_open and not (self.is_waiting if self._limit is None else self.wait.current is not None):
            self.carry_out(self._bolt.tick(now.wall_s), out)

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:  # noqa: ARG002 - pauses are for spouts
        """Do what is due with what is held."""
        asked = self._orphan_check is not None and self._orphan_check.poll(now.monotonic_s, out)
        if self._in_order is not None and self._in_order.is_holding:
            self._renew_in_order(self._in_order, now, out)
            if not self.is_waiting:
                return self._work_in_order(self._in_order, now, out) or asked
        if self.is_waiting:
            return self._go_on(now, out) or asked
        if self._holder is None:
            return asked
        self._look(now)
        if self.retry_status is not None and self.retry_status.is_asked and now.monotonic_s >= self._tell_at_s:
            self._tell_at_s = now.monotonic_s + LOOK_AGAIN_S
            self._tell_held()
        due_s = self._holder.due_s
        if due_s is None or due_s > now.wall_s:
            return asked
        self.place.begin(now.wall_s)
        self._take(self._holder.advance(), now, out)
        self._is_counted = False
        return True

    def _renew_in_order(self, in_order: OrderedInput, now: Now, out: Outbox) -> None:
        """Waiting for its turn is no part of a message's time."""
        self._seen_s = now.monotonic_s
        in_order.look(now.monotonic_s)
        if self._must_renew(now):
            out.extend([*in_order.waiting_roots(), *self._waiting_roots()])

    def next_due_s(self) -> float | None:
        """When something is due with what is held, or a call is to be made again."""
        due_s = self._next_due_s()
        if self._in_order is None or not self._in_order.is_holding:
            return due_s
        dues = [due_s, self._seen_s + self._in_order.look_in_s]
        dues += [None if self._renewal_s is None else self._renew_at_s]
        if self._limit is not None and not self.is_waiting:
            dues.append(self._limit.due_s)
        return min((one for one in dues if one is not None), default=None)

    def _next_due_s(self) -> float | None:
        if self.is_waiting:
            again_s = self.wait.due_s if self._limit is None else max(self.wait.due_s, self._limit.due_s)
            return again_s if self._renewal_s is None else min(again_s, self._renew_at_s)
        due_s = self._holder.due_s if self._holder is not None else None
        dues = [] if due_s is None else [due_s + self._from_epoch_time_s + EPOCH_TIME_GRAIN_S]
        if self._holding is not None and self.is_busy:
            dues.append(self._seen_s + LOOK_AGAIN_S)  # whether it is time to flush
        if self._orphan_check is not None:
            dues.append(self._orphan_check.due_s)
        return min(dues, default=None)

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:  # noqa: ARG002 - it sends nothing
        """Take mail about messages that are over."""
        drops = [one for one in mail if isinstance(one, DropRoots)]
        if len(drops) < len(mail) or self._orphan_check is None:
            raise InternalError("a bolt got mail that is not for bolts", got=repr(mail)[:200])
        self._orphan_check.receive(drops)

    def held_roots(self) -> Iterable[int]:
        if self._holder is not None:
            return (one for held in self._holder.held() for root in held.frame.roots for one in roots_of(root))
        if self._in_order is not None:
            return self._in_order.waiting_roots()
        return self._bolt.unsettled() if isinstance(self._bolt, BoltTask) else ()

    def holds(self, root: int, now: Now) -> list[Hold]:
        found: list[Hold] = [] if self._in_order is None else self._in_order.holds(root)
        name, away, holder = self.task.component, self.wait.current, self._holder
        if self.is_waiting and root in self._waiting_roots():
            since_s = None if away is None else away.since_s - now.monotonic_s + now.wall_s
            return [Hold("rate" if away is None else "outage", name, since_s=since_s)]
        if holder is not None:
            sinces = [one.since_s for one in holder.held() if any(root in roots_of(held) for held in one.frame.roots)]
            if sinces:
                found.append(self._hold_of(holder, len(sinces), holder.until_s(root), min(sinces)))
        elif self._in_order is None and root in self.held_roots():
            found.append(Hold("held", name))
        return found

    def held_now(self) -> list[Hold]:
        found = [] if self._in_order is None else self._in_order.held_now()
        waiting = sum([len(frame.values) for frame in self._waiting])
        if self.wait.current is not None:
            waiting += len([*self._bolt.waiting()])
        if waiting:
            found.append(Hold("rate" if self.wait.current is None else "outage", self.task.component, waiting))
        if self._holder is not None and self._holder.held_count:
            found.append(self._hold_of(self._holder, self._holder.held_count, self._holder.until_s(), None))
        return found

    def _hold_of(self, holder: Holder, count: int, until_s: float | None, since_s: float | None) -> Hold:
        mark_us = holder.watermark_us
        watermark_s = None if mark_us is None else mark_us / 1e6
        return Hold("held", self.task.component, count, since_s, until_s, holder.goes_by_event_time, watermark_s)

    def purge(self, roots: AbstractSet[int], gone: AbstractSet[int]) -> None:
        super().purge(roots, gone)
        self._is_counted = False
        if self._holder is not None:
            self._holder.forget(gone)
        elif isinstance(self._bolt, BoltTask):
            self._bolt.purge(gone)
        if self._waiting:
            self._waiting = deque(without(frame, gone) for frame in self._waiting)  # type: ignore[arg-type]  # a set

    @property
    def watermark_us(self) -> int | None:
        """How far event time has come; see `Holder.watermark_us`."""
        return None if self._holder is None else self._holder.watermark_us

    @property
    def is_busy(self) -> bool:
        """Whether tuples are held."""
        is_ordering = self._in_order is not None and self._in_order.is_holding
        return self.is_waiting or is_ordering or (self._holder is not None and self._holder.is_holding)

    def flush(self, now: Now, out: Outbox) -> bool:
        """Work what is held, however little. Windows and joins wait until all that is on its way has come to them."""
        if self._holder is None or not self._holder.is_holding or self.is_waiting:
            return False
        self._look(now)
        if self._holding is not None and not self._may_flush(now):
            return False
        self.place.begin(now.wall_s)
        worked = self._holder.flush()
        self._take(worked, now, out)
        return bool(worked.done or worked.failures or not self._holder.is_holding)

    def _look(self, now: Now) -> None:
        """See how things stand now."""
        self._seen_s = now.monotonic_s
        self._from_epoch_time_s = now.monotonic_s - now.wall_s
        self.place.run_s = self._since_s = now.monotonic_s
        if self.retry_status is not None:
            if self._under_way is not None and self._holding is not None:
                self.place.under_way_since_s = self._under_way.oldest_s(self.task.component)
            self.place.retrying_since_s = self.retry_status.retrying_since_s
            self.place.message_timeout_s = self.retry_status.timeout_s

    def _may_flush(self, now: Now) -> bool:
        retry_status = self.retry_status
        if retry_status is None:
            return True
        self._tell_held()
        may_come = retry_status.retrying_since_s is not None or not retry_status.all_is_held
        if self._under_way is not None and self._under_way.oldest_s(self.task.component) is not None:
            return False  # it comes, or fails, or the task that keeps it is flushed first
        return not may_come or now.monotonic_s - self._worked_s >= PATIENCE_S

    def _tell_held(self) -> None:
        if self.retry_status is not None and self._holding is not None and not self._is_counted:
            self._is_counted = True
            self.retry_status.note_holder(self.task.task_id, frozenset(self.held_roots()))
