"""The state directory of a run: which run it belongs to, which process may write to it now, and where its files are.

One process at a time holds its lock; each start claims a generation, so that even without the lock (another machine)
an older start stops, because the file that it would create exists already.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from tupletree.durable import DECODE_ERRORS, damaged, missing, private_folder, read_file, replace_file, write_once
from tupletree.errors import CheckpointError, ForeignCheckpointError
from tupletree.runtimes.crash_points import crash_point
from tupletree.runtimes.spark.format.entries import numbered
from tupletree.runtimes.spark.format.upgrades import Upgrade, Upgrades, write_upgrade
from tupletree.runtimes.statefolder import (
    IDENTITY,
    StateFolder,
    check_format,
    check_topology,
    prepare_state_folder,
    read_identity,
    take_lock,
    unusable,
)
from tupletree.topology.changes.fingerprint import Fingerprint
from tupletree.topology.changes.upgrades import UpgradePlan

FORMAT = 3

Decide = Callable[[Path, Fingerprint, Fingerprint, Upgrades], UpgradePlan]
"""(state directory, topology that the last start had, the one that is to start, earlier upgrades) → what is done."""


class _Identity(msgspec.Struct):
    """What `tupletree.json` says. A local run's says `runtime`, and has no fingerprint."""

    format: int
    topology: str
    run_id: str
    created_s: float
    fingerprint: dict[str, Any] = {}
    runtime: str = ""
    checksum: str = ""

    def sum(self) -> str:
        """The correct checksum: the run id is part of every file name, so a damaged one must be found."""
        return _checksum([self.format, self.topology, self.run_id, self.created_s, self.fingerprint])


class _SpoutTasks(msgspec.Struct):
    """What `spouts.json` says: the number of each spout task in the journal → its component."""

    tasks: dict[int, str]
    checksum: str


class StateDirectory(StateFolder):
    """Open it with `open`; `close` releases it for another process.

    Attributes:
        generation: number of this start, from 1.
        upgrades: how the topology has changed since the first start.
    """

    def __init__(self, path: Path, run_id: str, generation: int, lock: int, upgrades: Upgrades | None = None) -> None:
        super().__init__(path, run_id, lock)
        self.generation = generation
        self.upgrades = upgrades or Upgrades([])
        self.epochs = private_folder(path / "epochs")
        self.settles = private_folder(path / "settles")
        self.state = private_folder(path / "state")
        self.kept = private_folder(path / "kept")
        self.history = private_folder(path / "history")
        self.spools = private_folder(path / "spools")
        self.marks = private_folder(path / "marks")
        self.segments = private_folder(path / "segments")

    @classmethod
    def open(cls, path: Path, topology: str, fingerprint: dict[str, Any], decide: Decide) -> StateDirectory:
        """Make or resume a state directory and claim the next generation.

        A changed topology is written down (`upgrades/`), and what is stored under old names gets the new ones.

        Args:
            path: the folder.
            topology: its name.
            fingerprint: what must last of it.
            decide: what becomes of what is stored, if the topology has changed.

        Raises:
            CheckpointError: another process runs on it, it belongs to another topology (the error names every
                difference that is refused) or to no run, it is damaged, or the disk cannot be written.
        """
        try:
            path = prepare_state_folder(path)
            lock = take_lock(path)
            try:
                identity = _identify(path, topology, fingerprint)
                upgrades = Upgrades.read(path)
                upgrades.move_folders(path)  # the last start may have been killed before it did
                plan = _upgrade_plan(path, identity, upgrades, fingerprint, decide)
                generation = _claim(path)
                crash_point("generation.claimed")
                if plan is not None:
                    upgrades = _written(path, plan, generation, fingerprint, upgrades)
                    upgrades.move_folders(path)
                return cls(path, identity.run_id, generation, lock, upgrades)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise unusable(path, error) from error

    def claim_again(self) -> None:
        """Claim the next generation, for a restart in this process: late tasks of the last one use other file names."""
        self.generation = _claim(self.path)

    def number_spouts(self, tasks: Sequence[tuple[int, str]]) -> list[int]:
        """The numbers of these spout tasks in the journal: the ids that they had at the first start.

        Args:
            tasks: id and component of each, by component and index.
        """
        path = self.path / "spouts.json"
        if not path.exists():
            if any(self.epochs.iterdir()):  # with new numbers, a spout could get the position of another
                raise missing(path)
            stored = dict(tasks)
            write_once(path, msgspec.json.encode(_SpoutTasks(stored, _checksum(sorted(stored.items())))))
        stored = self.upgrades.spouts(spout_tasks(path))
        free = {name: iter(sorted(one for one in stored if stored[one] == name)) for _, name in tasks}
        numbers = []
        for _, name in tasks:
            number = next(free[name], None)
            if number is None:  # a spout that was added: no number is used twice
                number = max(stored, default=-1) + 1
                stored[number] = name
            numbers.append(number)
        if stored != spout_tasks(path):
            replace_file(path, msgspec.json.encode(_SpoutTasks(stored, _checksum(sorted(stored.items())))))
        return numbers

    def taken_over(self, got: str) -> CheckpointError:
        """The error to raise when another start has created a file that this one was about to create."""
        return CheckpointError(
            "another start of this run has taken over; this one stops",
            where=str(self.path),
            got=got,
            next_step="stop one of the two processes",
        )


def spout_tasks(path: Path) -> dict[int, str]:
    """What a `spouts.json` says. Raises CheckpointError if it is damaged."""
    try:
        found = msgspec.json.decode(read_file(path), type=_SpoutTasks)
    except DECODE_ERRORS as error:
        raise damaged(str(path), str(error), "the spout tasks of the first start") from error
    if found.checksum != _checksum(sorted(found.tasks.items())):
        raise damaged(str(path), "its checksum does not match its content", "the spout tasks of the first start")
    return found.tasks


def older_copy(where: str, newest: int, settled: int) -> CheckpointError:
    """The error to raise where something has `newest`, an epoch that comes after all that the directory knows of.

    To go on would give later epochs names that earlier ones have: what they hold would be taken for written.
    """
    return CheckpointError(
        "the state directory is an older copy: its run went on after it",
        where=where,
        got=f"epoch {newest} of this run is there, and its {newest:010d}.settle is not",
        expected=f"none later than epoch {settled}, the last one that the state directory has"
        if settled >= 0
        else "none",
        next_step="restore the newest state directory, or this one together with the output of its time; or begin "
        "with a fresh --state-dir, which reads the sources from their start",
    )


def _checksum(plain: Any) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(plain, order="sorted"))


def _identify(path: Path, topology: str, fingerprint: dict[str, Any]) -> _Identity:
    file = path / IDENTITY
    plain = msgspec.to_builtins(fingerprint)
    if not file.exists():
        if _generations(path):
            raise missing(file)
        fresh = _Identity(FORMAT, topology, uuid.uuid4().hex, time.time(), plain)
        fresh.checksum = fresh.sum()
        write_once(file, msgspec.json.format(msgspec.json.encode(fresh)))
    return _stored_identity(path, topology)


def stored_fingerprint(path: Path, topology: str) -> tuple[dict[str, Any], Upgrades]:
    """The topology that the last start on a state directory had, and how it has changed. Writes nothing.

    Raises:
        ForeignCheckpointError: it belongs to a topology of another name, to another runtime, or to another format.
        CheckpointError: it is damaged.
    """
    identity, upgrades = _stored_identity(path, topology), Upgrades.read(path)
    return upgrades.fingerprint or identity.fingerprint, upgrades


def _stored_identity(path: Path, topology: str) -> _Identity:
    file = path / IDENTITY
    identity = read_identity(file, _Identity)
    if identity.runtime:
        raise ForeignCheckpointError(
            "this state directory belongs to a run of another runtime",
            where=str(path),
            got=f"a {identity.runtime} run of {identity.topology!r}",
            expected="a folder that no run has used, or that of a Spark run",
            next_step="leave --state-dir out, or name a new folder: there is nothing in this one to resume from",
        )
    check_format(file, identity.format, FORMAT)
    if identity.checksum != identity.sum():
        raise damaged(str(file), "its checksum does not match its content", "the identity of a run")
    check_topology(path, identity.topology, topology)
    return identity


def _upgrade_plan(
    path: Path, identity: _Identity, upgrades: Upgrades, fingerprint: Fingerprint, decide: Decide
) -> UpgradePlan | None:
    """What a change of the topology means; None: it has not changed. Raises ForeignCheckpointError if it is refused."""
    stored = upgrades.fingerprint or identity.fingerprint
    plain = msgspec.to_builtins(fingerprint)
    if msgspec.json.decode(msgspec.json.encode(plain)) == stored:
        return None
    plan = decide(path, stored, plain, upgrades)
    if plan.faults:
        raise ForeignCheckpointError(
            f"the topology has changed in a way that its state directory {path} cannot follow", findings=plan.faults
        )
    return plan


def _written(path: Path, plan: UpgradePlan, generation: int, fingerprint: Fingerprint, upgrades: Upgrades) -> Upgrades:
    file = path / "spouts.json"
    spouts = upgrades.spouts(spout_tasks(file)) if file.exists() else {}
    dropped = [number for number, name in spouts.items() if plan.renames.get(name, name) in plan.drops]
    upgrade = Upgrade(generation, msgspec.to_builtins(fingerprint), plan.renames, plan.drops, plan.resets, dropped)
    upgrade.settled = max(numbered(path / "settles", ".settle"), default=-1) + 1
    write_upgrade(path, upgrade)
    crash_point("upgrade.written")
    return Upgrades([*upgrades.all, upgrade])


def _generations(path: Path) -> list[int]:
    return sorted(int(file.name) for file in (path / "generations").glob("[0-9]*") if file.name.isdigit())


def _claim(path: Path) -> int:
    """Create the first generation file that is not there; the number belongs to this process."""
    folder = private_folder(path / "generations")
    number = max(_generations(path), default=0) + 1
    note = msgspec.json.encode({"process": os.getpid(), "host": socket.gethostname(), "started_s": time.time()})
    while not write_once(folder / f"{number:06d}", note):
        number += 1
    return number
