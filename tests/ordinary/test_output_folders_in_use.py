"""One folder for the files of two runs: at once only if the second is to append."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.running import HANG_S
from tupletree import AsyncSpout, Emit, Topology
from tupletree.config import Options
from tupletree.errors import CheckpointError, ConfigError, ConnectorError
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.sinks import jsonl
from tupletree.sinks.folders import claim_directories, runs_of
from tupletree.testing.in_process import start_in_process


class Number(msgspec.Struct, frozen=True):
    n: int


class Waiting(AsyncSpout[Number]):
    """Gives nothing for as long as the run lasts."""

    async def next(self) -> Emit[Number] | None:
        await asyncio.Event().wait()
        return None


def writing(out: Path) -> Topology:
    t = Topology("numbers")
    t.sink("out", jsonl(out)).shuffle(t.spout("numbers", Waiting()))
    return t


@pytest.fixture(params=[start_locally, start_in_process], ids=["local", "in_process"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    def begin(name: str, *, append: bool = False) -> Any:
        options = Options(durable=request.param is start_locally)
        settings = RunRequest(
            writing(tmp_path / "out"), options, None, tmp_path / name, append=append, master="", redact=None
        )
        return request.param(settings)

    return begin


def test_a_second_run_is_refused_while_the_first_one_has_the_folder_and_leaves_nothing(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    first = start("first")
    try:
        with pytest.raises(ConfigError, match="another run is writing to the folder") as caught:
            start("second")
        assert str(tmp_path / "out") in str(caught.value)
        assert "sink out" in str(caught.value)
        assert "--append" in str(caught.value)
        assert len(runs_of(tmp_path / "out")) == 1
    finally:
        first.stop()
        first.wait(HANG_S)
    last = [start("third"), start("fourth", append=True)]
    for run in last:
        run.stop()
        run.wait(HANG_S)


def test_runs_that_are_to_append_share_a_folder_and_keep_others_out(tmp_path: Path, start: Callable[..., Any]) -> None:
    runs = [start("first", append=True), start("second", append=True)]
    try:
        with pytest.raises(ConfigError, match="another run is writing to the folder"):
            start("third")
    finally:
        for run in runs:
            run.stop()
            run.wait(HANG_S)


KILLED = """
import signal, os, sys
from pathlib import Path
from tupletree.sinks.folders import claim_directories
claimed = claim_directories({"out": Path(sys.argv[1])}, "first")
print("claimed", flush=True)
signal.pause()
"""


def test_a_run_that_was_killed_has_no_folder_any_more(tmp_path: Path) -> None:
    folders = {"out": tmp_path}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "claimed\n"
        with pytest.raises(ConfigError, match="another run is writing"):
            claim_directories(folders, "second")
        os.kill(first.pid, signal.SIGKILL)
    claim_directories(folders, "second").close()


def test_without_locks_of_folders_what_is_in_a_folder_still_refuses_a_second_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network filesystems; an error that says something else is told."""
    folders = {"out": tmp_path}
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    claim_directories(folders, "first").close()
    (tmp_path / "part.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="holds the output of another run"):
        claim_directories(folders, "second")
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(ConnectorError, match="broken"):
        claim_directories(folders, "first")


def test_a_run_whose_own_earlier_process_has_the_folder_still_goes_on_but_not_beside_a_later_run(
    tmp_path: Path,
) -> None:
    """A driver that is only suspended: the state directory says which of the two goes on."""
    folders = {"out": tmp_path}
    suspended = claim_directories(folders, "first")
    claim_directories(folders, "first").close()
    suspended.close()
    later = claim_directories(folders, "second")
    with pytest.raises(ConfigError, match="another run is writing"):
        claim_directories(folders, "first")
    later.close()


def test_runs_that_came_beside_the_first_one_keep_others_out_when_it_has_ended(tmp_path: Path) -> None:
    folders = {"out": tmp_path}
    first = claim_directories(folders, "first")
    beside = claim_directories(folders, "beside", append=True)
    first.close()
    with pytest.raises(ConfigError, match="another run is writing"):
        claim_directories(folders, "third")
    beside.close()
    suspended = claim_directories(folders, "third")
    next_process = claim_directories(folders, "third")
    suspended.close()
    with pytest.raises(ConfigError, match="another run is writing"):
        claim_directories(folders, "fourth")
    next_process.close()
    claim_directories(folders, "fourth").close()


def test_of_two_that_start_at_the_same_moment_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is made weaker is given up for a moment, and there another run comes."""
    folders = {"out": tmp_path}
    flock = fcntl.flock
    others: list[Any] = []

    def slow(handle: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not others:
            flock(handle, fcntl.LOCK_UN)
            others.append(None)
            others[:] = [claim_directories(folders, "second")]
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with pytest.raises(ConfigError, match="another run is writing"):
        claim_directories(folders, "first")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="another run is writing"):
        claim_directories(folders, "third")
    others[0].close()
    claim_directories(folders, "third").close()


def end(run: Any) -> None:
    run.stop()
    run.wait(HANG_S)


def copy_what_is_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # the run goes on, and its drafts come and go
        shutil.copy2(source, target)


def test_a_copy_of_the_state_directory_of_a_run_that_goes_on_is_refused(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    """It has the name of the run, so that both would write the same files."""
    first = start("first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy", copy_function=copy_what_is_there)
    for append in (False, True):
        with pytest.raises(CheckpointError, match="a copy of the state directory of a run that goes on") as caught:
            start("copy", append=append)
        who = f"process {os.getpid()} on {os.uname().nodename}"
        for said in (who, "first", "copy", "stop that process"):
            assert said in str(caught.value)
        for lock in (tmp_path / "copy").glob("lock"):
            lock.unlink()  # as where it was copied to another host, or the first one was moved then
        with pytest.raises(ConfigError, match="this run goes on from another state directory") as other:
            start("copy", append=append)
        for said in (who, "first", "copy", "sink out", "stop that process"):
            assert said in str(other.value)
        shutil.copy(tmp_path / "first" / "lock", tmp_path / "copy" / "lock")
    end(first)
    end(start("copy"))


def test_a_state_directory_that_was_moved_or_restored_goes_on(tmp_path: Path, start: Callable[..., Any]) -> None:
    end(start("first"))
    shutil.copytree(tmp_path / "first", tmp_path / "backup")
    (tmp_path / "first").rename(tmp_path / "moved")
    end(start("moved"))
    shutil.rmtree(tmp_path / "moved")
    shutil.copytree(tmp_path / "backup", tmp_path / "first")
    end(start("first"))
    assert [one.name for one in (tmp_path / "out").iterdir() if one.name.endswith(".lock")] == []


def test_a_run_ends_well_where_its_lock_cannot_be_removed(tmp_path: Path, start: Callable[..., Any]) -> None:
    run = start("first")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    (tmp_path / "out").write_text("no folder")
    end(run)
    (tmp_path / "out").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "out")
    end(start("first"))


HOLDING = """
import signal, sys
from pathlib import Path
from tupletree.sinks.folders import claim_directories
claimed = claim_directories({"out": Path(sys.argv[1])}, "run", state_dir=Path(sys.argv[2]))
print("claimed", flush=True)
signal.pause()
"""


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Of the output, of a run, and a copy of that."""
    made = tmp_path / "out", tmp_path / "own", tmp_path / "copy"
    for one in made:
        one.mkdir()
    return made


def test_a_copy_goes_on_once_the_process_of_the_other_directory_is_killed(directories: tuple[Path, Path, Path]) -> None:
    out, own, copy = directories
    command = [sys.executable, "-c", HOLDING, str(out), str(own)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "claimed\n"
        with pytest.raises(ConfigError, match=f"process {first.pid} on"):
            claim_directories({"out": out}, "run", state_dir=copy)
        own.rename(own.with_name("moved"))
        suspended = claim_directories({"out": out}, "run", state_dir=own.with_name("moved"))
        suspended.close()
        with pytest.raises(ConfigError, match=f"process {first.pid} on"):
            claim_directories({"out": out}, "run", state_dir=copy)
        os.kill(first.pid, signal.SIGKILL)
    claim_directories({"out": out}, "run", state_dir=copy).close()


def test_what_a_lock_of_a_run_says_may_be_damaged_and_a_link_in_its_place_is_not_followed(
    directories: tuple[Path, Path, Path],
) -> None:
    out, own, copy = directories
    lock = out / "_tupletree.run.lock"
    claimed = claim_directories({"out": out}, "run", state_dir=own)
    lock.write_bytes(b"\xff{")
    with pytest.raises(ConfigError, match="a process that is not known"):
        claim_directories({"out": out}, "run", state_dir=copy)
    claimed.close()
    assert not lock.exists()
    (own / "precious").write_text("kept")
    lock.symlink_to(own / "precious")
    with pytest.raises(ConnectorError, match="cannot lock"):
        claim_directories({"out": out}, "run", state_dir=own)
    assert (own / "precious").read_text() == "kept"


def test_without_locks_a_copy_is_not_told_from_the_run(
    directories: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, own, copy = directories
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    claim_directories({"out": out}, "run", state_dir=own)
    claim_directories({"out": out}, "run", state_dir=copy).close()
