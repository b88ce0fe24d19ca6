"""Whatever a run and the commands beside it write into a state directory is for its user only, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ordinary.conftest import HANG_S
from tests.spark.counting import QUICK
from tests.tasks.streams import Line, Word
from tupletree import KeyedState, Topology, bolt
from tupletree.cli.main import main
from tupletree.config import resolve_options
from tupletree.durable import replace_file, write_file, write_once
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.runtimes.spark.format.spool import Spool
from tupletree.runtimes.spark.worker.crash_markers import CrashMarker
from tupletree.sinks import foreach, jsonl
from tupletree.sources import items
from tupletree.testing.in_process import start_in_process

STARTS: dict[str, Callable[[RunRequest], RunHandle]] = {
    "local": start_locally,
    "durable": start_locally,
    "spark": start_in_process,
}


@pytest.fixture(autouse=True)
def nothing_forbidden() -> Iterator[None]:
    """A umask by which all would be open to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@bolt
def split(line: Line) -> Word:
    if line.text == "bad":
        raise ValueError("x")
    return Word(line.text)


@bolt(state=int)
def count(word: Word, state: KeyedState[int]) -> Word:
    state.value += 1
    return word


def open_to_others(place: Path) -> dict[str, str]:
    """What others may do anything with, of a folder and all that is in it."""
    found = {}
    for path in (place, *place.rglob("*")):
        if mode := stat.S_IMODE(path.lstat().st_mode) & 0o077:
            found[str(path)] = oct(mode)
    return found


@pytest.mark.parametrize("runtime", ["local", "durable", "spark"])
def test_a_run_and_the_requests_to_it(runtime: str, tmp_path: Path) -> None:
    place = tmp_path / "state"
    t = Topology("private")
    words = t.bolt("split", split).shuffle(t.spout("lines", items([Line("a"), Line("bad"), Line("b")])))
    counts = t.bolt("count", count).fields(words, "word")
    t.sink("called", foreach(lambda batch: None)).shuffle(counts)
    t.sink("written", jsonl(tmp_path / "out")).shuffle(counts)
    code = {**QUICK, "max_attempts": 1, "epoch_max_messages": 1, "durable": runtime == "durable"}
    settings = resolve_options(code=code)
    request = RunRequest(t, settings, None, place, append=False, master="", redact=None)

    STARTS[runtime](request).wait(HANG_S)
    replays = main(["dead", "replay", "--all", "--state-dir", str(place)]) == 0

    assert replays == (runtime != "local")
    assert (place / "journal.sqlite").exists() == (runtime == "durable")
    assert {path.name for path in place.iterdir()} >= {"dead", "history", "status.json", "tupletree.json"}
    assert len([*(tmp_path / "out").glob("*.jsonl")]) > 0
    assert (place / "inbox").exists() == replays
    assert open_to_others(place) == {}


@pytest.mark.parametrize("write", [write_file, write_once, replace_file])
def test_a_file_that_is_written_as_durable(write: Callable[[Path, bytes], object], tmp_path: Path) -> None:
    write(tmp_path / "file", b"payload")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_the_marker_of_what_a_worker_has_in_hand(tmp_path: Path) -> None:
    with CrashMarker(tmp_path, (1, 0, 0, 0), (0, 0), from_first=True):
        (marker,) = tmp_path.iterdir()
        assert stat.S_IMODE(marker.stat().st_mode) == 0o600


def test_rows_that_wait_for_a_sink(tmp_path: Path) -> None:
    Spool([Line]).write_candidate(tmp_path / "1.rows", [Line("payload")])
    assert stat.S_IMODE((tmp_path / "1.rows").stat().st_mode) == 0o600
