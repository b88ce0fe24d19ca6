"""A call that takes long is in the lineage, and in the account of its message, while it goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.pipelines import Batch, Config, adapter, work
from tests.routes.running.pipelines import route as route_of
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, pipeline, route
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.routes import Adapter, AdapterResult, CallRecord, PipelineContext
from tupletree.routes.accounts import Account, account_of
from tupletree.routes.document.spec import LineageSpec
from tupletree.routes.ledger import Ledger
from tupletree.routes.lineage import Call, Lineage
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running import chain
from tupletree.routes.running.chain import Chain
from tupletree.routes.running.walks import AdapterSurroundings

Start = Callable[[Pipeline], PipelineRun]
both = pytest.mark.parametrize("start", RUNTIMES)

may_end = threading.Event()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chain, "LOOK_S", 0.02)
    may_end.clear()
    yield
    may_end.set()


class Waiting(Adapter[Config]):
    """Waits, and then does what the payload says."""

    parallel = True

    def process(self, context: PipelineContext) -> AdapterResult:
        may_end.wait(HANG_S)
        do = context.message.payload.get("do", "")
        if do == "raise":
            raise ValueError("after all")
        if do == "away":
            context.message.payload["do"] = ""
            raise ConnectorError("away")
        return AdapterResult(context.message.with_payload({"is": "done"}))


class WaitingBatch(Batch):
    def process_batch(self, contexts: Sequence[PipelineContext]) -> Any:
        may_end.wait(HANG_S)
        return super().process_batch(contexts)


def seen(home: Path, execution: str) -> tuple[list[Call], Account | None]:
    """What can be asked from elsewhere; nothing before there is a store."""
    if not (home / "pipeline.lineage.db").exists():
        return [], None
    ledger = Ledger.open(f"sqlite:///{home}/pipeline.db")
    try:
        with Lineage.open(f"sqlite:///{home}/pipeline.lineage.db") as lineage:
            found = account_of(execution, ledger, lineage)
            return (list(lineage.calls(found.id)) if found is not None else []), found
    except ConnectorError:  # its tables are not there yet
        return [], None
    finally:
        ledger.close()


@both
@pytest.mark.parametrize(("do", "status"), [("", "completed"), ("raise", "failed")])
def test_a_call_is_pending_while_it_goes_on_and_then_completed_or_failed_with_hashes(
    tmp_path: Path, start: Start, do: str, status: str
) -> None:
    p = pipeline(tmp_path, route("one", adapter(Waiting)), lineage=LineageSpec(level="full"))
    with start(p) as run:
        begun = run.execute({"number": 1, "do": do})
        until(lambda: seen(tmp_path, begun.id)[0])
        [pending], account = seen(tmp_path, begun.id)
        assert (pending.status, pending.adapter, pending.ended_s, pending.output_hash) == (
            "pending",
            "waiting",
            0.0,
            "",
        )
        assert pending.input_hash
        assert account is not None
        assert "route one works on it, attempt 1" in account.sentence
        assert "it is in adapter waiting since" in account.sentence
        may_end.set()
        begun.wait(HANG_S)
    first, *others = seen(tmp_path, begun.id)[0]
    assert (first.status, first.started_s, first.input_hash) == (status, pending.started_s, pending.input_hash)
    assert bool(first.output_hash) == (status == "completed")
    assert first.ended_s > first.started_s
    assert [one.status for one in others] == ([] if status == "completed" else ["failed"]), "each call once"


@both
def test_so_is_the_call_of_a_batch_for_each_of_its_members(tmp_path: Path, start: Start) -> None:
    p = pipeline(tmp_path, route("one", adapter(WaitingBatch, size=1)), lineage=LineageSpec(level="full"))
    with start(p) as run:
        begun = run.execute({"number": 1})
        until(lambda: seen(tmp_path, begun.id)[0])
        [pending], account = seen(tmp_path, begun.id)
        assert pending.status == "pending"
        assert account is not None
        assert "it is in adapter waitingbatch since" in account.sentence
        may_end.set()
        assert begun.wait(HANG_S).state == "completed"
    assert [one.status for one in seen(tmp_path, begun.id)[0]] == ["completed"]


def told_of(payload: Any, *, seconds: float = 0.1, stopped: bool = False) -> list[CallRecord]:
    """What is told of the calls of one walk while it goes on."""
    told: list[CallRecord] = []

    async def walk() -> None:
        one = Chain(route_of(adapter(Waiting)), 0, 1, AdapterSurroundings(note=told.extend))
        await one.open()
        task = asyncio.ensure_future(one.work(work(payload)))
        await asyncio.sleep(seconds)
        if stopped:
            task.cancel()
        may_end.set()
        await asyncio.wait([task])
        await one.close()
        if not task.cancelled():
            task.exception()

    asyncio.run(walk())
    return told


def test_a_call_that_was_told_of_and_comes_to_nothing_is_told_to_be_cancelled() -> None:
    outage = told_of({"do": "away"})
    assert [(one.status, one.error) for one in outage] == [("pending", ""), ("cancelled", "ConnectorError: away")]
    assert outage[0].started_s == outage[1].started_s
    may_end.clear()
    assert [(one.status, one.error) for one in told_of({}, stopped=True)] == [
        ("pending", ""),
        ("cancelled", "it was stopped"),
    ]


def test_nothing_is_told_of_calls_that_are_short() -> None:
    may_end.set()
    assert told_of({}, seconds=0.05) == []
