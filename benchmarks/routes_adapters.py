"""The adapters of the benchmark of routes. They import nothing: `validate` imports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["fan_out", "first", "second", "third"]


def fan_out(payload: Any) -> Iterator[dict[str, int]]:
    """A message for each number."""
    for number in range(payload["count"]):
        yield {"n": number}


async def first(payload: Any) -> Any:
    """One more."""
    return {"n": payload["n"] + 1}


async def second(payload: Any) -> Any:
    """One more."""
    return {"n": payload["n"] + 1}


async def third(payload: Any) -> Any:
    """One more."""
    return {"n": payload["n"] + 1}
