"""`split`: every item of a list becomes a message of its own."""

from __future__ import annotations

from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterResult, Emitted, PipelineContext
from tupletree.routes.adapters.paths import Path, PathText, TargetText, value_at

INDEX_HEADER, COUNT_HEADER = "split-index", "split-count"


class SplitConfig(AdapterConfig):
    """What is split.

    Attributes:
        field: path of the list.
        into: where each piece has its item: `payload` makes the item the payload, `payload.item` a copy of the payload
            with the item beside the rest. The path of the list itself replaces the list by the item.
    """

    field: PathText = "payload"
    into: TargetText = "payload"


class SplitItems(Adapter[SplitConfig]):
    """Emits a message for each item, with the headers `split-index` (from 0) and `split-count`; ends the chain.

    Pieces have the message as their parent. It is the last adapter of its route: what is emitted is published. An empty
    list is *filtered*.
    """

    Config = SplitConfig

    async def process(self, context: PipelineContext) -> AdapterResult:
        field, into = Path(self.config.field), Path(self.config.into)
        items = value_at(field, context.message, list | tuple, "a list")
        return pieces([into.put(context.message, item).payload for item in items], "the list is empty")


def pieces(payloads: list[object], reason: str) -> AdapterResult:
    """The result that emits each of these; without any, the message is filtered for this reason."""
    if not payloads:
        return AdapterResult(continue_pipeline=False, reason=reason)
    count = str(len(payloads))
    return AdapterResult(
        emitted=[
            Emitted(payload, headers={INDEX_HEADER: str(index), COUNT_HEADER: count})
            for index, payload in enumerate(payloads)
        ]
    )
