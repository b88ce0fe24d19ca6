"""A system that has no thread to give, for a while or for good: no message is to blame for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run
from tests.routes.running.test_pipelines import HANG_S, pipeline, route
from tests.tasks.streams import Line
from tupletree import Topology, bolt
from tupletree.errors import ConnectorError
from tupletree.routes import Adapter, AdapterResult, PipelineContext
from tupletree.routes.adapters.contract import AdapterConfig
from tupletree.routes.document.spec import AdapterSpec
from tupletree.runtimes.threads import start_thread
from tupletree.sinks import foreach
from tupletree.sources import items

Refuse = Callable[[Callable[[str], bool]], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Threads whose names it says are not started."""
    start = threading.Thread.start

    def refuse(names: Callable[[str], bool]) -> None:
        def refusing(thread: threading.Thread) -> None:
            if names(thread.name):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refusing)

    return refuse


def test_the_error_says_what_to_raise_and_a_thread_that_was_started_before_is_a_fault(refuse: Refuse) -> None:
    thread = start_thread(threading.Thread(target=int))
    with pytest.raises(RuntimeError, match="once"):
        start_thread(thread)
    refuse(lambda _: True)
    with pytest.raises(ConnectorError, match="no thread can be started") as refused:
        start_thread(threading.Thread(target=int, name="mine"))
    assert "ulimit -u" in str(refused.value)
    assert "mine" in str(refused.value)


@bolt(blocking=True)
def slow(line: Line) -> Line:
    return line


@bolt(concurrency=2)
async def awaited(line: Line) -> Line:
    return line


@pytest.mark.parametrize("refused", range(8))
def test_a_run_that_gets_too_few_threads_says_so_or_does_without(tmp_path: Path, refuse: Refuse, refused: int) -> None:
    rows: list[Any] = []
    t = Topology("t")
    lines = t.spout("lines", items([Line("a"), Line("b")]))
    both = t.bolt("awaited", awaited).shuffle(t.bolt("slow", slow).shuffle(lines))
    t.sink("out", foreach(lambda batch: rows.extend(batch.rows))).shuffle(both)
    count = iter(range(1_000))
    refuse(lambda name: name.startswith("tupletree") and next(count) >= refused)
    try:
        summary = run(t, tmp_path / "state", max_restarts=0)
    except ConnectorError as error:
        assert "no thread can be started" in str(error)  # noqa: PT017 - either is right
    else:
        assert (summary.acked, len(rows)) == (2, 2)


class Plain(Adapter[AdapterConfig]):
    parallel = True

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message)


def test_a_message_whose_adapter_gets_no_thread_waits_for_one(tmp_path: Path, refuse: Refuse) -> None:
    left = iter(range(3))
    refuse(lambda name: name.startswith("tupletree-route-") and next(left, None) is not None)
    p = pipeline(tmp_path, route("one", AdapterSpec("plain", "plain", Plain, AdapterConfig(), None), inbound="q.one"))
    with p.run() as running:
        begun = running.execute({}, route="one")
        assert begun.wait(HANG_S).state == "completed"
        [message] = running.services.ledger.messages(begun.id)
    assert message.failures == 0
    assert next(left, None) is None
