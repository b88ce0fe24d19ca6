"""What runs in a notebook or an async test, where the thread has an event loop that runs."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path

import pytest

from tests.local.running import HANG_S, begin
from tests.tasks.streams import Line, Word
from tupletree import Topology, bolt, testing
from tupletree.sinks import foreach
from tupletree.sources import items

here: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nowhere")


@bolt(concurrency=4)
async def shout(line: Line) -> Word:
    await asyncio.sleep(0.01)
    return Word(f"{line.text} {here.get()}")


def shouting() -> Topology:
    t = Topology("shouting")
    said = t.bolt("shout", shout).shuffle(t.spout("lines", items([Line("a"), Line("b")])))
    t.sink("out", foreach(lambda _: None)).shuffle(said)
    return t


def test_a_test_run_with_an_async_bolt_ends_within_a_running_event_loop() -> None:
    async def main() -> testing.TestRun:
        here.set("in the loop")
        return testing.run(shouting())

    ended = asyncio.run(main())
    assert [one.acked for one in ended.messages["lines"]] == [True, True]
    assert [word.word for word in ended.outputs["out"]] == ["a in the loop", "b in the loop"]


def test_an_error_of_a_test_run_comes_out_within_a_running_event_loop() -> None:
    async def main() -> None:
        testing.run(shouting(), {"nobody": []})

    with pytest.raises(Exception, match="nobody"):
        asyncio.run(main())


def test_a_local_run_with_an_async_bolt_ends_within_a_running_event_loop(tmp_path: Path) -> None:
    async def main() -> int:
        return begin(shouting(), tmp_path).wait(HANG_S).acked

    assert asyncio.run(main()) == 2


def test_virtual_calls_within_a_running_event_loop_are_refused_and_do_not_hang() -> None:
    async def main() -> None:
        from tupletree.testing.virtual.calls import VirtualCalls

        async def call() -> list[int]:
            return []

        VirtualCalls().start(1, 1, call)

    with pytest.raises(Exception, match="event loop"):
        asyncio.run(main())
