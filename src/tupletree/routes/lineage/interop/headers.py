"""What messages carry for other systems: the trace that they belong to, and attributes of CloudEvents.

Pure. Owns that children of an attempt get headers of their own, instead of those of the message that they came of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tupletree.routes.lineage.interop.cloudevents import event_headers
from tupletree.routes.lineage.interop.traces import HEADER, delivery_context
from tupletree.routes.messages import Child, Settlement, Standing


@dataclass(frozen=True)
class ChildHeaders:
    """Sets headers of children. It can be sent to another process.

    Attributes:
        pipeline: name of the pipeline.
        trace: children carry the span of the delivery that they came of (`traceparent`).
        cloudevents: children carry attributes of CloudEvents.
    """

    pipeline: str
    trace: bool = False
    cloudevents: bool = False

    def set_in(self, settlements: Sequence[Settlement], now_s: Callable[[], float]) -> Sequence[Settlement]:
        """The settlements, with these headers in their children.

        Args:
            settlements: whose children have the headers of the messages that they came of.
            now_s: Unix time.
        """
        if not (self.trace or self.cloudevents):
            return settlements
        at_s = now_s()
        return [
            msgspec.structs.replace(one, children=self._of(one.children, one.messages, at_s)) if one.children else one
            for one in settlements
        ]

    def _of(self, children: Sequence[Child], messages: Sequence[Standing], now_s: float) -> list[Child]:
        """Of a batch the first message counts."""
        first = messages[0]
        execution = first.executions[0] if first.executions else ""
        made = []
        for child in children:
            headers = dict(child.headers)
            if self.trace:
                trace = headers.get(HEADER, "")
                headers[HEADER] = delivery_context(first.id, first.attempt, execution, trace).header()
            if self.cloudevents:
                headers = event_headers(
                    headers,
                    id=child.id,
                    source=f"/{self.pipeline}/{first.route}",
                    time_s=now_s,
                    correlation=execution,
                    causation=first.id,
                )
            made.append(msgspec.structs.replace(child, headers=headers))
        return made
