"""Crash markers: which message a stage's attempt works on, in a file that survives a crash of its worker.

A message that crashes its worker (os._exit, a segmentation fault, out of memory) leaves no report. Spark tries
the partition again, so from the second attempt on each message is marked before it is worked; a message that two
attempts crashed on is blamed, and the next attempt fails it and goes on. So is one that a stage reads from a segment.
What a task does for no message (`open`, a
tick, `close`) is marked too, and is then left out of the epoch. One crash proves nothing: workers are pre-empted,
hosts are lost. The first attempt writes no markers, so they cost nothing as long as nothing crashes; unless a message
is tried again that may crash its worker.

A marker is written with `pwrite`, which survives the end of the process; where attempts may run on other hosts it
is also flushed to the disk, from the third attempt on. Owns these files and their meaning. Refuses to decide what
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
from tupletree.tracking.outcomes import Failure, FailureKind, RetryRule

CRASHES_BEFORE_BLAME = 2
"""Attempts that must have crashed on a message before it is blamed."""

MARKER_OFFSET = 1 << 20
"""The offset of the marker in its file; the crash report of the process is before it."""

MAX_CRASH_REPORT = 8_000
FORCED_FROM_ATTEMPT = 2

_PACKAGE = errors.__file__.rpartition("/")[0]
"""As tracebacks have it: not through Path, which makes another text of `./tupletree.zip`."""

_NAME = re.compile(r"\d{6}-(\d{8})-\d{2}-\d{5}-(\d{4}-\d{2})\.mark")


class _MarkerRecord(msgspec.Struct, array_like=True):
    """What an attempt works on.

    `untracked` is the position among the task's untracked tuples, or -1; `work` is what it does for no message;
    `is_read`: the message is being read, and no value of it exists yet.
    """

    task_id: int
    roots: list[int]
    untracked: int
    memory_kills: int
    work: str = ""
    is_read: bool = False


@dataclass(frozen=True)
class Blame:
    """Why a message or an untracked tuple is not worked again, or other work is no longer done.

    Attributes:
        task_id: the task that worked on it.
        how: how the workers ended, in words.
        stack: the stack in the last crash report; empty if there is none.
        work: what they did for no message.
        is_read: they were reading the message.
    """

    task_id: int
    how: str
    stack: str
    work: str = ""
    is_read: bool = False

    def __str__(self) -> str:
        did = "read" if self.is_read else "worked on"
        what = f"were in its `{self.work}`" if self.work else f"{did} this message"
        return f"{CRASHES_BEFORE_BLAME} worker processes ended while they {what}: {self.how}"

    def failure(self, component: str, failing_tuple: str = "", retry: RetryRule | None = None) -> Failure:
        """The blame as the failure of an attempt; `retry` is what holds for the component.

        Of a message that was not read it is the last one: without a value nothing can be tried again.
        """
        return Failure(
            kind=FailureKind.POISON,
            component=component,
            task_id=self.task_id,
            error=str(self),
            traceback=self.stack,
            failing_tuple=failing_tuple,
            permanent=self.is_read,
            retry=retry,
        )


@dataclass
class CrashHistory:
    """What earlier attempts of a partition crashed on.

    Attributes:
        seen: root → attempts that worked on it when they ended.
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
        """Read it from the markers of a partition's earlier attempts."""
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
            how = _how(crash_report, mark.memory_kills)
            blame = Blame(mark.task_id, how, _users_part(crash_report), mark.work, mark.is_read)
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
    """The marker of one attempt of a stage's partition, as a context: leaving it without an error removes the file.

    Attributes:
        crash_history: what earlier attempts crashed on.

    Args:
        directory: of the markers.
        place: generation, epoch, stage and partition.
        order: how often the epoch failed in Spark before, and which attempt of the partition this is.
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
        self._in_other_work = False

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
        if error is None or isinstance(error, GeneratorExit):  # or Spark needs no more rows of it
            self._path.unlink(missing_ok=True)
        else:
            os.write(self._file, f"{type(error).__name__}: {error}"[:MAX_CRASH_REPORT].encode("utf-8", "replace"))
        os.close(self._file)
        self._file = -1

    @property
    def crash_report(self) -> int:
        """The file descriptor for a crash report: the worker's standard error if nothing is marked."""
        return self._file if self._file >= 0 else 2

    def mark(self, task_id: int, roots: tuple[int, ...], untracked: int = -1, *, is_read: bool = False) -> None:
        """These messages, or this untracked tuple, come next; `is_read`: to be read."""
        if not self._in_other_work:
            ones = [*map(int, roots)]  # of roots that carry numbers, the roots
            record = _MarkerRecord(task_id, ones, untracked, self._memory_kills, is_read=is_read)
            self._write(msgspec.msgpack.encode(record))

    def rest(self) -> None:
        """No message is being worked on."""
        if not self._in_other_work:
            self._write(b"")

    @contextmanager
    def other_work(self, task_id: int, work: str) -> Iterator[None]:
        """What a task does for no message, as a context: `open`, `tick` or `close`.

        Raises CrashingWorkError, before anything is done, if earlier attempts crashed on it.
        """
        if (task_id, work) in self.crash_history.works:
            raise CrashingWorkError(self.crash_history.works[task_id, work])
        if self._file < 0:
            yield
            return
        self._write(msgspec.msgpack.encode(_MarkerRecord(task_id, [], -1, self._memory_kills, work)))
        self._in_other_work = True
        try:
            yield
        finally:
            self._in_other_work = False
            self.rest()

    def _write(self, mark: bytes) -> None:
        os.pwrite(self._file, len(mark).to_bytes(4, "little") + mark, MARKER_OFFSET)
        if self._is_forced:
            os.fsync(self._file)


class MarkedPlace(TaskPlace):
    """A task's place that marks what user code is called with."""

    __slots__ = ("_crash_marker", "_given", "_untracked")

    def __init__(self, marker: CrashMarker, **fields: Any) -> None:
        self._crash_marker = marker
        self._untracked = -1
        self._given: Root | None = None
        super().__init__(**fields)

    @property
    def wants_roots(self) -> bool:
        return True

    def take_in_hand(self, root: Root, tuples: int) -> None:
        """See `TaskPlace`; raises for several tuples if an earlier attempt crashed on one of them."""
        if tuples > 1 and any(map(self._crash_marker.crash_history.seen.__contains__, roots_of(root))):
            raise _TogetherError("a worker crashed on a part of this batch")
        self.root = root

    def must_be_alone(self, root: Root) -> bool:
        """See `TaskPlace`: an earlier attempt crashed on it, or it has no id to be found by among others."""
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
    """What a task does for no message has crashed its workers.

    Attributes:
        blame: how.
    """

    def __init__(self, blame: Blame) -> None:
        super().__init__(str(blame))
        self.blame = blame


class _TogetherError(Exception):
    """These tuples are to be worked one by one."""


def sweep_markers(directory: Path, settled: int) -> None:
    """Remove the markers of epochs up to this one."""
    for path in directory.glob("*.mark"):
        named = _NAME.fullmatch(path.name)
        if named is None or int(named[1]) <= settled:
            path.unlink(missing_ok=True)


def blamed(directory: Path, generation: int, epoch: int) -> set[int | tuple[int, str]]:
    """Everything in an epoch that attempts of this start crashed on often enough: messages, and other work of tasks."""
    found: set[int | tuple[int, str]] = set()
    paths = directory.glob(f"{generation:06d}-{epoch:08d}-*.mark")
    for prefix in {path.name[: len("000000-00000000-00-00000-")] for path in paths}:
        crash_history = CrashHistory.read(directory, prefix, before="~")
        found.update(crash_history.roots, crash_history.works)
    return found


def _read(path: Path) -> tuple[_MarkerRecord | None, str]:
    """(the marker, the crash report); no marker if nothing was marked, or if it cannot be read."""
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
    """How a worker ended, in words, from its crash report and the kernel's counters."""
    if crash_report.startswith("Timeout ("):
        return "it was in one call for longer than processing_timeout_s, where Python could not interrupt it"
    if crash_report.startswith("Fatal Python error"):
        return crash_report.partition("\n")[0].removeprefix("Fatal Python error: ")
    if crash_report:
        return f"it ended with {crash_report.partition(chr(10))[0]}"
    if _memory_kills() > memory_kills:
        return "it was killed while the kernel was out of memory"
    return "it ended without an error, as by os._exit, or it was killed from outside"


def _users_part(crash_report: str) -> str:
    """A stack without the frames of our own code, which do not help a user."""
    lines = crash_report.splitlines()
    ours = [number for number, line in enumerate(lines) if line.startswith(f'  File "{_PACKAGE}')]
    return "\n".join(lines[: ours[0]] if ours else lines)


def _memory_kills() -> int:
    """How many processes the kernel has killed because it was out of memory; 0 where this is unknown."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0
