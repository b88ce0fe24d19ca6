"""The state directory of a local run: its identity, and its dead letters. There is nothing in it to resume from."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

import msgspec

from tupletree.durable import DECODE_ERRORS, private_folder, read_file, write_once
from tupletree.errors import ForeignCheckpointError
from tupletree.runtimes.statefolder import IDENTITY, prepare_state_folder, unusable

__all__ = ["LocalStateDirectory"]

FORMAT = 1


class _Identity(msgspec.Struct):
    """What `tupletree.json` says. The Spark runtime's has no `runtime`."""

    format: int
    topology: str
    run_id: str
    created_s: float
    runtime: str = ""


class LocalStateDirectory:
    """A new one for each run.

    Attributes:
        path: the folder, absolute.
        run_id: names the run.
        dead: where its dead letters go.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id
        self.dead = path / "dead"
        private_folder(self.dead)

    @classmethod
    def make(cls, path: Path | None, topology: str) -> LocalStateDirectory:
        """Make the folder; without a path, a new one below `.tupletree/<topology>`, named by time.

        Raises:
            ForeignCheckpointError: a run used this folder before, locally or on Spark, or it is not a state directory.
            CheckpointError: it cannot be made or written.
        """
        if path is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            path = Path(".tupletree") / topology / f"{stamp}-{uuid.uuid4().hex[:6]}"
        try:
            return cls._made(path, topology)
        except OSError as error:
            raise unusable(path.absolute(), error) from error

    @classmethod
    def _made(cls, path: Path, topology: str) -> LocalStateDirectory:
        path = prepare_state_folder(path)
        file = path / IDENTITY
        identity = _Identity(FORMAT, topology, uuid.uuid4().hex, time.time(), "local")
        if not write_once(file, msgspec.json.format(msgspec.json.encode(identity))):
            raise ForeignCheckpointError(
                "the local runtime cannot resume a run, and this state directory belongs to an earlier one",
                where=str(path),
                got=_description(file),
                expected="a folder that no run has used",
                next_step="leave --state-dir out, name a new folder, or resume a Spark run with --runtime spark",
            )
        return cls(path, identity.run_id)

    def discard(self) -> None:
        """Remove what `make` made: a start that was refused is no run, and must not be taken for the latest one."""
        (self.path / IDENTITY).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder may have been there before, with other files
            self.dead.rmdir()
            self.path.rmdir()


def _description(file: Path) -> str:
    try:
        found = msgspec.json.decode(read_file(file), type=_Identity)
    except (OSError, *DECODE_ERRORS):
        return "an identity that cannot be read"
    return f"{found.runtime or 'Spark'} run {found.run_id[:8]} of {found.topology!r}"
