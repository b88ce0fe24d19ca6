"""A source of files that is asked, stopped and resumed, for tests of what becomes of files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import Place
from tupletree.clock import ManualClock
from tupletree.errors import EndOfInput
from tupletree.sources import Line, text_lines
from tupletree.sources.text import TextLines
from tupletree.topology.components import Reject

__all__ = ["LONG", "Reader", "here", "lines_of", "no_file_stays_open"]

LONG = "a line that is long enough to be recognised, number "


def lines_of(count: int, what: str = LONG) -> str:
    return "".join(f"{what}{number}\n" for number in range(1, count + 1))


readers: list[Reader] = []


@pytest.fixture(autouse=True)
def no_file_stays_open() -> Iterator[None]:
    yield
    while readers:
        readers.pop().spout.close()


class Reader:
    """A source that is asked, stopped and resumed."""

    def __init__(self, paths: Any, **options: Any) -> None:
        self.clock = ManualClock(wall=4e9)
        self.paths, self.options = paths, options
        self.position: Any = None
        readers.append(self)
        self.start()

    def start(self, paths: Any = None, **options: Any) -> None:
        self.paths, self.options = paths or self.paths, self.options | options
        self.spout: TextLines[Line] = text_lines(self.paths, clock=self.clock, **self.options)
        self.spout.open(Place())
        if self.position is not None:
            self.spout.restore(json.loads(json.dumps(self.position)))

    def resume(self, paths: Any = None, **options: Any) -> None:
        self.position = self.spout.snapshot()
        self.spout.close()
        self.start(paths, **options)

    def ask(self) -> list[tuple[Any, str]]:
        """What is there now: ids, and texts or reasons."""
        found: list[tuple[Any, str]] = []
        self.clock.advance(2.0)
        try:
            while given := self.spout.next():
                found += [(one.message_id, one.reason if isinstance(one, Reject) else one.value.text) for one in given]
        except EndOfInput:
            pass
        return found

    def texts(self) -> list[str]:
        return [text for _, text in self.ask()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test is."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"
