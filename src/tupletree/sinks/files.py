"""File sinks: rows become candidate files first, and published files only when their messages completed.

Owns the two-step protocol that makes files exactly once: durable candidates with hidden names, filtering of rows
whose message failed, idempotent publishing by rename, the marker that ties a folder to its runs, and sweeping.
It refuses to know about epochs and roots: file names and the choice of rows come from the runtime. The folder must
be on a filesystem with atomic rename and hard links (any local disk, NFS).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import msgspec

from tupletree.durable import create_new, replace_file, sync_directory, write_once
from tupletree.errors import CheckpointError, ConfigError, ConnectorError, Finding
from tupletree.topology.components import Sink, SinkBatch, SinkContext
from tupletree.topology.model import TopologySpec

__all__ = [
    "CANDIDATE_PREFIX",
    "MADE",
    "MARKER_NAME",
    "ClaimedFolders",
    "FileSink",
    "RowError",
    "SinkRowsError",
    "check_claimed",
    "claim_directories",
    "claim_directory",
    "directories_of",
    "publish",
    "runs_of",
    "sweep",
    "visible_files",
    "written",
]

CANDIDATE_PREFIX = "_tt-"
"""Every candidate's name starts with this; readers of data folders skip names that start with `_`."""

MARKER_NAME = "_tupletree.json"

MADE = "_made"
"""The column that says how new a row's values are, where a sink is asked to say so."""

_MARKER_FORMAT = 1
_MARKER_MODE = 0o666
"""As any file in the folder, less the umask: other users may claim it too."""

_FINDINGS_SHOWN = 10


@dataclass(frozen=True)
class RowError:
    """One row that a sink refuses: its position in the sequence that was to be written, and why."""

    position: int
    reason: str
    error_type: str = "TypeError"


class SinkRowsError(ConnectorError):
    """Some rows cannot be written. `rows` holds every one of them, in order; nothing was written.

    The runtime fails the messages behind these rows and writes the others again.
    """

    is_outage = False

    def __init__(self, where: str, rows: Iterable[RowError]) -> None:
        self.rows: tuple[RowError, ...] = tuple(rows)
        shown = [Finding(f"row {row.position}: {row.reason}") for row in self.rows[:_FINDINGS_SHOWN]]
        if len(self.rows) > _FINDINGS_SHOWN:
            shown.append(Finding(f"and {len(self.rows) - _FINDINGS_SHOWN} more"))
        super().__init__(f"{where}: {len(self.rows)} rows cannot be written", findings=shown)


class FileSink(Sink[Any]):
    """A folder of immutable files of one format. Picklable; holds no open file.

    Runtimes with a commit point call, in this order and from any process: `claim_directory`, `write_candidate` (and
    `filter_candidate`) before the commit, `publish` after it, `sweep` when no run can need the orphans. Runtimes
    without one call `write`, which is exactly once as long as `batch.id` is stable.

    Args:
        directory: the folder; made when a run claims it.
        message_type: class of the rows, where the format needs a schema; None takes the class of the first row.
        made: each row is to say how new its values are, in a column `_made`.
    """

    promise = "exactly_once"
    gathers = True
    suffix: str = ""

    def __init__(
        self, directory: str | os.PathLike[str], *, message_type: type | None = None, made: bool = False
    ) -> None:
        self.directory = Path(directory)
        self.message_type = message_type
        self.ordered = made
        self._claimed: tuple[int, int] | None = None  # device and inode of the folder, once it was seen to be claimed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    @abstractmethod
    def write_candidate(self, path: Path, rows: Sequence[Any], made: Sequence[int] | None = None) -> None:
        """Write all rows to `path` and force them to the disk; an older candidate of this name is replaced.

        `made` holds the number of each row in the order of making, if the sink is `ordered`.

        Raises:
            SinkRowsError: rows that the format cannot hold, all of them; then no file is left behind.
            ConnectorError: the file could not be written.
        """

    @abstractmethod
    def filter_candidate(self, source: Path, destination: Path, keep: Sequence[bool]) -> int:
        """Write a new candidate with the rows of `source` whose flag is true; returns how many.

        `keep` has one flag per row of `source`; the kept rows stay as they are, in order.

        Raises:
            CheckpointError: `source` does not exist, or its number of rows is not that of `keep`.
            ConnectorError: the file could not be written.
        """

    def open(self, context: SinkContext) -> None:  # noqa: ARG002 - it needs none
        """Note which folder a run has claimed, so that no other one is taken for it."""
        if (self.directory / MARKER_NAME).exists():
            self._claimed = _identity(self.directory)

    def write(self, batch: SinkBatch[Any]) -> None:
        """Write and publish one batch as one file named after `batch.id`; writing it again changes nothing.

        Raises:
            SinkRowsError: as `write_candidate`.
            ConnectorError: the operating system refuses it, as on a full disk, or the folder that a run claimed is not
                there any more.
        """
        if not batch.rows:
            return
        name = f"batch-{quote(batch.id, safe='')}{self.suffix}"
        candidate = self.directory / f"{CANDIDATE_PREFIX}{name}"
        try:
            self._find_folder()
            self.write_candidate(candidate, batch.rows, batch.made)
            publish(candidate, self.directory / name)
        except OSError as error:
            raise ConnectorError(f"cannot write: {error.strerror or error}", where=str(candidate)) from error

    def _find_folder(self) -> None:
        """Make the folder, or see that it still is the one that was claimed: an empty mount point is another one."""
        if (self.directory / MARKER_NAME).exists():
            self._claimed = _identity(self.directory)
        elif self._claimed is None:
            self.directory.mkdir(parents=True, exist_ok=True)
        elif _identity(self.directory) != self._claimed:
            check_claimed(self.directory)


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


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def publish(candidate: Path, final: Path) -> None:
    """Give a candidate its visible name, atomically; safe to repeat after a kill at any point.

    Both are in the same folder. A candidate that is missing while `final` is there was published before.

    Raises:
        CheckpointError: neither file exists, or `final` exists with other content.
        ConnectorError: the folder is not there any more.
    """
    if final.exists():
        if not candidate.exists():
            sync_directory(final.parent)  # whoever renamed it may have been killed before this
            return
        if _digest(candidate) != _digest(final):
            raise CheckpointError(
                "a published file exists already with other content",
                where=str(final),
                got=f"candidate {candidate.name}",
                expected="the content that this candidate had when it was published",
                next_step="check whether another program writes to this folder; move the published file away",
            )
        candidate.unlink()
        sync_directory(final.parent)
        return
    try:
        candidate.rename(final)
    except FileNotFoundError as error:
        if final.exists():  # another process of this run was faster
            sync_directory(final.parent)
            return
        check_claimed(final.parent)
        raise CheckpointError(
            "neither the candidate nor the published file exists",
            where=str(final),
            got=f"no {candidate.name} and no {final.name}",
            expected="one of the two",
            next_step="the output folder lost files after the run committed them; replay from the source",
        ) from error
    sync_directory(final.parent)


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


def directories_of(spec: TopologySpec) -> dict[str, Path]:
    """File sink → absolute folder. Raises ConfigError if two sinks write to one."""
    folders = {
        component.name: component.body.directory.absolute()
        for component in spec.components.values()
        if isinstance(component.body, FileSink)
    }
    if spec.dead_letters is not None and isinstance(spec.dead_letters.body, FileSink):
        folders["dead letters"] = spec.dead_letters.body.directory.absolute()
    shared = [name for name, folder in folders.items() if list(folders.values()).count(folder) > 1]
    if shared:
        raise ConfigError(
            "two sinks write to one folder", where=", ".join(shared), next_step="give each sink a folder of its own"
        )
    return folders


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


def claim_directories(spec: TopologySpec, run_identity: str, *, append: bool = False) -> ClaimedFolders:
    """Claim the folder of every file sink of a topology, and lock it. See `claim_directory`.

    A run that is to append may share a folder with any other; without, a run has its folders for itself.

    Raises:
        ConfigError: two sinks write to one folder, another run writes to one now, or a folder is refused.
    """
    folders = directories_of(spec)
    with ExitStack() as locks:
        for name, folder in folders.items():
            _make(folder, sink=name)
            # What has the lock of a folder that this run claimed last is its own earlier process, or a run that is
            # to append: its state directory says which process goes on.
            may_share = append or runs_of(folder)[-1:] == [run_identity]
            locks.callback(os.close, _lock(folder, sink=name, append=append, may_share=may_share))
            claim_directory(folder, run_identity, sink=name, append=append)
        return ClaimedFolders({name: str(folder) for name, folder in folders.items()}, locks.pop_all())


def _lock(directory: Path, *, sink: str, append: bool, may_share: bool) -> int:
    """Lock a folder; the descriptor that has the lock. The lock is on the folder itself, so that no file is left."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConnectorError(f"cannot open the sink's folder: {error.strerror}", where=str(directory)) from error
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if append else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if may_share:
            return handle
        os.close(handle)
        raise ConfigError(
            "another run is writing to the folder",
            where=f"sink {sink}",
            got=str(directory),
            expected="a folder that no other run writes to now",
            next_step="wait for that run to end or stop it, use another folder, or add --append to write beside it",
        ) from error
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            os.close(handle)
            raise ConnectorError(f"cannot lock the sink's folder: {error.strerror}", where=str(directory)) from error
        # A network's filesystem that has no locks of folders: what is in it already still refuses a second run.
    return handle


def runs_of(directory: Path) -> list[str]:
    """The runs that have written to a folder, the first one first. Raises CheckpointError for a damaged marker."""
    marker = _read_marker(directory)
    return marker.runs if marker is not None else []


def sweep(directory: Path, is_orphan: Callable[[str], bool]) -> int:
    """Remove the candidates whose name `is_orphan` accepts; returns how many.

    Only names that start with `CANDIDATE_PREFIX` are ever asked about, so published files are never touched.
    """
    removed = 0
    for path in sorted(directory.glob(f"{CANDIDATE_PREFIX}*")):
        if is_orphan(path.name):
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def visible_files(directory: Path) -> list[Path]:
    """What a plain reader sees: the entries whose name starts with neither `_` nor `.`, sorted by name."""
    return sorted(path for path in directory.iterdir() if not path.name.startswith(("_", ".")))


@contextmanager
def written(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open `path` for a fresh write and force it to the disk on leaving; on an error no file is left behind.

    A file of that name is removed before, so that a link is not followed. `mode` is less the umask.

    Raises ConnectorError, with the path, for what the operating system refuses.
    """
    try:
        with os.fdopen(create_new(path, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConnectorError(f"cannot write: {error.strerror or error}", where=str(path)) from error
    except BaseException:
        path.unlink(missing_ok=True)
        raise


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
        raise CheckpointError(
            "the folder's marker has another format",
            where=str(path),
            got=f"format {marker.format}",
            expected=f"format {_MARKER_FORMAT}",
            next_step="use the version of Tupletree that wrote it, or another folder",
        )
    return marker


def _refuse_filled(directory: Path, sink: str, runs: Sequence[str], append: bool) -> None:
    if append:
        return
    found = visible_files(directory)
    if found:
        raise ConfigError(
            "the folder holds the output of another run" if runs else "the folder holds files of something else",
            where=f"sink {sink}",
            got=f"{directory} with {len(found)} files, {found[0].name} among them",
            expected="an empty folder, or the one this run wrote before",
            next_step="use another folder, add --append to write beside them, or resume that run (on Spark) "
            "with its --state-dir",
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


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
