"""An executor: one thread, or one turn of a cooperative loop, that serves the machines of several tasks.

Owns the order of work within a step: mail first, then a bounded number of frames, then what is due. All effects of
each are carried out together, so that ackers hear one message of it. Whatever a machine raises ends the executor
and is reported to the supervising thread.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from tupletree.bolts.forks import leave_if_forked
from tupletree.clock import Clock
from tupletree.data.frames import Frame, roots_of
from tupletree.runtimes.local.frame_queue import FrameQueue
from tupletree.runtimes.local.letters import LetterWriter
from tupletree.runtimes.local.ring import Ring
from tupletree.runtimes.threads import start_thread
from tupletree.tasks.bolt import BoltMachine, EffectSender
from tupletree.tasks.machine import EmittingMachine, Machine
from tupletree.tasks.mail import Mail, Now
from tupletree.tasks.outbox import AsyncCall, Outbox
from tupletree.tasks.pace import SLICE_S
from tupletree.tasks.spout import SpoutMachine
from tupletree.tasks.spouts.spout_buffer import SpoutCheckpoint
from tupletree.tasks.stalls import Stalls
from tupletree.tracking.facts import Fact
from tupletree.tracking.holds import Hold
from tupletree.tracking.records import Acked, Died

logger = logging.getLogger("tupletree.local")

T = TypeVar("T")

Action = Callable[[Now, Outbox], T]
"""What `Executor.submit` takes."""

TICK = object()
"""On a control lane: the task's tick is due."""

FRAMES_PER_STEP = 64
STEP_S = 0.02
"""How long quick frames are worked before their effects are carried out: edges that are born and acked in one step cost
nothing."""

MAIL_ROUNDS = 4
"""Rounds of mail per step: enough for a delta to become a verdict, a write request, and its answer."""

SHORTEST_NAP_S = 0.0005
LONGEST_NAP_S = 1.0
SLOW_NEXT_S = 1.0


class Hub(Protocol):
    """What executors need of their run. Called from their threads."""

    @property
    def ending(self) -> bool:
        """Whether nothing new will come: then executors release what is held back whenever they are idle."""

    def store_letters(self, died: Sequence[Died]) -> None:
        """Store dead letters durably. Raises ConnectorError if that is not possible now."""

    def acked(self, acked: list[Acked]) -> None:
        """Count acks, for the rates."""

    def note(self, facts: list[Fact]) -> None:
        """Keep what happened to messages."""

    def call(self, task: int, number: int, call: AsyncCall) -> None:
        """Run an async call; its result comes back as mail."""

    def cancel(self, task: int, numbers: Sequence[int]) -> None:
        """See `Outbox.cancels`."""

    def end(self, task: int, numbers: Sequence[int], call: AsyncCall) -> None:
        """See `Outbox.endings`."""

    def idle(self, executor: Executor) -> None:
        """An executor has nothing to do for now."""

    def failed(self, executor: Executor, error: BaseException) -> None:
        """An executor ended by an error."""


# More than 12 attributes: one loop over its machines: outbox, queue, clock and timers are used in each step.
class Executor(EffectSender):
    """Serves tasks. All methods but `step` and `run` may be called from any thread.

    Args:
        name: of the thread and in reports.
        ring: where others put things for its tasks.
        machines: its tasks, by id.
        acker_tasks: see `Outbox`.
        clock: where time comes from.
        hub: the run.
        idle_s: longest pause before a spout without messages is polled again.
        outage_limit_s: how long dead letters may wait for room; None: without limit.

    Attributes:
        letters: stores dead letters. While they wait its spouts emit nothing, because memory is limited.
        handled: tuples, mail and calls so far.
        in_hand: the task that works now; None: none does.
        calling: the task that calls something outside now, such as a sink that writes, and a number for the call.
    """

    def __init__(
        self,
        name: str,
        ring: Ring,
        machines: Mapping[int, Machine],
        *,
        acker_tasks: Sequence[int],
        clock: Clock,
        hub: Hub,
        idle_s: float,
        outage_limit_s: float | None = None,
    ) -> None:
        self.name = name
        self.ring = ring
        self.machines = dict(machines)
        self.handled = 0
        self.spouts = [machine for machine in machines.values() if isinstance(machine, SpoutMachine)]
        self.in_hand: int | None = None
        self.calling: tuple[int, int] | None = None
        self._stalls: Stalls | None = None
        self._timed: list[Machine] = []  # that are open, spouts aside
        self._emitting: list[SpoutMachine] = []  # that are open
        self._owners: Sequence[Executor] = ()
        self._rings: Sequence[Ring] = ()
        self._out = Outbox(acker_tasks)
        self._clock = clock
        self._process = os.getpid()
        self._hub = hub
        self._idle_s = idle_s
        self._nap_s = SHORTEST_NAP_S
        self._queue = FrameQueue(self.machines)
        self._local = self._queue.ready
        self._live = next((machine.live for machine in machines.values()), None)
        self._slice_s = 0.0  # when the one in hand began
        self._mail: list[tuple[int, Mail]] = []
        self._actions: deque[tuple[Action[Any], Future[Any] | None]] = deque()
        self._started: list[Machine] = []
        self.spout_checkpoints: dict[int, SpoutCheckpoint] = {}
        self._not_told: deque[Died] = deque()  # dead, and the letter is stored
        self.letters = LetterWriter(hub.store_letters, outage_limit_s)
        self._closed: set[int] = set()
        self._halted = False
        self._over = False
        self._slow: set[int] = set()
        self.thread: threading.Thread | None = None

    def connect(self, owners: Sequence[Executor], executors: Sequence[Executor], stalls: Stalls) -> None:
        """Set which executor serves each task, and where calls are noted that take long, before anything runs."""
        self._owners, self._stalls = owners, stalls
        self._rings = [executor.ring for executor in executors]
        for machine in self.machines.values():
            machine.stalls = stalls
            if isinstance(machine, BoltMachine):
                machine.sender = self
            elif isinstance(machine, SpoutMachine):
                machine.nothing_waits = self._nothing_waits

    # --- from outside -----------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the thread."""
        self.thread = start_thread(threading.Thread(target=self.run, name=f"tupletree-{self.name}", daemon=True))

    def submit(self, action: Action[T]) -> Future[T]:
        """Call a function between two steps, on the executor's thread; its effects are carried out.

        The future is cancelled if the executor ends before.
        """
        future: Future[T] = Future()
        self.ring.send((action, future))
        if self._over:
            future.cancel()
        return future

    def holds(self, root: int, now: Now) -> list[Hold]:
        """What holds tuples of this attempt, or its rows, at this executor's tasks. On its thread."""
        found = [hold for machine in self.machines.values() for hold in machine.holds(root, now)]
        return found + self._queued(root)

    def in_call(self, root: int) -> list[Hold]:
        """The same as far as another thread can tell, while this one is in a call that takes long."""
        task = self.in_hand
        machine = None if task is None else self.machines[task]
        if not isinstance(machine, EmittingMachine):
            return []
        name, in_hand, frame = machine.task.component, machine.place.root, machine.place.frame
        if in_hand is not None and root in roots_of(in_hand):
            since_s = self._slice_s - self._clock.monotonic() + self._clock.wall()
            return [Hold("work", name, since_s=since_s)]
        if frame is not None and _is_in(root, frame):
            return [Hold("queue", name)]  # behind that call
        try:
            return self._queued(root)
        except RuntimeError:  # the call is over, and the queue changes
            return []

    def _queued(self, root: int) -> list[Hold]:
        queued = (*self._queue.frames(), *self.ring.frames())
        return [Hold("queue", self.machines[frame.task].task.component) for frame in queued if _is_in(root, frame)]

    def start_task(self, task: int) -> Future[None]:
        """Open a task's component."""
        machine = self.machines[task]

        def start(now: Now, out: Outbox) -> None:
            self._started.append(machine)  # `stop` is called also if `start` raised
            machine.start(now, out)
            if isinstance(machine, SpoutMachine):
                self._emitting.append(machine)
            elif machine.is_timed:
                self._timed.append(machine)

        return self.submit(start)

    def stop_task(self, task: int) -> Future[None]:
        """Close a task's component."""
        machine = self.machines[task]

        def stop(now: Now, out: Outbox) -> None:
            if machine in self._started:
                self._started.remove(machine)
                self._closed.add(task)  # frames that still come for it, after a drain timed out, are ignored
                for polled in (self._emitting, self._timed):
                    if machine in polled:
                        polled.remove(machine)  # type: ignore[arg-type]  # it is in there
                machine.stop(now, out)

        return self.submit(stop)

    def probe(self) -> Future[tuple[bool, int]]:
        """(whether no work is left here, how much was worked so far)."""
        return self.submit(lambda _, __: (self._is_quiet(), self.handled))

    def _is_quiet(self) -> bool:
        busy = any(machine.is_busy for machine in self._timed)
        return not (self._queue or self._mail or busy or self._out.died) and self.ring.is_empty

    def _nothing_waits(self) -> bool:
        """Whether no tuple waits for a task, or is being worked, anywhere."""
        return not any(ring.depth for ring in self._rings)

    def halt(self) -> None:
        """End after the present step, and close what is still open."""
        self._halted = True
        self.nudge()

    def nudge(self) -> None:
        """Wake it up."""
        self.ring.send((_nothing, None))

    def stack(self) -> str:
        """Where its thread is now, as text; empty if it has ended."""
        frame = sys._current_frames().get(self.thread.ident or 0) if self.thread else None  # noqa: SLF001 - documented
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step until halted. The thread's main function."""
        try:
            while not self._halted:
                if not self.step():
                    self.ring.wait(self._nap())
        except BaseException as error:  # noqa: BLE001 - the supervisor decides what becomes of it
            self._hub.failed(self, error)
        finally:
            self._abort()

    def step(self) -> bool:
        """Do one bounded round of work; whether there may be more work without new input."""
        now = Now(self._clock.monotonic(), self._clock.wall())
        worked = self._read_mail(now)
        if self._work_frames(now):
            worked = True
            now = Now(self._clock.monotonic(), self._clock.wall())
            self._carry_out(now)
            self._deliver_all(now)  # before new trees open, which cost less while nothing comes of others
        polled = self._poll(now)
        self._carry_out(now)
        # So that an executor whose frames went to others can sleep, and these have the interpreter.
        self._deliver_all(now)
        worked = worked or polled
        if worked:
            self._nap_s = SHORTEST_NAP_S
        if self._mail or self._queue or (polled and not self._have_emitted_all()):
            return True
        if self._hub.ending and (worked or self._flush(now)):
            return True
        self._hub.idle(self)
        return False

    def _have_emitted_all(self) -> bool:
        """Whether its spouts can emit more only after mail or a pause, so that another step now would do nothing."""
        return bool(self._emitting) and all([one.has_emitted_all for one in self._emitting])  # noqa: C419 - it is hot

    def _read_mail(self, now: Now) -> bool:
        """Deliver what is on the control lane, and the mail between tasks of this executor that follows from it."""
        control = self.ring.take_control()
        if not control and not self._mail:
            return False
        ticks: list[int] = []
        for what, content in control:
            if type(what) is not int:
                self._actions.append((what, content))
            elif content is TICK:
                ticks.append(what)
            else:
                self._mail.append((what, content))
        worked = bool(self._mail) or bool(ticks)
        self._deliver_all(now)
        for task in ticks:
            if task not in self._closed:
                self.in_hand = task
                self.machines[task].tick(now, self._out)
        self.in_hand = None
        self.handled += len(ticks)
        while self._actions:
            self._act(*self._actions[0], now)
            self._actions.popleft()  # not earlier: if its effects cannot be carried out, `_abort` answers
        return worked

    def _deliver_all(self, now: Now) -> None:
        """Deliver the mail between tasks of this executor, and what follows from it."""
        for _ in range(MAIL_ROUNDS):
            if not self._mail:
                break
            self._deliver(now)

    def _deliver(self, now: Now) -> None:
        mail, self._mail = self._mail, []
        by_task: dict[int, list[Mail]] = {}
        for task, one in mail:
            by_task.setdefault(task, []).append(one)
        for task, letters in by_task.items():
            if task not in self._closed:
                self.in_hand = task
                machine = self.machines[task]
                self._call(machine, machine.receive, letters, now, self._out)
        self.in_hand = None
        self.handled += len(by_task)
        self._carry_out(now)

    def _act(self, action: Action[Any], future: Future[Any] | None, now: Now) -> None:
        if future is None or not future.set_running_or_notify_cancel():
            return
        try:
            result = action(now, self._out)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, is a fault of the user's code here
            self._carry_out(now)
            future.set_exception(error)
        else:
            self._carry_out(now)
            future.set_result(result)

    def _work_frames(self, now: Now) -> bool:
        """Work frames for a few milliseconds, then a slice for a slow task, if one waits."""
        queue, local, ring, machines, monotonic = (
            self._queue,
            self._local,
            self.ring,
            self.machines,
            self._clock.monotonic,
        )
        if len(local) < FRAMES_PER_STEP:
            local += ring.take_frames(FRAMES_PER_STEP)
        if not queue:
            return False
        began_s = self._slice_s = monotonic()
        doubtful = self._live is not None and began_s < self._live.doubtful_until_s
        consumed = 0
        for _ in range(FRAMES_PER_STEP):
            if not local:
                break
            frame = local.popleft()
            machine = machines[frame.task]
            if machine.pace is not None and not queue.is_ready(frame):
                continue
            consumed += len(frame.values)
            if doubtful and self._live is not None:
                frame = self._live.still_wanted(frame)
            self._work(frame, machine, now)
            if self._slice_s - began_s >= STEP_S:
                break
        ring.consumed(consumed)
        self.handled += consumed
        while queue.has_slow:
            if self._slice_s > began_s:
                self._carry_out(now)
            now = Now(self._clock.monotonic(), self._clock.wall())
            taken = queue.next_slow(self._out, self._live.still_wanted if self._live is not None else None)
            assert taken is not None
            frame, consumed = taken
            self._slice_s = monotonic()  # what the cut and the effects of the last slice took is not the bolt's pace
            self._work(frame, machines[frame.task], now)
            ring.consumed(consumed)
            self.handled += consumed
            if self._slice_s - began_s >= SLICE_S:
                break
        self.in_hand = None
        return True

    def _work(self, frame: Frame, machine: Machine, now: Now) -> None:
        """Let a task work a frame, and note how long that took."""
        out, before_s = self._out, self._slice_s
        if frame.values and frame.task not in self._closed:
            self.in_hand = frame.task
            machine.work(frame, now, out)
            leave_if_forked(self._process)
        else:
            machine.skip(frame)
        if out.frames:
            self._pass_on(out.take_frames())
        self._slice_s = after_s = self._clock.monotonic()
        if machine.measured is not None and frame.values and machine.wait.current is None:
            tuples, seconds = len(frame.values), after_s - before_s
            machine.measured.note(tuples, seconds)
            if machine.pace is not None:
                machine.pace.note(tuples, seconds)

    def is_due(self) -> bool:
        return self._clock.monotonic() - self._slice_s >= SLICE_S

    def send(self) -> None:
        self._carry_out(Now(self._clock.monotonic(), self._clock.wall()))

    def _pass_on(self, frames: list[Frame]) -> None:
        """Queue frames for tasks of this executor, and publish the others on their rings."""
        owners = self._owners
        outgoing: dict[Executor, list[Frame]] = {}
        tuples = 0
        for frame in frames:
            owner = owners[frame.task]
            if owner is self:
                self._local.append(frame)
                tuples += len(frame.values)
            else:
                outgoing.setdefault(owner, []).append(frame)
        if tuples:
            self.ring.consumed(-tuples)  # they count as in flight here, as if they had come through the ring
        for owner, theirs in outgoing.items():
            owner.ring.publish(theirs)

    def _poll(self, now: Now) -> bool:
        worked = False
        out = self._out
        for machine in self._timed:
            if machine.measured is None:
                worked = self._call(machine, machine.poll, now, out) or worked
                continue
            before_s = self._clock.monotonic()
            if self._call(machine, machine.poll, now, out):
                worked = True
                machine.measured.seconds += self._clock.monotonic() - before_s  # windows and joins make calls here
        if self._emitting:
            paused = self.letters.wait.current is not None or any(ring.is_full for ring in self._rings)
            before_s = self._clock.monotonic()
            for spout in self._emitting:
                self.in_hand = spout.task.task_id
                worked = spout.poll(now, out, paused=paused) or worked
                after_s = self._clock.monotonic()
                if after_s - before_s > SLOW_NEXT_S:
                    self._warn_slow(spout, after_s - before_s)
                before_s = after_s
            self.in_hand = None
        return worked

    def _call(self, machine: Machine, work: Callable[..., T], *arguments: Any) -> T:
        """Call a machine; noted where it may wait for something outside, as the other tasks of the thread do then."""
        if not machine.may_stall:
            return work(*arguments)
        assert self._stalls is not None, "it runs after `connect`"
        number = self._stalls.begin(self._clock.monotonic())
        self.calling = machine.task.task_id, number
        try:
            return work(*arguments)
        finally:
            self.calling = None
            self._stalls.end(number, self._clock.monotonic())

    def _warn_slow(self, spout: SpoutMachine, seconds: float) -> None:
        if spout.task.task_id not in self._slow:
            self._slow.add(spout.task.task_id)
            logger.warning(
                "spout %s blocked for %.1f s, and acks and timeouts with it: `next` must return None when nothing is "
                "there yet (logged once)",
                spout.task.component,
                seconds,
            )

    def _flush(self, now: Now) -> bool:
        flushed = False
        for machine in self._timed:
            flushed = self._call(machine, machine.flush, now, self._out) or flushed
        self._carry_out(now)
        return flushed

    def _carry_out(self, now: Now) -> None:
        leave_if_forked(self._process)
        out, owners = self._out, self._owners
        if out.has_tracks:
            for task, track in out.take_tracks():
                self._send(task, track)
        if out.frames:
            self._pass_on(out.take_frames())
        if out.mail:
            for task, one in out.take_mail():
                self._send(task, one)
        if out.ticks:
            ticks, out.ticks = out.ticks, []
            for task in ticks:
                owners[task].ring.send((task, TICK))
        if out.calls or out.cancels or out.endings:
            self._start_calls()
        if out.acked:
            for acked in out.acked:
                self._hub.acked(acked)
            out.acked.clear()
        if out.notes:
            self._log_notes()
        if out.facts:
            self._tell_facts()
        if out.timed:
            self._add_timed()
        if out.died and self.letters.is_due(now.monotonic_s):
            self._store_letter(now)

    def _add_timed(self) -> None:
        for task in self._out.timed:
            machine = self.machines[task]
            if machine in self._started and machine not in self._timed:
                self._timed.append(machine)
        self._out.timed.clear()

    def _start_calls(self) -> None:
        out = self._out
        calls, out.calls = out.calls, []
        for task, number, call in calls:
            self._hub.call(task, number, call)
        cancels, out.cancels = out.cancels, []
        for task, numbers in cancels:
            self._hub.cancel(task, numbers)
        endings, out.endings = out.endings, []
        for task, numbers, call in endings:
            self._hub.end(task, numbers, call)

    def _log_notes(self) -> None:
        for note in self._out.notes:
            logger.warning("%s: %s", note.component, note.text)
        self._out.notes.clear()

    def _tell_facts(self) -> None:
        facts, self._out.facts = self._out.facts, []
        self._hub.note(facts)

    def _store_letter(self, now: Now) -> None:
        died = self._out.died
        if not self.letters.store(died, now.monotonic_s):
            return
        self._out.died = []  # not before they are stored: if that fails, `_abort` tries it again
        self._not_told += died
        while self._not_told:
            one = self._not_told[0]
            spout = self.machines[one.spout_task]
            assert isinstance(spout, SpoutMachine)
            spout.letters_stored([one])
            self._not_told.popleft()  # not before the source was told: if that fails, the next life tells it again
        if self._out.died:  # a callback added some
            self._store_letter(now)

    def _send(self, task: int, mail: Mail) -> None:
        owner = self._owners[task]
        if owner is self:
            self._mail.append((task, mail))
        else:
            owner.ring.send((task, mail))

    def _nap(self) -> float:
        """How long to sleep at most."""
        now_s = self._clock.monotonic()
        nap_s = LONGEST_NAP_S
        if self._emitting:
            nap_s = min(self._nap_s, self._idle_s)
            self._nap_s = min(2 * self._nap_s, self._idle_s)
        nap_s = min(nap_s, self.letters.wait.due_s - now_s) if self._out.died else nap_s
        for machine in (*self._timed, *self._emitting):
            due_s = machine.next_due_s()
            if due_s is not None:
                nap_s = min(nap_s, due_s - now_s)
        # What is due and cannot be done yet (spouts are paused) must not make the loop spin.
        return max(SHORTEST_NAP_S, nap_s) if self._idle_s else nap_s

    # --- the end ----------------------------------------------------------------------------------------------

    def _abort(self) -> None:
        """Save what the tasks after a restart need, and close these; an error in one does not stop the others."""
        now = Now(self._clock.monotonic(), self._clock.wall())
        # Also tasks that were not opened because an earlier one failed to open: they may have messages from before.
        for spout in [one for one in self.spouts if one.task.task_id not in self._closed]:
            try:
                self.spout_checkpoints[spout.task.task_id] = spout.hand_over(now, self._out)
            except Exception:
                logger.exception("%s: handing over its messages failed", spout.task.component)
        self._hand_over_dead(now)
        self._log_notes()
        self._tell_facts()
        for machine in reversed(self._started):
            try:
                machine.stop(now, self._out)
            except Exception:
                logger.exception("%s: closing a task failed; the others are closed", machine.task.component)
        self._started.clear()
        self._start_calls()
        self._over = True
        # The error may have come before an action was carried out.
        for _, future in [*self._actions, *self.ring.take_control()]:
            if isinstance(future, Future) and not future.cancel() and not future.done():
                future.set_exception(CancelledError())

    def _hand_over_dead(self, now: Now) -> None:
        """Store letters and tell sources as far as possible; the next life does the rest."""
        try:
            self._store_letter(now)
        except Exception as error:  # noqa: BLE001 - often the very error that ended this executor
            logger.warning(
                "%d dead letters could not be stored, and sources could not be told of %d: %s: %s",
                len(self._out.died),
                len(self._not_told),
                type(error).__name__,
                error,
            )
        for task, spout_checkpoint in self.spout_checkpoints.items():
            spout_checkpoint.letters_to_store.extend(died for died in self._out.died if died.spout_task == task)
            spout_checkpoint.not_told.extend(died for died in self._not_told if died.spout_task == task)


def _is_in(root: int, frame: Frame) -> bool:
    return any(root in roots_of(one) for one in frame.roots)


def _nothing(now: Now, out: Outbox) -> None:
    """Wake up."""
