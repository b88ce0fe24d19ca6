"""The state directory of a local run: its identity, and its dead letters; of a durable run also what it resumes from.

One process at a time has the directory of a durable run; it holds its lock. The journal in it is `journal`'s.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tupletree.durable import write_once
from tupletree.errors import CheckpointError, ForeignCheckpointError
from tupletree.runtimes.statefolder import (
    IDENTITY,
    StateFolder,
    check_format,
    check_topology,
    fresh_state_dir,
    prepare_state_folder,
    read_identity,
    take_lock,
    unusable,
)

FORMAT = 1

JOURNAL = "journal.sqlite"
"""Where a durable run keeps what it continues from; see `journal`."""


class _Identity(msgspec.Struct):
    """What `tupletree.json` says. The Spark runtime's has no `runtime`."""

    format: int
    topology: str
    run_id: str
    created_s: float
    runtime: str = ""
    durable: bool = False
    fingerprint: dict[str, Any] = {}


class LocalStateDirectory(StateFolder):
    """A new one for each run; that of a durable run is opened again by its next start.

    Attributes:
        fingerprint: of the topology of the first start, for a durable run.
    """

    def __init__(self, path: Path, run_id: str, lock: int = -1, fingerprint: Mapping[str, Any] | None = None) -> None:
        super().__init__(path, run_id, lock)
        self.fingerprint = fingerprint or {}
        self._is_new = True

    @classmethod
    def make(cls, path: Path | None, topology: str) -> LocalStateDirectory:
        """Make the folder; without a path, a new one below `.tupletree/<topology>`, named by time.

        Raises:
            ForeignCheckpointError: a run used this folder before, locally or on Spark, or it is not a state directory.
            CheckpointError: it cannot be made or written.
        """
        path = fresh_state_dir(topology) if path is None else path
        try:
            return cls._made(path, topology)
        except OSError as error:
            raise unusable(path.absolute(), error) from error

    @classmethod
    def open(cls, path: Path | None, topology: str, fingerprint: Mapping[str, Any]) -> LocalStateDirectory:
        """That of a durable run: made as `make` does, or opened again, where the topology may have changed.

        Raises:
            ForeignCheckpointError: it is that of another run, or of a topology of another name.
            CheckpointError: another process has it, it is damaged, or it cannot be written.
        """
        path = fresh_state_dir(topology) if path is None else path
        try:
            path = prepare_state_folder(path)
            lock = take_lock(path)
            try:
                file = path / IDENTITY
                plain = msgspec.json.decode(msgspec.json.encode(fingerprint))  # as it is stored
                fresh = _Identity(
                    FORMAT, topology, uuid.uuid4().hex, time.time(), "local", durable=True, fingerprint=plain
                )
                is_new = write_once(file, msgspec.json.format(msgspec.json.encode(fresh)))
                found = fresh if is_new else _resumable(file, topology)
                directory = cls(path, found.run_id, lock, found.fingerprint)
                directory._is_new = is_new
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise unusable(path.absolute(), error) from error
        return directory

    @classmethod
    def _made(cls, path: Path, topology: str) -> LocalStateDirectory:
        path = prepare_state_folder(path)
        file = path / IDENTITY
        identity = _Identity(FORMAT, topology, uuid.uuid4().hex, time.time(), "local")
        if not write_once(file, msgspec.json.format(msgspec.json.encode(identity))):
            raise ForeignCheckpointError(
                "a local run resumes nothing unless it is durable, and this state directory belongs to an earlier run",
                where=str(path),
                got=_description(file),
                expected="a folder that no run has used",
                next_step="leave --state-dir out, name a new folder, resume a Spark run with --runtime spark, "
                "or a durable local run with --durable",
            )
        return cls(path, identity.run_id)

    def discard(self) -> None:
        """Remove what a start made that was refused: it is no run, and must not be taken for the latest one."""
        self.close()
        if not self._is_new:
            return
        (self.path / IDENTITY).unlink(missing_ok=True)
        for left in (self.path / "lock", *self.path.glob(f"{JOURNAL}*")):
            left.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder may have been there before, with other files
            self.dead.rmdir()
            self.path.rmdir()


def stored_fingerprint(path: Path, topology: str) -> dict[str, Any]:
    """The topology of the first start of a durable run. Raises CheckpointError if this is none, or another one's."""
    return _resumable(path / IDENTITY, topology).fingerprint


def _resumable(file: Path, topology: str) -> _Identity:
    """The identity of a durable run of this topology. Raises CheckpointError if it is another one."""
    found = read_identity(file, _Identity)
    if found.runtime != "local" or not found.durable:
        raise ForeignCheckpointError(
            "this state directory is not that of a durable local run, so there is nothing to resume from",
            where=str(file.parent),
            got=_description(file),
            expected="a folder that no run has used, or that of a run with --durable",
            next_step="leave --state-dir out, name a new folder, or resume a Spark run with --runtime spark",
        )
    check_format(file, found.format, FORMAT)
    check_topology(file.parent, found.topology, topology)
    return found


def _description(file: Path) -> str:
    try:
        found = read_identity(file, _Identity)
    except (OSError, CheckpointError):
        return "an identity that cannot be read"
    kind = "durable local" if found.durable else found.runtime or "Spark"
    return f"{kind} run {found.run_id[:8]} of {found.topology!r}"
