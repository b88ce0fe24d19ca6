"""Topologies for the simulation of the Spark protocol, the world around them, and an oracle that knows all attempts.

A `Script` is what lies outside of the run and outlives its crashes: the source's messages and what it was told, and the
rows that a called sink has. The oracle compares it with what the run says and with what a reader sees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.simulator.script import SCRIPTS, Broker, Leased, Note, Pieces, Positioned, Script
from tupletree import KeyedState, Sink, Spout, Topology, batch_bolt, bolt
from tupletree.config import resolve_options
from tupletree.errors import ConnectorError
from tupletree.runtimes.deadletters import letters_of
from tupletree.runtimes.run import stored_state
from tupletree.sinks import jsonl, parquet, read_rows
from tupletree.sinks.folders import visible_files
from tupletree.sinks.partitions import folders_with_files
from tupletree.testing.spark_protocol import Moment, ProtocolFaults, ProtocolSimulation
from tupletree.topology.builder import BoltHandle
from tupletree.topology.components import SinkBatch

KINDS = ("position", "broker", "replay", "splits", "held", "plain", "leased", "released")
BROKERS = ("broker", "replay", "leased", "released")
KEYS = 4
SINKS = ("rows", "columns")


class Part(msgspec.Struct, frozen=True, gc=False):
    script: str
    number: int
    share: int
    key: int


class Counted(msgspec.Struct, frozen=True, gc=False):
    script: str
    number: int
    share: int
    key: int
    total: int


def shares_of(number: int) -> int:
    """How many parts a message has; some have none."""
    return number % 4


class BrokenRuleError(AssertionError):
    """A rule of the oracle was broken."""


@bolt
def split(note: Note) -> Iterator[Part]:
    script = SCRIPTS[note.script]
    for share in range(shares_of(note.number)):
        yield Part(note.script, note.number, share, (note.number + share) % KEYS)
    if script.fails("split", note.number):
        raise ValueError(f"split of {note.number}")


@bolt(state=int)
def count(part: Part, total: KeyedState[int]) -> Counted:
    total.value += 1
    if SCRIPTS[part.script].fails("count", part.number):
        raise ConnectionError(f"count of {part.number}")
    return Counted(part.script, part.number, part.share, part.key, total.value)


@bolt
def pass_on(part: Part) -> Counted:
    return Counted(part.script, part.number, part.share, part.key, 0)


@bolt
def behind(counted: Counted) -> Counted:
    if SCRIPTS[counted.script].fails("behind", counted.number):
        raise ConnectionError(f"behind {counted.number}")
    return counted


@batch_bolt(size=5, max_age_s=0.2)
def gathered(counted: list[Counted]) -> list[Counted]:
    """Holds what it has over epochs; one by one anchored."""
    if counted and SCRIPTS[counted[0].script].fails("gathered", -1):
        raise ConnectionError("together")
    return counted


class Table(Sink[Counted]):
    """Something outside: it has each batch once, by its id, and is not always there."""

    promise = "at_least_once"

    def write(self, batch: SinkBatch[Counted]) -> None:
        script = SCRIPTS[batch.rows[0].script]
        what = script.chance.random()
        if what < script.fragile:
            raise ConnectorError("the table is not available")
        if what < 1.5 * script.fragile:
            raise ValueError("the table does not like it")
        if not script.is_over():
            script.taken[batch.id] = [(row.number, row.share) for row in batch.rows]
        if what < 2.0 * script.fragile:
            raise TimeoutError("no answer, though it has the batch")


def topology(script: Script, folder: Path) -> Topology:
    t = Topology(f"protocol-{script.kind}")
    sources: dict[str, Callable[[str], Spout[Note]]] = {
        "broker": Broker,
        "replay": Broker,
        "splits": Pieces,
        "leased": Leased,
        "released": Leased,
    }
    source = sources.get(script.kind, Positioned)(script.name)
    notes = t.spout("notes", source, replay="source" if script.kind in ("replay", "released") else "runtime")
    parts = t.bolt("split", split, parallelism=2).shuffle(notes)
    counts: BoltHandle
    if script.kind == "plain":
        counts = t.bolt("pass_on", pass_on, parallelism=2).fields(parts, "key")
    else:
        counts = t.bolt("count", count, parallelism=2).fields(parts, "key")
    passed = t.bolt("behind", behind, parallelism=2).shuffle(counts)
    if script.kind == "held":
        passed = t.bolt("gathered", gathered, parallelism=2).fields(passed, "key")
    t.sink("rows", jsonl(folder / "rows"), parallelism=2).shuffle(passed)
    t.sink("columns", parquet(folder / "columns", partition_by=script.partition_by)).shuffle(passed)
    t.sink("table", Table()).shuffle(passed)
    return t


OPTIONS = {
    "backoff_initial_ms": 5.0,
    "backoff_max_ms": 20.0,
    "spout_idle_wait_ms": 5.0,
    "max_restarts": 0,
    "max_attempts": 4,
    "processing_timeout_s": None,
    "message_timeout_s": 3600.0,
}


def script_of(seed: int, kind: str) -> Script:
    """The world of a seed."""
    chance = Random(f"script {seed}")
    count = chance.choice((8, 20, 35))
    quiet = chance.random() < 0.3
    failing = (
        {} if quiet else {where: chance.choice((0.0, 0.03, 0.1)) for where in ("split", "count", "behind", "gathered")}
    )
    poison = {number for number in range(count) if chance.random() < 0.05}
    fragile = chance.choice((0.0, 0.0, 0.1))
    script = Script(f"{kind} {seed}", kind, chance, count, failing, poison, fragile=fragile)
    script.partition_by = "key" if seed // len(KINDS) % 2 else ()
    if kind in ("leased", "released"):
        script.unreadable = {number for number in range(count) if chance.random() < 0.04}
    return script


def simulate(seed: int, place: Path, faults: ProtocolFaults | None = None, kind: str = "") -> ProtocolSimulation:
    """Simulate a seed; raises BrokenRuleError, with the seed, or what ended the run."""
    kind = kind or KINDS[seed % len(KINDS)]
    script = SCRIPTS[f"{kind} {seed}"] = script_of(seed, kind)
    chance = Random(f"options {seed}")
    limits = {"epoch_max_messages": chance.choice((3, 7, 20)), "stage_memory_bytes": chance.choice((1 << 20, 1 << 26))}
    options = resolve_options(code={**OPTIONS, **limits})
    oracle = Oracle(script)
    simulation = ProtocolSimulation(
        partial(topology, script), options, place, seed, faults or ProtocolFaults(), oracle.check
    )
    script.is_over = lambda: simulation.is_over
    script.leasing.now_s = simulation.now_s
    try:
        simulation.run()
    except BaseException as error:
        error.add_note(f"seed {seed}, {script.name}: {dict(simulation.counts)}")
        raise
    finally:
        del SCRIPTS[script.name]
    return simulation


class Oracle:
    """What must be true at each moment of a run."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen_at_crash: dict[str, Counter[tuple[int, int]]] = {}
        self._reader = Reader()

    def check(self, moment: Moment, simulation: ProtocolSimulation) -> None:
        seen = {sink: self._reader.visible(simulation.folder / sink) for sink in SINKS}
        if moment is Moment.CRASH:
            self._check_visible(seen)
            self.seen_at_crash = seen
            return
        self._check_visible(seen)
        for sink, rows in self.seen_at_crash.items():
            self._require(not rows - seen[sink], f"rows of {sink} were there before the crash and are not after it")
        self.seen_at_crash = {}
        incarnation = simulation.incarnation
        assert incarnation is not None
        accounts = incarnation.parts.accounts
        totals = accounts.totals
        fresh = sum(record.header.fresh for record in incarnation.unsettled) if moment is Moment.RESTART else 0
        open_now = sum(accounts.open_count(task) + accounts.pending.awaiting_source(task) for task in accounts.spout_of)
        self._require(
            totals.emitted + fresh == totals.acked + totals.dead + open_now,
            f"emitted {totals.emitted} + {fresh}, acked {totals.acked}, dead {totals.dead}, open {open_now}",
        )
        acked = self._check_outcomes(totals.acked, seen["rows"], simulation)
        self._check_rows(acked, seen, simulation)
        if moment is Moment.END:
            self._require(open_now == 0, f"{open_now} are open at the end")
            self._require(totals.emitted == self.script.count, f"{totals.emitted} emitted of {self.script.count}")
            self._check_table(acked)

    def _check_visible(self, seen: dict[str, Counter[tuple[int, int]]]) -> None:
        for sink, rows in seen.items():
            twice = [row for row, times in rows.items() if times > 1]
            self._require(not twice, f"{sink} shows rows twice: {twice}")

    def _check_outcomes(
        self, acked_in_journal: int, rows: Counter[tuple[int, int]], simulation: ProtocolSimulation
    ) -> set[int]:
        script = self.script
        dead = script.dead()
        letters = Counter(repr(letter.message_id) for letter in letters_of(simulation.state_dir).values())
        if script.kind == "splits":
            acked = {number for number, _ in rows} - script.refused
            without_rows = [number for number in range(script.count) if not shares_of(number)]
            self._require(
                len(acked) <= acked_in_journal <= len(acked) + len(without_rows),
                f"{acked_in_journal} acked, and rows of {len(acked)} messages",
            )
        else:
            acked = script.acked()
            if script.kind not in BROKERS:
                self._require(
                    len(acked) == acked_in_journal, f"{acked_in_journal} acked, the source heard of {len(acked)}"
                )
                self._require(sum(letters.values()) == len(dead), f"{sum(letters.values())} letters, {len(dead)} dead")
            else:
                self._require(
                    len(acked) <= acked_in_journal, f"{acked_in_journal} acked, the source heard of {len(acked)}"
                )
        self._require(not acked & dead, f"acked and dead: {sorted(acked & dead)}")
        return acked

    def _check_rows(
        self, acked: set[int], seen: dict[str, Counter[tuple[int, int]]], simulation: ProtocolSimulation
    ) -> None:
        """Every row of what was acked, and no other; and a state that these rows come of."""
        script = self.script
        hears_all = script.kind not in BROKERS
        for sink, rows in seen.items():
            expected = {(number, share) for number in acked for share in range(shares_of(number))}
            self._require(
                not expected - rows.keys(), f"{sink} lacks rows of acked messages: {sorted(expected - rows.keys())}"
            )
            numbers = {number for number, _ in rows}
            whole = {(number, share) for number in numbers for share in range(shares_of(number))}
            if script.kind != "held":
                self._require(whole == rows.keys(), f"{sink} shows a part of a message: {sorted(whole - rows.keys())}")
            if hears_all:
                strange = numbers - acked - script.refused
                self._require(not strange, f"{sink} shows rows of messages that are not acked: {sorted(strange)}")
        state = Counter(
            {entry.key: entry.value for one in stored_state(simulation.state_dir)[1] for entry in one.entries()}
        )
        shown = keys_of(seen["rows"])
        if script.kind == "plain":
            return
        if script.kind == "held":
            self._require(not shown - state, f"the state {state} does not know of rows that are shown: {shown}")
            return
        self._require(+state == +shown, f"the state is {dict(state)}, and the rows say {dict(shown)}")
        totals = totals_in(simulation.folder / "rows")
        for key, values in totals.items():
            self._require(sorted(values) == [*range(1, len(values) + 1)], f"counts of {key}: {sorted(values)}")

    def _check_table(self, acked: set[int]) -> None:
        rows = Counter(row for batch in self.script.taken.values() for row in batch)
        expected = {(number, share) for number in acked for share in range(shares_of(number))}
        self._require(not expected - rows.keys(), f"the table lacks rows: {sorted(expected - rows.keys())}")

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenRuleError(what)


class Reader:
    """A plain reader, that reads a folder again only if something in it has changed since the last time."""

    def __init__(self) -> None:
        self._found: dict[Path, tuple[Any, Counter[tuple[int, int]]]] = {}

    def visible(self, folder: Path) -> Counter[tuple[int, int]]:
        """The rows that are seen."""
        if not folder.exists():
            return Counter()
        places = folders_with_files(folder)
        files = [(str(path), path.stat()) for place in places for path in visible_files(place)]
        now = [(name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in files]
        then, rows = self._found.get(folder, (None, Counter()))
        if now != then:
            found = [*read_rows(folder)]
            if any(row["key"] != (row["number"] + row["share"]) % KEYS for row in found):
                raise BrokenRuleError(f"{folder.name} shows a row with the key of another one")
            rows = Counter((row["number"], row["share"]) for row in found)
            self._found[folder] = now, rows
        return rows


def keys_of(rows: Counter[tuple[int, int]]) -> Counter[int]:
    return Counter((number + share) % KEYS for number, share in rows)


def totals_in(folder: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for row in read_rows(folder) if folder.exists() else ():
        found[row["key"]].append(row["total"])
    return found
