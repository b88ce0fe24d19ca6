"""File sinks: rows become candidate files first, and published files only when their messages completed.

Owns the two-step protocol that makes files exactly once: durable candidates with hidden names, filtering of rows
whose message failed, idempotent publishing by rename or link, and sweeping; `folders` says which runs may write to one.
It refuses to know about epochs and roots: file names and the choice of rows come from the runtime. The folder must
be on a filesystem with atomic rename and hard links (any local disk, NFS).
"""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from tupletree.durable import create_new, identity_of, sync_directory
from tupletree.errors import CheckpointError, ConfigError, ConnectorError, Finding
from tupletree.sinks.folders import MARKER_NAME, check_claimed
from tupletree.texts import counted
from tupletree.topology.components import Sink, SinkBatch, SinkContext
from tupletree.topology.model import TopologySpec

if TYPE_CHECKING:
    import numpy.typing as npt

CANDIDATE_PREFIX = "_tt-"
"""Every candidate's name starts with this; readers of data folders skip names that start with `_`."""

MADE = "_made"
"""The column that says how new a row's values are, where a sink is asked to say so."""

_FINDINGS_SHOWN = 10


@dataclass(frozen=True)
class RowError:
    """One row that a sink refuses: its position in the sequence that was to be written, and why."""

    position: int
    reason: str
    error_type: str = "TypeError"


@dataclass(frozen=True)
class Candidate:
    """A candidate that was written.

    Attributes:
        path: of the file, in the sink's folder.
        folder: where its final name is, below the sink's folder; empty: in that itself.
        rows: which of the given rows it has, ascending; None: all.
    """

    path: Path
    folder: str = ""
    rows: npt.NDArray[Any] | None = None


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
        super().__init__(f"{where}: {counted(len(self.rows), 'row')} cannot be written", findings=shown)


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
        self._place = self.directory  # absolute from `open` on: a process may change its folder while a run goes on
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

    def write_candidates(
        self, path_of: Callable[[int], Path], rows: Sequence[Any], made: Sequence[int] | None = None
    ) -> list[Candidate]:
        """Write all rows, at least one, as one candidate for each folder that they belong into; here one for all.

        Args:
            path_of: the path of candidate 0, 1, …
            rows: as for `write_candidate`, which says what is raised, too. After an error files may be left.
            made: as there.
        """
        path = path_of(0)
        self.write_candidate(path, rows, made)
        return [Candidate(path)]

    def faults_of(self, cls: type) -> list[Finding]:  # noqa: ARG002 - it takes any
        """Why rows of a class cannot be written as the sink is set; empty if they can."""
        return []

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
        place = self.directory.absolute()
        if (place / MARKER_NAME).exists():
            self._place, self._claimed = place, identity_of(place)
        elif not self._place.is_absolute():
            self._place = place

    def write(self, batch: SinkBatch[Any]) -> None:
        """Write and publish one batch as one file (of each folder) named after `batch.id`; again, it changes nothing.

        Raises:
            SinkRowsError: as `write_candidate`.
            ConnectorError: the operating system refuses it, as on a full disk, or the folder that a run claimed is not
                there any more.
        """
        if not batch.rows:
            return
        stem = f"batch-{quote(batch.id, safe='')}"

        def path_of(number: int) -> Path:
            return self._place / f"{CANDIDATE_PREFIX}{stem}{f'-{number:03d}' if number else ''}{self.suffix}"

        try:
            self._find_folder()
            names = VisibleNames()
            for one in self.write_candidates(path_of, batch.rows, batch.made):
                names.give(one.path, self._place / one.folder / f"{stem}{self.suffix}")
            names.make_last()
        except OSError as error:
            raise ConnectorError(f"cannot write: {error.strerror or error}", where=str(path_of(0))) from error

    def _find_folder(self) -> None:
        """Make the folder, or see that it still is the one that was claimed: an empty mount point is another one."""
        if (self._place / MARKER_NAME).exists():
            self._claimed = identity_of(self._place)
        elif self._claimed is None:
            self._place.mkdir(parents=True, exist_ok=True)
        elif identity_of(self._place) != self._claimed:
            check_claimed(self._place)


def publish(candidate: Path, final: Path) -> None:
    """Give a candidate its visible name, and make that last. See `VisibleNames.give`."""
    names = VisibleNames()
    names.give(candidate, final)
    names.make_last()


class VisibleNames:
    """Gives candidates their visible names, and then makes all of these last at once.

    A source may be told of rows only after `make_last`. Both steps are safe to repeat after a kill at any point.
    """

    def __init__(self) -> None:
        self._folders: set[Path] = set()
        self._left: list[Path] = []

    def give(self, candidate: Path, final: Path) -> None:
        """Give a candidate its visible name, atomically.

        The final name is in the candidate's folder or below it, in folders that are made. A candidate that is missing
        while `final` is there was published before.

        Raises:
            CheckpointError: neither file exists, `final` exists with other content, or a file is in a folder's way.
            ConnectorError: the folder is not there any more.
        """
        moves = final.parent != candidate.parent
        if not final.exists():
            self._give(candidate, final, moves=moves)
        elif candidate.exists():
            if not candidate.samefile(final) and _digest(candidate) != _digest(final):
                raise CheckpointError(
                    "a published file exists already with other content",
                    where=str(final),
                    got=f"candidate {candidate.name}",
                    expected="the content that this candidate had when it was published",
                    next_step="check whether another program writes to this folder; move the published file away",
                )
            if not moves:
                candidate.unlink()
        # Also if it was there: the process that gave the name may have been killed before it was made to last.
        self._folders.update(_folders_between(candidate, final))
        if moves:
            self._left.append(candidate)

    def _give(self, candidate: Path, final: Path, *, moves: bool) -> None:
        try:
            if moves:
                if candidate.exists():
                    _make_below(candidate.parent, final.parent)
                _link(candidate, final)
            else:
                candidate.rename(final)
        except FileNotFoundError as error:
            if final.exists():  # another process of this run was faster
                return
            check_claimed(candidate.parent)
            raise CheckpointError(
                "neither the candidate nor the published file exists",
                where=str(final),
                got=f"no {candidate.name} and no {final.name}",
                expected="one of the two",
                next_step="the output folder lost files after the run committed them; replay from the source",
            ) from error

    def make_last(self) -> None:
        """Force the names to the disk; those in folders that are below others first."""
        for folder in sorted(self._folders, key=lambda path: (-len(path.parts), path)):
            sync_directory(folder)
        for candidate in self._left:
            candidate.unlink(missing_ok=True)
        self._folders.clear()
        self._left.clear()


def _link(candidate: Path, final: Path) -> None:
    """Give a file a name in another folder; its own stays until that lasts.

    Of a move, a crash of the machine may leave what it did to the one folder and not what it did to the other.
    """
    try:
        os.link(candidate, final)
    except FileExistsError:  # another process of this run was faster
        return
    except PermissionError:  # some systems let nobody link to another user's file
        candidate.rename(final)


def _make_below(folder: Path, below: Path) -> None:
    """Make a folder and those between; not `folder` itself, which may be away."""
    names = below.relative_to(folder).parts
    for depth in range(1, len(names) + 1):
        place = folder.joinpath(*names[:depth])
        try:
            place.mkdir(exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise CheckpointError(
                "a file is in the place of a partition's folder",
                where=str(place),
                expected="a folder, or nothing",
                next_step="move the file away, and start the run again",
            ) from error


def _folders_between(candidate: Path, final: Path) -> list[Path]:
    """From the folder of a file to the candidate's."""
    folders = [final.parent]
    while folders[-1] != candidate.parent:
        folders.append(folders[-1].parent)
    return folders


def directories_of(spec: TopologySpec) -> dict[str, Path]:
    """File sink → absolute folder. Raises ConfigError if two sinks write to one, or one cannot write its inputs."""
    findings = [
        replace(fault, where=f"sink {component.name!r}" + (f", {fault.where}" if fault.where else ""))
        for component in spec.components.values()
        if isinstance(component.body, FileSink)
        for cls in dict.fromkeys(
            spec.components[one.component].outputs[one.stream].schema.cls for one in component.inputs
        )
        for fault in component.body.faults_of(cls)
    ]
    if findings:
        raise ConfigError("a sink cannot write what it is given", findings=findings)
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


def check_flags(source: Path, rows: int, keep: Sequence[bool]) -> None:
    """Raise CheckpointError unless there is one flag for each row of a candidate."""
    if rows != len(keep):
        raise CheckpointError(
            "a candidate file has the wrong number of rows",
            where=str(source),
            got=counted(rows, "row"),
            expected=counted(len(keep), "row"),
        )


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


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
