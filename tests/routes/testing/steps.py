"""Adapters of the documents of these tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tupletree.routes import (
    Adapter,
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    BatchAdapter,
    Emitted,
    PipelineContext,
    Release,
    StatefulAdapter,
)


def upper(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "name": payload["name"].upper()}


def twice(payload: Any) -> Any:
    yield payload
    yield payload


class WaitConfig(AdapterConfig):
    seconds: float = 60.0


class Wait(Adapter[WaitConfig]):
    Config = WaitConfig

    async def process(self, context: PipelineContext) -> AdapterResult:
        before_s = context.now_s()
        await asyncio.sleep(self.config.seconds)
        return AdapterResult(context.message.with_payload({"waited_s": round(context.now_s() - before_s)}))


class Threaded(Adapter[AdapterConfig]):
    """Code that uses threads of its own making, and loops in them."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        def work() -> int:
            time.sleep(0.01)  # work that blocks its thread
            return asyncio.run(asyncio.sleep(0, 7))

        return AdapterResult(context.message.with_payload(await asyncio.to_thread(work)))


class JoinConfig(AdapterConfig):
    size: int = 3
    max_age_s: float = 30.0
    rest_s: float = 0.0


class Join(BatchAdapter[JoinConfig]):
    Config = JoinConfig

    def __init__(self, config: JoinConfig) -> None:
        super().__init__(config)
        self.size, self.max_age_s = config.size, config.max_age_s

    async def process_batch(self, contexts: Sequence[PipelineContext]) -> AdapterResult:
        await asyncio.sleep(self.config.rest_s)
        payloads = [context.message.payload for context in contexts]
        if "bad" in payloads:
            raise ValueError("bad")
        return AdapterResult(contexts[0].message.with_payload(payloads))


class Pairs(StatefulAdapter[AdapterConfig]):
    """Lets two messages go together; drops one that has waited for a minute."""

    def open(self, context: AdapterContext) -> None:
        self.waiting: dict[str, tuple[PipelineContext, float]] = {}

    def process(self, context: PipelineContext) -> AdapterResult:
        self.waiting[context.message.id] = context, context.now_s()
        return AdapterResult(continue_pipeline=False, reason="waits for another")

    def check(self, now_s: float) -> list[Release]:
        if len(self.waiting) >= 2:
            (one, (context, _)), (other, (second, _)) = list(self.waiting.items())[:2]
            self.waiting.clear()
            payload = [context.message.payload, second.message.payload]
            return [Release([one, other], [AdapterResult(context.message.with_payload(payload))])]
        late = [name for name, (_, since_s) in self.waiting.items() if now_s - since_s >= 60]
        return [Release([self.waiting.pop(name)[0].message.id], dropped="alone") for name in late]


class Never(StatefulAdapter[AdapterConfig]):
    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(continue_pipeline=False)

    def check(self, now_s: float) -> list[Release]:
        return []


class CannotOpen(Adapter[AdapterConfig]):
    def open(self, context: AdapterContext) -> None:
        raise RuntimeError("no disk")

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message)


class Emits(Adapter[AdapterConfig]):
    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message, [Emitted(context.settings.get("extra"), queue="b")])
