"""Checkpoints of a durable local run: what of spouts and state is stored together, and when sources hear of it.

Owns the order: first every spout task is cut (position, open messages, acks), then the state of bolts is taken, then
both are stored in one transaction, and then the spouts tell their sources of the acks. So whatever a message that is
not open any more did to state is stored with that; what a message that is still open did may be stored, too, and is
done again after a kill: at least once. What could not be stored stays here and is stored with what comes later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as StillWaiting
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from tupletree.clock import Clock
from tupletree.data.payloads import lower, to_jsonable
from tupletree.errors import is_outage
from tupletree.routing.plan import Plan
from tupletree.runtimes.local.assembly import Assembly, CarriedOver
from tupletree.runtimes.local.durable.journal import Commit, Journal, Place, SpoutRow, StateRow
from tupletree.runtimes.local.executor import Action, Executor
from tupletree.runtimes.threads import start_thread
from tupletree.state.cells import CLEARED
from tupletree.tasks.mail import Now
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.spouts.spout_journal import SpoutCut, Told
from tupletree.texts import json_bytes
from tupletree.tracking.message_ids import id_from_key, plain_id
from tupletree.tracking.outages import OutageWait
from tupletree.tracking.pending_log import WaitingRecord

if TYPE_CHECKING:
    from tupletree.state.store import StateCodec

logger = logging.getLogger("tupletree.local")

JOURNAL_OUTAGE = "journal"
"""The name that an outage of the file is reported under."""

LEAST_PAUSE_S = 0.05
"""Between two checkpoints: what came meanwhile shares one flush to the disk."""

PAUSE_FACTOR = 9.0
"""A pause is so many times as long as the work before it, which therefore takes at most a tenth of the time."""

EXPIRED_EVERY_S = 60.0
ANSWER_SLICE_S = 0.2

Ask = Callable[[Executor, Action[Any]], Any]
"""Has a function called on an executor's thread and gives its result; raises CancelledError if that has ended."""


def stored_record(record: WaitingRecord) -> bytes:
    """A message as the journal has it. No tuple: it may hold what must not be stored (see `Redact`)."""
    failure = record.failure
    if failure is not None and failure.failing_tuple:
        failure = replace(failure, failing_tuple="")
    return json_bytes(replace(record, value=to_jsonable(record.value), failure=failure))


# More than 12 attributes: what waits to be stored, by kind, is what it is for.
class Checkpoints:
    """What is to be stored, and one checkpoint after the other, each at the caller's demand.

    Args:
        journal: where it is stored.
        plan: the topology laid out.
        carried_over: has the cells of bolts.
        clock: for the expiry of state.
        rows: rows written so far, by sink.
        letters: how many files of dead letters there are.
    """

    def __init__(
        self,
        journal: Journal,
        plan: Plan,
        carried_over: CarriedOver,
        clock: Clock,
        rows: Callable[[], Mapping[str, int]],
        letters: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._plan = plan
        self._carried_over = carried_over
        self._clock = clock
        self._rows = rows
        self._letters = letters
        self._codecs: dict[str, StateCodec] = {}
        self._spouts: dict[Place, SpoutRow] = {}
        self._messages: dict[Place, dict[Any, WaitingRecord | None]] = {}
        self._outcomes: dict[Place, list[Told]] = {}
        self._told: set[Place] = set()
        self._state: dict[str, dict[Any, tuple[Any, float | None]]] = {}
        self._not_yet_told: set[Place] = set()
        self._meta: dict[str, Any] = {}
        self._expire_at_s = 0.0
        self.replays: list[str] = []
        self.replayed: list[str] = []

    def take(self, assembly: Assembly, ask: Ask) -> bool:
        """Cut the spouts, then take the state of bolts; whether there is something to store."""
        letters = self._letters()
        changed = not self.is_stored
        for spout in assembly.spouts():
            cut: SpoutCut = ask(assembly.owners[spout.task.task_id], spout.take_cut)
            changed = self._note(cut) or changed
        cells: dict[Executor, list[int]] = {}
        for task in self._carried_over.cells:
            cells.setdefault(assembly.owners[task], []).append(task)
        for executor, tasks in cells.items():
            for task, delta in ask(executor, partial(self._commit_cells, tasks)):
                if delta:
                    changed = True
                    self._state.setdefault(self._plan.tasks[task].component, {}).update(delta)
        if changed:
            self._meta = {"letters": letters, "rows": dict(self._rows())}
        return changed

    def _commit_cells(self, tasks: list[int], _: Now, __: Outbox) -> list[tuple[int, dict[Any, Any]]]:
        return [(task, self._carried_over.cells[task].commit()) for task in tasks]

    def _note(self, cut: SpoutCut) -> bool:
        task = self._plan.tasks[cut.spout_task]
        place = task.component, task.index
        before = self._spouts.get(place)
        self._spouts[place] = row = SpoutRow(lower(cut.position, json=True), msgspec.to_builtins(cut.counters))
        self._messages.setdefault(place, {}).update(cut.changed)
        tells = cut.all_told and place in self._not_yet_told
        if tells:
            self._told.add(place)
        if cut.outcomes:
            self._outcomes.setdefault(place, []).extend(cut.outcomes)
        return tells or not cut.is_empty or before != row

    def store(self, assembly: Assembly | None, ask: Ask) -> None:
        """Store what was taken, then let spouts tell their sources. Raises ConnectorError for an outage."""
        self._journal.commit(self._commit())
        self._not_yet_told = (self._not_yet_told - self._told) | {
            place for place, told in self._outcomes.items() if told
        }
        self._messages.clear()
        self._outcomes.clear()
        self._told.clear()
        self._state.clear()
        self.replays.clear()
        self.replayed.clear()
        for spout in assembly.spouts() if assembly is not None else ():
            ask(assembly.owners[spout.task.task_id], spout.committed)  # type: ignore[union-attr]  # else there is none

    @property
    def is_stored(self) -> bool:
        """Whether all that was taken is stored."""
        waits = any(self._messages.values()) or any(self._outcomes.values())
        return not (waits or self._told or self._state or self.replays or self.replayed)

    @property
    def not_yet_told(self) -> bool:
        """Whether something is stored that sources are to be told, or were told since."""
        return bool(self._not_yet_told)

    def note_not_yet_told(self, places: set[Place]) -> None:
        """Earlier processes stored what the sources of these are to be told."""
        self._not_yet_told |= places

    def _commit(self) -> Commit:
        now_s = self._clock.wall()
        expires = now_s >= self._expire_at_s
        if expires:
            self._expire_at_s = now_s + EXPIRED_EVERY_S
        commit = Commit(
            spouts=dict(self._spouts),
            messages={
                place: [
                    (json_bytes(plain_id(id_from_key(key))), None if record is None else stored_record(record))
                    for key, record in changes.items()
                ]
                for place, changes in self._messages.items()
            },
            outcomes={place: _outcomes(told) for place, told in self._outcomes.items() if told},
            told=sorted(self._told),
            expired_s=now_s if expires else None,
            meta={**self._meta, "time_s": now_s},
            replays=list(self.replays),
            replayed=list(self.replayed),
        )
        for name, delta in self._state.items():
            codec = self._codec(name)
            kept = {key: entry for key, entry in delta.items() if entry[0] is not CLEARED}
            keys = codec.keys.encode(list(kept))[0]
            values = codec.encode([value for value, _ in kept.values()])
            expiry = [expires_s for _, expires_s in kept.values()]
            commit.state[name] = [StateRow(*row) for row in zip(keys, values, expiry, strict=True)]
            gone = [key for key, entry in delta.items() if entry[0] is CLEARED]
            commit.gone[name] = codec.keys.encode(gone)[0] if gone else []
        return commit

    def _codec(self, name: str) -> StateCodec:
        codec = self._codecs.get(name)
        if codec is None:
            from tupletree.runtimes.local.snapshot import codec_of  # it needs PyArrow, which takes a while to import

            codec = self._codecs[name] = codec_of(self._plan.spec.components[name], self._plan)[0]
        return codec


def _outcomes(told: list[Told]) -> bytes:
    return json_bytes(
        [
            (plain_id(message_id), failure if failure is None else replace(failure, failing_tuple=""))
            for message_id, failure in told
        ]
    )


class Checkpointer:
    """Makes checkpoints on a thread of its own, from `begin` to `finish`, a pause apart.

    Args:
        checkpoints: what makes them.
        assembly: that of the present life; None between lives.
        clock: where time comes from.
        failed: called with an error that ends the run.
        look: called before each checkpoint, for requests of other processes, with what `Checkpoints.take` gets.
        limit_s: how long an outage may last; None: without limit.

    Attributes:
        wait: whether an outage of the file is waited for.
        error: why no more checkpoints are made; it ends the run, whatever else happens at that time.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        assembly: Callable[[], Assembly | None],
        clock: Clock,
        failed: Callable[[BaseException], None],
        look: Callable[[Assembly, Ask], None],
        limit_s: float | None,
    ) -> None:
        self.wait = OutageWait(JOURNAL_OUTAGE, limit_s)
        self.error: BaseException | None = None
        self._checkpoints = checkpoints
        self._assembly = assembly
        self._clock = clock
        self._failed = failed
        self._look = look
        self._seen: Any = None
        self._ends = threading.Event()
        self._deadline_s: float | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, unless it runs. Raises the error by which it ended."""
        if self.error is not None:
            raise self.error
        if self._thread is None:
            self._ends.clear()
            self._deadline_s = None
            self._thread = start_thread(threading.Thread(target=self._main, name="tupletree-checkpoints", daemon=True))

    def end(self) -> None:
        """End the thread; no checkpoint is made after that."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(
        self, assembly: Assembly, until_s: Callable[[], float | None], has_failed: Callable[[], bool] = lambda: False
    ) -> bool:
        """Make the last checkpoints of a life that ends in order: until all is stored, and told to the sources.

        Args:
            assembly: its executors still run.
            until_s: when to give up (monotonic); None: not at all. Asked again and again.
            has_failed: whether an executor has ended by an error, and nothing more can be asked of it.

        Returns:
            False if it was given up: what is not stored comes again at the next start, or is stored by the next life.

        Raises the error of the thread, if it ended by one.
        """
        self.end()
        if self.error is not None:
            raise self.error
        self._ends.clear()
        while not self._ends.wait(self._pause_s()):
            if has_failed():
                return False
            deadline_s = until_s()
            self._deadline_s = deadline_s
            if deadline_s is not None and self._clock.monotonic() >= deadline_s:
                return False
            if self._checkpoint(assembly, force=True) and not self._checkpoints.not_yet_told:
                return True
        return False

    def _pause_s(self) -> float:
        return max(0.0, min(1.5, self.wait.due_s - self._clock.monotonic())) or 0.002

    def _main(self) -> None:
        pause_s = LEAST_PAUSE_S
        while not self._ends.wait(pause_s):
            pause_s = LEAST_PAUSE_S
            assembly = self._assembly()
            if assembly is None or self.wait.due_s > self._clock.monotonic():
                continue
            began_s = self._clock.monotonic()
            try:
                self._look(assembly, self._ask)
                self._checkpoint(assembly)
            except CancelledError:
                continue  # the life has ended: the next one goes on
            except BaseException as error:  # noqa: BLE001 - it ends the run, which says why
                self.error = error
                self._failed(error)
                return
            pause_s = max(LEAST_PAUSE_S, PAUSE_FACTOR * (self._clock.monotonic() - began_s))

    def _checkpoint(self, assembly: Assembly, *, force: bool = False) -> bool:
        """One checkpoint, if there is something to store; whether everything is stored now."""
        seen = (
            [executor.handled for executor in assembly.executors],
            [one.pending.counters.emitted for one in assembly.spouts()],
        )
        if seen == self._seen and not force and self.wait.current is None and not self._checkpoints.not_yet_told:
            return True
        try:
            changed = self._checkpoints.take(assembly, self._ask)
            if changed:
                self._checkpoints.store(assembly, self._ask)
        except CancelledError:
            return False  # the life has ended: the next one goes on
        except Exception as error:
            if not is_outage(error):
                raise
            self._block(assembly, blocked=True)
            _log(self.wait.met(error, self._clock.monotonic()))
            return False
        if self.wait.current is not None:
            _log(self.wait.over(self._clock.monotonic()))
            self._block(assembly, blocked=False)
        self._seen = seen
        return True

    @staticmethod
    def _block(assembly: Assembly, *, blocked: bool) -> None:
        for spout in assembly.spouts():
            if spout.journal is not None:
                spout.journal.blocked = blocked

    def _ask(self, executor: Executor, action: Action[Any]) -> Any:
        """Its answer, however long a call takes that it is in, unless the run ends."""
        future: Future[Any] = executor.submit(action)
        while True:
            try:
                return future.result(ANSWER_SLICE_S)
            except StillWaiting:
                late = self._deadline_s is not None and self._clock.monotonic() >= self._deadline_s
                if (self._ends.is_set() or late) and future.cancel():
                    raise CancelledError from None


def _log(text: str) -> None:
    if text:
        logger.warning("%s: %s", JOURNAL_OUTAGE, text)
