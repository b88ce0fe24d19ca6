"""What a durable local run continues from: the journal of its earlier starts, as what is carried over to this one.

An attempt that was out when a process ended is not counted: its message goes out again at once. One whose dead letter
is newer than the last commit stays dead. Owns the reading of the journal; it writes only the number of this start.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.data.payloads import from_jsonable, lift
from tupletree.errors import CheckpointError, ProcessingError
from tupletree.routing.plan import Plan, Task
from tupletree.runtimes.control import status_of
from tupletree.runtimes.deadletters import read_letters, stored_numbers
from tupletree.runtimes.local.assembly import CarriedOver
from tupletree.runtimes.local.durable.journal import Commit, Journal, Place
from tupletree.runtimes.local.durable.upgrade import Past
from tupletree.runtimes.local.statedir import JOURNAL
from tupletree.tasks.edges import RootIds
from tupletree.tasks.making import Numbers
from tupletree.tasks.spouts.spout_buffer import SpoutBuffer, SpoutCheckpoint
from tupletree.tasks.spouts.spout_journal import GIVEN, NEVER, SpoutJournal
from tupletree.topology.components import Reject
from tupletree.tracking.facts import Fact
from tupletree.tracking.message_ids import id_from_plain, message_key
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.pending_log import PendingChanges, WaitingRecord
from tupletree.tracking.records import PendingCounters
from tupletree.tracking.retry import RetryPolicy

STARTS = 1_000_000
"""Restarts of a topology within a process have numbers of their own, for names of batches; so many at most."""

COPIES = 1 << 24
"""By chance: so starts with one number, each on its own copy of a state directory, are told apart."""

NUMBERS = 1 << 40
"""Values that are numbered in the order of making by one process, at most."""


class Resumed(msgspec.Struct):
    """What a start continues from.

    Attributes:
        carried_over: for the first assembly.
        not_yet_told: spout tasks whose sources are to be told outcomes of before.
        replays: replay requests that are accepted already.
    """

    carried_over: CarriedOver
    not_yet_told: set[Place]
    replays: set[str]


def resume(journal: Journal, plan: Plan, options: Options, dead: Path, clock: Clock, random: Random) -> Resumed:
    """Read the journal, and note in it that there is a further start.

    Raises:
        CheckpointError: it is damaged, or does not fit the topology.
        ConnectorError: it cannot be written.
    """
    meta = journal.meta()
    generation: int = meta.get("generation", 0)
    tasks = [task for task in plan.tasks if _is_spout(plan, task)]
    journal.register((task.component, task.index) for task in tasks)
    journal.commit(Commit(meta={"generation": generation + 1}))
    # Otherwise a start on an older copy would give its batches names that others have, and sinks would skip them.
    starts = (generation * COPIES + random.randrange(COPIES)) * STARTS
    carried_over = CarriedOver(
        starts=starts,
        first=starts,
        durable=True,
        numbers=Numbers(1 + generation * NUMBERS, guard=threading.Lock()),
    )
    resumed = Resumed(carried_over, set(), journal.replays())
    if not generation:
        return resumed
    sinks = {one.name for one in plan.spec.components.values() if one.kind == "sink"}
    carried_over.rows = {name: rows for name, rows in meta.get("rows", {}).items() if name in sinks}
    _resume_state(journal, plan, clock, carried_over)
    past = Past.of(journal)
    newer = [
        replace(letter, spout=past.today(letter.spout))
        for number in stored_numbers(dead)
        if number >= meta.get("letters", 0)
        for letter in read_letters(dead, number)
        if not past.is_of_dropped(letter.spout, f"{number}-")
    ]
    spouts = _Spouts(journal, plan, options, clock, random, carried_over.numbers)
    for task in tasks:
        place = task.component, task.index
        carried_over.spout_checkpoints[task.task_id] = spouts.checkpoint(task, newer)
        if place in spouts.outcomes:
            resumed.not_yet_told.add(place)
    return resumed


def _is_spout(plan: Plan, task: Task) -> bool:
    component = plan.spec.components.get(task.component)
    return component is not None and component.kind == "spout"


def _resume_state(journal: Journal, plan: Plan, clock: Clock, carried_over: CarriedOver) -> None:
    stored = journal.state()
    if not stored:
        return
    from tupletree.runtimes.local.snapshot import ComponentSnapshot, codec_of, distribute  # PyArrow takes a while

    wall_s = clock.wall()
    for name, rows in stored.items():
        component = plan.spec.components[name]
        header = codec_of(component, plan)[1]
        expires_s = [row.expires_s for row in rows if row.expires_s is not None]
        state = ComponentSnapshot(
            is_keyed=header.is_keyed,
            tasks=plan.parallelism(name),
            key_types=header.key_types,
            value_type=header.value_type,
            keys=[row.key for row in rows],
            values=[row.value for row in rows],
            form=header.form,
            expires_s=expires_s if len(expires_s) == len(rows) else [],
        )
        try:
            distribute(component, state, plan, journal.path, wall_s, carried_over.cells)
        except IndexError as error:
            raise CheckpointError(
                "task state belongs to tasks, and there are fewer of them now",
                where=f"{name} in {journal.path}",
                next_step="go back to the old parallelism",
            ) from error
    for cell in carried_over.cells.values():
        cell.commit()  # it is stored already


class _Spouts:
    """The spout tasks of a journal."""

    def __init__(
        self, journal: Journal, plan: Plan, options: Options, clock: Clock, random: Random, numbers: Numbers
    ) -> None:
        self._plan = plan
        self._options = options
        self._clock = clock
        self._random = random
        self._numbers = numbers
        self._where = str(journal.path)
        self._rows = journal.spouts()
        self._records: dict[Place, list[WaitingRecord]] = {}
        for place, _, data in journal.messages():
            self._records.setdefault(place, []).append(msgspec.json.decode(data, type=WaitingRecord))
        self.outcomes: dict[Place, list[tuple[Any, Failure | None]]] = {}
        for place, ids in journal.outcomes():
            told = msgspec.json.decode(ids, type=list[tuple[Any, Failure | None]])
            self.outcomes.setdefault(place, []).extend((id_from_plain(plain), failure) for plain, failure in told)

    def checkpoint(self, task: Task, newer: Iterable[DeadLetter]) -> SpoutCheckpoint:
        """What a spout task continues from; the letters are newer than the journal."""
        place = task.component, task.index
        component = self._plan.spec.components[task.component]
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        draw = RootIds(Random(self._random.getrandbits(128)).getrandbits, self._options.acker_tasks)
        pending = Pending(RetryPolicy.from_options(self._options), draw, Random(self._random.getrandbits(128)).random)
        pending.register(task.task_id, task.component, component.replay)
        row = self._rows[place]
        counters = PendingCounters() if row.counters is None else msgspec.convert(row.counters, PendingCounters)
        records = self._in_order(self._records.get(place, []))
        stored = {
            message_key(id_from_plain(one.message_id)): GIVEN if one.first_emitted_s == NEVER else one.attempt
            for one in records
        }
        told = self.outcomes.get(place, [])
        dead = {message_key(id_from_plain(one.message_id)): one for one in newer if one.spout == task.component}
        if self._plan.parallelism(task.component) > 1:  # an id is unique within a task
            dead = {key: one for key, one in dead.items() if key in stored}
        known = {*stored, *(message_key(message_id) for message_id, failure in told if failure is not None)}
        counters.emitted += sum(key not in known for key in dead)
        rejects: list[Reject] = []
        waiting: list[WaitingRecord] = []
        for one in records:
            if message_key(id_from_plain(one.message_id)) in dead:
                counters.emitted += one.first_emitted_s == NEVER
            elif one.failure is not None and one.failure.kind is FailureKind.REJECTED:
                counters.emitted -= one.first_emitted_s != NEVER  # it is counted when it goes out again
                rejects.append(Reject(lift(one.value, {}), id_from_plain(one.message_id), one.failure.error))
            else:
                is_new = one.first_emitted_s == NEVER
                counters.emitted += is_new
                first_s = wall_s if is_new else one.first_emitted_s
                waiting.append(replace(one, spout_task=task.task_id, first_emitted_s=first_s))
        pending.restore([PendingChanges(waiting=waiting)], self._decode, now_s, wall_s)
        counters.dead = counters.emitted - counters.acked - len(waiting)
        pending.counters = counters
        told = [
            *told,
            *((id_from_plain(one.message_id), replace(one.failure, permanent=True)) for one in dead.values()),
        ]
        for message_id, failure in told:
            pending.mark_unconfirmed(task.task_id, message_id, Outcome.ACKED if failure is None else Outcome.DEAD)
        buffer = SpoutBuffer()
        buffer.hold(rejects, lift(row.position, {}))
        return SpoutCheckpoint(pending, draw, buffer, not_yet_told=told, journal=SpoutJournal(stored))

    def _in_order(self, records: list[WaitingRecord]) -> list[WaitingRecord]:
        """In the order of their first emission; what was only given comes last, and is numbered before what is new.

        Inputs and sinks that are ordered go by these numbers, and know of none that is not numbered.
        """
        records = sorted(records, key=lambda one: (one.first_emitted_s == NEVER, one.made))
        fresh = iter(self._numbers.take(sum(not one.made for one in records)))
        return [one if one.made else replace(one, made=next(fresh)) for one in records]

    def _decode(self, spout_task: int, data: Any) -> Any:
        ((_, stream),) = self._plan.spec.components[self._plan.tasks[spout_task].component].outputs.items()
        try:
            return from_jsonable(data, stream.schema.cls, may_have_more=True)
        except ProcessingError as error:
            raise CheckpointError(
                "an open message in the journal does not fit its stream",
                where=self._where,
                got=str(error),
                next_step="go back to the class that it was written with",
            ) from error


def open_facts(state_dir: Path, time_s: float) -> list[Fact]:
    """The open messages of a durable run that no process runs now."""
    path = state_dir / JOURNAL
    if not path.exists() or status_of(state_dir).is_alive(time_s):
        return []
    journal = Journal(path)
    try:
        return [
            Fact(
                time_s=time_s,
                what="open",
                spout=place[0],
                message_id=record.message_id,
                attempt=record.attempt,
                root=record.root,
                note="the next start emits it again",
            )
            for place, _, data in journal.messages()
            for record in [msgspec.json.decode(data, type=WaitingRecord)]
        ]
    finally:
        journal.close()
