"""From which state directory a run writes to a folder: a copy of that has the run's name, and is kept out.

Owns a lock per run and folder, in a file that says who has it. Refuses to judge other runs, and two processes on one
directory: its own lock keeps the second one out.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from tupletree.errors import ConfigError, ConnectorError
from tupletree.texts import moment_text

NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a network's filesystem without locks answers."""

_MOST_BYTES = 10_000
_MODE = 0o666
"""As any file in the folder, less the umask."""


class _Writer(msgspec.Struct):
    """What the file says: the process that has it, and its state directory, known by its inode wherever it is moved."""

    state_dir: str
    device: int
    inode: int
    process: int
    host: str


class RunLock:
    """The lock of one run on one folder, until `close` or the end of this process.

    Args:
        folder: where the run writes.
        run_id: its name.
        state_dir: where it is kept; None: no other can have its name.
        sink: for errors.

    Raises:
        ConfigError: a process has the run, from another directory.
        ConnectorError: the folder cannot be written.
    """

    def __init__(self, folder: Path, run_id: str, state_dir: Path | None, *, sink: str) -> None:
        self._path = folder / f"_tupletree.{run_id}.lock"
        self._handle = -1
        if state_dir is None:
            return
        try:
            self._take(state_dir, sink)
        except OSError as error:
            self._leave()
            raise ConnectorError(
                f"cannot lock the sink's folder for the run: {error.strerror}", where=str(self._path)
            ) from error
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        """Give it up, and leave no file, if it can be removed: what is left says nothing once no process has it."""
        if self._handle >= 0:
            with suppress(OSError):
                self._path.unlink()
        self._leave()

    def _leave(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _take(self, state_dir: Path, sink: str) -> None:
        own = state_dir.stat()
        while True:
            handle = self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, _MODE)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "no file, but a device")
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found, since = _writer_in(handle), moment_text(os.fstat(handle).st_mtime)
                self._leave()
                if found is not None and _is_same(found, own):
                    return  # an earlier process of it, that is suspended: the directory says which one goes on
                raise _elsewhere(self._path.parent, state_dir, found, since, sink) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                self.close()
                return
            if os.fstat(handle).st_nlink:
                break
            self._leave()  # the process that had it has just removed it
        writer = _Writer(
            state_dir=os.fsencode(state_dir).decode("utf-8", "replace"),  # to be read; the inode says which it is
            device=own.st_dev,
            inode=own.st_ino,
            process=os.getpid(),
            host=os.uname().nodename,
        )
        os.ftruncate(handle, 0)
        os.pwrite(handle, msgspec.json.encode(writer) + b"\n", 0)


def _writer_in(handle: int) -> _Writer | None:
    try:
        return msgspec.json.decode(os.pread(handle, _MOST_BYTES, 0), type=_Writer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # it has only just been locked, or another program wrote it


def _is_same(found: _Writer, own: os.stat_result) -> bool:
    # Of another host's filesystem the device has another number here.
    is_here = found.host == os.uname().nodename
    return found.inode == own.st_ino and (found.device == own.st_dev or not is_here)


def _elsewhere(folder: Path, state_dir: Path, found: _Writer | None, since: str, sink: str) -> ConfigError:
    who = "a process that is not known"
    if found is not None:
        who = f"process {found.process} on {found.host}, since {since}, with --state-dir {found.state_dir}"
    return ConfigError(
        "this run goes on from another state directory, and writes to the folder",
        where=f"sink {sink}, {folder}",
        got=who,
        expected=f"one process for a run: {state_dir} is a copy of that directory",
        next_step="stop that process first if this copy is to go on in its place; for another run, name a new "
        "--state-dir and other folders",
    )
