"""Files that were made to end a run, in every folder of its state directory: no run ends, and nothing outside changes.

The nightly run writes 10,000 for each runtime, `make test` about 100.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.safety.hostile import write_hostile_files
from tests.safety.test_requests_from_outside_are_data import HANG_S, Endless, wait_until_gone
from tests.spark.counting import QUICK
from tests.until import until
from tupletree import Topology
from tupletree.cli.main import main
from tupletree.config import resolve_options
from tupletree.errors import TupletreeError
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.control import send_request
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.sinks import foreach
from tupletree.testing.in_process import start_in_process

STARTS: dict[str, Callable[[RunRequest], RunHandle]] = {"local": start_locally, "spark": start_in_process}
READ_WHILE_IT_RUNS = ("control", "inbox", "dead", "dead/replayed", "epochs", "refused")
READ_BY_A_START = ("settles", "history", "state", "kept", "spools", "marks", "generations", "answers", "letters")

several = pytest.mark.parametrize("count", [8, pytest.param(1_700, marks=pytest.mark.nightly)])
both = pytest.mark.parametrize("runtime", ["local", "spark"])


def start(runtime: str, place: Path) -> RunHandle:
    t = Topology("endless")
    t.sink("out", foreach(lambda row: None)).shuffle(t.spout("ticks", Endless()))
    settings = resolve_options(code={**QUICK, "epoch_max_messages": 50, "epoch_min_interval_ms": 20})
    return STARTS[runtime](RunRequest(t, settings, None, place, append=False, master="", redact=None))


def run_for_a_moment(runtime: str, place: Path) -> None:
    handle = start(runtime, place)
    handle.stop(HANG_S)
    handle.wait(HANG_S)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What must stay: links lead to it, and hard links share a file of it."""
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "precious.json").write_text("mine")
    (folder / "precious.json").chmod(0o640)
    return folder


def check_untouched(target: Path) -> None:
    assert [path.name for path in target.iterdir()] == ["precious.json"]
    assert (target / "precious.json").read_text() == "mine"
    assert stat.S_IMODE((target / "precious.json").stat().st_mode) == 0o640


@both
@several
def test_no_run_ends_and_nothing_outside_changes(
    runtime: str, count: int, tmp_path: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    place = tmp_path / "state"
    handle = start(runtime, place)
    try:
        until(lambda: handle.progress().acked > 0)
        for seed, name in enumerate(READ_WHILE_IT_RUNS):
            (place / name).parent.mkdir(exist_ok=True)
            write_hostile_files(place / name, count, seed, target)
        asked = [one for one in (place / "control").iterdir() if one.suffix == ".json" and one.name[0] != "_"]
        wait_until_gone(asked)
        inbox = deadletters.inbox_of(place)
        for _ in range(3):
            for request_id in inbox.take():
                deadletters.carried_out(place, request_id, [])
        deadletters.letters_of(place, lambda _: None)
        assert send_request(place, "pause", wait_s=HANG_S).is_alive(time.time())
        with pytest.raises(TimeoutError):
            handle.wait(0.0)
    finally:
        handle.stop(HANG_S)
    assert handle.wait(HANG_S).acked > 0
    check_untouched(target)


ALL = (*READ_WHILE_IT_RUNS, *READ_BY_A_START, "")


@both
@pytest.mark.parametrize(
    ("folders", "count"),
    [(ALL, 7), *[pytest.param((name,), 625, marks=pytest.mark.nightly) for name in ALL]],
    ids=["all of them", *[name or "the directory itself" for name in ALL]],
)
def test_a_start_on_them_goes_on_or_names_what_is_wrong(
    runtime: str, folders: tuple[str, ...], count: int, tmp_path: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    place = tmp_path / "state"
    run_for_a_moment(runtime, place)
    for seed, name in enumerate(folders):
        (place / name).parent.mkdir(exist_ok=True)
        write_hostile_files(place / name, count, seed, target)
    if runtime == "spark":
        with contextlib.suppress(TupletreeError):
            run_for_a_moment(runtime, place)
    for command in (["status"], ["dead", "list"], ["dead", "show", "1"], ["why", "1"], ["state"]):
        assert main([*command, "--state-dir", str(place)]) in {0, 1, 2}, command
    check_untouched(target)


def test_nothing_is_removed_or_written_where_links_in_the_place_of_folders_lead(tmp_path: Path, target: Path) -> None:
    for name in [one for one in ALL if one]:
        place = tmp_path / f"state-{name.replace('/', '-')}"
        run_for_a_moment("spark", place)
        old = place / name
        old.parent.mkdir(exist_ok=True)
        if old.exists():
            old.rename(tmp_path / f"old-{name.replace('/', '-')}")
        old.symlink_to(target)
        with contextlib.suppress(TupletreeError):
            run_for_a_moment("spark", place)
        check_untouched(target)


def test_the_files_of_this_test_are_as_hostile_as_they_are_meant_to_be(tmp_path: Path, target: Path) -> None:
    write_hostile_files(tmp_path / "all", 1_000, 0, target)
    found = list(os.scandir(tmp_path / "all"))
    assert {True, False} == {one.is_symlink() for one in found}
    assert any(stat.S_ISFIFO(one.stat(follow_symlinks=False).st_mode) for one in found)
    assert any(one.stat().st_nlink > 1 for one in found if one.is_file(follow_symlinks=False))
    assert len({one.name[-5:] for one in found}) > 5
