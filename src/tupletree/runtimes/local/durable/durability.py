"""Durability: the parts of a durable local run, from the journal that it continues from to its last checkpoint.

Owns when checkpoints begin and end within a run, and the requests of other processes to replay dead letters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from tupletree.clock import Clock, SteadyClock
from tupletree.config import Options
from tupletree.errors import CheckpointError, ConfigError, OutageLimitError, ProcessingError
from tupletree.routing.plan import Plan
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.deadletters import (
    ReplayableLetters,
    ReplayRequest,
    carried_out,
    inbox_of,
    stored_numbers,
    value_of,
)
from tupletree.runtimes.local.assembly import Assembly, CarriedOver
from tupletree.runtimes.local.durable.checkpoints import Ask, Checkpointer, Checkpoints
from tupletree.runtimes.local.durable.journal import Journal
from tupletree.runtimes.local.durable.resume import resume
from tupletree.runtimes.local.durable.upgrade import Past, follow_topology
from tupletree.runtimes.local.statedir import JOURNAL, LocalStateDirectory
from tupletree.sinks.files import directories_of
from tupletree.sinks.folders import claim_directories
from tupletree.topology.changes.fingerprint import fingerprint
from tupletree.topology.changes.upgrades import Words
from tupletree.tracking.message_ids import id_from_plain
from tupletree.tracking.outages import ShownOutage, shown_outages
from tupletree.tracking.outcomes import DeadLetter
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import RetryAt

logger = logging.getLogger("tupletree.local")

READ_EVERY_S = 0.5
LAST_S = 5.0
"""How long the last checkpoint may take when the time of a drain is over."""


def open_state(request: RunRequest, plan: Plan, clock: SteadyClock) -> tuple[LocalStateDirectory, Durability | None]:
    """Make the state directory of a run, or open that of a durable one, and claim the folders of its sinks.

    Raises:
        ConfigError: a durable run is to have a state snapshot; a folder is refused.
        CheckpointError: see `LocalStateDirectory`, `follow_topology` and `Durability`.
    """
    durable, spec = request.options.durable, plan.spec
    if durable and request.state_snapshot is not None:
        raise ConfigError(
            "a durable run keeps its state in its journal, so it takes no state snapshot",
            got=f"durable, and {request.state_snapshot}",
            next_step="leave out one of the two",
        )
    if durable:
        directory = LocalStateDirectory.open(request.state_dir, spec.name, fingerprint(spec))
    else:
        directory = LocalStateDirectory.make(request.state_dir, spec.name)
    durability: Durability | None = None
    try:
        if durable:
            _follow(directory, plan, request.words)
        claimed = claim_directories(
            directories_of(spec), directory.run_id, append=request.append, state_dir=directory.path
        )
        directory.held.callback(claimed.close)
        if durable:
            durability = Durability(directory.path, plan, request.options, clock)
    except BaseException:
        directory.discard()
        raise
    return directory, durability


def _follow(directory: LocalStateDirectory, plan: Plan, words: Words) -> None:
    journal = Journal(directory.path / JOURNAL)
    try:
        follow_topology(journal, directory.path, directory.fingerprint, plan, words)
    finally:
        journal.close()


# More than 12 attributes: the parts of a run that are durable, with what they are made of.
class Durability:
    """See the module docstring. `connect`, `begin`, then `finish` where a life ends in order, then `close`.

    Args:
        state_dir: of the run; this process has it.
        plan: the topology laid out.
        options: of the run.
        clock: where time comes from; it is not before the last checkpoint.

    Attributes:
        carried_over: what the first life continues from.
        letters: how many files of dead letters there are.

    Raises:
        CheckpointError: the journal is damaged, or cannot be used.
    """

    def __init__(self, state_dir: Path, plan: Plan, options: Options, clock: SteadyClock) -> None:
        self._state_dir = state_dir
        self._plan = plan
        self._options = options
        self._clock = clock
        self._journal = Journal(state_dir / JOURNAL)
        try:
            self._past = Past.of(self._journal)
            # Else what waits would wait longer, by as much as the machine's clock was set back since.
            clock.not_before(self._journal.meta().get("time_s", 0.0))
            random = Random(SystemRandom().getrandbits(128))
            self._resumed = resume(self._journal, plan, options, state_dir / "dead", clock, random)
        except BaseException:
            self._journal.close()
            raise
        self.carried_over: CarriedOver = self._resumed.carried_over
        self.letters = max(stored_numbers(state_dir / "dead"), default=-1) + 1
        self._inbox = inbox_of(state_dir)
        self._read_at_s = 0.0
        self._accepted: dict[str, list[str]] = {}
        self._checkpoints: Checkpoints | None = None
        self._checkpointer: Checkpointer | None = None
        self._replayable = ReplayableLetters(state_dir, self._read, logger)

    def connect(
        self,
        assembly: Callable[[], Assembly | None],
        rows: Callable[[], Mapping[str, int]],
        letters: Callable[[], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Say what checkpoints are made of, and who hears that they cannot go on."""
        self._checkpoints = Checkpoints(self._journal, self._plan, self.carried_over, self._clock, rows, letters)
        self._checkpoints.note_not_yet_told(self._resumed.not_yet_told)
        self._accept_before_start(self._checkpoints)

        self._checkpointer = Checkpointer(
            self._checkpoints,
            assembly,
            self._clock,
            lambda error: failed(self._fault(error)),
            self._look,
            self._options.outage_limit_s,
        )

    def begin(self) -> None:
        """Make checkpoints from now on; at the start of each life.

        Raises the error, OutageLimitError or CheckpointError, by which they ended between two lives.
        """
        assert self._checkpointer is not None
        try:
            self._checkpointer.begin()
        except Exception as error:
            raise self._fault(error) from error

    def finish(self, assembly: Assembly, stop_at_s: Callable[[], float | None], has_failed: Callable[[], bool]) -> None:
        """Make the last checkpoint of a run that ends in order, while its executors still run.

        Nothing if an executor has failed meanwhile. Raises OutageLimitError or CheckpointError.
        """
        assert self._checkpointer is not None
        began_s = self._clock.monotonic()

        def until_s() -> float | None:
            at_s = stop_at_s()
            return None if at_s is None else max(at_s, began_s + LAST_S)

        try:
            is_stored = self._checkpointer.finish(assembly, until_s, has_failed)
        except Exception as error:
            raise self._fault(error) from error
        if is_stored:
            self._clear_stored()
        elif not has_failed():
            logger.warning(
                "%s: the last checkpoint was not stored in time; what came after the one before comes again",
                self._plan.spec.name,
            )

    def _fault(self, error: BaseException) -> BaseException:
        """The error that ends the run when checkpoints cannot go on."""
        if isinstance(error, (CheckpointError, OutageLimitError)):
            return error
        fault = CheckpointError(
            "what the run has done cannot be stored",
            where=str(self._state_dir / JOURNAL),
            got=f"{type(error).__name__}: {error}",
            next_step="fix that and start it again: it continues from the last checkpoint",
        )
        fault.__cause__ = error
        return fault

    def close(self) -> None:
        """End everything."""
        if self._checkpointer is not None:
            self._checkpointer.end()
        self._journal.close()

    def shown(self) -> tuple[ShownOutage, ...]:
        """The outage of the journal, if there is one."""
        current = None if self._checkpointer is None else self._checkpointer.wait.current
        return shown_outages((current,), self._clock.monotonic())

    # --- replays ----------------------------------------------------------------------------------------------

    def _accept_before_start(self, checkpoints: Checkpoints) -> None:
        """Accept what was asked for while no process ran: an input that is over ends the run before anyone looks."""
        checkpoints.replayed += self._resumed.replays
        for request in self._inbox.take().values():
            letters = self._replayable.of(request)
            if letters is None or self._is_carried_out(request, letters):
                continue
            for letter, task, value in letters.values():
                checkpoint = self.carried_over.spout_checkpoints.get(task)
                if checkpoint is not None:
                    _bring_back(checkpoint.pending, task, letter, value, self._clock)
            self._note_accepted(request, letters, checkpoints)

    def _is_carried_out(self, request: ReplayRequest, letters: Iterable[str]) -> bool:
        """Whether a checkpoint of an earlier process has a request, which is taken out of the inbox then."""
        is_stored = request.id in self._resumed.replays
        if is_stored:
            carried_out(self._state_dir, request.id, list(letters))
        return is_stored

    def _look(self, assembly: Assembly, ask: Ask) -> None:
        """Accept new requests, and remove those that a checkpoint has."""
        checkpoints = self._checkpoints
        assert checkpoints is not None
        self._clear_stored()
        now_s = self._clock.monotonic()
        if now_s < self._read_at_s:
            return
        self._read_at_s = now_s + READ_EVERY_S
        for request in self._inbox.take().values():
            if request.id in self._accepted:
                continue
            letters = self._replayable.of(request)
            if letters is None or self._is_carried_out(request, letters):
                continue
            for letter, task, value in letters.values():
                spout = assembly.machines[task]
                pending: Pending = spout.pending  # type: ignore[attr-defined]  # it is the task of a spout
                action = partial(_bring_back, pending, task, letter, value, self._clock)
                ask(assembly.owners[task], action)
            self._note_accepted(request, letters, checkpoints)

    def _note_accepted(self, request: ReplayRequest, letters: Iterable[str], checkpoints: Checkpoints) -> None:
        self._accepted[request.id] = list(letters)
        checkpoints.replays.append(request.id)

    def _clear_stored(self) -> None:
        """Take requests out of the inbox that a checkpoint has: their letters are dead no more."""
        assert self._checkpoints is not None
        for request_id in [one for one in self._accepted if one not in self._checkpoints.replays]:
            carried_out(self._state_dir, request_id, self._accepted.pop(request_id))
            self._checkpoints.replayed.append(request_id)

    def _read(self, letter_id: str, letter: DeadLetter) -> tuple[int, Any]:
        name = self._past.today(letter.spout)
        component = self._plan.spec.components.get(name)
        if self._past.is_of_dropped(letter.spout, letter_id):
            raise ProcessingError(f"its spout {letter.spout!r} was dropped")
        if component is None or component.kind != "spout":
            raise ProcessingError(f"there is no spout {name!r}")
        ((_, stream),) = component.outputs.items()
        return self._plan.task_ids_of(name)[0], value_of(letter, component.body, stream.schema.cls)


def _bring_back(pending: Pending, task: int, letter: DeadLetter, value: Any, clock: Clock, *_: object) -> None:
    """Bring a dead letter back. It is a message that was counted before."""
    back = pending.replay(task, id_from_plain(letter.message_id), value, clock.monotonic(), clock.wall())
    if isinstance(back, RetryAt):
        pending.counters.emitted -= 1
        pending.counters.dead -= 1
        pending.counters.replayed += 1
