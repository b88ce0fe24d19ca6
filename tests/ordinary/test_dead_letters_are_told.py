"""Who wants to hear of dead letters does: by a callback, or by a sink, at least once, once they are durable."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.ordinary.conftest import HANG_S
from tests.spark.counting import QUICK
from tests.tasks.streams import Line, Word
from tests.until import until
from tupletree import (
    ConfigError,
    ConnectorError,
    DeadLetter,
    PermanentError,
    Sink,
    SinkBatch,
    SinkContext,
    Topology,
    TopologyError,
    bolt,
)
from tupletree.config import resolve_options
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.deadletters import read
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.sinks import foreach, jsonl, parquet
from tupletree.sources import items
from tupletree.testing.in_process import start_in_process

RUNTIMES = ["local", "spark"]
TEXTS = [f"line {number}" for number in range(40)]
BAD = {f"line {number}" for number in range(0, 40, 4)}


@bolt
def picky(line: Line) -> Word:
    if line.text in BAD:
        raise PermanentError("never")
    return Word(line.text)


def of(sink: Sink[Any] | None) -> Topology:
    t = Topology("told")
    t.sink("out", foreach(lambda _: None)).shuffle(
        t.bolt("picky", picky).shuffle(t.spout("lines", items(map(Line, TEXTS))))
    )
    return t if sink is None else t.dead_letters(sink)


def start(runtime: str, t: Topology, place: Path, **request: Any) -> RunHandle:
    settings = resolve_options(code={**QUICK, "epoch_max_messages": 10, **request.pop("options", {})})
    asked = RunRequest(t, settings, None, place, append=False, master="", redact=None, **request)
    return start_locally(asked) if runtime == "local" else start_in_process(asked)


def texts_of(letters: list[DeadLetter]) -> Counter[str]:
    return Counter(letter.payload["text"] for letter in letters)


class Gathering(Sink[DeadLetter]):
    """Keeps what it is given, and can be away, or broken, for its first calls."""

    batches: ClassVar[list[SinkBatch[DeadLetter]]] = []
    raises: ClassVar[list[Exception]] = []
    life: ClassVar[list[Any]] = []

    def open(self, context: SinkContext) -> None:
        self.life.append((context.component, context.input_types, threading.current_thread().name))

    def write(self, batch: SinkBatch[DeadLetter]) -> None:
        if self.raises:
            raise self.raises.pop(0)
        self.batches.append(batch)

    def close(self) -> None:
        self.life.append("close")


@pytest.fixture(autouse=True)
def fresh() -> None:
    for one in (Gathering.batches, Gathering.raises, Gathering.life):
        one.clear()


def gathered() -> list[DeadLetter]:
    return [letter for batch in Gathering.batches for letter in batch.rows]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_callback_and_a_sink_hear_of_each_dead_letter_that_is_stored(tmp_path: Path, runtime: str) -> None:
    told: list[DeadLetter] = []

    def tell(letter: DeadLetter) -> None:
        stored = read(tmp_path / "state")
        assert letter.message_id in [one.message_id for one in stored]
        told.append(letter)

    summary = start(runtime, of(Gathering()), tmp_path / "state", on_dead=tell).wait(HANG_S)
    assert summary.dead == len(BAD)
    assert texts_of(told) == texts_of(gathered()) == Counter(BAD)
    assert Gathering.life == [("dead_letters", (DeadLetter,), "tupletree-dead-letters"), "close"]
    assert len({batch.id for batch in Gathering.batches}) == len(Gathering.batches)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_callback_that_raises_changes_nothing(tmp_path: Path, runtime: str) -> None:
    def tell(letter: DeadLetter) -> None:
        raise ValueError(letter.spout)

    summary = start(runtime, of(None), tmp_path / "state", on_dead=tell).wait(HANG_S)
    assert (summary.dead, summary.open) == (len(BAD), 0)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_letters_become_lines_of_json(tmp_path: Path, runtime: str) -> None:
    start(runtime, of(jsonl(tmp_path / "dead")), tmp_path / "state").wait(HANG_S)
    lines = [json.loads(line) for file in (tmp_path / "dead").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert Counter(line["payload"]["text"] for line in lines) == Counter(BAD)
    assert {line["failure"]["component"] for line in lines} == {"picky"}
    with pytest.raises(ConfigError, match="folder"):
        start(runtime, of(jsonl(tmp_path / "dead")), tmp_path / "other")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_sink_that_is_away_or_fails_gets_them_later_and_verdicts_do_not_wait(tmp_path: Path, runtime: str) -> None:
    Gathering.raises += [ConnectorError("away"), ConnectorError("away"), ValueError("broken"), ValueError("broken")]
    handle = start(runtime, of(Gathering()), tmp_path / "state")
    summary = handle.wait(HANG_S)
    assert (summary.dead, summary.open) == (len(BAD), 0)
    assert texts_of(gathered()) == Counter(BAD)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_stop_does_not_wait_for_a_sink_beyond_its_drain_and_status_shows_the_outage(
    tmp_path: Path, runtime: str
) -> None:
    Gathering.raises += [ConnectorError("away")] * 1_000
    seen = threading.Event()
    handle = start(runtime, of(Gathering()), tmp_path / "state")

    def look() -> None:
        while not seen.wait(0.01):
            if any(outage.component == "dead letter sink" for outage in handle.progress().outages):
                seen.set()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    assert seen.wait(HANG_S)
    handle.stop(0.2)
    handle.wait(HANG_S)
    if runtime == "spark":
        Gathering.raises.clear()
        start(runtime, of(Gathering()), tmp_path / "state").wait(HANG_S)
        assert texts_of(gathered()) == Counter(BAD)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_sink_that_is_away_for_longer_than_outages_may_last_ends_no_run(tmp_path: Path, runtime: str) -> None:
    Gathering.raises += [ConnectorError("away")] * 3  # 0.7 s, with the pauses between them
    handle = start(runtime, of(Gathering()), tmp_path / "state", options={"outage_limit_s": 0.2})
    summary = handle.wait(HANG_S)
    assert (summary.dead, summary.open) == (len(BAD), 0)
    assert texts_of(gathered()) == Counter(BAD)


def test_a_sink_that_is_added_later_gets_the_earlier_letters_on_spark(tmp_path: Path) -> None:
    assert start("spark", of(None), tmp_path / "state").wait(HANG_S).dead == len(BAD)
    start("spark", of(Gathering()), tmp_path / "state").wait(HANG_S)
    assert texts_of(gathered()) == Counter(BAD)


def test_letters_that_come_again_with_the_next_start_have_the_batch_id_that_they_had(tmp_path: Path) -> None:
    class Unsure(Gathering):
        """Takes a batch, and its answer is lost."""

        def write(self, batch: SinkBatch[DeadLetter]) -> None:
            self.batches.append(batch)
            if self.raises:
                raise self.raises.pop(0)

    Gathering.raises += [ConnectorError("no answer")] * 1_000
    handle = start("spark", of(Unsure()), tmp_path / "state")
    until(lambda: Gathering.batches)
    handle.stop(0.0)
    handle.wait(HANG_S)
    earlier = [*Gathering.batches]
    Gathering.raises.clear()
    Gathering.batches.clear()
    start("spark", of(Unsure()), tmp_path / "state").wait(HANG_S)
    assert texts_of(gathered()) == Counter(BAD)
    again = {batch.id: texts_of([*batch.rows]) for batch in Gathering.batches}
    assert again[earlier[0].id] == texts_of([*earlier[0].rows])


@pytest.mark.parametrize("point", ["publish.after_dead", "callbacks.before", "settle.after_log"])
def test_after_a_crash_on_spark_each_is_told_at_least_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Crash(BaseException):
        """In the place of the end of the process."""

    def reach(name: str) -> None:
        if name == point:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - what a crash becomes is not the point
            start("spark", of(Gathering()), tmp_path / "state").wait(HANG_S)
    start("spark", of(Gathering()), tmp_path / "state").wait(HANG_S)
    assert {*texts_of(gathered())} == BAD


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_sink_that_cannot_be_opened_ends_the_start(tmp_path: Path, runtime: str) -> None:
    class Closed(Gathering):
        def open(self, context: SinkContext) -> None:
            raise ValueError("no such place")

    with pytest.raises(Exception, match="no such place"):
        start(runtime, of(Closed()), tmp_path / "state").wait(HANG_S)


def test_what_cannot_take_dead_letters_is_refused_by_name(tmp_path: Path) -> None:
    refused: Callable[[], Any] = lambda: start("local", of(parquet(tmp_path / "dead")), tmp_path / "state")  # noqa: E731
    with pytest.raises(ConfigError, match="columns with types"):
        refused()
    with pytest.raises(TopologyError, match="this is no sink"):
        of("dead").build()  # type: ignore[arg-type]  # not every topology is type-checked
