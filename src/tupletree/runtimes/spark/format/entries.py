"""The journal of a Spark run: what an epoch log and a settle entry say, and how they are read back.

Two kinds of write-once files hold everything: `epochs/N` (the input) and `settles/N` (the outcome). The
settle entry is the commit point of its epoch. docs/checkpoint.md describes the format.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from tupletree.durable import pack, read_container, read_header, write_once
from tupletree.runtimes.spark.format.carryover import CarryOver
from tupletree.runtimes.spark.format.segments import PlannedSegment
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.runtimes.spark.format.wire import PlannedSplit
from tupletree.state.versions import StateFile
from tupletree.tracking.outcomes import DeadLetter, Failure, Outcome
from tupletree.tracking.pending_log import PendingChanges, PlainId, fold

if TYPE_CHECKING:
    from tupletree.ids import MessageId


class Unsendable(msgspec.Struct, array_like=True):
    """A message that failed before any bolt could see it: rejected by its source, not routable, not encodable.

    `payload` is its value as `payloads.to_jsonable` writes it.
    """

    root: int
    payload: Any
    failure: Failure


class Messages(msgspec.Struct, kw_only=True):
    """The tracked messages of an epoch, as columns in the same order.

    Attributes:
        tasks: spout task of each, packed u32.
        ids: as msgpack has them (a tuple is an array); where that cannot hold one of them, all are as
            `tracking.identity.plain_id` writes them, and `ids_are_plain` says so.
        roots: packed u64.
        attempts: packed u32.
        first_emitted_s: packed f64, seconds since the Unix epoch.
        made: their numbers in the order of first emission, packed i64; empty where no component needs them.
    """

    tasks: bytes = b""
    ids: list[Any] = []
    ids_are_plain: bool = False
    roots: bytes = b""
    attempts: bytes = b""
    first_emitted_s: bytes = b""
    made: bytes = b""


def id_from_msgpack(stored: Any) -> MessageId:
    """A message id as `Messages.ids` has it."""
    return tuple(map(id_from_msgpack, stored)) if isinstance(stored, list) else stored


class EpochHeader(msgspec.Struct, kw_only=True):
    """An epoch's input. The sections are the `Messages`, then the frames.

    Attributes:
        epoch, generation: which epoch, written by which start of the run.
        time_s: the epoch's time, seconds since the Unix epoch; a second run sees the same.
        ran_s: seconds that processes of this run have run for by then; timeouts are measured by it.
        partitions: how many partitions its frames were placed on; a start with another number places them again.
        ticks: components that get a tick.
        drain: nothing else will come for a while, so holders flush.
        messages_length: bytes of the first section.
        messages: how many tracked messages it holds.
        untracked: how many untracked messages went in.
        fresh: how many messages are in an epoch for the first time.
        again: roots of first attempts that are in an epoch again: replayed dead letters, and deferred ones.
        unsendable: messages that are in no frame because they failed already.
        tasks: component → first id and number of the tasks that the frames are addressed to.
        positions: spout task → where it stands after this epoch.
        ended: spout tasks that have no more input.
        frames: (partition, offset, head length, body length) of each frame in the sections.
        splits: pieces of sources that executors read; their rows are messages like those of the first section.
        segments: where the values of those messages of the first section are that executors took.
    """

    epoch: int
    generation: int
    time_s: float
    ran_s: float = 0.0
    partitions: int = 0
    ticks: list[str] = []
    drain: bool = False
    messages_length: int = 0
    messages: int = 0
    untracked: int = 0
    fresh: int = 0
    again: list[int] = []
    unsendable: list[Unsendable] = []
    tasks: dict[str, tuple[int, int]] = {}
    positions: dict[int, Any] = {}
    ended: list[int] = []
    frames: list[tuple[int, int, int, int]] = []
    splits: list[PlannedSplit] = []
    segments: list[PlannedSegment] = []


class FailedAttempt(msgspec.Struct, array_like=True):
    """Attempts that failed in this epoch, for one reason."""

    roots: list[int]
    failure: Failure


class DeadEntry(msgspec.Struct, array_like=True):
    """A message that died in this epoch."""

    root: int
    task: int
    letter: DeadLetter


class OutputFile(msgspec.Struct, array_like=True):
    """A candidate that counts, and its final name, below the sink's folder; none if its rows are for a called sink."""

    sink: str
    candidate: str
    final: str
    rows: int
    task_index: int = 0


class Counters(msgspec.Struct):
    """Totals over the life of the state directory.

    `failed` counts attempts, `replayed` dead letters that went out again, the others distinct messages.
    """

    emitted: int = 0
    acked: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    untracked: int = 0
    late_verdicts: int = 0
    joined: int = 0
    untracked_failed: int = 0
    rows: dict[str, int] = {}
    replayed: int = 0


class AckedTree(msgspec.Struct, array_like=True):
    """A message of an earlier epoch that was acked in this one; `message_id` is plain."""

    root: int
    task: int
    message_id: Any


class Base(msgspec.Struct, kw_only=True):
    """Everything that older entries say."""

    pending: PendingChanges
    open: list[OpenTree]
    replays: list[str]
    waiting: list[WaitingFile] = []
    refused: list[FailedAttempt] = []


class Behind(msgspec.Struct, array_like=True, frozen=True):
    """Roots that wait at an ordered bolt for one message, for a key that it has, or may have.

    Attributes:
        bolt: where.
        task, message_id: its spout task, and what its source calls it.
        roots: those that wait.
    """

    bolt: str
    task: int
    message_id: PlainId
    roots: list[int]


class SettleEntry(msgspec.Struct, kw_only=True):
    """The outcome of an epoch; every root of its log that is not named here is acked.

    Attributes:
        epoch, generation, run: which run of the epoch counts, written by which start.
        time_s: when it was settled, seconds since the Unix epoch.
        failed: attempts that failed, by reason.
        put_back: roots that this epoch did not finish; their messages are in a later epoch again, and no attempt is
            counted.
        behind: which of them wait at an ordered bolt, and for which message.
        opened: trees that stay open after this epoch, if they are new or have changed; every one of its own roots that
            is not acked, deferred or failed is among them.
        closed: roots of earlier epochs that are not open any more.
        acked: those of `closed` that were acked.
        gone: those of `closed` that died while tuples of them were kept; the next epoch purges these.
        dead: messages that died.
        outputs: candidates that count.
        waiting: candidates some of whose rows wait for open trees.
        released: `WaitingFile.key` of candidates of earlier epochs of which no row waits any more.
        state: component → segments of the version after this epoch; whole, not a delta.
        state_bytes: how much of the state this epoch read, and wrote.
        kept: component → task index → what is kept for the task after this epoch; whole, not a delta.
        replays: replay requests that are part of the accounts from here on.
        counters: totals after this epoch.
        pending: what changed among waiting and unconfirmed messages.
        refused: see `Amendment`; an entry has none of its own.
        base: in some entries, everything; older entries are not needed then.
    """

    epoch: int
    generation: int
    run: int
    time_s: float
    failed: list[FailedAttempt] = []
    put_back: list[int] = []
    behind: list[Behind] = []
    opened: list[OpenTree] = []
    closed: list[int] = []
    acked: list[AckedTree] = []
    gone: list[int] = []
    dead: list[DeadEntry] = []
    outputs: list[OutputFile] = []
    waiting: list[WaitingFile] = []
    released: list[str] = []
    state: dict[str, list[StateFile]] = {}
    state_bytes: tuple[int, int] = (0, 0)
    kept: dict[str, dict[int, CarryOver]] = {}
    replays: list[str] = []
    counters: Counters
    pending: PendingChanges
    refused: list[FailedAttempt] = []
    base: Base | None = None

    def not_acked(self) -> set[int]:
        """Roots that are not acked in it, among those of its epoch."""
        roots = {root for attempt in self.failed for root in attempt.roots}
        roots.update(self.put_back, (tree.root for tree in self.opened), (one.root for one in self.dead))
        return roots


class Amendment(msgspec.Struct, kw_only=True):
    """What sinks refused after an epoch was committed: messages that are acked in its entry are dead.

    Attributes:
        epoch, generation: which entry it amends, written by which start.
        failed: their attempts, by reason.
        dead: the messages.
        settled: (spout task, message id, outcome) of those that the source has not confirmed yet.
        rows: sink → rows that were not written.
        refused: roots with refused rows that are still open, because others of their rows wait: they die when they
            would be acked.
    """

    epoch: int
    generation: int
    failed: list[FailedAttempt] = []
    dead: list[DeadEntry] = []
    settled: list[tuple[int, PlainId, Outcome]] = []
    rows: dict[str, int] = {}
    refused: list[FailedAttempt] = []


def amended(entry: SettleEntry, amendment: Amendment) -> SettleEntry:
    """The entry with its amendment applied."""
    settled = PendingChanges(settled=amendment.settled)
    dead = {one.root for one in amendment.dead}
    base = entry.base and replace(
        entry.base,
        pending=fold([entry.base.pending, settled]),
        refused=[*entry.base.refused, *amendment.refused],
    )
    pending = entry.pending if base else replace(entry.pending, settled=[*entry.pending.settled, *amendment.settled])
    return replace(
        entry,
        failed=[*entry.failed, *amendment.failed],
        acked=[one for one in entry.acked if one.root not in dead],
        dead=[*entry.dead, *amendment.dead],
        counters=count_refused(entry.counters, amendment),
        pending=pending,
        refused=amendment.refused,
        base=base,
    )


def count_refused(counters: Counters, amendment: Amendment) -> Counters:
    """The totals with an amendment applied."""
    dead = len(amendment.dead)
    rows = {sink: count - amendment.rows.get(sink, 0) for sink, count in counters.rows.items()}
    return replace(
        counters,
        acked=counters.acked - dead,
        failed=counters.failed + dead,
        dead=counters.dead + dead,
        rows=rows,
    )


def epoch_path(directory: Path, epoch: int) -> Path:
    """Where an epoch's log is, in the folder of epoch logs."""
    return directory / f"{epoch:010d}.epoch"


def settle_path(directory: Path, epoch: int) -> Path:
    """Where an epoch's settle entry is, in the folder of settle entries."""
    return directory / f"{epoch:010d}.settle"


def amendment_path(directory: Path, epoch: int) -> Path:
    """Where the amendment of an epoch's settle entry is, if there is one."""
    return directory / f"{epoch:010d}.amendment"


def numbered(directory: Path, suffix: str) -> list[int]:
    """The epochs that have a file here, ascending."""
    return sorted(int(path.stem) for path in directory.glob(f"[0-9]*{suffix}") if path.stem.isdigit())


def write_epoch(directory: Path, header: EpochHeader, sections: list[bytes]) -> bool:
    """Create an epoch's log; False if another start of this run has created it."""
    return write_once(epoch_path(directory, header.epoch), pack(header, sections))


def read_epoch(directory: Path, epoch: int, upgrades: Upgrades | None = None) -> tuple[EpochHeader, memoryview]:
    """An epoch's log, verified: header, with the names of now, and sections. Raises CheckpointError.

    `upgrades`, here and below, are those of the state directory; read if they are not given.
    """
    header, body = read_container(epoch_path(directory, epoch), EpochHeader)
    return _header_of_now(header, upgrades or Upgrades.read(directory.parent)), body


def read_epoch_header(directory: Path, epoch: int, upgrades: Upgrades | None = None) -> EpochHeader:
    """The header of an epoch's log, with the names of now, not verified. Raises CheckpointError."""
    header, _ = read_header(epoch_path(directory, epoch), EpochHeader)
    return _header_of_now(header, upgrades or Upgrades.read(directory.parent))


def _header_of_now(header: EpochHeader, upgrades: Upgrades) -> EpochHeader:
    if not upgrades.names:
        return header
    return replace(
        header,
        ticks=list(map(upgrades.today, header.ticks)),
        tasks=upgrades.keyed(header.tasks),
        splits=[replace(one, component=upgrades.today(one.component)) for one in header.splits],
        segments=[replace(one, component=upgrades.today(one.component)) for one in header.segments],
    )


def write_settle(directory: Path, entry: SettleEntry) -> bool:
    """The commit point: create an epoch's settle entry; False if another start of this run was first."""
    return write_once(settle_path(directory, entry.epoch), pack(entry))


def write_amendment(directory: Path, amendment: Amendment) -> bool:
    """Create the amendment of an epoch's entry; False if another start of this run was first."""
    return write_once(amendment_path(directory, amendment.epoch), pack(amendment))


def read_settle(directory: Path, epoch: int, upgrades: Upgrades | None = None) -> SettleEntry:
    """An epoch's settle entry, verified, with its amendment, and with the names of now. Raises CheckpointError."""
    entry, _ = read_container(settle_path(directory, epoch), SettleEntry)
    path = amendment_path(directory, epoch)
    if path.exists():
        amendment, _ = read_container(path, Amendment)
        entry = amended(entry, amendment)
    upgrades = upgrades or Upgrades.read(directory.parent)
    return _entry_of_now(entry, upgrades) if upgrades.names else entry


def _entry_of_now(entry: SettleEntry, upgrades: Upgrades) -> SettleEntry:
    today = upgrades.today
    base = entry.base and replace(
        entry.base, waiting=[replace(one, sink=today(one.sink)) for one in entry.base.waiting]
    )
    return replace(
        entry,
        behind=[replace(one, bolt=today(one.bolt)) for one in entry.behind],
        outputs=[replace(one, sink=today(one.sink)) for one in entry.outputs],
        waiting=[replace(one, sink=today(one.sink)) for one in entry.waiting],
        released=[f"{today(sink)}/{file}" for sink, _, file in (name.partition("/") for name in entry.released)],
        state=upgrades.keyed(entry.state),
        kept=upgrades.keyed(entry.kept),
        counters=replace(entry.counters, rows=upgrades.keyed(entry.counters.rows)),
        base=base,
    )


class OpenTree(msgspec.Struct, array_like=True, frozen=True):
    """A root of an earlier epoch that is neither acked nor dead.

    Attributes:
        root: its id.
        epoch: whose log holds its message.
        expires_s: when its attempt fails, by the run's clock; infinity: never.
        xor: what is left of its tree; 0 if it is complete and waits only because an output of it does.
        is_committed: its effects in its epochs count, and frames of it are kept. False: a bolt kept a tuple of it by
            hand, so its effects were left out, and its next attempt starts at the spout.
        attempt: the number of its attempt.
        resumes_s: until then its frames wait, by the run's clock.
    """

    root: int
    epoch: int
    expires_s: float = math.inf
    xor: int = 0
    is_committed: bool = True
    attempt: int = 1
    resumes_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether only outputs are waited for."""
        return self.is_committed and self.xor == 0


class WaitingFile(msgspec.Struct, array_like=True, frozen=True):
    """A committed candidate some rows of which wait: those that are anchored to an unfinished tree.

    Rows of roots that are not open were published or dropped in its own epoch or since, so the rows that wait follow
    from the open trees.
    """

    sink: str
    task_index: int
    epoch: int
    candidate: str
    sidecar: str
    rows: int
    part: int = 0
    folder: str = ""

    @property
    def key(self) -> str:
        """A unique name: candidates of two sinks may have the same file name, each in its folder."""
        return f"{self.sink}/{self.candidate}"
