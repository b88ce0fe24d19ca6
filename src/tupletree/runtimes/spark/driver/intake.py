"""Intake: pulls messages from the spouts and cuts them into epochs.

Owns the buffer of messages that have a root but no epoch yet, and the layout of an epoch log. An epoch's log is
durable before Spark can see it, so an epoch can be read again exactly as it was.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import compress, islice
from typing import Any

import numpy as np

from tupletree.bolts.failures import safe_text
from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.errors import ConnectorError, EndOfInput, UnusableDataError, is_outage
from tupletree.ids import MessageId
from tupletree.runtimes.spark.driver.async_spouts import AsyncSpoutAdapter
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker, EpochFrames, SpoutTask
from tupletree.runtimes.spark.driver.epoch_size import EpochSize
from tupletree.runtimes.spark.driver.lease_planner import LeasePlanner, TakenRows, place_taken, rows_of
from tupletree.runtimes.spark.driver.message_columns import MessageColumns
from tupletree.runtimes.spark.driver.split_planner import SplitPlanner
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader, Messages
from tupletree.runtimes.spark.format.inputs import inputs_of
from tupletree.runtimes.spark.format.logged_messages import LoggedMessages
from tupletree.runtimes.spark.format.segments import SegmentRow
from tupletree.runtimes.spark.format.split_messages import readers_of
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.epoch_order import KeyTable
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.outages import Outages
from tupletree.tasks.making import Numbers
from tupletree.tasks.source_calls import refuse_unavailable
from tupletree.texts import reversible
from tupletree.topology.components import Emit, Reject, Spout
from tupletree.topology.limits import max_pending
from tupletree.topology.splits import LeaseSpout, SplitSpout
from tupletree.tracking.key_lines import ANY
from tupletree.tracking.message_ids import message_key
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.records import AlreadySettled, Emission

logger = logging.getLogger("tupletree.spark")


# More than 12 attributes: the buffer, its limits, and those who are asked about both.
class Intake:
    """See the module docstring. Its methods are called by the driver's loop only.

    `answered` holds the numbers of spouts that answered a call of `next` since the run was first started on its state
    directory: what is not available to another one ends the start (`refuse_unavailable`). It is added to.
    `lease_planner` must be set before a spout is asked whose messages executors take. `look_again` has sources asked
    whether they know now what became of messages; whether they know of any.
    """

    def __init__(
        self,
        frame_maker: EpochFrameMaker,
        options: Options,
        accounts: Accounts,
        spouts: Sequence[SpoutTask],
        clock: Clock,
        retell: Callable[[AlreadySettled], None],
        outages: Outages | None = None,
        answered: set[int] | None = None,
    ) -> None:
        self.lease_planner: LeasePlanner | None = None
        self.look_again: Callable[[], bool] = lambda: False
        self._answered = set() if answered is None else answered
        self._first_asked_s: dict[int, float] = {}
        self._reader_of = readers_of(frame_maker.plan.spec)
        self._outages = outages or Outages(clock, options.outage_limit_s)
        self._accounts = accounts
        self._spouts = {spout.number: spout for spout in spouts}
        self._clock = clock
        self._retell = retell
        self._frame_maker = frame_maker
        spec, usual = frame_maker.plan.spec, 2 * options.epoch_max_messages
        self._limits = {spout.number: max_pending(spec, spout.name, options, usual) for spout in spouts}
        self._tracked = options.acker_tasks > 0
        self._split_planner = SplitPlanner(frame_maker.plan, options, accounts)
        self.size = EpochSize(frame_maker.plan.spec, options)
        self._delivered: set[tuple[int, Hashable]] = set()
        self._ordering = accounts.ordering
        self._held_up: tuple[KeyTable, set[int]] = {}, set()
        self._leased = [(spout, spout.spout) for spout in spouts if isinstance(spout.spout, LeaseSpout)]

    @property
    def buffered(self) -> int:
        """Messages that have no epoch yet."""
        return sum(spout.buffered for spout in self._spouts.values())

    @property
    def is_repeatable(self) -> bool:
        """Whether the next start would have all that is in no epoch yet: its sources have positions."""
        return all(not spout.buffered or spout.spout.snapshot() is not None for spout in self._spouts.values())

    @property
    def is_full(self) -> bool:
        """Whether the next epoch has reached its limit."""
        return self.buffered >= self.size.messages or self._bytes_elsewhere >= self.size.max_bytes

    @property
    def _bytes_elsewhere(self) -> int:
        """About how many bytes executors are to read of what is in the buffer."""
        spouts = self._spouts.values()
        return sum(spout.taken_bytes + sum(split.size_bytes for split in spout.planned) for spout in spouts)

    @property
    def oldest_segment(self) -> float:
        """See `LeasePlanner.oldest`."""
        return math.inf if self.lease_planner is None else self.lease_planner.oldest(self._spouts.values())

    @property
    def has_ended(self) -> bool:
        """Whether no spout will ever give a message again."""
        return all(spout.ended for spout in self._spouts.values())

    @property
    def must_give_up(self) -> bool:
        """Whether a source has ended although it was asked to emit a message again."""
        pending = self._accounts.pending
        return any(spout.ended and pending.awaiting_source(task) for task, spout in self._spouts.items())

    def ask_again(self, spout_task: int) -> None:
        """Ask sources that retry by themselves again, although their input had ended."""
        self._spouts[spout_task].ended = False
        self._accounts.ended.discard(spout_task)

    def was_delivered(self, spout_task: int, message_id: MessageId) -> bool:
        """Whether a source without a position gave this message in this process; asked once per verdict.

        If it did not, its handle for the verdict may be gone: those of a broker end with their connection. It will
        deliver the message again, maybe much later.
        """
        key = spout_task, message_key(message_id)
        if key not in self._delivered:
            return False
        self._delivered.remove(key)
        return True

    def waiting_keys(self) -> set[tuple[int, Any]]:
        """(spout task, key) of the messages that their sources gave, and that wait here for room."""
        return {
            (task_id, message_key(one.message_id))
            for task_id, spout in self._spouts.items()
            for one in spout.waiting
            if one.message_id is not None
        }

    @property
    def ended_unlogged(self) -> bool:
        """Whether a spout has ended and that is in no epoch log yet."""
        return any(spout.ended and task not in self._accounts.ended for task, spout in self._spouts.items())

    def _room(self, spout_task: int) -> int:
        """How many more messages of a spout may be open.

        Windows may hold what fills the limit until a message comes that its source is to emit again. It may give others
        first: as many again, at the most.
        """
        limit = self._limits[spout_task]
        room = limit - self._accounts.open_count(spout_task)
        if not self._accounts.kept:
            return room
        return max(room, min(self._accounts.pending.awaiting_source(spout_task), room + limit))

    def give_up_blocked(self, now_s: float) -> bool:
        """Give up what sources cannot emit again because windows hold what fills their limits; whether any did.

        Called between epochs, with all callbacks made.
        """
        gave_up = False
        for task, spout in self._spouts.items():
            if not spout.buffered and self._room(task) <= 0:
                gave_up = self._accounts.give_up_blocked(task, now_s) or gave_up
        return gave_up

    def pull(self, epoch: int) -> bool:
        """Ask each spout for messages once, for this epoch, as far as the limits allow; whether any came."""
        came = False
        self.hear_taken()
        for task_id, spout in self._spouts.items():
            if spout.ended or self.is_full or self._room(task_id) <= 0 or self._is_held_up(task_id):
                continue
            if spout.waiting:
                room = min(self._room(task_id), len(spout.waiting))
                self._take(spout, [spout.waiting.popleft() for _ in range(room)])
                came = True
                continue
            if not self._outages.is_due(spout.name):
                continue
            if task_id not in self._answered:
                self._first_asked_s.setdefault(task_id, self._clock.monotonic())
            try:
                if isinstance(spout.spout, SplitSpout):
                    room = min(self.size.messages - self.buffered, self._room(task_id))
                    came = self._split_planner.plan(spout, spout.spout, self.size.messages, room) or came
                    self._answered.add(task_id)
                    self._outages.over(spout.name)
                    continue
                given = self._take_leased(spout, epoch) if isinstance(spout.spout, LeaseSpout) else spout.spout.next()
            except EndOfInput:
                self._answered.add(task_id)
                self._outages.over(spout.name)
                spout.ended = True
                came = True
                continue
            except ConnectorError as error:
                if not is_outage(error):
                    raise
                if task_id not in self._answered:
                    refuse_unavailable(error, waited_s=self._clock.monotonic() - self._first_asked_s[task_id])
                self._outages.met(spout.name, error)
                continue
            if _has_answered(spout.spout, given):
                self._outages.over(spout.name)
            if given is not None or not (isinstance(spout.spout, AsyncSpoutAdapter) and spout.spout.is_asked_first):
                self._answered.add(task_id)
            if given is None:
                continue
            batch: Sequence[Emit[Any] | Reject] = given if isinstance(given, Sequence) else [given]
            if batch:
                self._accounts.ended.discard(task_id)
                self._take(spout, self._cut(spout, batch))
                came = True
        return came

    def hear_taken(self) -> None:
        """Accept what executors have taken, also where there is no room for it: else its leases would end."""
        for spout, source in self._leased:
            assert self.lease_planner is not None, "made without a way to take messages"
            try:
                given = self.lease_planner.hear(spout, source)
            except ConnectorError as error:
                if not is_outage(error):
                    raise
                self._outages.met(spout.name, error)
                continue
            if given is not None:
                self._outages.over(spout.name)
                spout.waiting.extend(given)

    def take_waiting(self) -> None:
        """Take what waits beyond limits, when nothing else will come: a drain works all that a source has given."""
        for spout in self._spouts.values():
            if spout.waiting:
                waiting, spout.waiting = spout.waiting, deque()
                self._take(spout, waiting)

    def _take_leased(self, spout: SpoutTask, epoch: int) -> Sequence[Emit[Any] | Reject] | None:
        assert isinstance(spout.spout, LeaseSpout), "others are asked for their next message"
        assert self.lease_planner is not None, "made without a way to take messages"
        room = min(self.size.messages - self.buffered, self._room(spout.number))
        max_bytes = max(1, self.size.max_bytes - self._bytes_elsewhere)
        return self.lease_planner.pull(spout, spout.spout, epoch, room, max_bytes)

    def _is_held_up(self, spout_task: int) -> bool:
        """Whether a message waits that may have any key: nothing later of its spout task could count."""
        if self._ordering is None:
            return False
        with self._accounts.lock:
            table = self._accounts.key_table
        if table is not self._held_up[0]:
            self._held_up = (
                table,
                {task for (task, _), one in table.items() if any(ANY in keys for keys in one.keys.values())},
            )
        return spout_task in self._held_up[1]

    def _take(self, spout: SpoutTask, batch: Sequence[Emit[Any] | Reject]) -> None:
        ids: list[MessageId] = []
        values: list[Any] = []
        rejected: list[tuple[MessageId, Reject]] = []
        for one in batch:
            if type(one) is Emit:
                if one.message_id is None or not self._tracked:
                    spout.untracked.append(one.value)
                    if one.message_id is not None:
                        spout.spout.ack(one.message_id)
                else:
                    ids.append(one.message_id)
                    values.append(one.value)
            elif isinstance(one, Reject):
                rejected.append((one.message_id, one))
            else:
                raise UnusableDataError(
                    "a spout gave something that is not a message",
                    where=spout.name,
                    got=safe_text(one, 200),
                    expected="an Emit, a Reject, a list of them, or None",
                )
        if values and not self.size.is_measured:
            self.size.measured(1, self._frame_maker.length_of(spout, values[-1]))
        if spout.position is None and spout.spout.snapshot() is None:
            given = [*ids, *(message_id for message_id, _ in rejected)]
            self._delivered.update((spout.number, message_key(message_id)) for message_id in given)
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        accounts = self._accounts
        with accounts.lock:
            accounts.pending.counters.untracked += len(batch) - len(ids) - len(rejected)
            try:
                out = accounts.pending.emit_many(spout.number, ids, values, now_s, wall_s)
            except ConnectorError as error:
                found = [replace(finding, where=f"spout {spout.name!r}") for finding in error.findings]
                raise UnusableDataError(error.what, findings=found) from error
            spout.ids.extend(id_ for id_ in out.message_ids if id_ is not None)
            spout.roots.extend(out.roots)
            spout.values.extend(out.values)
            spout.attempts.extend(out.attempts)
            if isinstance(spout.spout, LeaseSpout):  # what is known is in an epoch already, or waits for another
                sizes = [row.size_bytes for row in out.values if type(row) is SegmentRow]
                spout.taken_bytes += sum(sizes)
                if sizes:
                    self.size.measured(len(sizes), max(1, sum(sizes)))
            spout.fresh += out.attempts.count(1)
            known = list(out.known)
            for message_id, reject in rejected:
                emission = accounts.pending.emit(spout.number, message_id, reject.payload, now_s, wall_s)
                if isinstance(emission, Emission):
                    spout.rejected[emission.root] = reject
                    spout.fresh += 1
                    self._append(spout, emission)
                else:
                    known.append(emission)
        settled = {message_key(one.message_id): one for one in known if isinstance(one, AlreadySettled)}
        if settled and self.look_again():
            batch_ids = [one.message_id for one in batch]
            again = [id_ is not None and message_key(id_) in settled for id_ in batch_ids]
            self._take(spout, [*compress(batch, again)])
        else:
            for joined in settled.values():
                self._retell(joined)

    def _cut(self, spout: SpoutTask, batch: Sequence[Emit[Any] | Reject]) -> Sequence[Emit[Any] | Reject]:
        """As much of a batch as the limit has room for; the rest waits here.

        The position of a source would be beyond what waits, and a crash would lose it: of such a source all is taken.
        """
        room = max(0, self._room(spout.number))
        if len(batch) <= room or spout.position is not None or spout.spout.snapshot() is not None:
            return batch
        given = iter(batch)
        taken = [*islice(given, room)]
        spout.waiting.extend(given)
        return taken

    @staticmethod
    def _append(spout: SpoutTask, emission: Emission) -> None:
        assert emission.message_id is not None, "only tracked messages have a root"
        spout.ids.append(emission.message_id)
        spout.roots.append(emission.root)
        spout.values.append(emission.value)
        spout.attempts.append(emission.attempt)

    def add_due(self, now_s: float) -> int:
        """Move retries that are due into the buffer; returns how many."""
        # What is buffered came later than what waits. Where order counts, it is not to fill the epoch alone.
        room = self.size.messages - (self.buffered if self._ordering is None else 0)
        with self._accounts.lock:
            due = self._accounts.pending.due(now_s, max(0, room))
        for emission in due:
            self._append(self._spouts[emission.spout_task], emission)
            if emission.attempt == 1:
                self._spouts[emission.spout_task].again.append(emission.root)
        return len(due)

    def cut(
        self, epoch: int, generation: int, *, ticks: Sequence[str] = (), drain: bool = False
    ) -> tuple[EpochRecord, list[bytes]]:
        """Make an epoch of everything in the buffer: its record, and the sections of its log.

        Args:
            epoch: its number.
            generation: of this start.
            ticks: components that get a tick.
            drain: nothing else will come for a while.
        """
        # Epoch time never goes back, even if the machine's clock does.
        time_s = self._accounts.epoch_time_s = max(self._clock.wall(), self._accounts.epoch_time_s)
        ran_s = self._accounts.ran_s(self._clock.monotonic())
        header = EpochHeader(
            epoch=epoch,
            generation=generation,
            time_s=time_s,
            ran_s=ran_s,
            partitions=self._frame_maker.plan.partitions,
            ticks=[*ticks],
            drain=drain,
            again=[root for spout in self._spouts.values() for root in spout.again],
            tasks=self._frame_maker.tasks,
        )
        failures: dict[int, Failure] = {}
        epoch_frames = EpochFrames()
        columns = MessageColumns()
        taken: list[TakenRows] = []
        # The first numbers of an epoch are those of the rows that were planned (`SplitMessages.places_of`).
        planned = sum(split.rows for spout in self._spouts.values() for split in spout.planned)
        numbers = Numbers(wire.first_number(epoch) + planned)
        for task_id, spout in self._spouts.items():
            header.untracked += len(spout.untracked)
            header.fresh += spout.fresh
            is_ordered = self._frame_maker.plan.carries_order(spout.name, spout.stream)
            is_gated = self._ordering is not None and task_id in self._ordering.tasks
            if is_ordered or is_gated:
                with self._accounts.lock:
                    spout.made = self._accounts.pending.number(spout.roots, numbers.take)
            if is_gated:
                spout.sort()
            columns.add(spout, self._accounts)
            if is_ordered:
                spout.made += numbers.take(len(spout.untracked))
            header.unsendable += self._frame_maker.add_frames(epoch, spout, failures, epoch_frames)
            taken += rows_of(spout)
            # Everything pulled is in this epoch, so the present position is the one after it.
            spout.position = spout.spout.snapshot()
            if spout.position is not None and task_id in self._answered:
                self._accounts.positions[task_id] = spout.position
            if spout.ended:
                self._accounts.ended.add(task_id)
            with self._accounts.lock:
                self._accounts.pending.put_values(spout.cut)
            spout.clear()
        self._split_planner.place(self._spouts.values(), header)
        place_taken(taken, header, self._frame_maker.plan)
        header.positions = {task: reversible(one) for task, one in self._accounts.positions.items()}
        header.ended = sorted(self._accounts.ended)
        messages, section = columns.encode()
        sections = self._sections(header, messages, section, epoch_frames, sum(one.size_bytes for one in taken))
        openings = epoch_frames.openings(np.frombuffer(columns.roots, np.uint64))
        segments = None if self.lease_planner is None else self.lease_planner.segments
        logged = LoggedMessages(messages, header, openings, segments=segments)
        inputs = inputs_of(header, logged, self._reader_of)
        with self._accounts.lock:
            self._accounts.log(epoch, inputs)
        return EpochRecord(header, inputs, columns.retried(), failures), sections

    def _sections(
        self, header: EpochHeader, messages: Messages, section: bytes, epoch_frames: EpochFrames, elsewhere: int
    ) -> list[bytes]:
        header.messages, header.messages_length = len(messages.ids), len(section)
        sections = epoch_frames.sections(header, section)
        if header.messages:
            self.size.measured(header.messages, sum(map(len, sections)) + elsewhere)
        return sections


def _has_answered(source: Spout[Any], given: object) -> bool:
    """Whether a call without an error shows that a source is available."""
    if isinstance(source, LeaseSpout):
        return given is not None
    return not isinstance(source, AsyncSpoutAdapter) or source.has_answered
