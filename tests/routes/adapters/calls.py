"""Adapters, opened, called and closed as a route does it, without one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tupletree.routes import Adapter, AdapterContext, AdapterResult, PipelineContext, RouteMessage
from tupletree.routes.adapters import find


def made(type_name: str, **config: Any) -> Adapter[Any]:
    """An adapter of this type, not opened yet."""
    cls = find(type_name)
    return cls(cls.Config.model_validate(config))


async def opened(type_name: str, *, settings: Mapping[str, Any] | None = None, **config: Any) -> Adapter[Any]:
    adapter = made(type_name, **config)
    waiting = adapter.open(AdapterContext("route", type_name, 0, settings=settings or {}))
    if waiting is not None:
        await waiting
    return adapter


async def closed(adapter: Adapter[Any]) -> None:
    waiting = adapter.close()
    if waiting is not None:
        await waiting


async def process(adapter: Adapter[Any], message: RouteMessage, **context: Any) -> AdapterResult | None:
    result: Any = adapter.process(PipelineContext(message, **context))
    if inspect.isawaitable(result):
        result = await result
    assert result is None or isinstance(result, AdapterResult)
    return result


async def called(type_name: str, payload: Any, **config: Any) -> AdapterResult | None:
    """What one call with this payload gives."""
    adapter = await opened(type_name, **config)
    try:
        return await process(adapter, RouteMessage(payload, id="m1"))
    finally:
        await closed(adapter)


async def payload_of(type_name: str, payload: Any, **config: Any) -> Any:
    """The payload that one call gives."""
    result = await called(type_name, payload, **config)
    assert result is not None
    assert result.message is not None
    return result.message.payload


def pieces_of(result: AdapterResult | None) -> list[Any]:
    assert result is not None
    return [piece.payload for piece in result.emitted]
