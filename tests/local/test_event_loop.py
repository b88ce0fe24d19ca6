from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.local.running import HANG_S
from tupletree.runtimes.local.event_loop import CallRunner
from tupletree.tasks.mail import Finished


def test_a_call_that_waits_is_cancelled_when_everything_ends() -> None:
    started, told = threading.Event(), list[Finished]()

    async def wait_for_ever() -> list[Any]:
        started.set()
        await asyncio.Event().wait()
        return []

    runner = CallRunner()
    runner.run(5, 1, wait_for_ever, told.append)
    assert started.wait(HANG_S)
    runner.close()
    assert [(one.call, type(one.error)) for one in told] == [(1, asyncio.CancelledError)]


def test_a_call_that_blocks_the_event_loop_is_named_and_does_not_block_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def block() -> list[Any]:
        started.set()
        assert go.wait(HANG_S)
        return []

    runner = CallRunner()
    runner.run(5, 1, block, lambda _: ended.set())
    assert started.wait(HANG_S)
    runner.close(timeout_s=0.0)
    assert "left behind" in caplog.text
    assert "in block" in caplog.text
    go.set()
    assert ended.wait(HANG_S)


def test_a_call_that_blocks_the_event_loop_is_named_while_it_runs_once(caplog: pytest.LogCaptureFixture) -> None:
    started, go, answered = threading.Event(), threading.Event(), threading.Event()

    async def block() -> list[Any]:
        started.set()
        assert go.wait(HANG_S)
        return []

    runner = CallRunner()
    runner.look(0.0)
    runner.run(1, 1, block, lambda _: answered.set())
    assert started.wait(HANG_S)
    for now_s in (1.0, 10.5, 11.5, 12.5):
        runner.look(now_s)
    assert [record.message.count("in block") for record in caplog.records] == [1]
    assert "for 10 s" in caplog.text
    go.set()
    assert answered.wait(HANG_S)
    runner.close()
