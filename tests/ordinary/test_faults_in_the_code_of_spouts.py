"""A spout whose code is wrong ends the run at once, with its line; what may pass is restarted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line, Word
from tupletree import AsyncSpout, Emit, Spout, TaskContext, Topology, TupletreeError, bolt
from tupletree.errors import EndOfInput
from tupletree.sinks import foreach

RAISES: dict[str, Callable[[], Any]] = {
    "type": lambda: len(3),  # type: ignore[arg-type]  # that is the fault
    "attribute": lambda: (3).nothing,  # type: ignore[attr-defined]  # likewise
    "name": lambda: undefined_name,  # type: ignore[name-defined]  # noqa: F821 - likewise
}
OPENED: list[str] = []


class Wrong(Spout[Line]):
    """Gives a message, then its code is wrong."""

    def __init__(self, what: str) -> None:
        self.what = what

    def open(self, context: TaskContext) -> None:
        OPENED.append(self.what)
        self.given = False

    def next(self) -> Emit[Line] | None:
        if not self.given:
            self.given = True
            return Emit(Line("a"), 1)
        RAISES[self.what]()
        raise EndOfInput


class WrongAsync(AsyncSpout[Line]):
    """The same, for those that wait."""

    def __init__(self, what: str) -> None:
        self.inner = Wrong(what)

    async def open(self, context: TaskContext) -> None:
        self.inner.open(context)

    async def next(self) -> Emit[Line] | None:
        return self.inner.next()


class WrongAck(Wrong):
    """Its `ack` is wrong."""

    def next(self) -> Emit[Line] | None:
        if self.given:
            return None
        return super().next()

    def ack(self, message_id: Any) -> None:
        RAISES[self.what]()


@bolt
def same(line: Line) -> Word:
    return Word(line.text)


@pytest.mark.parametrize("runtime", ["local", "in_process"])
@pytest.mark.parametrize(
    ("kind", "what"), [(Wrong, "type"), (Wrong, "attribute"), (Wrong, "name"), (WrongAsync, "type"), (WrongAck, "type")]
)
def test_the_run_ends_without_a_restart(
    kind: type[Any], what: str, runtime: str, tmp_path: Path, in_process: InProcess
) -> None:
    OPENED.clear()
    t = Topology("wrong")
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("same", same).shuffle(t.spout("lines", kind(what))))
    run = run_locally if runtime == "local" else in_process
    with pytest.raises(TupletreeError) as caught:
        run(t, tmp_path / "state", max_restarts=5)
    assert [what] == OPENED
    assert "this kind is of the code, so that no restart was tried" in str(caught.value)
    name = {"type": "TypeError", "attribute": "AttributeError", "name": "NameError"}[what]
    assert name in str(caught.value)
    assert "test_faults_in_the_code_of_spouts.py" in str(caught.value)
