"""Folders of file sinks: which runs may write to one.

Owns the marker that ties a folder to the runs that wrote to it, and the lock that keeps a second run out while one
writes. It refuses to know what is in the files. The folder must be on a filesystem with hard links; where it has no
locks, a second run is refused by what is in the folder already.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tupletree.durable import other_format, replace_file, write_once
from tupletree.errors import CheckpointError, ConfigError, ConnectorError
from tupletree.sinks.writers import NO_LOCKS, RunLock
from tupletree.texts import counted

MARKER_NAME = "_tupletree.json"

_MARKER_FORMAT = 1
_MARKER_MODE = 0o666
"""As any file in the folder, less the umask: other users may claim it too."""


@dataclass(slots=True)
class ClaimedFolders:
    """The folders of a run's file sinks; they are its own until `close`, or the end of this process.

    Attributes:
        paths: sink → absolute folder.
    """

    paths: dict[str, str]
    _locks: ExitStack

    def close(self) -> None:
        """Let other runs have them."""
        self._locks.close()


def claim_directories(
    folders: Mapping[str, Path], run_identity: str, *, append: bool = False, state_dir: Path | None = None
) -> ClaimedFolders:
    """Claim the folders of a run's file sinks, and lock them. See `claim_directory`.

    A run that is to append may share a folder with any other; without, a run has its folders for itself.

    Args:
        folders: sink → folder.
        run_identity: see `claim_directory`.
        append: as there.
        state_dir: of the run. A process that has the run from another one, of which this is a copy, keeps it out.

    Raises:
        ConfigError: another run, or this one from another state directory, writes to one now, or one is refused.
    """
    with ExitStack() as locks:
        for name, folder in folders.items():
            _make(folder, sink=name)
            locks.callback(RunLock(folder, run_identity, state_dir, sink=name).close)
            handle = _open(folder)
            locks.callback(os.close, handle)
            if append or not _lock(handle, folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                # What has the folder that this run claimed last is an earlier process of its own, or runs that append:
                # its state directory says which process goes on.
                if not append and runs_of(folder)[-1:] != [run_identity]:
                    raise _in_use(folder, name)
                _lock(handle, folder, fcntl.LOCK_SH)
            claim_directory(folder, run_identity, sink=name, append=append)
            runs = runs_of(folder)
            _lock(handle, folder, fcntl.LOCK_SH)
            if not append and runs_of(folder) != runs:  # between the two locks there is none, and another run came
                raise _in_use(folder, name)
        return ClaimedFolders({name: str(folder) for name, folder in folders.items()}, locks.pop_all())


def claim_directory(directory: Path, run_identity: str, *, sink: str, append: bool = False) -> None:
    """Make the folder ready for a run and mark it; the same run may claim it again at any time.

    Args:
        directory: the sink's folder; made if missing.
        run_identity: stable across restarts of one run (its state directory), different between runs.
        sink: name of the sink component, for the marker and for errors.
        append: allow a folder that another run, or something else, has filled.

    Raises:
        ConfigError: the folder holds visible files that this run did not write, and `append` is false; or the path
            is not a folder.
        CheckpointError: the marker is damaged or was written by a newer version.
        ConnectorError: the folder cannot be made or written.
    """
    _make(directory, sink=sink)
    # Drafts of starts that were killed here. A start that is claiming it right now loses its draft, and tries again.
    for draft in directory.glob(f"_{MARKER_NAME}.*"):
        draft.unlink(missing_ok=True)
    while True:
        marker = _read_marker(directory)
        runs = marker.runs if marker else []
        if run_identity in runs:
            return
        _refuse_filled(directory, sink, runs, append)
        claimed = _Marker(format=_MARKER_FORMAT, sink=sink, runs=[*runs, run_identity])
        if _store_marker(directory, claimed, replace=marker is not None):
            return


def check_claimed(directory: Path) -> None:
    """See that a folder still is one that a run claimed.

    A folder that was moved away or deleted, or whose file system was unmounted, is not made again: what would be
    written there is not where the rest is, and is hidden when that comes back.

    Raises:
        ConnectorError: it is not there, or has no marker.
    """
    if not (directory / MARKER_NAME).exists():
        raise ConnectorError(
            "the sink's folder is not there any more, or is another one",
            where=str(directory),
            got=f"no {MARKER_NAME} in it" if directory.exists() else "no such folder",
            expected="the folder that the run began with",
            next_step="bring it back (mount it, or move it to its place); to begin another one, stop the run and start "
            "it again",
        )


def runs_of(directory: Path) -> list[str]:
    """The runs that have written to a folder, the first one first. Raises CheckpointError for a damaged marker."""
    marker = _read_marker(directory)
    return marker.runs if marker is not None else []


def visible_files(directory: Path) -> list[Path]:
    """What a plain reader sees: the entries whose name starts with neither `_` nor `.`, sorted by name."""
    return sorted(path for path in directory.iterdir() if not path.name.startswith(("_", ".")))


def _make(directory: Path, *, sink: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
        raise ConfigError(
            "the path of a file sink is not a folder",
            where=f"sink {sink}",
            got=f"{file} is a file" if file == directory else f"{directory}, but {file} is a file",
            expected="a folder, or a path where one can be made",
            next_step="name another folder, or move the file away",
        ) from error
    except OSError as error:
        raise ConnectorError(f"cannot make the sink's folder: {error.strerror}", where=str(directory)) from error


def _open(directory: Path) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConnectorError(f"cannot open the sink's folder: {error.strerror}", where=str(directory)) from error


def _lock(handle: int, directory: Path, how: int) -> bool:
    """Lock a folder itself, so that no file is left in it; False if another process keeps this one from it now.

    A run that starts has it alone; from then on all that write to it share it.
    """
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        # A network's filesystem may have no locks of folders: what is in one already still refuses a second run.
        if error.errno not in NO_LOCKS:
            raise ConnectorError(f"cannot lock the sink's folder: {error.strerror}", where=str(directory)) from error
    return True


def _in_use(directory: Path, sink: str) -> ConfigError:
    return ConfigError(
        "another run is writing to the folder",
        where=f"sink {sink}",
        got=str(directory),
        expected="a folder that no other run writes to now",
        next_step="wait for that run to end or stop it, use another folder, or add --append (append=True in Python) to "
        "write beside it",
    )


class _Marker(msgspec.Struct, forbid_unknown_fields=True):
    """Content of the marker file: which runs may write here."""

    format: int
    sink: str
    runs: list[str]


def _read_marker(directory: Path) -> _Marker | None:
    path = directory / MARKER_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        marker = msgspec.json.decode(content, type=_Marker)
    except msgspec.DecodeError as error:
        raise CheckpointError(
            "the folder's marker is damaged or from a newer version",
            where=str(path),
            got=str(error),
            expected=f"format {_MARKER_FORMAT}",
            next_step="use another folder, or remove the marker if no run writes here",
        ) from error
    if marker.format != _MARKER_FORMAT:
        raise other_format(str(path), marker.format, _MARKER_FORMAT)
    return marker


def _refuse_filled(directory: Path, sink: str, runs: Sequence[str], append: bool) -> None:
    if append:
        return
    found = visible_files(directory)
    if found:
        raise ConfigError(
            "the folder holds the output of another run" if runs else "the folder holds files of something else",
            where=f"sink {sink}",
            got=f"{directory} with {counted(len(found), 'file')}, {found[0].name} among them",
            expected="an empty folder, or the one this run wrote before",
            next_step="use another folder, add --append (append=True in Python) to write beside them, or resume that "
            "run (on Spark) with its --state-dir",
        )


def _store_marker(directory: Path, marker: _Marker, *, replace: bool) -> bool:
    """Write the marker atomically; False if another process was faster, or removed the draft."""
    target = directory / MARKER_NAME
    content = msgspec.json.encode(marker) + b"\n"
    try:
        if not replace:
            return write_once(target, content, mode=_MARKER_MODE)
        replace_file(target, content, mode=_MARKER_MODE)
    except (CheckpointError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise ConnectorError(f"cannot mark the folder: {error.strerror}", where=str(target)) from error
        raise ConnectorError(
            "the sink's filesystem has no hard links",
            where=str(directory),
            expected="a filesystem with hard links and atomic rename",
            next_step="put the sink's folder on a local disk or NFS",
        ) from error
    return True
