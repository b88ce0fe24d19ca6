"""What messages carry for other systems: the trace that they belong to, and attributes of CloudEvents.

Pure. Owns that children of an attempt get headers of their own, instead of those of the message that they came of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tupletree.routes.lineage.interop.cloudevents import event_headers
from tupletree.routes.lineage.interop.traces import HEADER, delivery_context
from tupletree.routes.messages import Child, Standing

__all__ = ["ChildHeaders"]


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

    def of(self, children: Sequence[Child], messages: Sequence[Standing], trace: str, now_s: float) -> Sequence[Child]:
        """The children with these headers.

        Args:
            children: that an attempt made.
            messages: whose attempt it was; of a batch the first one counts.
            trace: what these say of their own trace.
            now_s: Unix time.
        """
        if not children or not (self.trace or self.cloudevents):
            return children
        first = messages[0]
        execution = first.executions[0] if first.executions else ""
        carried = {}
        if self.trace:
            carried[HEADER] = delivery_context(first.id, first.attempt, execution, trace).header()
        made = []
        for child in children:
            headers = {**child.headers, **carried}
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
