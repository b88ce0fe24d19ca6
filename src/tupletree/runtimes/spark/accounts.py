"""The accounts of a run: what the driver knows of every message, tree, state version and total.

Shared by the loop that feeds epochs and the thread in which Spark settles them; whoever touches it holds `lock`.
It can be rebuilt from the journal at any time (`recovery`).
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

from tupletree.payloads import from_jsonable, to_jsonable
from tupletree.runtimes.spark.journal import Counters, OpenTree
from tupletree.state.versions import StateFile
from tupletree.topology.model import TopologySpec
from tupletree.tracking.pending import Pending

__all__ = ["Accounts", "StoredPayload"]


@dataclass(frozen=True)
class StoredPayload:
    """Stands for a value that was read from the journal in its plain form and is not needed in any other."""

    payload: Any


@dataclass
class Accounts:
    """See the module docstring.

    Attributes:
        pending: messages in flight and waiting.
        spout_of: spout task → component name.
        open: trees whose epoch is over, by root.
        state: component → segments of the committed version.
        totals: counters at the last settled epoch, over the life of the state directory.
        positions, ended: spout task → position after the last logged epoch; tasks whose input is over.
        replays: replay requests that were carried out.
        settled: the last settled epoch; -1 before the first.
    """

    spec: TopologySpec
    pending: Pending
    spout_of: dict[int, str]
    open: dict[int, OpenTree] = field(default_factory=dict)
    state: dict[str, list[StateFile]] = field(default_factory=dict)
    totals: Counters = field(default_factory=Counters)
    positions: dict[int, Any] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    replays: set[str] = field(default_factory=set)
    settled: int = -1
    lock: threading.RLock = field(default_factory=threading.RLock)

    def encode_value(self, _spout_task: int, value: Any) -> Any:
        """A message's value as the journal and dead letters keep it."""
        return value.payload if isinstance(value, StoredPayload) else to_jsonable(value)

    def decode_value(self, spout_task: int, data: Any) -> Any:
        """Undo `encode_value`, by the class of the spout's stream."""
        return from_jsonable(data, self.message_class(spout_task))

    def message_class(self, spout_task: int) -> type:
        """The class of what a spout task emits."""
        (stream,) = self.spec.components[self.spout_of[spout_task]].outputs.values()
        return stream.schema.cls

    def next_expiry_s(self) -> float:
        """When the first open tree expires, since the Unix epoch; infinity if there is none."""
        return min((tree.deadline_s for tree in self.open.values()), default=math.inf)

    def is_idle(self) -> bool:
        """Whether no message is in flight, waiting or awaited from its source."""
        tasks = self.spout_of
        return not any(self.pending.open_count(task) or self.pending.awaiting_source(task) for task in tasks)
