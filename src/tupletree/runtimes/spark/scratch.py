"""Scratch folders of Spark on this host: private to this user, and removed with this process.

Shuffle files and frames that a stage spills hold payloads, and Spark writes them as the umask says; a user who can
write to a worker's socket can make it execute code. Both are in a folder of mode 0700 below the temporary folder. It
is removed when the process ends, or, if the process was killed, by the next start of this user on this host.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "tupletree-spark-"
_NAME = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
"""Names that `tempfile.mkdtemp` makes of the prefix; a sweep ignores all others."""

LOCK = "lock"
LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Where this variable is set, Spark takes it instead of `spark.local.dir`."""

_TRIES = 5


@dataclass(frozen=True)
class ScratchFolder:
    """A private folder that is in use as long as its lock is held.

    Attributes:
        path: the folder, absolute, mode 0700.
        lock: the descriptor that holds the lock; it is closed when this process ends in any way.
        process: which process made it: a fork of that does not remove it.
    """

    path: Path
    lock: int
    process: int

    @classmethod
    def make(cls, parent: Path) -> ScratchFolder:
        """Make a new one. Raises OSError if nothing can be written there."""
        for _ in range(_TRIES):
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).resolve()
            with contextlib.suppress(FileNotFoundError):  # a sweep removed it before it was locked
                lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                if _locked(lock) and _is_at(lock, path / LOCK):
                    return cls(path, lock, os.getpid())
                os.close(lock)
        raise OSError(f"a folder in {parent} is removed as soon as it is made")

    def remove(self) -> None:
        """Remove it with its content, as far as possible."""
        if self.process == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)


def sweep_scratch(parent: Path) -> None:
    """Remove the folders that killed processes of this user left: those whose lock no process holds."""
    for path in _left_in(parent):
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # its process was killed in between, or is about to lock it
                path.rmdir()
            continue
        except OSError:
            continue
        try:
            if _locked(lock):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _left_in(parent: Path) -> Iterator[Path]:
    try:
        found = sorted(parent.iterdir())
    except OSError:
        return
    for path in found:
        if _NAME.fullmatch(path.name):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                    yield path


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


_folders: list[ScratchFolder] = []
"""Those of this process: its JVM keeps one temporary folder for all its sessions."""


def scratch_folders(parents: list[Path]) -> list[Path]:
    """The scratch folders of this process, one in each parent of the first call, which makes them.

    Raises OSError if one cannot be made.
    """
    if not _folders:
        for parent in parents:
            sweep_scratch(parent)
            folder = ScratchFolder.make(parent)
            _folders.append(folder)
            atexit.register(folder.remove)
    return [folder.path for folder in _folders]


def configured_parents(settings: Mapping[str, str], environment: Mapping[str, str]) -> list[Path]:
    """The configured folders of Spark's scratch files, or the temporary folder.

    Args:
        settings: of the session, those of `spark-submit` included.
        environment: of this process.
    """
    told = environment.get(LOCAL_DIRS) or settings.get("spark.local.dir") or _default_local_dir(environment)
    parents = [Path(part.strip()) for part in told.split(",") if part.strip()]
    return parents or [Path(tempfile.gettempdir())]


def _default_local_dir(environment: Mapping[str, str]) -> str:
    """The setting in `spark-defaults.conf`, which a setting of the session would override."""
    folder = environment.get("SPARK_CONF_DIR") or f"{environment.get('SPARK_HOME', '')}/conf"
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.findall(r"^\s*spark\.local\.dir\s*[\s=:]\s*(\S.*?)\s*$", text, re.MULTILINE)
    return found[-1] if found else ""
