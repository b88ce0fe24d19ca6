"""`filter` and `drop`: messages that go on, and those that end here."""

from __future__ import annotations

from pydantic import model_validator

from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterResult, PipelineContext


class FilterConfig(AdapterConfig):
    """Which messages go on: one of `keep` and `drop`.

    Attributes:
        keep: those for which this holds.
        drop: those for which this does not hold.
        reason: for the ledger and the lineage of those that end here.
    """

    keep: Condition | None = None
    drop: Condition | None = None
    reason: str = "the filter's condition"

    @model_validator(mode="after")
    def _one(self) -> FilterConfig:
        if (self.keep is None) == (self.drop is None):
            raise ValueError("expected keep or drop, a condition")
        return self


class Filter(Adapter[FilterConfig]):
    """Lets messages pass for which a condition holds; the others are *filtered*."""

    Config = FilterConfig

    async def process(self, context: PipelineContext) -> AdapterResult:
        config = self.config
        if config.keep is not None:
            stays = config.keep.holds(context.message)
        else:
            stays = config.drop is None or not config.drop.holds(context.message)
        return AdapterResult(context.message) if stays else AdapterResult(continue_pipeline=False, reason=config.reason)


class DropConfig(AdapterConfig):
    """Why messages end here.

    Attributes:
        reason: for the ledger and the lineage.
    """

    reason: str = "drop"


class Drop(Adapter[DropConfig]):
    """Ends the chain of every message that gets here: nothing is published, the message is *filtered*."""

    Config = DropConfig

    async def process(self, context: PipelineContext) -> AdapterResult:  # noqa: ARG002 - the contract's
        return AdapterResult(continue_pipeline=False, reason=self.config.reason)
