"""Adapters of a user, for the tests of the registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from tupletree.routes import Adapter, AdapterConfig, AdapterResult, Emitted, PipelineContext


class ShoutConfig(AdapterConfig):
    mark: str = "!"


class Shout(Adapter[ShoutConfig]):
    Config = ShoutConfig
    version = "2"

    def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message.with_payload(context.message.payload.upper() + self.config.mark))


class Incomplete(Adapter[AdapterConfig]):
    pass


class BadConfig(Adapter[AdapterConfig]):
    Config = dict  # type: ignore[assignment]

    def process(self, context: PipelineContext) -> None:
        return None


class Plain:
    pass


NUMBER = 3


class Holder:
    @staticmethod
    def inner(payload: Any) -> Any:
        return [payload]


def upper(payload: str, *, times: int = 1, suffix: str = "") -> str:
    return payload.upper() * times + suffix


def nothing(payload: Any) -> None:
    return None


def needs(payload: Any, folder: str) -> Any:
    return f"{folder}/{payload}"


def anything(payload: Any, **settings: Any) -> Any:
    return {"payload": payload, **settings}


def attempt(context: PipelineContext) -> int:
    return context.attempt


def pieces(payload: str) -> Iterator[Any]:
    yield from payload.split()
    yield Emitted("other", queue="/other")


def no_pieces(payload: str) -> Iterator[str]:
    yield from ()


async def later(payload: int, *, add: int) -> int:
    return payload + add


async def later_pieces(payload: int) -> AsyncIterator[int]:
    for one in range(payload):
        yield one


def no_payload() -> None:
    pass


def two_payloads(first: Any, second: Any, /) -> Any:
    return first, second


def json_parameter(payload: Any, json: bool = True) -> Any:
    return json
