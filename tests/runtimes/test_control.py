"""Another process sees where a run stands, and may pause, resume and drain it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.until import until
from tupletree import Emit, Spout, Topology
from tupletree.config import Options
from tupletree.errors import CheckpointError, ConfigError, RuntimeUnavailableError
from tupletree.runtimes import run
from tupletree.runtimes.api import RunHandle
from tupletree.runtimes.control import (
    ANSWER_KEPT_S,
    STALE_AFTER_S,
    RunControl,
    Status,
    began,
    send_request,
    status_of,
    where,
)
from tupletree.sinks import foreach

HANG_S = 60.0


class Tick(msgspec.Struct, frozen=True):
    number: int


class Endless(Spout[Tick]):
    """Gives a message at each call, and records whether it is active."""

    def __init__(self) -> None:
        self.given = 0
        self.active = threading.Event()

    def activate(self) -> None:
        self.active.set()

    def deactivate(self) -> None:
        self.active.clear()

    def next(self) -> Emit[Tick]:
        self.given += 1
        return Emit(Tick(self.given), self.given)

    def __copy__(self) -> Endless:
        return self  # the task's own object is what the test looks at


def endless(tmp_path: Path) -> tuple[RunHandle, Endless, Path]:
    source = Endless()
    t = Topology("endless")
    t.sink("out", foreach(lambda row: None)).shuffle(t.spout("ticks", source))
    return run.run(t, runtime="local", options=Options(), state_dir=tmp_path / "state"), source, tmp_path / "state"


def before_control_begins(prepare: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a state directory that a run has claimed, before anything else is written to it."""
    begin = RunControl.begin

    def begin_late(control: RunControl) -> None:
        prepare()
        begin(control)

    monkeypatch.setattr(RunControl, "begin", begin_late)


def wait_until(state_dir: Path, holds: Callable[[Status], Any]) -> Status:
    until(lambda: holds(status_of(state_dir)), what=lambda: status_of(state_dir))
    return status_of(state_dir)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tupletree", *map(str, arguments)]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=HANG_S)


def test_a_run_is_paused_resumed_and_drained_from_another_process(tmp_path: Path) -> None:
    handle, source, state_dir = endless(tmp_path)
    try:
        wait_until(state_dir, lambda status: status.progress["acked"] > 0)
        paused = command("pause", "--state-dir", state_dir)
        assert paused.returncode == 0, paused.stderr
        assert "endless: asked to pause" in paused.stdout
        assert not source.active.is_set()
        still = wait_until(state_dir, lambda status: status.progress["open"] == 0)
        shown = json.loads(command("status", "--state-dir", state_dir, "--json").stdout)
        assert (shown["alive"], shown["ended"], shown["topology"], shown["runtime"]) == (
            True,
            False,
            "endless",
            "local",
        )
        assert shown["progress"]["acked"] == still.progress["acked"] == source.given
        send_request(state_dir, "resume")
        wait_until(state_dir, lambda status: status.progress["acked"] > still.progress["acked"])
        send_request(state_dir, "drain", drain_timeout_s=HANG_S)
        assert handle.wait(HANG_S).open == 0
    finally:
        handle.stop(0.0)
    ended = wait_until(state_dir, lambda status: status.ended)
    assert ended.progress["acked"] == handle.wait().acked
    said = command("status", "--state-dir", state_dir).stdout
    assert "endless on local: stopped, ended" in said
    assert f"acked {ended.progress['acked']:,}" in said


@pytest.mark.parametrize("control_request", ["pause", "resume", "drain"])
def test_a_run_without_a_process_takes_no_request(tmp_path: Path, control_request: str) -> None:
    handle, _, state_dir = endless(tmp_path)
    handle.stop()
    wait_until(state_dir, lambda status: status.ended)
    said = command(control_request, "--state-dir", state_dir)
    assert said.returncode == 1
    assert "no process runs this topology now" in said.stderr
    assert "tupletree run TARGET --runtime local" in said.stderr
    assert f"--state-dir {state_dir}" not in said.stderr  # a second local run there would be refused
    assert not list((state_dir / "control").glob("*"))


def test_a_request_that_is_not_accepted_is_withdrawn(tmp_path: Path) -> None:
    write_status(tmp_path, updated_s=time.time())
    with pytest.raises(RuntimeUnavailableError, match="no process runs this") as caught:
        send_request(tmp_path, "pause", wait_s=0.0)
    assert f"tupletree run TARGET --state-dir {tmp_path}" in str(caught.value)  # a run on Spark can be resumed
    assert list((tmp_path / "control").iterdir()) == []


def test_an_old_status_means_a_process_that_crashed(tmp_path: Path) -> None:
    write_status(tmp_path, updated_s=time.time() - STALE_AFTER_S - 1)
    assert not status_of(tmp_path).is_alive(time.time())
    said = command("status", "--state-dir", tmp_path)
    assert "crashed, last heartbeat" in said.stdout


def test_an_old_status_of_a_process_that_is_there_says_since_when_nothing_is_known(tmp_path: Path) -> None:
    """It is suspended, or its disk is full: what it said last is not how it stands now."""
    who: dict[str, Any] = {"process": os.getpid(), "host": socket.gethostname(), "process_began": began(os.getpid())}
    write_status(tmp_path, updated_s=time.time() - STALE_AFTER_S - 1, **who)
    said = command("status", "--state-dir", tmp_path)
    assert said.returncode == 0
    assert re.search(r"at \d{4}-.* UTC; since then its process is suspended, or cannot write to", said.stdout)
    write_status(tmp_path, updated_s=time.time(), **who)
    assert "since then" not in command("status", "--state-dir", tmp_path).stdout


def test_a_status_from_the_future_was_written_before_the_clock_was_set_back(tmp_path: Path) -> None:
    write_status(tmp_path, updated_s=time.time() + 3600.0)
    assert not status_of(tmp_path).is_alive(time.time())


def test_what_is_in_the_place_of_a_request_is_named(tmp_path: Path) -> None:
    write_status(tmp_path, updated_s=time.time())
    (tmp_path / "control").touch()
    with pytest.raises(CheckpointError, match="request cannot be written") as caught:
        send_request(tmp_path, "pause", wait_s=0.0)
    assert str(tmp_path / "control") in str(caught.value)


def test_a_drain_may_take_longer_than_a_thread_can_wait(tmp_path: Path) -> None:
    handle, _, _ = endless(tmp_path)
    handle.stop(1e12)
    assert handle.wait(HANG_S).open == 0


def test_a_run_whose_process_was_killed_is_gone_at_once(tmp_path: Path) -> None:
    # It runs until its input is closed, at the end of the block.
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        written: dict[str, Any] = {
            "process": process.pid,
            "host": socket.gethostname(),
            "process_began": began(process.pid),
        }
        write_status(tmp_path, updated_s=time.time(), **written)
        assert status_of(tmp_path).is_alive(time.time())
        write_status(tmp_path, updated_s=time.time(), **{**written, "process_began": 1})
        assert not status_of(tmp_path).is_alive(time.time()), "its number was given to another process"
        write_status(tmp_path, updated_s=time.time(), **written)
        process.kill()
    assert not status_of(tmp_path).is_alive(time.time())
    write_status(tmp_path, updated_s=time.time(), **{**written, "host": "elsewhere"})
    assert status_of(tmp_path).is_alive(time.time()), "the processes of another machine are unknown"


def test_an_error_of_several_lines_is_shown_as_one_block_of_the_status(tmp_path: Path) -> None:
    write_status(tmp_path, updated_s=0.0, error="cannot read\n  got: a folder")
    said = command("status", "--state-dir", tmp_path)
    assert "\n  error: cannot read\n    got: a folder\n" in said.stdout


def test_requests_to_an_earlier_process_and_unknown_requests_are_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "state" / "control"

    def prepare() -> None:
        control.mkdir()
        (control / "0a.json").write_text('{"request": "drain"}')

    before_control_begins(prepare, monkeypatch)
    handle, source, state_dir = endless(tmp_path)
    try:
        assert not (control / "0a.json").exists()
        strange = [
            '{"request": "dance"}',
            '{"request": "drain", "format": 2}',
            '{"request"',
            '{"request": "drain"}' + " " * 5000 + "x",
        ]
        for number, text in enumerate(strange):
            (control / f"b{number}.json").write_text(text)
        wait_until(state_dir, lambda _: not list(control.glob("*.json")))
        wait_until(state_dir, lambda status: status.progress["acked"] > 0)
        assert source.active.is_set()
    finally:
        handle.stop()


def test_a_request_that_fails_or_cannot_be_removed_is_executed_once_and_later_ones_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle, _, state_dir = endless(tmp_path)
    unlink = Path.unlink
    asked: list[str] = []

    def refuse_one(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == "0a.json":
            raise PermissionError(path)
        unlink(path, missing_ok=missing_ok)

    def fail() -> None:
        asked.append("pause")
        raise RuntimeError("no pause")

    monkeypatch.setattr(Path, "unlink", refuse_one)
    monkeypatch.setattr(handle, "pause", fail)
    try:
        (state_dir / "control").mkdir(exist_ok=True)
        for name in ("0a.json", "0b.json"):
            (state_dir / "draft").write_text('{"request": "pause"}')
            (state_dir / "draft").rename(state_dir / "control" / name)
        wait_until(state_dir, lambda _: not (state_dir / "control" / "0b.json").exists())
        send_request(state_dir, "resume")
        assert asked == ["pause", "pause"]
        assert "no pause" in caplog.text
        assert "executed request of another process cannot be removed" in caplog.text
    finally:
        handle.stop(0.0)


def test_an_answer_that_nobody_fetched_is_removed_when_another_one_is_written(tmp_path: Path) -> None:
    handle, _, state_dir = endless(tmp_path)
    try:
        answers = state_dir / "answers"
        answers.mkdir(0o700)
        old = [answers / "0a.json", answers / "_0b.json.1.abcd"]  # the second one of an asked process that was killed
        new, other = answers / "0c.json", answers / "0d.txt"
        for path in (*old, new, other):
            path.write_text("[]")
        age_s = time.time() - ANSWER_KEPT_S - 1
        for path in (*old, other):
            os.utime(path, (age_s, age_s))
        assert where(state_dir, "nothing") == []
        assert sorted(answers.iterdir()) == [new, other]
    finally:
        handle.stop(0.0)


def test_what_is_in_the_place_of_a_status_or_looks_like_a_request_harms_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = tmp_path / "state"

    def prepare() -> None:
        for folder in ("status.json", "control/0a.json"):
            (state_dir / folder).mkdir(parents=True)

    before_control_begins(prepare, monkeypatch)
    handle, _, _ = endless(tmp_path)
    (state_dir / "control" / "0b.json").write_text('{"request": "drain"}')
    assert handle.wait(HANG_S).acked > 0
    assert [path.name for path in state_dir.iterdir() if path.name.startswith("_")] == []
    with pytest.raises(CheckpointError, match="cannot be read"):
        status_of(state_dir)


def test_a_folder_without_a_status_and_a_status_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no status of a run here"):
        status_of(tmp_path)
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        status_of(tmp_path)


def write_status(folder: Path, *, updated_s: float, error: str = "", **more: Any) -> None:
    who = {"process": 1, "host": "h", **more}
    status = Status(topology="t", runtime="spark", started_s=0.0, updated_s=updated_s, error=error, **who)
    (folder / "status.json").write_bytes(msgspec.json.encode(status))


def test_a_process_of_this_machine_is_alive_whatever_its_clock_says() -> None:
    status = Status(
        topology="t",
        runtime="spark",
        process=os.getpid(),
        host=socket.gethostname(),
        started_s=0.0,
        updated_s=time.time() - 3600.0,
        process_began=began(os.getpid()),
    )
    assert status.is_alive(time.time())
    assert not msgspec.structs.replace(status, process_began=1).is_alive(time.time())
