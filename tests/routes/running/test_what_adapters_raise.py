"""Whatever an adapter raises fails its message alone, also what would end a program: in every kind of adapter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.test_pipelines import HANG_S, in_process_spark, on_local, states
from tupletree.routes import Adapter, AdapterResult, BatchAdapter, Pipeline, PipelineContext, Release, StatefulAdapter
from tupletree.routes.pipeline import PipelineRun


class UnprintableError(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [KeyboardInterrupt()]),
    "StopAsyncIteration": StopAsyncIteration,
    "UnprintableError": UnprintableError,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
}
AS_RUNTIME_ERROR = {"GeneratorExit", "StopIteration"}
"""What Python itself, or the thread of a plain function, turns into a RuntimeError."""
GOOD = 5


def all_of_them(payload: Any) -> Iterator[Any]:
    names = iter(RAISED)
    for number in range(GOOD):  # good messages stand between the others, so that batches have both
        yield {"do": "nothing", "number": number}
        for name in [next(names, ""), next(names, "")]:
            yield {"do": name, "number": number}


def judge(payload: Any) -> Any:
    if (make := RAISED.get(payload["do"])) is not None:
        raise make()
    return payload


async def judge_async(payload: Any) -> Any:
    return judge(payload)


async def judge_in_a_task(payload: Any) -> Any:
    # Python closes who awaits a task that raised GeneratorExit, and no task may raise StopIteration.
    return judge(payload) if payload["do"] in AS_RUNTIME_ERROR else await asyncio.create_task(judge_async(payload))


class Batch(BatchAdapter[Any]):
    size = 4
    max_age_s = 0.05

    def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:
        return [AdapterResult(one.message.with_payload(judge(one.message.payload))) for one in contexts]


class AsyncBatch(Batch):
    async def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:  # type: ignore[override]  # it may be async
        await asyncio.sleep(0)
        return super().process_batch(contexts)


class TaskBatch(Batch):
    """A task that it starts, and does not await, ends the program; the batch is fine."""

    async def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:  # type: ignore[override]  # it may be async
        async def end() -> None:
            sys.exit(3)

        started = asyncio.ensure_future(end())
        await asyncio.wait({started})
        assert isinstance(started.exception(), SystemExit)
        return super().process_batch(contexts)


class Stateful(StatefulAdapter[Any]):
    check_interval_s = 0.05

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message.with_payload(judge(context.message.payload)))

    def check(self, now_s: float) -> Sequence[Release]:
        return []


class Checked(StatefulAdapter[Any]):
    """Holds one message at a time, and judges it in `check`."""

    check_interval_s = 0.02

    def open(self, context: Any) -> None:
        self.held: list[PipelineContext] = []

    def process(self, context: PipelineContext) -> AdapterResult:
        self.held.append(context)
        return AdapterResult(context.message, continue_pipeline=False, reason="held")

    def check(self, now_s: float) -> Sequence[Release]:
        held, self.held = self.held, []
        for one in held:
            judge(one.message.payload)
        return [Release([one.message.id], [AdapterResult(one.message)]) for one in held]


class Async(Adapter[Any]):
    async def process(self, context: PipelineContext) -> AdapterResult:
        await asyncio.sleep(0)
        return AdapterResult(context.message.with_payload(judge(context.message.payload)))


KINDS = ["judge", "judge_async", "judge_in_a_task", "Async", "Batch", "AsyncBatch", "TaskBatch", "Stateful", "Checked"]

# What `check` raises fails all that is held, which on Spark is the whole epoch.
RUNS = [*((one, on_local) for one in KINDS), *((one, in_process_spark) for one in KINDS if one != "Checked")]

DOCUMENT = """
version: 1
pipeline: raising
defaults: {{error_handling: {{max_retries: 1, retry_delay_seconds: 0.01}}}}
routes:
  make:
    inbound: {{queue: q.make}}
    adapters: [{{type: "tests.routes.running.test_what_adapters_raise:all_of_them"}}]
    outbound: [{{queue: q.judge}}]
  judge:
    inbound: {{queue: q.judge, concurrency: {at_once}}}
    adapters: [{{type: "tests.routes.running.test_what_adapters_raise:{kind}"}}]
"""


@pytest.mark.parametrize(("kind", "start"), RUNS)
def test_it_fails_its_message_alone_and_is_tried_again(
    tmp_path: Path, kind: str, start: Callable[[Pipeline], PipelineRun]
) -> None:
    at_once = 1 if kind == "Checked" else 4
    (tmp_path / "raising.yaml").write_text(DOCUMENT.format(kind=kind, at_once=at_once))
    with start(Pipeline.load(tmp_path / "raising.yaml", home=tmp_path)) as run:
        begun = run.execute({}, route="make")
        assert begun.wait(HANG_S).dead == len(RAISED), run.services.ledger.messages(begun.id, state="dead")
        assert states(run, begun.id)["judge"] == {"done": GOOD, "dead": len(RAISED)}
        dead = run.services.ledger.messages(begun.id, state="dead")
    assert {one.failures for one in dead} == {2}
    named = {one.error for one in dead}
    assert named - {"RuntimeError"} >= set(RAISED) - AS_RUNTIME_ERROR
    assert not any(one.reason == "error" for one in dead)
    [unprintable] = [one for one in dead if one.error == "UnprintableError"]
    assert unprintable.reason == "<UnprintableError whose str raised ValueError>"
