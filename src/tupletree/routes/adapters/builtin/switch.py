"""`switch`: a message goes to one of the outbound queues, by conditions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import Field

from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterResult, PipelineContext


class Case(AdapterConfig):
    """One way.

    Attributes:
        when: the condition.
        queue: of the route's outbound queues.
    """

    when: Condition
    queue: str = Field(min_length=1)


class SwitchConfig(AdapterConfig):
    """Where messages go.

    Attributes:
        cases: in order; the first whose condition holds counts.
        default: the outbound queue of messages for which none holds; empty: they are *unrouted*.
    """

    cases: Sequence[Case] = Field(min_length=1)
    default: str = ""


class Switch(Adapter[SwitchConfig]):
    """Sends each message to the queue of the first case that holds; without one to the default, or it is *unrouted*."""

    Config = SwitchConfig

    @classmethod
    def queues(cls, config: SwitchConfig) -> Collection[str]:
        """Those of its cases, and the default."""
        return [*(case.queue for case in config.cases), *filter(None, [config.default])]

    async def process(self, context: PipelineContext) -> AdapterResult:
        message = context.message
        for case in self.config.cases:
            if case.when.holds(message):
                return AdapterResult(message, queue=case.queue)
        if self.config.default:
            return AdapterResult(message, queue=self.config.default)
        reason = f"none of the {len(self.config.cases)} cases holds, and there is no default"
        return AdapterResult(continue_pipeline=False, reason=reason, unrouted=True)
