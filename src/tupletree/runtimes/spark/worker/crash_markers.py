"""Marks: which message a stage's attempt has in hand, written where the death of its worker cannot take it along.

A message that kills its worker (os._exit, a segmentation fault, memory that runs out) leaves no report. Spark tries
the partition again, so from the second attempt on each message is marked before it is worked; a message that two
attempts died on is blamed, and the next attempt fails it and goes on. What a task does for no message (`open`, a tick,
`close`) is marked likewise, and then left out of the epoch. One death proves nothing: workers are pre-empted, hosts are
lost. The first attempt marks nothing, so marks cost nothing as long as nothing dies; unless a message comes again that
may be a killer.

A mark is written with `pwrite`, which a process's own death cannot undo; where attempts may land on other hosts it
is forced to the disk, too, from the third attempt on. Owns these files and what they mean. Refuses to decide what
becomes of a message: `stage` fails it, settle counts the attempt.
"""

from __future__ import annotations

import faulthandler
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tupletree import errors
from tupletree.bolts.effects import TaskPlace
from tupletree.data.frames import Frame, Root, apart, picked, roots_of
from tupletree.durable import DECODE_ERRORS, open_file
from tupletree.tracking.outcomes import Failure, FailureKind

__all__ = ["Blame", "CrashHistory", "CrashMarker", "CrashingWorkError", "MarkedPlace", "sweep_markers"]

CRASHES_BEFORE_BLAME = 2
"""Attempts that must have died on a message before it is blamed."""

MARKER_OFFSET = 1 << 20
"""Where the mark stands in its file; what the dying process says of itself stands before it."""

MAX_CRASH_REPORT = 8_000
FORCED_FROM_ATTEMPT = 2

_PACKAGE = str(Path(errors.__file__).parent)

_NAME = re.compile(r"\d{6}-(\d{8})-\d{2}-\d{5}-(\d{4}-\d{2})\.mark")


class _MarkerRecord(msgspec.Struct, array_like=True):
    """What an attempt has in hand.

    `untracked` is the position among the task's untracked tuples, or -1; `work` is what it does for no message.
    """

    task_id: int
    roots: list[int]
    untracked: int
    memory_kills: int
    work: str = ""


@dataclass(frozen=True)
class Blame:
    """Why a message or an untracked tuple is not worked again, or other work not done any more.

    Attributes:
        task_id: the task that had it in hand.
        how: how the workers ended, in words.
        stack: what the last of them said, as far as it said anything.
        work: what they did for no message.
    """

    task_id: int
    how: str
    stack: str
    work: str = ""

    def __str__(self) -> str:
        what = f"were in its `{self.work}`" if self.work else "had this message in hand"
        return f"{CRASHES_BEFORE_BLAME} worker processes ended while they {what}: {self.how}"

    def failure(self, component: str, failing_tuple: str = "") -> Failure:
        """The blame as the failure of an attempt."""
        return Failure(
            kind=FailureKind.POISON,
            component=component,
            task_id=self.task_id,
            error=str(self),
            traceback=self.stack,
            failing_tuple=failing_tuple,
        )


@dataclass
class CrashHistory:
    """What earlier attempts of a partition died on.

    Attributes:
        seen: root → attempts that had it in hand when they ended.
        roots: those that are blamed.
        untracked: task → position among its untracked tuples → blame.
        works: (task, what it does for no message) → blame.
    """

    seen: Counter[int] = field(default_factory=Counter)
    roots: dict[int, Blame] = field(default_factory=dict)
    untracked: dict[int, dict[int, Blame]] = field(default_factory=dict)
    works: dict[tuple[int, str], Blame] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path, prefix: str, before: str) -> CrashHistory:
        """From the marks of a partition's attempts that came before one."""
        found = cls()
        untracked_seen: Counter[tuple[int, int]] = Counter()
        works_seen: Counter[tuple[int, str]] = Counter()
        for path in sorted(directory.glob(f"{prefix}*.mark")):
            named = _NAME.fullmatch(path.name)
            if named is None or named[2] >= before:
                continue
            mark, crash_report = _read(path)
            if mark is None:
                continue
            blame = Blame(mark.task_id, _how(crash_report, mark.memory_kills), _users_part(crash_report), mark.work)
            if mark.work:
                works_seen[work := (mark.task_id, mark.work)] += 1
                if works_seen[work] >= CRASHES_BEFORE_BLAME:
                    found.works[work] = blame
            for root in mark.roots:
                found.seen[root] += 1
                if found.seen[root] >= CRASHES_BEFORE_BLAME:
                    found.roots[root] = blame
            if mark.untracked >= 0:
                key = mark.task_id, mark.untracked
                untracked_seen[key] += 1
                if untracked_seen[key] >= CRASHES_BEFORE_BLAME:
                    found.untracked.setdefault(mark.task_id, {})[mark.untracked] = blame
        return found

    def drop_untracked(self, task_id: int, frames: Iterable[Frame]) -> tuple[Iterable[Frame], list[tuple[Any, Blame]]]:
        """A task's frames without its blamed untracked tuples, and these."""
        blamed = self.untracked.get(task_id)
        if not blamed:
            return frames, []
        kept: list[Frame] = []
        dropped: list[tuple[Any, Blame]] = []
        position = 0
        for frame in map(apart, frames):
            keep: list[bool] = []
            for root, values in frame.segments():
                if not roots_of(root):
                    position += 1
                    if position - 1 in blamed:
                        dropped.append((values[0], blamed[position - 1]))
                        keep.append(False)
                        continue
                keep.append(True)
            kept.append(picked(frame, keep))
        return kept, dropped


class CrashMarker:
    """The marks of one attempt of a stage's partition, as a context: leaving it in order removes the file.

    Attributes:
        suspicions: what earlier attempts died on.

    Args:
        directory: where marks are.
        place: generation, epoch, stage and partition.
        order: how often the epoch was broken off before, and which attempt of the partition this is.
        one_host: whether all attempts share a host.
        from_first: mark in the first attempt, too.
    """

    def __init__(
        self,
        directory: Path,
        place: tuple[int, int, int, int],
        order: tuple[int, int],
        *,
        one_host: bool = True,
        from_first: bool = False,
    ) -> None:
        generation, epoch, stage, partition = place
        self._prefix = f"{generation:06d}-{epoch:08d}-{stage:02d}-{partition:05d}-"
        self._order = f"{order[0]:04d}-{order[1]:02d}"
        self._path = directory / f"{self._prefix}{self._order}.mark"
        self._is_forced = not one_host and sum(order) >= FORCED_FROM_ATTEMPT
        self.is_marking = from_first or sum(order) > 0
        self.crash_history = CrashHistory()
        if self.is_marking:
            self.crash_history = CrashHistory.read(directory, self._prefix, self._order)
        self._file = -1
        self._memory_kills = 0
        self._is_beside = False

    def __enter__(self) -> Self:
        if self.is_marking:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            self._memory_kills = _memory_kills()
            faulthandler.enable(self._file, all_threads=False)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._file < 0:
            return
        faulthandler.disable()
        if error is None or isinstance(error, GeneratorExit):  # the latter: Spark does not want this attempt any more
            self._path.unlink(missing_ok=True)
        else:
            os.write(self._file, f"{type(error).__name__}: {error}"[:MAX_CRASH_REPORT].encode("utf-8", "replace"))
        os.close(self._file)
        self._file = -1

    @property
    def crash_report(self) -> int:
        """The file for what a dying process says of itself: the worker's standard error if nothing is marked."""
        return self._file if self._file >= 0 else 2

    def mark(self, task_id: int, roots: tuple[int, ...], untracked: int = -1) -> None:
        """These messages, or this untracked tuple, come next."""
        if not self._is_beside:
            self._write(msgspec.msgpack.encode(_MarkerRecord(task_id, list(roots), untracked, self._memory_kills)))

    def rest(self) -> None:
        """No message is in hand."""
        if not self._is_beside:
            self._write(b"")

    @contextmanager
    def beside(self, task_id: int, work: str) -> Iterator[None]:
        """What a task does for no message, as a context: `open`, `tick` or `close`.

        Raises DeadlyWorkError, before anything is done, if earlier attempts died of it.
        """
        if (task_id, work) in self.crash_history.works:
            raise CrashingWorkError(self.crash_history.works[task_id, work])
        if self._file < 0:
            yield
            return
        self._write(msgspec.msgpack.encode(_MarkerRecord(task_id, [], -1, self._memory_kills, work)))
        self._is_beside = True
        try:
            yield
        finally:
            self._is_beside = False
            self.rest()

    def _write(self, mark: bytes) -> None:
        os.pwrite(self._file, len(mark).to_bytes(4, "little") + mark, MARKER_OFFSET)
        if self._is_forced:
            os.fsync(self._file)


class MarkedPlace(TaskPlace):
    """A task's place that marks what user code is given, whoever gives it.

    Args:
        marker: of the attempt.
        fields: of `TaskPlace`.
    """

    __slots__ = ("_crash_marker", "_given", "_untracked")

    def __init__(self, marker: CrashMarker, **fields: Any) -> None:
        self._crash_marker = marker
        self._untracked = -1
        self._given: Root | None = None
        super().__init__(**fields)

    @property
    def wants_roots(self) -> bool:
        """See `TaskPlace`."""
        return True

    def take_in_hand(self, root: Root, tuples: int) -> None:
        """See `TaskPlace`; raises for several tuples if an earlier attempt died with one of them in hand."""
        if tuples > 1 and any(map(self._crash_marker.crash_history.seen.__contains__, roots_of(root))):
            raise _TogetherError("a worker died with a part of this batch in hand")
        self.root = root

    def must_be_alone(self, root: Root) -> bool:
        """See `TaskPlace`: an earlier attempt died with it in hand, or it has no name to be found by among others."""
        roots = roots_of(root)
        return not roots or not self._crash_marker.crash_history.seen.keys().isdisjoint(roots)

    @property
    def root(self) -> Root | None:
        """See `TaskPlace`."""
        return self._given

    @root.setter
    def root(self, root: Root | None) -> None:
        self._given = root
        if root is None:
            self._crash_marker.rest()
            return
        roots = roots_of(root)
        if roots:
            self._crash_marker.mark(self.task_id, roots)
            return
        blamed = self._crash_marker.crash_history.untracked.get(self.task_id, {})
        self._untracked += 1
        while self._untracked in blamed:
            self._untracked += 1
        self._crash_marker.mark(self.task_id, (), self._untracked)


class CrashingWorkError(Exception):
    """What a task does for no message has ended its workers.

    Attributes:
        blame: how.
    """

    def __init__(self, blame: Blame) -> None:
        super().__init__(str(blame))
        self.blame = blame


class _TogetherError(Exception):
    """These tuples are to be worked one by one."""


def sweep_markers(directory: Path, settled: int) -> None:
    """Remove the marks of epochs up to this one."""
    for path in directory.glob("*.mark"):
        named = _NAME.fullmatch(path.name)
        if named is None or int(named[1]) <= settled:
            path.unlink(missing_ok=True)


def blamed(directory: Path, generation: int, epoch: int) -> set[int | tuple[int, str]]:
    """Every message of an epoch, and all else that tasks do, that attempts of this start died on often enough."""
    found: set[int | tuple[int, str]] = set()
    for prefix in {path.name[: len("000000-00000000-00-00000-")] for path in _of(directory, generation, epoch)}:
        crash_history = CrashHistory.read(directory, prefix, before="~")
        found.update(crash_history.roots, crash_history.works)
    return found


def _of(directory: Path, generation: int, epoch: int) -> Iterator[Path]:
    return directory.glob(f"{generation:06d}-{epoch:08d}-*.mark")


def _read(path: Path) -> tuple[_MarkerRecord | None, str]:
    """(the mark, the process's last words); no mark if none was in force, or if it cannot be read."""
    try:
        with open_file(path) as file:
            words = file.read(MAX_CRASH_REPORT).rstrip(b"\0").decode("utf-8", "replace").strip()
            file.seek(MARKER_OFFSET)
            data = file.read()
        length = int.from_bytes(data[:4], "little")
        return (msgspec.msgpack.decode(data[4 : 4 + length], type=_MarkerRecord) if length else None), words
    except (OSError, *DECODE_ERRORS):
        return None, ""


def _how(crash_report: str, memory_kills: int) -> str:
    """How a worker ended, in words, from what it said and what the kernel counts."""
    if crash_report.startswith("Timeout ("):
        return "it was in one call for longer than processing_timeout_s, where Python could not interrupt it"
    if crash_report.startswith("Fatal Python error"):
        return crash_report.partition("\n")[0].removeprefix("Fatal Python error: ")
    if crash_report:
        return f"it broke off with {crash_report.partition(chr(10))[0]}"
    if _memory_kills() > memory_kills:
        return "it was killed while the kernel was out of memory"
    return "it ended without a word, as by os._exit, or it was killed from outside"


def _users_part(crash_report: str) -> str:
    """A stack down to where it comes to our own code, which says nothing to the reader."""
    lines = crash_report.splitlines()
    ours = [number for number, line in enumerate(lines) if line.startswith(f'  File "{_PACKAGE}')]
    return "\n".join(lines[: ours[0]] if ours else lines)


def _memory_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0
