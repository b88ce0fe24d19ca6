"""Dead letters when the disk, or the source, fails: none is lost, none is stored twice."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin, run
from tests.local.test_restarts import Impatient
from tests.tasks.streams import Line, Script, lines
from tests.until import until
from tupletree import Emit, Topology, bolt
from tupletree.errors import TupletreeError
from tupletree.ids import MessageId
from tupletree.runtimes import deadletters
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.records import Died


class Told(Script):
    """Records how many letters are stored each time that a message is failed to it."""

    def __init__(self, state: Path) -> None:
        super().__init__([lines("a", "bad", "b", "bad")])
        self.state = state
        self.stored: list[tuple[MessageId, int]] = []
        self.to_raise: list[OSError] = []
        self.opened = threading.Event()

    def open(self, context: object) -> None:
        super().open(context)
        self.opened.set()

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        super().fail(message_id, failure)
        if self.to_raise:
            raise self.to_raise.pop()
        self.stored.append((message_id, len(deadletters.read(self.state))))


def failing(script: Told, *, breaks_folder: bool) -> Topology:
    """Every message `bad` dies; at the first of them a file takes the place of the folder of dead letters."""

    @bolt
    def work(line: Line) -> None:
        if line.text == "bad":
            dead = script.state / "dead"
            if breaks_folder and script.life.count("open") == 1 and dead.is_dir():
                dead.rmdir()
                dead.write_bytes(b"")
            raise ValueError(line.text)

    t = Topology("failing")
    t.bolt("work", work).shuffle(t.spout("lines", script))
    return t


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", Impatient)


def test_letters_that_could_not_be_stored_are_stored_once_they_can_be_and_then_the_source_is_told(
    tmp_path: Path,
) -> None:
    script = Told(tmp_path / "state")
    handle = begin(failing(script, breaks_folder=True), tmp_path / "state", max_attempts=1, max_spout_pending=128)
    until(lambda: handle.progress().outages)
    assert [one.component for one in handle.progress().outages] == ["dead letters"]
    assert script.stored == []
    (tmp_path / "state" / "dead").unlink()
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.dead, summary.open) == (2, 2, 0)
    assert sorted(letter.message_id for letter in deadletters.read(tmp_path / "state")) == [1, 3]
    assert script.stored == [(1, 2), (3, 2)]
    assert script.life.count("open") == 1


def test_letters_that_can_never_be_stored_end_the_run_and_their_messages_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Told(tmp_path / "state")
    handle = begin(
        failing(script, breaks_folder=True),
        tmp_path / "state",
        max_attempts=1,
        max_spout_pending=128,
        outage_limit_s=0.3,
    )
    with pytest.raises(TupletreeError, match="dead letters' waited for"):
        handle.wait(HANG_S)
    assert script.failed == []
    assert "lines: 2 messages were not finished, and their source was not told: 1, 3" in caplog.text


def test_a_source_that_could_not_be_told_of_stored_letters_is_told_after_the_restart(tmp_path: Path) -> None:
    script = Told(tmp_path / "state")
    script.to_raise += [OSError("the broker is not available"), OSError("the broker is still not available")]
    summary = run(failing(script, breaks_folder=False), tmp_path / "state", max_attempts=1, max_spout_pending=128)
    assert (summary.acked, summary.dead, summary.open) == (2, 2, 0)
    assert sorted(letter.message_id for letter in deadletters.read(tmp_path / "state")) == [1, 3]
    assert script.stored == [(1, 2), (3, 2)]
    assert script.life.count("open") == 2


def test_a_source_that_replays_by_itself_is_asked_again_after_a_restart(tmp_path: Path) -> None:
    lives: list[Forgetful] = []

    class Forgetful(Script):
        """Keeps what it is to emit again in the object, and breaks once before it does."""

        def open(self, context: Any) -> None:
            super().open(context)
            lives.append(self)
            self.again: list[MessageId] = []

        def next(self) -> Any:
            if self.again and len(lives) == 1:
                raise OSError("broken pipe")
            if self.again:
                self.steps.append(Emit(Line("flaky"), self.again.pop()))
            return super().next()

        def fail(self, message_id: MessageId, failure: Failure) -> None:
            self.again.append(message_id)

    @bolt
    def work(line: Line) -> None:
        if len(lives) == 1:
            raise ValueError(line.text)

    t = Topology("forgetful")
    t.bolt("work", work).shuffle(t.spout("lines", Forgetful([lines("flaky")]), replay="source"))
    summary = run(t, tmp_path / "state")
    assert (summary.emitted, summary.acked, summary.retried, summary.dead) == (1, 1, 1, 0)
    assert len(lives) == 2


def test_a_caller_that_waits_is_told_when_the_executor_ends_while_it_carries_out_effects(
    tmp_path: Path,
) -> None:
    script = Told(tmp_path / "state")
    script.steps.clear()
    script.ends = False
    handle = begin(failing(script, breaks_folder=False), tmp_path / "state", max_attempts=1, max_spout_pending=128)
    assert script.opened.wait(HANG_S)
    assembly = handle._assembly
    assert assembly is not None
    (spout,) = assembly.spouts()
    executor = assembly.owners[spout.task.task_id]
    script.to_raise.append(OSError("the broker is not available"))
    letter = Died(spout.task.task_id, "lines", 7, Line("x"), Failure(kind=FailureKind.ERROR, error="x"), 1, 0.0, 0.0, 9)
    broken = executor.submit(lambda _, out: out.died.append(letter))
    after = executor.submit(lambda _, __: None)
    for future in (broken, after):
        with pytest.raises(CancelledError):
            future.result(HANG_S)
    handle.stop()
    assert len(deadletters.read(tmp_path / "state")) == 1
