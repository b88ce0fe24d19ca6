"""Runs of one process share the Spark session that one of them made; a JVM that died is started anew."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import WriteTarget
from tests.ordinary.test_exit_codes import TARGET, Command
from tupletree.cli.main import main
from tupletree.runtimes.control import progress_in, status_of
from tupletree.runtimes.spark import shared_session
from tupletree.runtimes.spark.shared_session import SharedSession


class Sessions:
    """Stands for Spark: the one session of a process."""

    def __init__(self) -> None:
        self.active: Any = None
        self.stopped = 0
        self.has_died = False

    def open(self, name: str, master: str) -> tuple[Any, bool]:
        started = self.active is None
        if started:
            self.active = SimpleNamespace(sparkContext=object(), stop=self.stop)
        return self.active, started

    def stop(self) -> None:
        self.stopped += 1
        self.active = None

    def forget(self) -> bool:
        died, self.has_died = self.has_died, False
        if died:
            self.active = None
        return died


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    spark = Sessions()
    monkeypatch.setattr(shared_session, "open_session", spark.open)
    monkeypatch.setattr(shared_session, "forget_dead_jvm", spark.forget)
    return spark


def test_the_session_is_stopped_with_its_last_run_whichever_made_it(sessions: Sessions) -> None:
    shared = SharedSession()
    first, second = shared.enter("a", "local"), shared.enter("b", "local")
    assert first is second
    shared.leave(first)
    assert sessions.stopped == 0
    third = shared.enter("c", "local")
    shared.leave(second)
    assert sessions.stopped == 0
    shared.leave(third)
    assert sessions.stopped == 1


def test_a_session_that_was_there_before_is_left_alone(sessions: Sessions) -> None:
    theirs, _ = sessions.open("theirs", "local")
    shared = SharedSession()
    shared.leave(shared.enter("a", "local"))
    assert sessions.stopped == 0
    assert sessions.active is theirs


def test_after_the_jvm_died_each_run_enters_a_new_session_and_leaves_the_old_one_alone(sessions: Sessions) -> None:
    shared = SharedSession()
    first, second = shared.enter("a", "local"), shared.enter("b", "local")
    sessions.has_died = True
    again = shared.enter("a", "local")
    assert again is not first
    shared.leave(second)
    assert sessions.stopped == 0
    other = shared.enter("b", "local")
    assert other is again
    shared.leave(again)
    shared.leave(other)
    assert sessions.stopped == 1


@pytest.mark.spark
@pytest.mark.nightly
def test_after_a_kill_of_the_jvm_the_first_restart_succeeds(tmp_path: Path, write_target: WriteTarget) -> None:
    more = ("--set", "ends=false", "--set", "count=60", "--option", "max_spout_pending=5")
    command = Command(write_target(TARGET), tmp_path, "spark", "slow", *more)
    command.until(lambda: progress_in(status_of(command.state)).acked >= 5)
    found = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(command.process.pid)], capture_output=True, text=True, check=True
    )
    (java,) = [int(line.split()[0]) for line in found.stdout.splitlines() if "java" in line]
    os.kill(java, signal.SIGKILL)
    command.until(lambda: progress_in(status_of(command.state)).acked == 60, patience_s=120.0)
    assert main(["drain", "--state-dir", str(command.state)]) == 0
    code, summary, err = command.end()
    assert (code, summary["acked"], summary["open"]) == (0, 60, 0)
    assert "restart 1 in" in err
    assert "restart 2 in" not in err
