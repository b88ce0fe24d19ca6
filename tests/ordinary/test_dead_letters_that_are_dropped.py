"""Dead letters that somebody handled elsewhere: dropped from a run that goes on, and one that has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.counting import QUICK
from tests.until import until
from tupletree import AsyncSpout, Emit, EndOfInput, Topology, bolt
from tupletree.config import resolve_options
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.deadletters import drop_letters, read, request_replay
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.runtimes.metrics import RunCollector
from tupletree.runtimes.run import why
from tupletree.sinks import foreach
from tupletree.testing.in_process import start_in_process

HANG_S = 60.0
PAUSE_S = 0.02


class Word(msgspec.Struct, frozen=True):
    text: str


@bolt
def refuse(word: Word) -> Word:
    raise ValueError(word.text)


class Words(AsyncSpout[Word]):
    """Gives three words at the first start; ends when there is a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = [] if (folder / "given").exists() else ["a", "b", "c"]
        (folder / "given").touch()

    async def next(self) -> Emit[Word] | None:
        if self._left:
            text = self._left.pop(0)
            return Emit(Word(text), text)
        if (self._folder / "end").exists():
            raise EndOfInput
        await asyncio.sleep(PAUSE_S)  # it looks again
        return None

    def __deepcopy__(self, memo: object) -> Words:
        return self


@pytest.fixture(params=["local", "in_process"])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], RunHandle]:
    def run() -> RunHandle:
        t = Topology("words")
        t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("refuse", refuse).shuffle(t.spout("in", Words(tmp_path))))
        quick = QUICK if request.param == "in_process" else {"durable": True}
        settings = resolve_options(code={**quick, "max_attempts": 1})
        asked = RunRequest(t, settings, None, tmp_path / "state", append=False, master="", redact=None)
        handle: Any = (start_locally if request.param == "local" else start_in_process)(asked)
        return handle  # type: ignore[no-any-return]

    return run


def dead_now(handle: RunHandle) -> float:
    families = RunCollector(handle, "words", "runtime").collect()
    return next(one.samples[0].value for one in families if one.name == "tupletree_dead_letters")


def test_letters_are_dropped_while_the_run_goes_on_and_stay_so(tmp_path: Path, begin: Callable[[], RunHandle]) -> None:
    state = tmp_path / "state"
    handle = begin()
    until(lambda: len(read(state)) == 3 and dead_now(handle) == 3)
    [dropped] = drop_letters(state, ["in/a"], reason="paid by hand", wall_s=time.time())
    assert dropped.message_id == "a"
    assert dead_now(handle) == 2
    assert {one.message_id for one in read(state)} == {"b", "c"}
    request_replay(state, None)
    until(lambda: handle.progress().replayed == 2)
    until(lambda: len(read(state)) == 2 and handle.progress().dead == 3)
    (tmp_path / "end").touch()
    summary = handle.wait(HANG_S)
    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (3, 0, 3, 0), "its message stays dead"
    facts = why(state, "a")
    assert [fact.what for fact in facts][-2:] == ["dead", "dropped"]
    assert facts[-1].detail == "by hand: paid by hand"
    assert "dropped" not in [fact.what for fact in why(state, "b")]

    drop_letters(state, ["b"], wall_s=time.time())
    assert [fact.detail for fact in why(state, "b")][-1] == "by hand"
    request_replay(state, None)
    drop_letters(state, None, wall_s=time.time())
    again = begin()
    summary = again.wait(HANG_S)
    assert (summary.emitted, summary.dead, again.progress().replayed) == (3, 3, 2), (
        "a request leaves out what is dropped"
    )
    assert read(state) == []
    assert dead_now(again) == 0
