"""Adapters that give what a test says, instead of those of the document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from tupletree.errors import ConnectorError, PermanentError, ProcessingError, RetryAfter
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterResult, Emitted, PipelineContext
from tupletree.routes.document.cases import MockModel
from tupletree.routes.document.spec import AdapterSpec, RouteSpec


class MockConfig(AdapterConfig):
    """What a mock gives, call by call; the last answer repeats."""

    answers: Sequence[MockModel] = Field(min_length=1)


class MockAdapter(Adapter[MockConfig]):
    """Gives the test's answers."""

    Config = MockConfig

    def __init__(self, config: MockConfig) -> None:
        super().__init__(config)
        self._calls = 0

    async def process(self, context: PipelineContext) -> AdapterResult:
        """The next answer."""
        answers = self.config.answers
        answer = answers[min(self._calls, len(answers) - 1)]
        self._calls += 1
        if answer.takes_seconds:
            await asyncio.sleep(answer.takes_seconds)
        if answer.raises is not None:
            raise _error(answer, answer.raises)
        emitted = [Emitted(one.payload, one.queue or "", one.headers) for one in answer.emitted]
        ending = answer.filtered if answer.filtered is not None else answer.unrouted
        if ending is not None:
            return AdapterResult(
                emitted=emitted, continue_pipeline=False, reason=ending, unrouted=answer.unrouted is not None
            )
        message = context.message.with_headers(**answer.headers)
        if "payload" in answer.model_fields_set:
            message = message.with_payload(answer.payload)
        elif emitted:
            return AdapterResult(emitted=emitted)
        return AdapterResult(message, emitted, queue=answer.queue or "")


def _error(answer: MockModel, text: str) -> Exception:
    if answer.outage:
        return ConnectorError(text)
    if answer.permanent:
        return PermanentError(text)
    if answer.retry_after_seconds is not None:
        return RetryAfter(answer.retry_after_seconds, text)
    return ProcessingError(text)


def with_mocks(route: RouteSpec, mocks: Mapping[str, Sequence[MockModel]]) -> RouteSpec:
    """The route with mocks in place of the adapters that they are named after. Their conditions still count."""
    return replace(route, adapters=tuple(_mocked(adapter, mocks.get(adapter.name)) for adapter in route.adapters))


def _mocked(adapter: AdapterSpec, answers: Sequence[MockModel] | None) -> AdapterSpec:
    if answers is None:
        return adapter
    return replace(adapter, adapter=MockAdapter, config=MockConfig(answers=answers))
