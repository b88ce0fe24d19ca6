"""The exit code of `tupletree run` tells the truth; each line of the table in docs/operations.md is tried here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import WriteTarget
from tupletree.cli.main import main
from tupletree.errors import ConfigError
from tupletree.runtimes.control import progress_in, status_of

ROOT = Path(__file__).resolve().parents[2]

TARGET = """
import time
from pathlib import Path
import msgspec
from tupletree import Emit, EndOfInput, Spout, Topology, bolt
from tupletree.errors import PermanentError
from tupletree.sinks import jsonl

class Number(msgspec.Struct, frozen=True):
    n: int

class Numbers(Spout[Number]):
    def __init__(self, count: int, ends: bool) -> None:
        self.count, self.ends = count, ends
    def open(self, context) -> None:
        self.given = 0
    def next(self):
        if self.given == self.count:
            if self.ends:
                raise EndOfInput
            return None
        self.given += 1
        return Emit(Number(self.given), self.given)
    def snapshot(self) -> int:
        return self.given
    def restore(self, position: int) -> None:
        self.given = position

@bolt(blocking=True)
def work(number: Number, how: str = "") -> Number:
    return number

@bolt
def bad(number: Number) -> Number:
    raise PermanentError("never")

@bolt
def flaky(number: Number) -> Number:
    raise ValueError("not now")

@bolt(blocking=True)
def slow(number: Number) -> Number:
    time.sleep(0.2)  # so that a drain finds some in flight
    return number

BOLTS = {"bad": bad, "flaky": flaky, "slow": slow}

def topology(out: Path, what: str, count: int = 5, ends: bool = True) -> Topology:
    t = Topology("numbers")
    if what == "broken":
        raise ValueError("no topology")
    t.sink("out", jsonl(out)).shuffle(t.bolt("work", BOLTS[what]).shuffle(t.spout("numbers", Numbers(count, ends))))
    return t
"""


class Command:
    """`tupletree run` in a process of its own."""

    def __init__(self, target: Path, folder: Path, runtime: str, what: str, *more: str) -> None:
        self.state = folder / "state"
        line = [
            sys.executable, "-m", "tupletree", "run", str(target), "--runtime", runtime, "--summary", "json",
            "--set", f"out={folder / 'out'}", "--set", f"what={what}", "--state-dir", str(self.state), *more,
        ]  # fmt: skip
        # Tests run under `nohup` would hand on that a closed terminal is ignored.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        signal.signal(signal.SIGHUP, before)

    def until(self, holds: Callable[[], bool], patience_s: float = 120.0) -> None:
        """Wait for something that its status shows."""
        until_s = time.monotonic() + patience_s
        while not self._shows(holds):
            assert self.process.poll() is None, self.process.stderr
            assert time.monotonic() < until_s
            time.sleep(0.05)  # a status file in another process: nothing tells of it

    @staticmethod
    def _shows(holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except ConfigError:  # it has not begun
            return False

    def end(self) -> tuple[int, dict[str, object], str]:
        """Its exit code, its summary and what stood on stderr."""
        try:
            out, err = self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, json.loads(out.splitlines()[-1]) if out else {}, err

    def open_now(self) -> int:
        return progress_in(status_of(self.state)).open


SLOW = ("--set", "count=100000", "--option", "max_spout_pending=10")
"""More than ends in any time; ten in flight are two seconds of work."""
ENDLESS = ("--set", "ends=false", "--set", "count=3")
WAITING = (*ENDLESS, "--option", "backoff_initial_ms=60000", "--option", "backoff_max_ms=60000")


def test_0_is_acked_and_3_is_with_dead_letters_and_1_is_failed_and_2_is_wrong_usage(
    tmp_path: Path, write_target: WriteTarget
) -> None:
    target = write_target(TARGET)
    commands = {
        what: Command(target, tmp_path / what, "local", what, "--option", "max_restarts=0", *more)
        for what, more in (("slow", ()), ("bad", ()), ("broken", ()))
    }
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "out").write_text("a file in the place of a folder")
    commands["wrong"] = Command(target, tmp_path / "wrong", "local", "bad", "--option", "no_such=1")
    codes = {what: command.end()[0] for what, command in commands.items()}
    assert codes == {"slow": 0, "bad": 3, "broken": 2, "wrong": 2}
    assert [main(["status", "--state-dir", str(commands[what].state)]) for what in ("slow", "bad")] == [0, 0]


def test_1_is_a_run_that_failed(tmp_path: Path, write_target: WriteTarget) -> None:
    breaking = TARGET.replace("        self.given += 1\n", "        raise OSError('the source is gone')\n", 1)
    options = ("--option", "max_restarts=0", "--option", "outage_limit_s=0.1")
    command = Command(write_target(breaking), tmp_path, "local", "slow", *options)
    code, _, err = command.end()
    assert code == 1
    assert main(["status", "--state-dir", str(command.state)]) == 1
    assert err.count("error:") == 1
    assert "Traceback" not in err


def test_5_is_a_run_that_too_many_dead_letters_stopped(tmp_path: Path, write_target: WriteTarget) -> None:
    limited = ("--set", "count=100000", "--option", "max_dead=10")
    code, summary, err = Command(write_target(TARGET), tmp_path, "local", "bad", *limited).end()
    assert code == 5
    assert int(str(summary["dead"])) < 10_000
    assert "are dead: more than max_dead (10)" in str(summary["reason"])
    assert "more than max_dead (10); stopping" in err


def test_4_is_a_drain_that_left_messages_open_and_it_says_which(tmp_path: Path, write_target: WriteTarget) -> None:
    command = Command(write_target(TARGET), tmp_path, "local", "slow", *SLOW)
    command.until(lambda: command.open_now() >= 5)
    assert main(["drain", "--state-dir", str(command.state), "--timeout-s", "0.1"]) == 0
    code, summary, err = command.end()
    assert code == 4
    assert summary["open"] == summary["open_in_flight"] == progress_in(status_of(command.state)).open
    assert int(str(summary["open"])) > 0
    assert re.search(r"\d+ messages are open: \d+ in flight\n  next: ", err)
    assert "Traceback" not in err


def test_4_is_a_drain_that_left_messages_waiting_for_another_attempt(tmp_path: Path, write_target: WriteTarget) -> None:
    command = Command(write_target(TARGET), tmp_path, "local", "flaky", *WAITING)
    command.until(lambda: progress_in(status_of(command.state)).failed == 3)
    assert main(["drain", "--state-dir", str(command.state)]) == 0
    code, summary, err = command.end()
    assert (code, summary["open"], summary["open_waiting"]) == (4, 3, 3)
    assert "3 messages are open: 3 waiting for another attempt (the first at 20" in err
    assert "ValueError: not now" in err  # why they wait
    assert "Traceback" not in err


@pytest.mark.spark
def test_4_is_a_drain_on_spark_that_left_messages_open(tmp_path: Path, write_target: WriteTarget) -> None:
    command = Command(write_target(TARGET), tmp_path, "spark", "flaky", *WAITING)
    command.until(lambda: progress_in(status_of(command.state)).failed == 3)
    assert main(["drain", "--state-dir", str(command.state)]) == 0
    code, summary, err = command.end()
    assert (code, summary["open"], summary["open_waiting"]) == (4, 3, 3)
    assert "3 messages are open: 3 waiting for another attempt (the first at 20" in err
    assert "ValueError: not now" in err
    assert "it goes on with them" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_130_is_interrupted_and_tells_what_is_open(
    tmp_path: Path, write_target: WriteTarget, number: signal.Signals
) -> None:
    command = Command(write_target(TARGET), tmp_path, "local", "flaky", *WAITING)
    command.until(lambda: progress_in(status_of(command.state)).failed == 3)
    os.kill(command.process.pid, number)
    code, summary, err = command.end()
    assert (code, summary["open"]) == (130, 3)
    assert "3 messages are open" in err
    assert "Traceback" not in err


def test_the_documents_have_a_line_for_each_code() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.split("## Exit codes")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == ["0", "1", "2", "3", "4", "5", "130"]


def test_status_is_a_health_check(tmp_path: Path, write_target: WriteTarget) -> None:
    command = Command(write_target(TARGET), tmp_path, "local", "slow", *ENDLESS)
    command.until(lambda: progress_in(status_of(command.state)).acked == 3)
    look = ["status", "--state-dir", str(command.state)]
    assert main(look) == 0
    command.process.kill()
    command.process.communicate(timeout=60)
    assert main(look) == 1
    assert main([*look, "--json"]) == 1


def test_with_json_logs_every_line_on_stderr_is_an_object(tmp_path: Path, write_target: WriteTarget) -> None:
    command = Command(write_target(TARGET), tmp_path, "local", "flaky", *WAITING, "--log-format", "json")
    command.until(lambda: progress_in(status_of(command.state)).failed == 3)
    assert main(["drain", "--state-dir", str(command.state)]) == 0
    code, summary, err = command.end()
    assert (code, summary["open"]) == (4, 3)
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert any("messages are open" in message for message in messages)


def test_with_json_logs_a_summary_and_an_error_are_objects_and_a_summary_stays_text_if_asked(
    tmp_path: Path, write_target: WriteTarget
) -> None:
    target = write_target(TARGET)

    def run(folder: str, *more: str) -> subprocess.CompletedProcess[str]:
        line = [
            sys.executable, "-m", "tupletree", "run", str(target), "--runtime", "local", "--log-format", "json",
            "--set", f"out={tmp_path / folder}", "--set", "what=bad", "--set", "count=2",
            "--state-dir", str(tmp_path / f"state-of-{folder}"), *more,
        ]  # fmt: skip
        return subprocess.run(line, capture_output=True, text=True, check=False)

    assert json.loads(run("object").stdout)["dead"] == 2
    as_text = run("text", "--summary", "text").stdout
    assert "  dead              2\n" in as_text
    (tmp_path / "file").write_text("in the place of a folder")
    wrong = run("file")
    assert wrong.returncode == 2
    errors = [json.loads(line) for line in wrong.stderr.splitlines()]
    assert [one["level"] for one in errors if "not a folder" in one["message"]] == ["ERROR"]


@pytest.mark.spark
def test_on_spark_too_status_is_a_health_check_and_json_logs_are_objects(
    tmp_path: Path, write_target: WriteTarget
) -> None:
    """Also what Java says when it starts, and what bolts print in its workers."""
    printing = TARGET.replace(
        '    raise ValueError("not now")', '    print("printed")\n    raise ValueError("not now")'
    )
    command = Command(write_target(printing), tmp_path, "spark", "flaky", *WAITING, "--log-format", "json")
    command.until(lambda: progress_in(status_of(command.state)).failed == 3)
    look = ["status", "--state-dir", str(command.state)]
    assert main(look) == 0
    os.kill(command.process.pid, signal.SIGKILL)
    _, err = command.process.communicate(timeout=60)
    assert main(look) == 1
    assert main([*look, "--json"]) == 1
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert any("ValueError: not now" in message for message in messages)
    assert "".join(messages).count("printed") == 3
    assert not [message for message in messages if "incubator" in message]


def test_names_of_the_environment_that_are_no_options_do_not_stop_a_start(
    tmp_path: Path, write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets some in every pod beside a Service of that name; a mistyped one is named in a warning."""
    for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP_ADDR", "UI_SERVICE_HOST"):
        monkeypatch.setenv(f"TUPLETREE_{name}", "tcp://10.0.0.1:80")
    monkeypatch.setenv("TUPLETREE_MAX_ATEMPTS", "3")
    code, _, err = Command(write_target(TARGET), tmp_path, "local", "slow").end()
    assert code == 0
    assert "TUPLETREE_MAX_ATEMPTS" in err
    assert "max_attempts" in err
    assert "SERVICE" not in err
    assert "TUPLETREE_PORT" not in err
