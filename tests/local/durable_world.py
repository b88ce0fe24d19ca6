"""A durable run on virtual time with a true journal, killed at any step, and what its sources and sinks saw of it.

One thread steps the executor; a checkpoint is made whenever the seed says so. A kill drops everything but the state
directory, the source and the sink, which are outside. The oracle knows every message and every row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tupletree import Emit, EndOfInput, Spout, Topology
from tupletree.clock import ManualClock
from tupletree.config import Options
from tupletree.data.payloads import to_jsonable
from tupletree.errors import ConnectorError
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan
from tupletree.runtimes.deadletters import letters_of, stored_numbers, write_letters
from tupletree.runtimes.local.assembly import Assembly, assemble
from tupletree.runtimes.local.durable.checkpoints import Checkpoints
from tupletree.runtimes.local.durable.journal import Commit, Journal
from tupletree.runtimes.local.durable.resume import resume
from tupletree.runtimes.local.durable.upgrade import Past, follow_topology
from tupletree.runtimes.local.executor import Action, Executor
from tupletree.sinks import foreach
from tupletree.topology.changes.fingerprint import fingerprint
from tupletree.topology.changes.upgrades import Words
from tupletree.topology.components import Reject
from tupletree.tracking.facts import Fact
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.records import Acked, Died

__all__ = ["Kind", "Number", "Outside", "Summed", "World"]

WALL_S = 1_700_000_000.0
MAX_STEPS = 50_000

Kind = str
"""Of a source: `seeks` goes back to a position, `redelivers` gives again what it heard nothing of."""


class Number(msgspec.Struct, frozen=True):
    key: int
    number: int
    at_s: float = 0.0


class Summed(msgspec.Struct, frozen=True):
    key: int
    count: int
    numbers: list[int]


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Outside:
    """What survives a kill, besides the state directory."""

    kind: Kind
    total: int
    rejects: frozenset[int] = frozenset()
    acked: set[int] = field(default_factory=set)
    failed: Counter[int] = field(default_factory=Counter)
    rows: list[Any] = field(default_factory=list)
    kills: int = 0

    def value(self, number: int) -> Number:
        return Number(number % 5, number, float(number))

    def written(self) -> Counter[int]:
        """How often each message is in a row."""
        return Counter(number for row in self.rows for number in row.numbers)


class OutsideSpout(Spout[Number]):
    """Gives some numbers at a time; a kill makes it anew."""

    message_type = Number

    def __init__(self, outside: Outside, random: Random) -> None:
        self._outside = outside
        self._random = random
        self._next = 0

    def next(self) -> Sequence[Emit[Number] | Reject]:
        batch: list[Emit[Number] | Reject] = []
        for _ in range(self._random.randint(1, 12)):
            while self._next in self._outside.acked and self._outside.kind == "redelivers":
                self._next += 1
            if self._next >= self._outside.total:
                break
            number, self._next = self._next, self._next + 1
            if number in self._outside.rejects:
                batch.append(Reject(b"\xff%d" % number, number, "no number"))
            else:
                batch.append(Emit(self._outside.value(number), number))
        if not batch:
            raise EndOfInput
        return batch

    def ack(self, message_id: MessageId) -> None:
        assert isinstance(message_id, int)
        assert self._outside.written()[message_id], "acked before its row was there"
        self._outside.acked.add(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        assert isinstance(message_id, int)
        assert failure.permanent
        self._outside.acked.add(message_id)  # a source is done with a dead message, too
        self._outside.failed[message_id] += 1


class SeekingSpout(OutsideSpout):
    """The same with a position, as sources that read files have it."""

    def snapshot(self) -> int:
        return self._next

    def restore(self, position: int) -> None:
        self._next = position


class World:
    """See the module docstring.

    Args:
        make: gets the topology and its source, adds bolts, and gives the stream of `Summed` that is written.
        outside: what survives.
        folder: the state directory.
        seed: decides about kills, batches and checkpoints.
        kills: how many kills; the last process runs to the end.
        full: how likely the disk is full at a commit.
        renames: whether components have other names in other processes. A name has no digit at its end.
    """

    def __init__(
        self,
        make: Callable[[Topology, Any], Any],
        outside: Outside,
        folder: Path,
        seed: int,
        *,
        kills: int,
        full: float = 0.0,
        renames: bool = False,
        **options: Any,
    ) -> None:
        self.outside = outside
        self.folder = folder
        self.dead = folder / "dead"
        self.random = Random(seed)
        self.kills = kills
        self.full = full
        self.make = make
        self.renames = renames
        self.renamed = 0
        self.names: dict[str, str] = {}
        self.clock = ManualClock(wall=WALL_S)
        settings = {"local_threads": 1, "backoff_initial_ms": 1.0, "max_spout_pending": 20, "spout_idle_wait_ms": 0.0}
        self.options = Options(**{**settings, **options})
        self.ends = False
        self.countdown = -1
        self.counters: dict[str, int] = {}
        folder.mkdir(exist_ok=True)
        self.dead.mkdir(exist_ok=True)
        (folder / "tupletree.json").write_text('{"runtime": "local", "durable": true}')

    def to_the_end(self) -> None:
        """Run, with as many kills as there are to be, until everything is acked or dead."""
        while True:
            self.countdown = self.random.randint(1, 250) if self.outside.kills < self.kills else -1
            try:
                self._one_process()
            except Killed:
                self.outside.kills += 1
            else:
                return

    def step(self) -> None:
        """A step whose order may matter: here the process may be killed."""
        if self.countdown > 0:
            self.countdown -= 1
            if not self.countdown:
                raise Killed

    # --- one process ------------------------------------------------------------------------------------------

    def _topology(self) -> Topology:
        t = Topology("world")
        spout = SeekingSpout if self.outside.kind == "seeks" else OutsideSpout
        source = t.spout(self.called("source"), spout(self.outside, self.random))

        def write(batch: Any) -> None:
            self.step()
            self.outside.rows += batch.rows
            self.step()

        t.sink(self.called("out"), foreach(write)).shuffle(self.make(t, source))
        return t

    def called(self, part: str) -> str:
        """The name of a component in this process."""
        return self.names.get(part, part)

    def _rename(self, journal: Journal) -> Words:
        """Choose names for this process, if they are to change, by what the journal knows; the words that say so."""
        if not self.renames:
            return Words()
        known = Past.of(journal).fingerprint
        self.names = {name.rstrip("0123456789"): name for name in known}
        if not known or self.random.random() < 0.3:
            return Words()
        part = self.random.choice(sorted(self.names))
        old, self.renamed = self.names[part], self.renamed + 1
        self.names[part] = f"{part}{self.renamed}"
        return Words({old: self.names[part]})

    def _one_process(self) -> None:
        self.ends = False
        journal = Journal(self.folder / "journal.sqlite")
        try:
            words = self._rename(journal)
            plan = Plan.of(self._topology().build(), self.options, deputies=True)
            self.step()
            follow_topology(journal, self.folder, fingerprint(plan.spec), plan, words)
            self.step()
            self._run(plan, journal)
        finally:
            journal.close()

    def _run(self, plan: Plan, journal: Journal) -> None:
        resumed = resume(journal, plan, self.options, self.dead, self.clock, self.random)
        self.letters = max(stored_numbers(self.dead), default=-1) + 1
        checkpoints = Checkpoints(
            _Interrupted(journal, self), plan, resumed.carried_over, self.clock, dict, lambda: self.letters
        )
        checkpoints.note_not_yet_told(resumed.not_yet_told)
        assembly = assemble(
            plan,
            self.options,
            clock=self.clock,
            hub=self,  # type: ignore[arg-type]  # its methods are those of a hub
            run_id="run",
            carried_over=resumed.carried_over,
            random=self.random,
        )
        (self.executor,) = assembly.executors
        for group in assembly.groups():
            for task in group:
                self._ask(self.executor, self.executor.start_task(task))
        for _ in range(MAX_STEPS):
            spouts = assembly.spouts()
            self.step()
            self.ends = all(spout.ended for spout in spouts)
            if not self.executor.step():
                self.clock.advance(0.05)
            if self.random.random() < 0.1:
                self._checkpoint(checkpoints, assembly)
            if all(spout.is_finished for spout in spouts):
                self._checkpoint(checkpoints, assembly)
                if not checkpoints.not_yet_told and checkpoints.is_stored:
                    self._note_counters(assembly)
                    return
        raise AssertionError("it does not come to an end")

    def _note_counters(self, assembly: Assembly) -> None:
        (spout,) = assembly.spouts()
        counters = spout.pending.counters
        self.counters = {"emitted": counters.emitted, "acked": counters.acked, "dead": counters.dead}

    def _checkpoint(self, checkpoints: Checkpoints, assembly: Assembly) -> None:
        if not checkpoints.take(assembly, self._asked):
            return
        try:
            checkpoints.store(assembly, self._asked)
        except ConnectorError:
            self.clock.advance(0.1)

    def _asked(self, executor: Executor, action: Action[Any]) -> Any:
        self.step()
        answer = self._ask(executor, executor.submit(action))
        self.step()
        return answer

    @staticmethod
    def _ask(executor: Executor, answer: Any) -> Any:
        while not answer.done():
            executor.step()
        return answer.result()

    # --- a hub ------------------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        return self.ends

    def store_letters(self, died: Sequence[Died]) -> None:
        if died:
            self.step()
            letters = [one.letter("world", to_jsonable(one.value), type(one.value).__qualname__) for one in died]
            write_letters(self.dead, self.letters, letters)
            self.letters += 1
            self.step()

    def acked(self, acked: list[Acked]) -> None:
        """Nothing."""

    def note(self, facts: list[Fact]) -> None:
        """Nothing."""

    def idle(self, executor: Executor) -> None:
        """Nothing."""

    # --- the end ----------------------------------------------------------------------------------------------

    def check(self, dead: set[int], counted: dict[int, int] | None = None, *, again: bool = False) -> None:
        """Compare with what must have come of the messages.

        Args:
            dead: the messages that can only die.
            counted: key → the newest count of a bolt that counts its messages; None: there is none.
            again: messages may be done once more that their source gave before it was told their ack.
        """
        outside = self.outside
        everything = set(range(outside.total))
        written = outside.written()
        assert set(written) - dead == everything - dead, "rows are missing"
        found = Counter(letter.message_id for letter in letters_of(self.folder).values())
        assert found == Counter(dead), "every dead message has one letter"
        assert outside.acked == everything, "every source heard of all its messages"
        more = self.counters["emitted"] - outside.total if again else 0
        acked = outside.total - len(dead) + more
        assert more >= 0
        assert self.counters == {"emitted": outside.total + more, "acked": acked, "dead": len(dead)}
        if counted is not None:
            for key, count in counted.items():
                least = sum(number % 5 == key for number in everything - dead)
                assert count >= least, f"state lost what messages of key {key} did"
                assert outside.kills or count == least


class _Interrupted(Journal):
    """The journal, with kills around its commits, and a disk that may be full."""

    def __init__(self, journal: Journal, world: World) -> None:
        self._journal = journal
        self._world = world

    def commit(self, commit: Commit) -> None:
        self._world.step()
        if self._world.random.random() < self._world.full:
            raise ConnectorError("the disk is full")
        self._journal.commit(commit)
        self._world.step()
