"""What happened to a message can be asked for, on every runtime, while it runs and afterwards."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import IO, Any, Self

import pytest

from tests.cli.conftest import Run
from tests.local.running import begin
from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line, Word
from tests.until import until
from tupletree import Emit, EndOfInput, Retry, RetryAfter, Spout, TaskContext, Topology, bolt, testing
from tupletree.runtimes.deadletters import letters_of
from tupletree.runtimes.local.history import FILES, LocalHistory, stored_facts
from tupletree.runtimes.run import why
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.tracking.facts import Fact
from tupletree.tracking.outcomes import Failure, FailureKind

TEXTS = ["good", "flaky", "bad"]
QUICK = {"backoff_initial_ms": 1, "max_attempts": 3}


@bolt
def meet(line: Line, context: TaskContext) -> Word:
    if line.text == "bad" or (line.text == "flaky" and context.attempt == 1):
        raise ValueError(f"attempt {context.attempt} of {line.text}")
    return Word(line.text)


def topology(retry: Retry | None = None) -> Topology:
    t = Topology("what-happened")
    lines = t.spout("lines", items([Line(text) for text in TEXTS], ids=TEXTS))
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("meet", meet, retry=retry).shuffle(lines))
    return t


def told(facts: list[Fact]) -> list[tuple[int, str]]:
    return [(fact.attempt, fact.what) for fact in facts if fact.what != "retried"]


@pytest.mark.parametrize("runtime", ["local", "in_process"])
def test_each_failed_attempt_is_told_with_its_error(runtime: str, tmp_path: Path, in_process: InProcess) -> None:
    place = tmp_path / "state"
    run = run_locally if runtime == "local" else in_process
    assert run(topology(), place, **QUICK).dead == 1
    assert told(why(place, "flaky")) == [(1, "failed"), (2, "acked")]
    assert told(why(place, "lines/bad")) == [(1, "failed"), (2, "failed"), (3, "dead")]
    for number, fact in enumerate((one for one in why(place, "bad") if one.what != "retried"), 1):
        assert fact.failure is not None
        assert f"ValueError: attempt {number} of bad" in fact.detail
        assert fact.detail.startswith("meet task ")
        assert "raise ValueError" in fact.failure.traceback
        if fact.what == "failed":
            assert fact.next_s is not None
            assert fact.next_s >= fact.time_s
            assert f"attempt {number + 1} from " in fact.detail


def test_locally_every_message_is_told_of_if_that_is_asked_for(tmp_path: Path) -> None:
    run_locally(topology(), tmp_path / "few", **QUICK)
    run_locally(topology(), tmp_path / "all", **QUICK, history="all")
    assert why(tmp_path / "few", "good") == []
    assert [fact.what for fact in why(tmp_path / "all", "good")] == ["emitted", "acked"]
    assert [fact.what for fact in why(tmp_path / "all", "flaky")] == ["emitted", "failed", "retried", "acked"]
    root = why(tmp_path / "all", "good")[0].root
    assert len(why(tmp_path / "all", f"{root:016x}")) == 2


@bolt
def asked_to_wait(line: Line, context: TaskContext) -> Word:
    if context.attempt == 1 and line.text == "flaky":
        raise RetryAfter(0.05, "busy")
    return Word(line.text)


def test_the_policy_that_chose_the_next_attempt_is_named(tmp_path: Path, in_process: InProcess) -> None:
    for name, run in (("local", run_locally), ("in_process", in_process)):
        run(topology(Retry(attempts=2, backoff_s=0.001)), tmp_path / name, **QUICK)
        first, last = (one for one in why(tmp_path / name, "bad") if one.what != "retried")
        assert "as the retry policy of meet says: 2 of 2 attempts" in first.detail
        assert (last.what, last.attempt) == ("dead", 2)

        t = Topology("asked")
        lines = t.spout("lines", items([Line(text) for text in TEXTS], ids=TEXTS))
        t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("service", asked_to_wait).shuffle(lines))
        run(t, tmp_path / f"{name}-asked", **QUICK)
        first = why(tmp_path / f"{name}-asked", "flaky")[0]
        assert "(service asked to wait for 0.05 s)" in first.detail
        assert first.next_s is not None
        assert first.next_s - first.time_s >= 0.04


class Again(Spout[Line]):
    """Emits a message again that failed."""

    def open(self, context: TaskContext) -> None:
        self.queue = ["flaky"]

    def next(self) -> Emit[Line]:
        if not self.queue:
            raise EndOfInput
        text = self.queue.pop()
        return Emit(Line(text), text)

    def fail(self, message_id: Any, failure: Failure) -> None:
        if not failure.permanent:
            self.queue.append(message_id)


def test_a_source_that_is_to_emit_again_is_named(tmp_path: Path) -> None:
    t = Topology("again")
    t.sink("out", foreach(lambda _: None)).shuffle(
        t.bolt("meet", meet).shuffle(t.spout("lines", Again(), replay="source"))
    )
    run_locally(t, tmp_path / "state", **QUICK)
    failed, retried, acked = why(tmp_path / "state", "flaky")
    assert "its source is asked to emit it again, as attempt 2" in failed.detail
    assert [(one.what, one.attempt) for one in (retried, acked)] == [("retried", 2), ("acked", 2)]


def test_the_test_kit_tells_it_too() -> None:
    ended = testing.run(topology(), options=QUICK)
    reports = {one.message_id: one for one in ended.messages["lines"]}
    assert reports["good"].facts == []
    assert [one.what for one in reports["flaky"].facts] == ["failed", "retried", "acked"]
    assert [one.what for one in reports["bad"].facts if one.what != "retried"] == ["failed", "failed", "dead"]


def test_the_command_tells_the_last_error_with_its_traceback(tmp_path: Path, run: Run) -> None:
    run_locally(topology(), tmp_path / "state", **QUICK)
    asked = run("why", "bad", "--state-dir", tmp_path / "state")
    assert asked.code == 0
    assert "epoch" not in asked.out
    assert "attempt 1  root " in asked.out
    assert "dead: meet task " in asked.out
    assert asked.out.count("raise ValueError(") == 1
    asked = run("why", "bad", "--state-dir", tmp_path / "state", "--json")
    last = json.loads(asked.out.splitlines()[-1])
    assert (last["what"], last["component"], last["error_type"], last["kind"]) == (
        "dead",
        "meet",
        "ValueError",
        "error",
    )
    asked = run("why", "good", "--state-dir", tmp_path / "state")
    assert asked.code == 2
    assert "history=all" in asked.err


def fact_of(number: int, error: str = "x" * 50) -> Fact:
    failure = Failure(kind=FailureKind.ERROR, component="b", error=error, failing_tuple="secret")
    return Fact(time_s=float(number), what="failed", spout="s", message_id=number, attempt=1, failure=failure)


def state_folder(tmp_path: Path) -> Path:
    (tmp_path / "dead").mkdir()
    return tmp_path


def test_the_history_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    place = state_folder(tmp_path)
    history = LocalHistory(place / "history", 8_000)
    for number in range(500):
        history.put([fact_of(number)])
        history.write()
    files = list((place / "history").iterdir())
    assert len(files) <= FILES
    assert 4_000 < sum(file.stat().st_size for file in files) <= 10_000
    numbers = [fact.message_id for fact in stored_facts(place)]
    assert numbers == [*range(numbers[0], 500)]


def test_a_history_of_no_bytes_is_no_history(tmp_path: Path) -> None:
    history = LocalHistory(tmp_path / "history", 0)
    history.put([fact_of(1)])
    history.write()
    assert not (tmp_path / "history").exists()


def test_the_history_holds_no_tuples_and_is_private(tmp_path: Path) -> None:
    history = LocalHistory(tmp_path / "history", 8_000)
    history.put([fact_of(1)])
    history.write()
    (file,) = (tmp_path / "history").iterdir()
    assert "secret" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_a_line_that_a_crash_cut_off_is_left_out_and_a_dead_letter_is_told_of_all_the_same(tmp_path: Path) -> None:
    run_locally(topology(), tmp_path / "state", **QUICK)
    (file,) = (tmp_path / "state" / "history").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"dead"' not in line]
    file.write_bytes(b"".join(kept) + b'{"time_s": 1, "wh')
    assert told(why(tmp_path / "state", "bad")) == [(1, "failed"), (2, "failed"), (3, "dead")]
    assert len(letters_of(tmp_path / "state")) == 1


def test_a_history_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "history").write_text("in the way")
    history = LocalHistory(tmp_path / "history", 8_000)
    for number in range(3):
        history.put([fact_of(number)])
        history.write()
    assert caplog.text.count("the history of messages cannot be written") == 1


def test_after_a_line_that_a_full_disk_cut_off_the_next_fact_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = state_folder(tmp_path)
    history = LocalHistory(place / "history", 1_000_000)

    def write(number: int) -> None:
        history.put([fact_of(number)])
        history.write()

    write(0)
    fdopen = os.fdopen
    for number in range(1, 2 * FILES):
        with monkeypatch.context() as full:
            full.setattr("os.fdopen", lambda fd, _: Full(fdopen(fd, "ab")))
            write(number)
    write(2 * FILES)
    write(2 * FILES + 1)
    assert [fact.message_id for fact in stored_facts(place)] == [0, 2 * FILES, 2 * FILES + 1]


class Full:
    """A file on a disk that has room for ten bytes more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: bytes) -> int:
        self._file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_stop_names_what_it_leaves_open(tmp_path: Path) -> None:
    t = Topology("left")
    slow = t.spout("lines", items([Line("flaky")], ids=["flaky"]))
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("meet", meet, retry=Retry(backoff_s=60.0)).shuffle(slow))
    handle = begin(t, tmp_path / "state")
    until(lambda: "failed" in [one.what for one in why(tmp_path / "state", "flaky")])  # while it runs
    handle.stop(0.0)
    assert handle.wait(10).open == 1
    assert [one.what for one in why(tmp_path / "state", "flaky")] == ["failed", "open"]
