"""The spout task: asks the user's spout for messages, opens their trees, and makes the callbacks for their outcomes.

Owns the messages of one task (`Pending`), the limit on how many are open, retries, and the last step of a verdict:
a message is acked when its tree is complete AND every sink has written the rows that are anchored to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from tupletree.bolts.effects import Output, TaskPlace
from tupletree.bolts.failures import FailureMaker, safe_text
from tupletree.config import Options
from tupletree.data.frames import UNTRACKED, Frame, Root
from tupletree.errors import InternalError
from tupletree.ids import RandomBits
from tupletree.routing.plan import ACKER, Plan, Task
from tupletree.tasks.edges import RootIds
from tupletree.tasks.emitter import Emitter
from tupletree.tasks.machine import Machine
from tupletree.tasks.mail import DropRoots, HighWater, Mail, Now, SinkReset, TreeVerdicts, Written
from tupletree.tasks.making import Numbers
from tupletree.tasks.outbox import LogNote, Outbox
from tupletree.tasks.pending_limit import PendingLimit, timeout_text
from tupletree.tasks.source_calls import SourceCalls, refuse_unavailable
from tupletree.tasks.spouts.spout_buffer import SpoutBuffer, SpoutCheckpoint, sort
from tupletree.tasks.spouts.spout_journal import SpoutCut, SpoutJournal
from tupletree.tasks.upstream.in_order import OrderedInputs
from tupletree.tasks.upstream.retry_status import BlockedSource, RetryStatus
from tupletree.tasks.upstream.under_way import UnderWay
from tupletree.tasks.write_requests import WriteRequests
from tupletree.texts import counted
from tupletree.topology.components import Emit, Reject, Spout
from tupletree.topology.limits import max_pending, setting_of_limit
from tupletree.tracking.attempt_notes import AttemptNotes
from tupletree.tracking.facts import FactMaker
from tupletree.tracking.holds import Hold
from tupletree.tracking.message_ids import message_key
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import Died, Emission, Released, SourceRetry
from tupletree.tracking.retry import RetryPolicy

DEFAULT_MAX_PENDING = 128

MAX_LEFT_TOLD = 10_000
"""Messages without an outcome that the history names when a run stops."""

MAX_LAUNCH = 1024
"""Messages that are emitted in one step: enough for a low cost per frame, few enough to spread them over tasks."""


class SpoutSurroundings(NamedTuple):
    """What a spout machine shares with others.

    Attributes:
        random_bits: for root ids and edge ids.
        random: uniform floats in [0, 1), for jitter.
        sinks: sink task → its incarnation.
        attempts: root → attempt of those beyond the first; shared with bolts, which read it.
        durable: the run stores its open messages: acks wait until that is done (`take_cut`, `committed`).
    """

    random_bits: RandomBits
    random: Callable[[], float]
    sinks: Mapping[int, int]
    attempts: MutableMapping[int, int]
    durable: bool = False


# More than 12 attributes: one machine: what may be emitted, and what becomes of it, is one state.
class SpoutMachine(Machine):
    """See `Machine`. A user's spout that raises ends the topology: it is infrastructure, no message.

    Args:
        plan: the topology laid out.
        task: the spout task.
        spout: the user's object, for this task only.
        options: limits, attempts, pauses.
        surroundings: what it shares with others.
        spout_checkpoint: what the previous machine left.
        active: False starts it paused.
        was_open: the spout was open in this run before, so that an outage as it opens is waited for, too.

    Attributes:
        nothing_waits: whether no tuple waits for a task or is being worked, if that is known.
        has_emitted_all: the last `poll` emitted all that the limits allow or that the spout had: another one at once
            would emit nothing.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        spout: Spout[Any],
        options: Options,
        surroundings: SpoutSurroundings,
        *,
        spout_checkpoint: SpoutCheckpoint | None = None,
        active: bool = True,
        was_open: bool = False,
    ) -> None:
        random_bits, random, sinks, attempts, durable = surroundings
        component = plan.spec.components[task.component]
        ((self._stream, stream),) = component.outputs.items()
        super().__init__(task)
        self.spout = spout
        self.place = TaskPlace.at(plan, task)
        self._class = stream.schema.cls
        self._tracking = options.acker_tasks > 0
        self._acker_tasks = plan.task_ids_of(ACKER)
        if spout_checkpoint is None:
            draw = RootIds(random_bits, options.acker_tasks)
            spout_checkpoint = SpoutCheckpoint(
                Pending(RetryPolicy.from_options(options), draw, random), draw, SpoutBuffer()
            )
            spout_checkpoint.pending.register(task.task_id, task.component, component.replay)
        self.pending, self._draw = spout_checkpoint.pending, spout_checkpoint.draw
        self._spout_buffer = spout_checkpoint.spout_buffer
        self.journal = (spout_checkpoint.journal or SpoutJournal()) if durable else None
        self._emitter = Emitter(plan, task, random_bits)
        self._fail = FailureMaker(task.component, task.task_id)
        self._attempt_notes = AttemptNotes()
        self._facts = FactMaker(task.component, of_all=options.history == "all")
        self._inherited: SpoutCheckpoint | None = spout_checkpoint
        self._max_pending = max_pending(plan.spec, task.component, options, DEFAULT_MAX_PENDING)
        self._limit = PendingLimit.of(plan.spec, task.component, options, self._max_pending)
        self._limit_set_by = setting_of_limit(component, options)
        self._is_at_limit = False
        self._expired = self._expired_told = 0
        self._max_writing = max(options.epoch_max_messages, self._max_pending)
        self._timeout_s = options.message_timeout_s
        self._write_requests = WriteRequests(task.task_id, sinks, first=random_bits(48))
        self._attempts = attempts
        self._above: set[int] = set()
        self._blocked_source = BlockedSource(task.task_id)
        self._storing_letters: set[int] = set()
        self._not_yet_told: set[int] = set()
        self._judged: list[int] = []  # failed since others were told how things stand
        self._pulling = self._retrying = active
        self._paused = not active
        self._leaves_buffer = False
        self._is_open = False
        self._is_deactivated = True  # or was never active
        self.has_emitted_all = False
        self.nothing_waits: Callable[[], bool] | None = None
        self._hears_acks = type(spout).ack is not Spout.ack
        self.wait = OutageWait(task.component, options.outage_limit_s)
        self._was_open = was_open
        self._now_s = self._wall_s = 0.0
        self._calls_out = SourceCalls(spout, self.wait)

    @property
    def _ordered(self) -> OrderedInputs | None:
        """What is told of the order in which messages go out; None where no input is ordered."""
        return None if self._under_way is None else self._under_way.ordered

    def number_from(self, numbers: Numbers) -> None:
        self._emitter.ordering.numbers = numbers

    # --- start and stop ---------------------------------------------------------------------------------------

    def start(self, now: Now, out: Outbox) -> None:
        """Open the spout and let it run."""
        self.place.epoch_time_s, self._now_s = now.wall_s, now.monotonic_s
        if self.live is not None:
            pending = self.pending
            self.live.register(self.task.task_id, pending.attempts_out, pending.id_of, pending.first_s)
        if self._ordered is not None:
            pending, task_id = self.pending, self.task.task_id
            self._ordered.register(task_id, pending.number_of, pending.waiting_numbers(task_id))
        self._restore_not_told()
        try:
            self._open()
        except Exception as error:
            if not self._was_open:
                raise
            self._calls_out.meet(error, now.monotonic_s)
        self._take_notes(out)

    def _restore_not_told(self) -> None:
        if self._inherited is not None:
            self._calls_out.restore(self._inherited.not_yet_told)

    def _take_notes(self, out: Outbox) -> None:
        out.notes += [LogNote(self.task.component, text) for text in self._calls_out.take_notes()]

    def _open(self) -> None:
        if self._is_open:
            return
        self.spout.open(self.place)
        if self._spout_buffer.position is not None:
            self.spout.restore(self._spout_buffer.position)
        self._is_open = True
        if self._pulling:
            self.spout.activate()
            self._is_deactivated = False

    def stop(self, now: Now, out: Outbox) -> None:  # noqa: ARG002 - a spout has only callbacks
        """Close the spout."""
        try:
            try:
                if self._is_open:
                    self.spout.flush()
            finally:
                self._deactivate()
        finally:
            self.spout.close()

    def _deactivate(self) -> None:
        if not self._is_deactivated:
            self._is_deactivated = True
            self.spout.deactivate()

    def pause(self) -> None:
        """Emit nothing for now, not even what the spout has given already; callbacks are still made."""
        if self._pulling:
            self._pulling = self._retrying = False
            self._paused = True
            if self._is_open:
                self._deactivate()

    def resume(self) -> None:
        """Undo `pause`."""
        if not self._pulling:
            self._pulling = self._retrying = True
            self._paused = False
            if self._is_open:
                self.spout.activate()
                self._is_deactivated = False

    def drain(self, *, leaves_buffer: bool = False) -> None:
        """Stop asking for messages, and start no retry; the spout is told so while others are still worked.

        What the spout has given already is still emitted; with `leaves_buffer` it is failed to the source by `abandon`.
        """
        self._pulling = self._retrying = self._paused = False
        self._leaves_buffer = leaves_buffer
        if self._is_open:
            self._deactivate()

    def abandon(self, now: Now, out: Outbox) -> list[Released]:
        """Fail every open message to its source, and forget it: the end of a drain that timed out.

        Those of a durable run stay open: the next start emits them again.
        """
        failure = Failure(kind=FailureKind.STOPPED, component=self.task.component, error="the topology stopped")
        if self.live is not None:
            for root in self.pending.roots_in_flight():
                self.live.remember(self.task.task_id, root)
        released = self.pending.release()
        stays = self.journal is not None
        out.facts += self._facts.left(released[:MAX_LEFT_TOLD], now.wall_s, stays=stays)
        self._take_up(out)
        self._write_requests.clear()
        given = self._spout_buffer.let_go()
        if not stays:
            self._calls_out.not_yet_told.extend((one.message_id, failure) for one in released)
            self._calls_out.not_yet_told.extend((message_id, failure) for message_id in given)
        not_told = self._calls_out.tell_last()
        if not_told:
            unheard = counted(not_told, "message")
            self._note(f"it could not be told the outcome of {unheard}", out)
        return released

    def hand_over(self, now: Now, out: Outbox) -> SpoutCheckpoint:
        """Fail every open attempt, and return the messages for the machine after a restart.

        The runtime's retries wait there; a source that replays by itself is told of each failed attempt.
        """
        lost = Failure(kind=FailureKind.LOST, component=self.task.component, error="the topology was restarted")
        self._ask_no_more(out)
        not_told: list[Exception] = []
        for root in self.pending.roots_in_flight():
            try:
                self._fail_root(root, lost, now, out)
            except Exception as error:  # noqa: BLE001 - a source that broke may not hear; its messages wait all the same
                not_told.append(error)
        if not_told:
            text = f"it was not told of {len(not_told)} failed attempts: {type(not_told[0]).__name__}: {not_told[0]}"
            self._note(text, out)
        left = self._inherited or SpoutCheckpoint(self.pending, self._draw, self._spout_buffer)
        # A source that is to emit messages again is asked again, for all that it has not emitted.
        not_yet_told = [one for one in self._calls_out.not_yet_told if one[1] is None or one[1].permanent]
        return dataclasses.replace(left, not_yet_told=not_yet_told, journal=self.journal)

    # --- what a durable run stores ----------------------------------------------------------------------------

    @property
    def all_told(self) -> bool:
        """Whether the spout has heard, for good, all that it was to hear."""
        return not self._calls_out.not_yet_told

    def take_cut(self, now: Now, out: Outbox) -> SpoutCut:
        """What is to be stored of the task now."""
        assert self.journal is not None
        if self._is_open and self.wait.current is None and self._calls_out.tell(now.monotonic_s):
            all_told = self.all_told
        else:
            all_told = False
        self._take_notes(out)
        messages, buffer = self.pending.messages_of(self.task.task_id), self._spout_buffer
        return self.journal.cut(
            self.task.task_id,
            messages,
            buffer.waiting(),
            self.pending.counters,
            buffer.position,
            now,
            all_told=all_told,
        )

    def committed(self, now: Now, out: Outbox) -> None:
        """All cuts are durable: tell the spout of the acks in them."""
        assert self.journal is not None
        acked = self.journal.release()
        for one in acked:
            self.pending.confirm(one.spout_task, one.message_id)
        if acked:
            self._calls_out.ack(acked, now.monotonic_s)
            if self.wait.current is None:
                self._calls_out.tell(now.monotonic_s)
            self._take_notes(out)

    def _take_up(self, out: Outbox) -> None:
        """Finish what the previous machine could not, and tell the new spout what it is to emit again."""
        left = self._inherited
        if left is None:
            return
        while left.not_told:
            self.letters_stored(left.not_told[:1])
            del left.not_told[0]
        for died in left.letters_to_store:
            self._store_letter(died, out)
        left.letters_to_store.clear()
        # What the spout has emitted again already waits here: asked twice, it would emit it twice.
        given = {message_key(one) for one in self._spout_buffer.ids()}
        again = [one for one in self.pending.awaited(self.task.task_id) if message_key(one[0]) not in given]
        self._spout_buffer.ended = self._spout_buffer.ended and not again
        for message_id, failure in again:
            self.spout.fail(message_id, failure)
        self._inherited = None

    # --- questions --------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Messages without an outcome: in flight, waiting for a retry, awaited from their source, being written."""
        return self.pending.open_count(self.task.task_id) + self.pending.awaiting_source(self.task.task_id)

    @property
    def in_flight(self) -> int:
        """Messages with an open attempt, including those that are being written."""
        return self.pending.in_flight(self.task.task_id)

    def holds(self, root: int, now: Now) -> list[Hold]:  # noqa: ARG002 - as `Machine` has it
        return [Hold("write", self.task.component)] if root in self._write_requests.roots() else []

    def held_now(self) -> list[Hold]:
        task, pending, name = self.task.task_id, self.pending, self.task.component
        counts = {
            "retry": pending.open_count(task) - pending.in_flight(task),
            "source": pending.awaiting_source(task),
            "write": self._write_requests.count,
        }
        due_s = pending.peek_due_s()
        until_s = None if due_s is None or not math.isfinite(due_s) else due_s + self._wall_s - self._now_s
        return [
            Hold(kind, name, count, until_s=until_s if kind == "retry" else None)  # type: ignore[arg-type]  # its keys
            for kind, count in counts.items()
            if count
        ]

    @property
    def writing(self) -> int:
        """Messages whose trees are complete and whose rows are not written yet."""
        return self._write_requests.count

    @property
    def ended(self) -> bool:
        """Whether its input is over."""
        return self._spout_buffer.ended

    @property
    def is_finished(self) -> bool:
        """Whether its input is over and every message of it has ended."""
        return self.ended and not self.open_count and self.is_drained

    @property
    def is_drained(self) -> bool:
        """Whether nothing is in flight, and nothing that the spout gave is left to emit."""
        not_yet_told = self._calls_out.not_yet_told
        is_left = self._spout_buffer.held and not self._leaves_buffer
        return not (is_left or self.in_flight or self._storing_letters or self._inherited or not_yet_told)

    def next_due_s(self) -> float | None:
        """The next retry, the next call after one that met an outage, or the next look at what blocks the source."""
        dues = [self._blocked_source.due_s]
        if (self._retrying and not self._is_at_limit) or (self._ordered is not None and not self._paused):
            dues.append(self.pending.next_due_s())
        if self.wait.current is not None:
            dues.append(self.wait.due_s)
        return min((due_s for due_s in dues if due_s is not None), default=None)

    # --- emission ---------------------------------------------------------------------------------------------

    def poll(self, now: Now, out: Outbox, *, paused: bool = False) -> bool:
        """Emit what the limits allow: retries that are due first, then new messages."""
        self._now_s, self._wall_s = now
        if self.retry_status is not None:
            self._report(self.retry_status, now)
        if not self._may_call(now, out):
            return False
        if self._inherited is not None and not self._paused:
            self._take_up(out)
        if self._timeout_s is not None and self._write_requests:
            out.mail += self._write_requests.ask_again(now.monotonic_s, self._timeout_s)
        if self.ended and not self._calls_out.not_yet_told and self.pending.awaiting_source(self.task.task_id):
            self._give_up(now, out)
        held_up = self.journal is not None and self.journal.holds_up
        if paused or held_up or self._paused or self._above or self._leaves_buffer:
            self.has_emitted_all = False
            return False
        self._draw.turn()
        writing = self._write_requests.count
        free = self._free(writing, now)
        self._is_at_limit = free <= 0
        if self._ordered is not None:
            # What waits for these is in flight, and must not hold them up. So a drain waits for them, too.
            retried = self._retry_due(now, out, MAX_LAUNCH) if self._retrying or self.in_flight > writing else 0
        else:
            retried = self._retry_due(now, out, free) if self._retrying and free > 0 else 0
        room = min(self._room(writing), free - retried, self._max_writing - writing, MAX_LAUNCH)
        if room <= 0:
            self.has_emitted_all = not retried
            return retried > 0
        batch = self._ask(room, now, out)
        self.has_emitted_all = not retried and (len(batch) == room or self._spout_buffer.is_dry)
        if batch:
            self._take(batch, now, out)
        return retried > 0 or bool(batch)

    def _room(self, writing: int) -> int:
        """How many more may be open.

        Windows and joins wait for messages that their source is to give again, and these must not wait for those that
        fill the limit because they are held there. A source may give others first: as many again, at the most. See
        `BlockedSource` for when that is not enough.
        """
        # In a drain no retry starts, so messages that wait for one must not take the place of what is still to be
        # emitted.
        count = self.pending.open_count if self._retrying else self.pending.in_flight
        most = self._max_pending if self._limit is None else max(self._max_pending, self._limit.value)
        room = most - (count(self.task.task_id) - writing)
        if self.retry_status is None:
            return room
        return max(room, min(self.pending.awaiting_source(self.task.task_id), room + self._max_pending))

    def _free(self, writing: int, now: Now) -> int:
        """How many more may be in flight, by the measured limit."""
        limit = self._limit
        if limit is None or (limit.needs_idle and self.nothing_waits is None):
            return MAX_LAUNCH
        free = limit.value - (self.in_flight - writing)
        if free <= 0 and self.nothing_waits is not None:
            limit.reached(now.monotonic_s, is_idle=self.nothing_waits())
        return free

    def _may_call(self, now: Now, out: Outbox) -> bool:
        """After an outage: open the spout and make the callbacks that are left. Whether it is available."""
        if self.wait.current is not None and self.wait.due_s <= now.monotonic_s:
            calls = self._calls_out
            if (
                calls.try_to(self._open, now.monotonic_s)
                and calls.tell(now.monotonic_s)
                and not self._asks_after_outage
            ):
                calls.over(now.monotonic_s)
        elif (self._calls_out.not_yet_told or self._calls_out.flushes) and self.wait.current is None:
            self._calls_out.tell(now.monotonic_s)
        self._take_notes(out)
        return self._is_open

    @property
    def _asks_after_outage(self) -> bool:
        """Whether the next `next` is the probe whether an outage is over."""
        return self._pulling and not self._paused and not self.ended

    def _ask(self, room: int, now: Now, out: Outbox) -> list[Emit[Any] | Reject]:
        """Messages that the spout has given, or gives now unless it waits for the end of an outage."""
        asks = self._pulling and self.wait.due_s <= now.monotonic_s
        try:
            batch = self._spout_buffer.take(self.spout, room, ask=asks)
        except Exception as error:  # noqa: BLE001 - what is no outage comes out
            if not self._spout_buffer.has_answered and not self._spout_buffer.held:
                refuse_unavailable(error)
            self._calls_out.meet(error, now.monotonic_s)
            batch = self._spout_buffer.take(self.spout, room, ask=False)
        else:
            if asks:
                self._spout_buffer.has_answered = True
            if asks and self.wait.current is not None and not self._calls_out.not_yet_told:
                self._calls_out.over(now.monotonic_s)
        self._take_notes(out)
        return batch

    def _take(self, batch: list[Emit[Any] | Reject], now: Now, out: Outbox) -> None:
        offered = sort(batch, self.task.component, tracking=self._tracking)
        if offered.untracked:
            self._send_untracked(offered.untracked, out)
            if not self._tracking:
                for one in batch:
                    if isinstance(one, Emit) and one.message_id is not None:
                        self.spout.ack(one.message_id)
        if offered.ids:
            task_id = self.task.task_id
            emitted = self.pending.emit_many(task_id, offered.ids, offered.values, now.monotonic_s, now.wall_s)
            self._launch(emitted.roots, emitted.values, emitted.attempts, now, out)
        if offered.rejects:
            self._reject(offered.rejects, now, out)

    def _send_untracked(self, values: list[Any], out: Outbox) -> None:
        self.pending.counters.untracked += len(values)
        for value in values:
            if type(value) is not self._class:
                self.strays += 1
                out.notes.append(
                    LogNote(self.task.component, f"an untracked value is lost: {self._wrong_class(value)}")
                )
        values = [value for value in values if type(value) is self._class]
        if values:
            output = Output(self._stream, values, [UNTRACKED], [len(values)])
            before = len(out.frames)
            refused = self._emitter.send(self._emitter.ordering.order([output])[0], out)
            if self._under_way is not None:
                self._under_way.sent(out.frames[before:], self._now_s)
            self.strays += len(refused)
            out.notes += [
                LogNote(self.task.component, f"an untracked value is lost: {error}") for _, _, error in refused
            ]

    def _reject(self, rejects: list[Reject], now: Now, out: Outbox) -> None:
        for one in rejects:
            emission = self.pending.emit(self.task.task_id, one.message_id, one.payload, now.monotonic_s, now.wall_s)
            if isinstance(emission, Emission):
                failure = Failure(
                    kind=FailureKind.REJECTED,
                    component=self.task.component,
                    task_id=self.task.task_id,
                    error=one.reason,
                    failing_tuple=safe_text(one.payload),
                    permanent=True,
                )
                self._fail_root(emission.root, failure, now, out)

    def _retry_due(self, now: Now, out: Outbox, most: int) -> int:
        due_s = self.pending.next_due_s()
        if due_s is None or due_s > now.monotonic_s:
            return 0
        due = self.pending.due(now.monotonic_s, min(most, MAX_LAUNCH))
        if due:
            roots, values = [one.root for one in due], [one.value for one in due]
            self._launch(roots, values, [one.attempt for one in due], now, out)
        return len(due)

    def _launch(self, roots: list[int], values: list[Any], attempts: list[int], now: Now, out: Outbox) -> None:
        if not roots:
            return
        if max(attempts) > 1:
            again = [(root, attempt) for root, attempt in zip(roots, attempts) if attempt > 1]
            self._attempts.update(again)
            self._tell_sent(again, now, out)
        if self._facts.of_all:
            self._tell_sent([(root, 1) for root, attempt in zip(roots, attempts) if attempt == 1], now, out)
        failures: dict[int, Failure] = {}
        if set(map(type, values)) != {self._class}:
            for root, value in zip(roots, values):
                if type(value) is not self._class:
                    self._fail.note(failures, root, value, self._wrong_class(value))
            kept = [(root, value) for root, value in zip(roots, values) if root not in failures]
            roots, values = [root for root, _ in kept], [value for _, value in kept]
        framed: list[Root] = roots  # type: ignore[assignment]  # the same list, so that its edges add up by identity
        output = Output(self._stream, values, framed, [*range(1, len(values) + 1)])
        numbers: list[int] = []
        if not self._emitter.ordering.is_idle or self._ordered is not None:
            numbers = self.pending.number(roots, self._emitter.ordering.numbers.take)
            output.made = None if self._emitter.ordering.is_idle else numbers
        before = len(out.frames)
        first, refused = self._emitter.launch(output, out)
        if self._under_way is not None:
            self._tell_under_way(self._under_way, out.frames[before:], roots, now, again=max(attempts) > 1)
            if self._ordered is not None:
                self._ordered.launched(self.task.task_id, numbers, roots)
        for one, value, error in refused:
            self._fail.note(failures, one, value, error)
        opened = sum(len(part) for _, part in first)
        if opened + len(refused) < len(roots):  # some went to no task: complete at once
            known = {root for _, part in first for root in part}
            first.append((0, [root for root in roots if root not in known and root not in failures]))
        if self._limit is not None and roots:
            self._limit.launched(roots[-1], self.in_flight - self._write_requests.count, now.monotonic_s)
        for value, part in first:
            out.open_trees((self.task.task_id, value, part, now.monotonic_s))
        for root, failure in failures.items():
            self._fail_root(root, failure, now, out)

    def _tell_under_way(
        self, under_way: UnderWay, frames: Sequence[Frame], roots: Sequence[int], now: Now, *, again: bool
    ) -> None:
        since_s = now.monotonic_s
        if again:
            firsts = (self.pending.first_s(root) for root in roots)
            since_s = min((one for one in firsts if one is not None), default=since_s)
        under_way.sent(frames, since_s)

    def _tell_sent(self, attempts: Sequence[tuple[int, int]], now: Now, out: Outbox) -> None:
        for root, attempt in attempts:
            message_id = self.pending.id_of(root)
            if message_id is not None:
                out.facts.append(self._facts.sent(message_id, attempt, root, now.wall_s))

    def _wrong_class(self, value: object) -> TypeError:
        return TypeError(f"the spout emitted a {type(value).__qualname__}, its stream is {self._class.__qualname__}")

    def _report(self, retry_status: RetryStatus, now: Now) -> None:
        task = self.task.task_id
        # In a drain no retry starts, so none need be waited for.
        since_s = self._retrying_since_s() if self._retrying else None
        is_awaited = since_s is not None and self.pending.awaiting_source(task) > 0
        is_blocked = is_awaited and (bool(self._above) or self._room(self._write_requests.count) <= 0)
        roots = self.pending.roots_in_flight if is_blocked else None
        if is_blocked and self._ordered is not None:
            self._ordered.give_up(task, self.pending.awaited_numbers(task))
        if self._blocked_source.look(retry_status, roots, now):
            since_s = self._retrying_since_s()
        retry_status.note_spout(task, since_s, self.in_flight - self.writing, now)
        if self._judged and retry_status.under_way is not None:
            retry_status.under_way.judged(self._judged)
        self._judged.clear()

    def _retrying_since_s(self) -> float | None:
        return self.pending.retrying_since_s(self.task.task_id, given_up_s=self._blocked_source.given_up_s)

    # --- verdicts ---------------------------------------------------------------------------------------------

    def receive(self, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        """Take verdicts, answers of sinks, and high water."""
        for one in mail:
            match one:
                case TreeVerdicts():
                    self._judge(one, now, out)
                case Written():
                    self._note_written(one, now, out)
                case HighWater():
                    (self._above.add if one.above else self._above.discard)(one.acker_task)
                case SinkReset():
                    self._note_reset(one.sink_task, one.incarnation, now, out)
                case _:
                    raise InternalError("a spout got mail that is not for spouts", got=type(one).__name__)
        if self.retry_status is not None:
            self._report(self.retry_status, now)

    def acker_lost(self, acker_index: int, now: Now, out: Outbox) -> None:
        """An acker was lost with its trees: its open attempts have failed, also those that are complete.

        Every sink task is told as well: it holds rows of attempts that no other mail will be about.
        """
        lost = Failure(kind=FailureKind.LOST, component=self.task.component, error="the acker of its tree was lost")
        self._above.discard(self._acker_tasks[acker_index])
        for root in self.pending.roots_in_flight():
            if root % len(self._acker_tasks) == acker_index:
                self._fail_root(root, lost, now, out)

    def _judge(self, verdicts: TreeVerdicts, now: Now, out: Outbox) -> None:
        for root, failure in verdicts.failed:
            self._fail_root(root, failure, now, out)
        if verdicts.expired:
            self._note_expired(len(verdicts.expired), out)
        for root in verdicts.expired:
            failure = Failure(
                kind=FailureKind.TIMEOUT,
                component=self.task.component,
                error=f"its tuple tree was not complete within the message timeout ({self._timeout_s:g} s)",
            )
            self._fail_root(root, failure, now, out)
        if self._limit is not None:
            for completed in verdicts.completed:
                self._limit.ended(completed, now.monotonic_s)
        sinks = self._write_requests.sinks
        if not sinks:
            for roots in verdicts.completed:
                self._ack(roots, now, out)
            return
        if verdicts.completed:
            coming = sum(map(len, verdicts.completed))
            flush_now = not self._may_emit_more(coming)
            for completed in verdicts.completed:
                roots = self._write_requests.not_asked(completed)
                if roots:
                    release = self._write_requests.ask(roots, now.monotonic_s, flush_now=flush_now)
                    out.mail += [(sink, release) for sink in sinks]

    def _note_expired(self, count: int, out: Outbox) -> None:
        """Log what to change, the first time and then each time that ten times as many timed out."""
        if self._limit is not None:
            self._limit.expired()
        self._expired += count
        if self._expired >= 10 * self._expired_told:
            self._expired_told = self._expired
            slowest = self.live.slowest() if self.live is not None else None
            text = timeout_text(
                self._expired, self._timeout_s or 0.0, self.in_flight, limit_set_by=self._limit_set_by, slowest=slowest
            )
            self._note(text, out)

    def _may_emit_more(self, completing: int) -> bool:
        """Whether more rows may come, so that a sink should wait for them."""
        writing = self._write_requests.count + completing
        if self.in_flight > writing:
            return True
        coming = self._pulling and not self.ended
        return (coming or (self._spout_buffer.held > 0 and not self._paused)) and writing < self._max_writing

    def _note_written(self, written: Written, now: Now, out: Outbox) -> None:
        self._note_reset(written.sink_task, written.incarnation, now, out)
        answer = self._write_requests.written(written)
        if answer is None:
            return
        roots, refused = answer
        for root, failure in refused.items():
            self._fail_root(root, failure, now, out)
        self._ack(roots, now, out)

    def _note_reset(self, sink_task: int, incarnation: int, now: Now, out: Outbox) -> None:
        """If a sink task lost its rows, fail every open attempt: it may have had rows there."""
        if not self._write_requests.is_from_another(sink_task, incarnation):
            return
        self._ask_no_more(out)
        lost = Failure(kind=FailureKind.LOST, component=self.task.component, error=f"sink task {sink_task} was lost")
        in_flight = self.pending.roots_in_flight()
        out.fail_trees(dict.fromkeys(in_flight, lost))
        for root in in_flight:
            self._fail_root(root, lost, now, out)

    def _ask_no_more(self, out: Outbox) -> None:
        """Drop the write requests. No other mail comes about trees that completed after their attempts failed."""
        late = self._write_requests.roots().difference(self.pending.roots_in_flight())
        if late:
            out.mail += [(sink, DropRoots([*late])) for sink in self._write_requests.sinks]
        self._write_requests.clear()

    def _ack(self, roots: list[int], now: Now, out: Outbox) -> None:
        if self._attempts or self._facts.of_all:
            self._tell_acked(roots, now, out)
        if self._ordered is not None:
            numbers = [number for root in roots if (number := self.pending.number_of(root))]
            self._ordered.ended(self.task.task_id, numbers)
        acked = self.pending.ack_many(roots, now.monotonic_s)
        out.acked.append(acked)
        if self._hears_acks and self.journal is not None:
            self.journal.acked(acked)
            for one in acked:  # a source that was not told yet may give it again
                self.pending.mark_unconfirmed(one.spout_task, one.message_id, Outcome.ACKED)
        elif self._hears_acks:
            self._calls_out.ack(acked, now.monotonic_s)
            self._take_notes(out)

    def _tell_acked(self, roots: list[int], now: Now, out: Outbox) -> None:
        """Note the acks of messages that had failed before, or of all, before they are forgotten."""
        for root in roots:
            attempt = self._attempts.pop(root, 1)
            if attempt > 1 or self._facts.of_all:
                message_id = self.pending.id_of(root)
                if message_id is not None:
                    out.facts.append(self._facts.acked(message_id, attempt, root, now.wall_s))

    def _fail_root(self, root: int, failure: Failure, now: Now, out: Outbox) -> None:
        if self.live is not None:
            self.live.remember(self.task.task_id, root)
        number = self.pending.number_of(root)
        what = self.pending.fail(root, failure, now.monotonic_s, now.wall_s)
        if self._ordered is not None and number:
            if isinstance(what, Died):
                self._ordered.ended(self.task.task_id, [number])
            else:
                self._ordered.failed_for_now(self.task.task_id, number)
        if self.retry_status is not None:
            self._judged.append(root)
        self._attempts.pop(root, None)
        if self._limit is not None:
            self._limit.ended((root,), now.monotonic_s)
        if self.live is not None:
            self.live.note_failed(now.monotonic_s)
        # Also for an attempt that failed before: rows of it may have come after the first drop.
        hearing = (
            self._write_requests.sinks
            if self.retry_status is None
            else (*self._write_requests.sinks, *self.retry_status.hearing_tasks)
        )
        out.mail += [(task, DropRoots([root])) for task in hearing]
        if what is None:
            return
        out.facts.append(self._facts.failed(what, failure, now.monotonic_s, now.wall_s))
        if isinstance(what, Died):
            self._store_letter(what, out)
            return
        told = self._attempt_notes.of(what.message_id, what.attempt_next - 1, failure, now.monotonic_s)
        if told is not None:
            out.notes.append(LogNote(failure.component or self.task.component, told))
        if isinstance(what, SourceRetry):
            self._spout_buffer.ended = False  # it is asked once more: it may have this to emit although it had ended
            self._calls_out.fail(what.message_id, what.failure, now.monotonic_s)

    def _give_up(self, now: Now, out: Outbox) -> None:
        """Give up messages that a source is to emit again, although its input is over."""
        awaited = self.pending.awaited_numbers(self.task.task_id) if self._ordered is not None else []
        given_up = self.pending.give_up(self.task.task_id, now.monotonic_s, now.wall_s)
        if self._ordered is not None and given_up:
            self._ordered.ended(self.task.task_id, awaited)
            out.mail += [(task, DropRoots([one.root for one in given_up])) for task in self._ordered.tasks]
        for died in given_up:
            self._not_yet_told.add(died.root)  # it was told of this failure already
            out.facts.append(self._facts.died(died))
            self._store_letter(died, out)

    def _store_letter(self, died: Died, out: Outbox) -> None:
        self._storing_letters.add(died.root)
        if self.journal is not None:
            self.journal.dying(died)
        out.died.append(died)

    def letters_stored(self, died: Sequence[Died]) -> None:
        """Tell the source of dead messages, whose letters are durable."""
        for one in died:
            self._storing_letters.discard(one.root)
            failure = replace(one.failure, permanent=True)
            if self.journal is not None:
                self.journal.dead(one, failure)
            if one.root in self._not_yet_told:
                self._not_yet_told.discard(one.root)
            else:
                # Final: a source that retries by itself must not emit this one again.
                self._calls_out.fail(one.message_id, failure, self._now_s)
