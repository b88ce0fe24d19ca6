"""Dead letters that cannot be looked at for a while are not lost by a replay, and none is replayed twice."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.counting import QUICK
from tests.until import until
from tupletree import AsyncSpout, Emit, EndOfInput, Topology, bolt
from tupletree.config import resolve_options
from tupletree.runtimes import deadletters, requests
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.deadletters import read, request_replay
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.sinks import jsonl, read_rows
from tupletree.testing.in_process import start_in_process

HANG_S = 60.0
PAUSE_S = 0.02


class Word(msgspec.Struct, frozen=True):
    text: str
    folder: str


@bolt
def refuse(word: Word) -> Word:
    if not Path(word.folder, "mended").exists():
        raise ValueError(word.text)
    return word


class Words(AsyncSpout[Word]):
    """Gives three words; ends when there is a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = ["a", "b", "c"]

    async def next(self) -> Emit[Word] | None:
        if self._left:
            text = self._left.pop(0)
            return Emit(Word(text, str(self._folder)), text)
        if (self._folder / "end").exists():
            raise EndOfInput
        await asyncio.sleep(PAUSE_S)  # it looks again
        return None

    def __deepcopy__(self, memo: object) -> Words:
        return self


@pytest.fixture(params=["local", "in_process"])
def handle(request: pytest.FixtureRequest, tmp_path: Path) -> RunHandle:
    t = Topology("words")
    words = t.spout("in", Words(tmp_path))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("refuse", refuse).shuffle(words))
    quick = QUICK if request.param == "in_process" else {"durable": True}
    settings = resolve_options(code={**quick, "max_attempts": 1})
    asked = RunRequest(t, settings, None, tmp_path / "state", append=False, master="", redact=None)
    run: Any = (start_locally if request.param == "local" else start_in_process)(asked)
    return run  # type: ignore[no-any-return]


class Away:
    """Lets what opens files of some folder fail in the threads of the run, and counts that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: object, name: str, part: str) -> None:
        self.is_away = False
        self.refused = 0
        here = threading.get_ident()
        real: Callable[..., Any] = getattr(where, name)

        def refuse(path: Any, *given: Any) -> Any:
            if self.is_away and part in str(path) and threading.get_ident() != here:
                self.refused += 1
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            return real(path, *given)

        monkeypatch.setattr(where, name, refuse)


@pytest.mark.parametrize(
    ("where", "name", "part"),
    [(deadletters, "open_file", "/dead/"), (requests, "read_file", "/inbox/"), (os, "scandir", "/dead")],
    ids=["letters", "requests", "folders"],
)
def test_a_replay_waits_for_files_that_cannot_be_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    handle: RunHandle,
    where: object,
    name: str,
    part: str,
) -> None:
    state = tmp_path / "state"
    until(lambda: len(read(state)) == 3)
    for text in ("a", "b"):
        request_replay(state, [f"in/{text}"])
        until(lambda: handle.progress().replayed > 0)
    until(lambda: handle.progress().dead == 3 and len(read(state)) == 3 and not [*(state / "inbox").glob("*.json")])
    (tmp_path / "mended").touch()
    away = Away(monkeypatch, where, name, part)
    away.is_away = True
    request_replay(state, None)
    until(lambda: away.refused > 2)
    away.is_away = False
    until(lambda: handle.progress().acked == 3)
    until(lambda: read(state) == [])
    (tmp_path / "end").touch()
    summary = handle.wait(HANG_S)
    assert (summary.emitted, summary.acked, summary.dead) == (3, 3, 0)
    assert sorted(row["text"] for row in read_rows(tmp_path / "out")) == ["a", "b", "c"]
