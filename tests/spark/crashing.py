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
from pathlib import Path
from typing import Any

from tests.spark.counting import ROOT, SINKS, expected_rows, heard, rows_of
from tupletree.runtimes import deadletters
from tupletree.runtimes.base import Summary
from tupletree.runtimes.crash import VARIABLE
from tupletree.runtimes.spark.journal import numbered, read_settle, settle_path
from tupletree.sinks.files import CANDIDATE_PREFIX, visible_files

LINES = 34
EPOCH_LINES = 12
OPTIONS = {"max_attempts": 3, "epoch_max_messages": EPOCH_LINES}

HANG_S = 240.0

# Not `-m`: the message classes must live in a module that workers can import.
PROGRAM = "import json, sys; from tests.spark.counting import main; main(json.loads(sys.argv[1]))"


def start_process(folder: Path, *, crash: str = "", base_epochs: int = 64, master: str = "local[1]") -> Any:
    """Start the count of a folder in a process and session of its own."""
    plan = {
        "folder": str(folder),
        "base_epochs": base_epochs,
        "batch_size": EPOCH_LINES,
        "options": OPTIONS,
        "master": master,
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    # These processes live for seconds: the second compiler would never pay for itself.
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    if crash:
        environment[VARIABLE] = crash
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(plan)],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def die_at(folder: Path, crash: str, *, alone: bool = False, **how: Any) -> None:
    """Run until the process dies at a crash point, and make sure that it did die there.

    Args:
        folder: of the count.
        crash: point, or `point:pass`.
        alone: leave what the process started to die by itself: its JVM and workers outlive it for a moment.
        how: see `start_process`.
    """
    process = start_process(folder, crash=crash, **how)
    try:
        _, said = process.communicate(timeout=HANG_S)
    finally:
        if not alone or process.returncode is None:
            kill_session(process.pid)
    assert process.returncode == -signal.SIGKILL, f"it did not die at {crash}:\n{said.decode()[-3000:]}"


def kill_session(session: int) -> None:
    """Kill every process of a session, as often as it takes: Spark's workers are in process groups of their own."""
    until = time.monotonic() + HANG_S
    while members := [process for process, of in _sessions().items() if of == session]:
        assert time.monotonic() < until, f"session {session} does not die"
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os.sched_yield()


def _sessions() -> Mapping[int, int]:
    """Process → session, of all processes that are not dead already."""
    found: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold anything; state, parent, group and session follow it.
            state, _, _, session = status.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found[int(status.parent.name)] = int(session)
    return found


def texts_of(folder: Path) -> list[str]:
    return (folder / "text").read_text().splitlines()


def published(folder: Path) -> dict[Path, bytes]:
    """What a plain reader finds, by file."""
    return {
        path: path.read_bytes() for sink in SINKS if (folder / sink).exists() for path in visible_files(folder / sink)
    }


def check_crashed(folder: Path) -> dict[Path, bytes]:
    """Between a crash and the next start: committed epochs only, and no row twice. Returns what is published."""
    state = folder / "state"
    files = published(folder)
    newest = max(numbered(state / "settles", ".settle"), default=-1)
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


def check_ended(folder: Path, summary: Summary, before: Mapping[Path, bytes] | None = None) -> None:
    """After the end: every message acked or dead once, every row there once, and nothing left lying about."""
    texts = texts_of(folder)
    poisoned = {number for number, text in enumerate(texts, 1) if "poison" in text}
    good = [text for text in texts if "poison" not in text]
    assert (summary.emitted, summary.acked, summary.dead) == (len(texts), len(good), len(poisoned))
    assert summary.open == 0
    for sink in SINKS:
        assert rows_of(folder, sink) == expected_rows(good)
        assert summary.outputs[sink] == expected_rows(good).total()
    for path, content in (before or {}).items():
        assert path.read_bytes() == content, f"{path} changed after it was published"
    letters = Counter(letter.message_id[1] for letter in deadletters.read(folder / "state"))
    assert letters == Counter(poisoned)
    told = heard(folder)
    assert {number for what, number in told if what == "dead"} == poisoned
    assert {number for what, number in told if what == "acked"} == set(range(1, len(texts) + 1)) - poisoned
    check_clean(folder)


def check_clean(folder: Path) -> None:
    """No candidate, no draft, and no state file that the newest settle entry does not name."""
    state = folder / "state"
    assert [path.name for sink in SINKS for path in (folder / sink).glob(f"{CANDIDATE_PREFIX}*")] == []
    drafts = [path for path in state.rglob("_*") if "spark" not in path.relative_to(state).parts]
    assert drafts == []
    entry = read_settle(state / "settles", max(numbered(state / "settles", ".settle")))
    named = {file.name for tasks in entry.state.values() for files in tasks.values() for file in files}
    assert {path.name for path in (state / "state").glob("*/*")} == named
