"""`delay`: a message is published now and delivered later."""

from __future__ import annotations

import math
from datetime import datetime

from pydantic import Field, model_validator

from tupletree.errors import PermanentError
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterResult, Emitted, PipelineContext
from tupletree.routes.adapters.paths import Path, PathText, value_at


class DelayConfig(AdapterConfig):
    """How long: one of `seconds` and `until`.

    Attributes:
        seconds: from now.
        until: path of a time: Unix time in seconds, or ISO 8601 text with an offset. What is past is delivered at once.
        max_seconds: at most.
    """

    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    until: PathText | None = None
    max_seconds: float = Field(default=30 * 86400.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one(self) -> DelayConfig:
        if (self.seconds is None) == (self.until is None):
            raise ValueError("expected seconds or until")
        return self


class Delay(Adapter[DelayConfig]):
    """Publishes the message so that its queue delivers it after a pause; ends the chain.

    No slot is taken meanwhile. It is the last adapter of its route.
    """

    Config = DelayConfig

    async def process(self, context: PipelineContext) -> AdapterResult:
        seconds = self.config.seconds
        if seconds is None:
            seconds = _time(Path(self.config.until or ""), context) - context.now_s()
        seconds = min(max(seconds, 0.0), self.config.max_seconds)
        return AdapterResult(emitted=[Emitted(context.message.payload, context.queue, delay_s=seconds)])


def _time(path: Path, context: PipelineContext) -> float:
    value = value_at(path, context.message, int | float | str | datetime, "a time")
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(moment, datetime):
            seconds = math.nan if moment.tzinfo is None else moment.timestamp()
        else:
            seconds = math.nan if isinstance(moment, bool) else float(moment)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise PermanentError(
            "this is no time to wait for",
            where=path.text,
            got=repr(value),
            expected="Unix time in seconds, or ISO 8601 text with an offset, such as 2026-07-01T12:00:00Z",
        )
    return seconds
