"""The state directory as a folder: who may own it, what may be in it, and who may write to it.

Both runtimes claim their state directory by it. It removes nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from tupletree.durable import DECODE_ERRORS, DRAFT_NAME, damaged, missing, private_folder, read_file
from tupletree.errors import CheckpointError, ForeignCheckpointError

T = TypeVar("T")

IDENTITY = "tupletree.json"
"""The file by which a folder is a state directory."""

_FILE_SYSTEMS_OWN = {"lost+found"}
_NAMES_SHOWN = 5
MOST_OF_LOCK = 8_192
"""Bytes that are read of a lock: who has it, and where; longer than any path."""


class StateFolder:
    """The folder of a run that this process has, until `close` lets another one have it.

    Attributes:
        path: the folder, absolute.
        run_id: names the run; stable over restarts.
        dead: where its dead letters go.
        held: what the run has besides it; `close` gives it up.
    """

    def __init__(self, path: Path, run_id: str, lock: int) -> None:
        self.path = path
        self.run_id = run_id
        self.dead = private_folder(path / "dead")
        self.held = ExitStack()
        self._lock = lock

    def close(self) -> None:
        """Give up the lock, and what else is held."""
        try:
            self.held.close()
        finally:
            lock, self._lock = self._lock, -1
            if lock >= 0:
                os.close(lock)


def prepare_state_folder(path: Path) -> Path:
    """Make the folder, or check the one that is there; returns its absolute path.

    It is private afterwards: mode 0700. A folder without `tupletree.json` must be empty, except for what a first start
    that was killed at once leaves.

    Raises:
        ForeignCheckpointError: the folder is another user's, other users may write to it, or it is none of ours and
            holds something.
        CheckpointError: it is that of a run, whose identity is gone.
        OSError: it cannot be made or read.
    """
    path = path.absolute()
    for parent in reversed([one for one in path.parents if not one.exists()]):
        parent.mkdir(
            mode=0o755, exist_ok=True
        )  # not as the umask says: a user who may write there may replace the folder
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if status.st_uid not in {os.getuid(), 0}:  # root may do anything in any case, and owns volumes that are mounted
        raise ForeignCheckpointError(
            "the state directory belongs to another user",
            where=str(path),
            got=f"a folder of user {status.st_uid}",
            expected=f"a folder of this user ({os.getuid()})",
            next_step="name another --state-dir, or run as that user",
        )
    is_ours = (path / IDENTITY).exists()
    if not is_ours:
        _refuse_filled(path)
        if status.st_uid == os.getuid() and status.st_mode & 0o077:
            path.chmod(0o700)
            status = path.stat()
    forbidden = stat.S_IWOTH | (stat.S_IWGRP if status.st_uid == os.getuid() else 0)
    if status.st_mode & forbidden:
        raise ForeignCheckpointError(
            "other users may write to the state directory",
            where=str(path),
            got=f"mode {stat.S_IMODE(status.st_mode):04o}",
            expected="mode 0700: a user who can write to it controls the run",
            next_step="check that nothing in it is another user's, then run chmod 700 on it",
        )
    return path


def fresh_state_dir(topology: str) -> Path:
    """A new folder below `.tupletree/<topology>`, named by time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path(".tupletree") / topology / f"{stamp}-{uuid.uuid4().hex[:6]}"


def read_identity(file: Path, kind: type[T]) -> T:
    """What the identity of a run says. Raises CheckpointError if it is damaged, OSError."""
    try:
        return msgspec.json.decode(read_file(file), type=kind)
    except DECODE_ERRORS as error:
        raise damaged(str(file), str(error), "the identity of a run") from error


def check_format(file: Path, found: int, expected: int) -> None:
    """Raise ForeignCheckpointError for the identity of another format."""
    if found != expected:
        raise ForeignCheckpointError(
            "the state directory has a format that this version cannot read",
            where=str(file),
            got=f"format {found}",
            expected=f"format {expected}",
            next_step="use the version of Tupletree that wrote it",
        )


def check_topology(path: Path, found: str, expected: str) -> None:
    """Raise ForeignCheckpointError for the state directory of another topology."""
    if found != expected:
        raise ForeignCheckpointError(
            "the state directory belongs to another topology",
            where=str(path),
            got=f"the name changed from {found!r} to {expected!r}",
            expected="the name that this directory was made with",
            next_step="go back to that name, or start with a fresh --state-dir",
        )


def unusable(path: Path, error: OSError) -> CheckpointError:
    """The error to raise when the disk refuses what a start needs."""
    return CheckpointError(
        "the state directory cannot be used",
        where=str(path),
        got=str(error),
        expected="a folder that this user may write to, on a disk with room",
        next_step="fix that and start it again, or name another --state-dir: nothing is lost",
    )


def take_lock(path: Path) -> int:
    """Take the lock that one process at a time has of a state directory; returns its descriptor.

    It is refused, too, where this is a copy of the directory of a run that goes on: both would act for one run. The
    lock says where it was taken last, and a copy has it.

    Raises CheckpointError, OSError.
    """
    handle = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        _refuse_link(handle, path / "lock")
        _lock(handle, path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _refuse_link(handle: int, file: Path) -> None:
    """Raise OSError for a link or a device: the lock file is written to."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise OSError(errno.EINVAL, "no file of its own, but a link or a device", str(file))


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(
            "another run is using this state directory",
            where=str(path),
            got=_holder(handle),
            next_step="wait for it to end or stop it; for a second run use another --state-dir",
        ) from error
    _refuse_copy(handle, path)
    os.ftruncate(handle, 0)
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    who = f"process {os.getpid()} on {socket.gethostname()}, started {started}\n".encode()
    os.pwrite(handle, who + os.fsencode(path) + b"\n", 0)


def _holder(handle: int) -> str:
    return _lines(handle)[0].decode("utf-8", "replace").strip() or "an unknown process"


def _lines(handle: int) -> list[bytes]:
    return os.pread(handle, MOST_OF_LOCK, 0).split(b"\n")


def _refuse_copy(handle: int, path: Path) -> None:
    """Raise CheckpointError if the directory that this one was copied from is in use."""
    before = _lines(handle)[1:2]
    if not before or not before[0]:
        return
    other = Path(os.fsdecode(before[0]))
    try:
        if other.samefile(path) or read_file(other / IDENTITY) != read_file(path / IDENTITY):
            return
        theirs = os.open(other / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # it is not there any more: this one goes on in its place
    try:
        fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            "this is a copy of the state directory of a run that goes on",
            where=str(path),
            got=f"{other}, in use by {_holder(theirs)}",
            next_step="stop that process first if this copy is to go on in its place; for another run, name a new "
            "--state-dir",
        ) from None
    finally:
        os.close(theirs)


def _refuse_filled(path: Path) -> None:
    """Raise ForeignCheckpointError if a folder that is no state directory has something in it."""
    found = sorted(one.name for one in path.iterdir() if not _may_be_there(one))
    if not found or (path / IDENTITY).exists():  # another start has made it meanwhile
        return
    if any((path / "generations").glob("[0-9]*")):
        raise missing(path / IDENTITY)
    raise ForeignCheckpointError(
        "this folder is no state directory, and it is not empty",
        where=str(path),
        got=", ".join(found[:_NAMES_SHOWN]) + (f" and {len(found) - _NAMES_SHOWN} more" * (len(found) > _NAMES_SHOWN)),
        expected=f"an empty folder, a new one, or that of a run ({IDENTITY} is in it)",
        next_step="name a new folder as --state-dir, as in ./state",
    )


def _may_be_there(path: Path) -> bool:
    name = path.name
    if name == "lock":
        return _is_our_lock(path)
    return name in _FILE_SYSTEMS_OWN or (name.startswith(f"_{IDENTITY}.") and bool(DRAFT_NAME.fullmatch(name)))


def _is_our_lock(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return False
        start = file.read(8)
    return start in {b"", b"process "}
