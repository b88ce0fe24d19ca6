"""What happens when a component cannot be opened, or breaks later."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.local.running import HANG_S, begin, run
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tests.until import until
from tupletree import Bolt, Collector, Emit, TaskContext, Topology, bolt
from tupletree.errors import ConnectorError, TupletreeError
from tupletree.ids import MessageId
from tupletree.sinks import foreach
from tupletree.tracking.retry import RestartPolicy


@bolt
def word(line: Line) -> Word:
    return Word(line.text)


@bolt(auto_ack=False)
def keep(line: Line, out: Collector[Word]) -> None:
    """Never settle the tuple."""


class Impatient:
    """Restarts at once, twice at most, whatever the options say."""

    def __init__(self, *, max_restarts: int = 5) -> None:
        assert max_restarts > 2
        self.restarts = 0

    def started(self, now_s: float) -> None:
        """Up."""

    def failed(self, now_s: float) -> float | None:
        self.restarts += 1
        return 0.0 if self.restarts <= 2 else None


class Opening(Bolt[Line]):
    """Opens at the second try."""

    tries: ClassVar[list[str]] = []

    def open(self, context: TaskContext) -> None:
        self.tries.append("open")
        if len(self.tries) < 3:
            raise RuntimeError("no database")

    def process(self, value: Line, collector: Collector[Word]) -> Word:
        return Word(value.text)

    def close(self) -> None:
        self.tries.append("close")


def test_a_bolt_that_cannot_be_opened_fails_its_messages_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Opening.tries.clear()
    t = Topology("closed")
    opening = t.bolt("opening", Opening).shuffle(t.spout("lines", Script(lines("a"))))
    opening.stream(Word, unconsumed=True)
    summary = run(t, tmp_path / "state", backoff_initial_ms=1.0)
    assert (summary.acked, summary.failed) == (1, 0)
    assert Opening.tries == ["open", "close", "open", "close"]
    assert "no database" in caplog.text


def test_a_spout_that_cannot_be_opened_ends_the_run_at_once_with_its_error(tmp_path: Path) -> None:
    class Closed(Script):
        def open(self, context: object) -> None:
            raise RuntimeError("no broker")

    script = Closed(lines("a"), ends=False)
    t = Topology("closed")
    t.bolt("word", word).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    handle = begin(t, tmp_path / "state")
    with pytest.raises(TupletreeError, match="no broker"):
        handle.wait(HANG_S)
    assert handle.progress().state == "failed"
    assert script.life == ["close"]


def test_a_spout_that_breaks_is_restarted_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", Impatient)
    sink = Gathering()
    to_break = ["once"]

    class Breaking(Script):
        def next(self) -> Any:
            if self.asked == 1 and to_break:
                raise OSError(f"broken pipe {to_break.pop()}")
            return super().next()

    script = Breaking([lines("a", "b"), Emit(Line("c"), "c")])
    t = Topology("breaking")
    words = t.bolt("word", word).shuffle(t.spout("lines", script))
    t.sink("out", foreach(sink.write)).shuffle(words)
    summary = run(t, tmp_path / "state", backoff_initial_ms=1.0)
    assert summary.open == 0
    assert {row.word for row in sink.rows} == {"a", "b", "c"}
    assert script.life.count("open") == 2
    assert script.life.count("close") == 2


def test_messages_survive_a_restart_in_which_a_sink_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", Impatient)
    to_break = ["once"]
    opened: list[str] = []

    class Breaking(Script):
        def next(self) -> Any:
            if self.asked == 1 and to_break:
                raise OSError(f"broken pipe {to_break.pop()}")
            return super().next()

    class Flaky(Gathering):
        def open(self, context: TaskContext) -> None:
            opened.append("open")
            if len(opened) == 2:
                raise OSError("the database is still away")

    sink = Flaky()
    t = Topology("flaky")
    words = t.bolt("word", word).shuffle(t.spout("lines", Breaking([lines("a", "b")])))
    t.sink("out", sink).shuffle(words)
    summary = run(t, tmp_path / "state", backoff_initial_ms=1.0)
    assert (summary.emitted, summary.acked, summary.open) == (2, 2, 0)
    assert {row.word for row in sink.rows} == {"a", "b"}
    assert len(opened) == 3


def test_a_spout_that_breaks_again_and_again_ends_the_run_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", Impatient)

    class Broken(Script):
        def next(self) -> Any:
            raise OSError("broken pipe")

    script = Broken([])
    t = Topology("broken")
    t.bolt("word", word).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    handle = begin(t, tmp_path / "state")
    with pytest.raises(ConnectorError, match="broken pipe"):
        handle.wait(HANG_S)
    assert script.life.count("open") == 3


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_it_is_restarted_as_often_as_the_option_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    class AtOnce(Impatient):
        def __init__(self, *, max_restarts: int = 5) -> None:
            self.restarts, self.most = 0, max_restarts

        def failed(self, now_s: float) -> float | None:
            self.restarts += 1
            return 0.0 if self.restarts <= self.most else None

    monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", AtOnce)

    class Broken(Script):
        def next(self) -> Any:
            raise OSError("broken pipe")

    script = Broken([])
    t = Topology("broken")
    t.bolt("word", word).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    with pytest.raises(ConnectorError, match="broken pipe"):
        begin(t, tmp_path / "state", max_restarts=restarts).wait(HANG_S)
    assert script.life.count("open") == 1 + restarts


def test_a_stop_while_a_restart_is_waited_for_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestartPolicy, "failed", lambda _self, _now_s: 3_600.0)
    broke = threading.Event()

    class Broken(Script):
        def close(self) -> None:
            super().close()
            broke.set()

        def next(self) -> Any:
            raise OSError("broken pipe")

    script = Broken([])
    t = Topology("broken")
    t.bolt("word", word).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    handle = begin(t, tmp_path / "state")
    assert broke.wait(HANG_S)
    until(lambda: handle.progress().state == "restarting")
    handle.stop()
    handle.wait(HANG_S)
    assert script.life.count("open") == 1


@pytest.mark.parametrize("stops", [True, False])
def test_messages_that_a_final_fault_leaves_open_are_named(
    stops: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broke = threading.Event()

    class Broken(Script):
        def close(self) -> None:
            super().close()
            broke.set()

        def next(self) -> Any:
            if not self.steps:
                raise OSError("broken pipe")
            return super().next()

    if not stops:
        monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", Impatient)
    t = Topology("left")
    source = t.spout("lines", Broken([lines("a", "b", "c"), None]))
    t.bolt("keep", keep, unconsumed=Word).shuffle(source)
    handle = begin(t, tmp_path / "state", max_spout_pending=4)
    assert broke.wait(HANG_S)
    if stops:
        handle.stop()
        assert handle.wait(HANG_S).open == 3
    else:
        with pytest.raises(ConnectorError, match="broken pipe"):
            handle.wait(HANG_S)
    assert "lines: 3 messages were not finished, and their source was not told: 0, 1, 2" in caplog.text


def test_a_restart_leaves_paused_spouts_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.runtimes.handle.RestartPolicy", Impatient)
    taken, go, reopened, acked = (threading.Event() for _ in range(4))

    @bolt(blocking=True)
    def wait(line: Line) -> None:
        taken.set()
        assert go.wait(HANG_S)

    class Deaf(Script):
        def open(self, context: object) -> None:
            super().open(context)
            if self.life.count("open") == 2:
                reopened.set()

        def ack(self, message_id: MessageId) -> None:
            if self.life.count("open") == 1:
                raise OSError("the broker went away")
            super().ack(message_id)
            acked.set()

    script = Deaf([lines("a")], ends=False)
    t = Topology("paused")
    t.bolt("wait", wait).shuffle(t.spout("lines", script))
    handle = begin(t, tmp_path / "state", backoff_initial_ms=1.0)
    assert taken.wait(HANG_S)
    handle.pause()
    go.set()
    assert reopened.wait(HANG_S)
    handle.pause()  # answered when the spout has been started
    assert script.life == ["open", "activate", "deactivate", "close", "open"]
    handle.resume()
    assert script.life[-1] == "activate"
    handle.stop()
