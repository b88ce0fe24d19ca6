"""What a spout reads is not there at the very first: the start ends at once. Later it is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tupletree import AsyncSpout, Emit, EndOfInput, Spout, Topology, bolt
from tupletree.errors import ConnectorError, UnavailableAtStartError
from tupletree.sinks import foreach
from tupletree.sources import Line, text_lines
from tupletree.tasks import source_calls
from tupletree.topology.components import TaskContext


class Word(msgspec.Struct, frozen=True):
    text: str


class Number(msgspec.Struct, frozen=True):
    n: int


@bolt
def texts(number: Number) -> Word:
    return Word(str(number.n))


@bolt
def words(line: Line) -> Word:
    return Word(line.text)


Step = int | None | type[ConnectorError]


class Scripted(Spout[Number]):
    """Each call of `next` does one step, over all lives and starts: gives a message, nothing, or meets an outage."""

    def __init__(self, *steps: Step) -> None:
        self.steps = [*steps]

    def open(self, context: TaskContext) -> None:
        """Nothing to open: the script goes on."""

    def next(self) -> Emit[Number] | None:
        if not self.steps:
            raise EndOfInput
        step = self.steps.pop(0)
        if isinstance(step, type):
            raise ConnectorError("the broker is away", where="broker:1")
        return None if step is None else Emit(Number(step), step)

    def snapshot(self) -> int:
        return len(self.steps)

    def restore(self, position: int) -> None:
        """It goes on."""

    def __deepcopy__(self, memo: object) -> Scripted:
        return self


class AsyncScripted(AsyncSpout[Number]):
    """The same, awaited."""

    def __init__(self, *steps: Step) -> None:
        self.script = Scripted(*steps)

    async def open(self, context: TaskContext) -> None:
        """Nothing to open."""

    async def next(self) -> Emit[Number] | None:
        return self.script.next()

    def __deepcopy__(self, memo: object) -> AsyncScripted:
        return self


def of(spout: Any, work: Any = texts) -> Topology:
    t = Topology("words")
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("words", work).shuffle(t.spout("lines", spout)))
    return t


@pytest.fixture(params=["local", "in_process"])
def run(request: pytest.FixtureRequest, in_process: InProcess) -> Callable[..., Any]:
    return run_locally if request.param == "local" else in_process


def test_a_missing_file_and_a_pattern_without_a_match_end_the_start(tmp_path: Path, run: Callable[..., Any]) -> None:
    for number, path in enumerate([tmp_path / "missing.txt", tmp_path / "none" / "*.txt"]):
        with pytest.raises(ConnectorError) as caught:
            run(of(text_lines([path]), words), tmp_path / f"state{number}")
        assert caught.value.exit_code == 1
        assert str(path) in str(caught.value)


def test_a_pipe_ends_the_start_and_the_error_says_what_to_do_instead(tmp_path: Path, run: Callable[..., Any]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a line\n")
    os.close(writing)
    try:
        for number, path in enumerate(
            [f"/dev/fd/{reading}", "-"]
        ):  # as in `… | tupletree run … --set paths=/dev/stdin`
            with pytest.raises(ConnectorError) as caught:
                run(of(text_lines([path]), words), tmp_path / f"state{number}")
            assert caught.value.exit_code == 1
            assert path in str(caught.value)
            assert "cannot be read again after a restart" in str(caught.value)
            assert "append to a file" in str(caught.value)
    finally:
        os.close(reading)


@pytest.mark.parametrize("kind", [Scripted, AsyncScripted])
def test_a_service_that_is_away_at_the_start_ends_it_without_a_restart(
    tmp_path: Path, run: Callable[..., Any], kind: Any
) -> None:
    with pytest.raises(UnavailableAtStartError, match="broker:1: the broker is away"):
        run(of(kind(ConnectorError, 1)), tmp_path / "state")


@pytest.mark.parametrize("first", [1, None])
def test_after_a_first_answer_it_is_waited_for(tmp_path: Path, run: Callable[..., Any], first: int | None) -> None:
    summary = run(of(Scripted(first, ConnectorError, ConnectorError, 2)), tmp_path / "state")
    assert (summary.acked, summary.failed, summary.open) == (1 if first is None else 2, 0, 0)


@pytest.mark.parametrize("first", [1, None])
def test_an_async_spout_whose_has_answered_once_is_waited_for(
    tmp_path: Path, run: Callable[..., Any], first: int | None
) -> None:
    summary = run(of(AsyncScripted(first, ConnectorError, 2)), tmp_path / "state")
    assert (summary.acked, summary.failed, summary.open) == (1 if first is None else 2, 0, 0)


def test_what_waited_long_for_its_first_message_on_spark_is_no_longer_at_the_start(
    tmp_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_calls, "START_S", 0.0)
    assert in_process(of(AsyncScripted(ConnectorError, 2)), tmp_path / "state").acked == 1


def test_a_second_start_on_spark_waits_for_what_answered_the_first(tmp_path: Path, in_process: InProcess) -> None:
    assert in_process(of(Scripted(1)), tmp_path / "state").acked == 1
    again = in_process(of(Scripted(ConnectorError, 2)), tmp_path / "state")
    assert (again.acked, again.open) == (2, 0)
