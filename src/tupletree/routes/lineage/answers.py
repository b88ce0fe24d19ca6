"""What can be asked of lineage, and what the answers look like.

Owns the classes of answers, as plain data that also becomes JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an adapter. The fields are those of `CallRecord`."""

    message: str
    position: int
    attempt: int
    started_s: float
    ended_s: float
    execution: str
    pipeline: str
    route: str
    adapter: str
    status: str
    input_hash: str = ""
    output_hash: str = ""
    error: str = ""
    batch: str = ""
    trace: str = ""

    @property
    def took_s(self) -> float:
        """How long it took, in seconds."""
        return max(0.0, self.ended_s - self.started_s)


class TreeMessage(msgspec.Struct, kw_only=True):
    """A message of a tree.

    Attributes:
        id: of the message.
        calls: of adapters, in the order of their starts.
        parents: ids of the messages that it came of.
        children: ids of those that came of it, as far as they are in the tree.
        more_children: how many are not in the tree, because it would be too large.
        state: what the ledger says of one that is dead and was handled elsewhere; `tupletree lineage` asks it.
    """

    id: str
    calls: list[Call] = []
    parents: list[str] = []
    children: list[str] = []
    more_children: int = 0
    state: str = ""

    @property
    def route(self) -> str:
        """The route that worked it last; empty if none has."""
        return self.calls[-1].route if self.calls else ""

    @property
    def execution(self) -> str:
        """The first of its executions; empty if it was never worked."""
        return self.calls[-1].execution if self.calls else ""


class Tree(msgspec.Struct, kw_only=True):
    """Messages that came of one another, through all routes.

    Attributes:
        asked: the id that was asked for.
        is_execution: it is that of an execution.
        roots: ids of the messages that came of none that is known.
        messages: by id.
    """

    asked: str
    is_execution: bool
    roots: Sequence[str]
    messages: Mapping[str, TreeMessage]


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of one adapter in one route.

    Attributes:
        pipeline, route, adapter, position: which one.
        calls: that worked: all but those that were skipped or go on.
        failed, filtered, skipped, cancelled: how many of these there were.
        p50_s, p95_s: of the durations of completed, filtered and failed calls, right within 2.2 %; None: no such call.
        rate_per_s: calls per second, from the first to the last call of all that is counted.
    """

    pipeline: str
    route: str
    adapter: str
    position: int
    calls: int
    failed: int = 0
    filtered: int = 0
    skipped: int = 0
    cancelled: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    rate_per_s: float = 0.0
