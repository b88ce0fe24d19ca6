"""Processes that die at a named point, and what their state directory and sinks must look like at any moment after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.spark.counting import ROOT, SINKS, expected_rows, heard, line_of, rows_of
from tests.spark.forking import Process, fork
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import Summary
from tupletree.runtimes.crash_points import VARIABLE
from tupletree.runtimes.spark.format.carryover import files_of
from tupletree.runtimes.spark.format.entries import numbered, read_settle, settle_path
from tupletree.sinks.files import CANDIDATE_PREFIX
from tupletree.sinks.folders import visible_files

LINES = 34
EPOCH_LINES = 12
OPTIONS = {"max_attempts": 3, "epoch_max_messages": EPOCH_LINES}

HANG_S = 240.0

# Not `-m`: the message classes must live in a module that workers can import.
PROGRAM = "import json, sys; from tests.spark.counting import main; main(json.loads(sys.argv[1]))"


@dataclass(frozen=True)
class How:
    """How a process counts.

    Attributes:
        base_epochs: a settle entry holds a base after this many.
        master: `in-process[n]`: the stages run in the killed process itself, in n partitions, and it starts no JVM. Or
            a Spark master: one core does most of the work of two with half the Python workers to start.
        source: of `counting.SOURCES`.
        asleep: fall asleep at the crash point, instead of dying.
        options: on top of `OPTIONS`.
        batch_size: lines that the source gives at once.
        topology: module whose `topology` is run.
        tasks: of the bolts `split` and `count`, if not as many as the module says.
    """

    base_epochs: int = 64
    master: str = "in-process[2]"
    source: str = "file"
    asleep: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: int = EPOCH_LINES
    topology: str = "tests.spark.counting"
    tasks: tuple[int, ...] = ()


def start_process(folder: Path, how: How, crash: str = "") -> Process:
    """Start the count of a folder in a process and session of its own."""
    plan = {"folder": str(folder), **asdict(how), "options": {**OPTIONS, **how.options}}
    if how.master.startswith("in-process"):
        return fork("tests.spark.counting:main", plan, folder / "said", {VARIABLE: crash} if crash else {})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    # These processes live for seconds: the second compiler would never pay for itself.
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    if crash:
        environment[VARIABLE] = crash
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(plan)],
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )


def die_at(folder: Path, crash: str, how: How | None = None, *, alone: bool = False) -> None:
    """Run until the process dies at a crash point, and make sure that it did die there.

    Args:
        folder: of the count.
        crash: point, or `point:pass`.
        how: see `How`.
        alone: leave what the process started to die by itself: its JVM and workers outlive it for a moment.
    """
    process = start_process(folder, how or How(), crash)
    try:
        process.wait(HANG_S)
    finally:
        if not alone or process.returncode is None:
            end(process)
    assert process.returncode == -signal.SIGKILL, f"it did not die at {crash}:\n{said(folder)}"


def sleep_at(folder: Path, crash: str, how: How) -> Process:
    """Start a process and wait until it sleeps at a crash point. Let go of the lock, as another machine would."""
    process = start_process(folder, replace(how, asleep=True), crash)
    until = time.monotonic() + HANG_S
    while _state_of(process.pid) != "T":
        assert not _ended(process), f"it ended before {crash}:\n{said(folder)}"
        assert time.monotonic() < until, f"it did not come to {crash}"
    (folder / "state" / "lock").unlink()
    return process


def wait_for_settle(folder: Path, process: Process, epoch: int) -> None:
    """Wait until a process has settled an epoch, or a later one."""
    until = time.monotonic() + HANG_S
    while newest_settle(folder) < epoch:
        assert not _ended(process), f"it ended before it settled epoch {epoch}:\n{said(folder)}"
        assert time.monotonic() < until, f"it did not settle epoch {epoch}"


def _ended(process: Process) -> bool:
    """Whether a process ends within a moment."""
    try:
        process.wait(0.02)
    except subprocess.TimeoutExpired:
        return False
    return True


def said(folder: Path) -> str:
    """The end of what the processes of this folder printed."""
    return (folder / "said").read_text(errors="replace")[-3000:]


def kill_below(process: Process, part: str) -> int:
    """Kill the processes that a process started whose command line has this part; returns how many."""
    killed = 0
    for member in _members(_sessions_of(process.pid)):
        if part in _command_line(member):
            os.kill(member, signal.SIGKILL)
            killed += 1
    return killed


def end(process: Process) -> None:
    """Kill a process and all that it started, as often as it takes: the JVM has a session of its own."""
    until = time.monotonic() + HANG_S
    sessions = _sessions_of(process.pid)
    while members := _members(sessions):
        assert time.monotonic() < until, f"sessions {sessions} do not die"
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.sched_yield()
    process.wait()


def _sessions_of(process: int) -> set[int]:
    """The session of a process that leads one, and those of all that it started."""
    parents = {number: (int(status[1]), int(status[3])) for number, status in _alive().items()}
    found, below = {process}, {process}
    while more := {number for number, (parent, _) in parents.items() if parent in below} - below:
        below |= more
        found |= {parents[number][1] for number in more}
    return found


def _members(sessions: set[int]) -> list[int]:
    return [number for number, status in _alive().items() if int(status[3]) in sessions]


def _alive() -> Mapping[int, list[str]]:
    """Process → state, parent, group and session, of all that are not dead already."""
    found: dict[int, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        status = _status(folder)
        if status is not None and status[0] not in "ZX":
            found[int(folder.name)] = status
    return found


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _state_of(process: int) -> str:
    status = _status(Path(f"/proc/{process}"))
    return status[0] if status is not None else ""


def _status(folder: Path) -> list[str] | None:
    """State, parent, group and session of a process."""
    try:
        # The name, in parentheses, may hold anything.
        return (folder / "stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return None


def texts_of(folder: Path) -> list[str]:
    return (folder / "text").read_text().splitlines()


def newest_settle(folder: Path) -> int:
    """The newest settled epoch; -1 if there is none."""
    return max(numbered(folder / "state" / "settles", ".settle"), default=-1)


def published(folder: Path) -> dict[Path, bytes]:
    """What a plain reader finds, by file."""
    return {
        path: path.read_bytes() for sink in SINKS if (folder / sink).exists() for path in visible_files(folder / sink)
    }


def check_crashed(folder: Path) -> dict[Path, bytes]:
    """Between a crash and the next start: committed epochs only, and no row twice. Returns what is published."""
    state = folder / "state"
    files = published(folder)
    newest = newest_settle(folder)
    for path in files:
        epoch = int(path.stem.split("-")[2])
        assert epoch <= newest, f"{path} is of an epoch that was not committed"
        if settle_path(state / "settles", epoch).exists():
            named = {(output.sink, output.final) for output in read_settle(state / "settles", epoch).outputs}
            assert (path.parent.name, path.name) in named
    for sink in SINKS:
        repeated = [row for row, times in rows_of(folder, sink).items() if times > 1]
        assert repeated == []
        assert not [row for row in rows_of(folder, sink) if row[0] == "poison"]
    return files


def check_ended(
    folder: Path, summary: Summary, before: Mapping[Path, bytes] | None = None, *, hears_acks: bool = True
) -> None:
    """After the end: what the summary says is what `check_published` finds. What was published before is unchanged."""
    texts = texts_of(folder)
    good = [text for text in texts if "poison" not in text]
    assert (summary.emitted, summary.acked, summary.dead) == (len(texts), len(good), len(texts) - len(good))
    assert summary.open == 0
    assert summary.outputs == dict.fromkeys(SINKS, expected_rows(good).total())
    for path, content in (before or {}).items():
        assert path.read_bytes() == content, f"{path} changed after it was published"
    check_published(folder, hears_acks=hears_acks)


def check_published(folder: Path, *, hears_acks: bool = True) -> None:
    """Every message acked or dead once, every row there once, and nothing left lying about."""
    texts = texts_of(folder)
    poisoned = {number for number, text in enumerate(texts, 1) if "poison" in text}
    good = [text for text in texts if "poison" not in text]
    for sink in SINKS:
        assert rows_of(folder, sink) == expected_rows(good)
    letters = Counter(_line_of(letter.message_id) for letter in deadletters.read(folder / "state"))
    assert letters == Counter(poisoned)
    told = heard(folder)
    assert {number for what, number in told if what == "dead"} == poisoned
    acked = set(range(1, len(texts) + 1)) - poisoned if hears_acks else set()
    assert {number for what, number in told if what == "acked"} == acked
    check_clean(folder)


def _line_of(message_id: Any) -> int:
    """The line that a message is: a broker's id is its number, a file's has its path before that."""
    return int(message_id) if isinstance(message_id, str) else line_of(message_id)


def check_clean(folder: Path) -> None:
    """No candidate, no draft, and no file of state or kept frames that the newest settle entry does not name."""
    state = folder / "state"
    assert [path.name for sink in SINKS for path in (folder / sink).glob(f"{CANDIDATE_PREFIX}*")] == []
    drafts = [path for path in state.rglob("_*") if "spark" not in path.relative_to(state).parts]
    assert drafts == []
    entry = read_settle(state / "settles", newest_settle(folder))
    # Nothing is held any more; but by event time holders have memories.
    assert {*(state / "kept").iterdir()} == files_of(state / "kept", entry.kept)
    named = {file.name for files in entry.state.values() for file in files}
    assert {path.name for path in (state / "state").glob("*/*")} == named
