"""The retry status: what spouts and bolts of one topology share, so that windows do not end too early.

Owns two answers. Since when is any message being tried again? And is everything that is on its way held by windows and
joins, so that nothing else can come? Each machine writes its own entry and reads them all, from whatever thread it is
on: entries are only ever replaced.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.tasks.mail import Now
from tupletree.topology.model import BoltSpec

__all__ = ["RetryStatus"]

ARRIVAL_S = 1.0
"""How long a message counts as being tried again after its next attempt went out: it is to reach its windows."""


class RetryStatus:
    """See the module docstring.

    Args:
        spout_tasks: who emits.
        holder_tasks: who holds.
        timeout_s: the message timeout, for those that extend it; None: nothing times out.

    Attributes:
        holder_tasks, timeout_s: as given. Holders are told (`Drop`) of each attempt that failed.
    """

    def __init__(self, spout_tasks: Iterable[int], holder_tasks: Iterable[int], timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.holder_tasks = tuple(holder_tasks)
        self._retrying = dict.fromkeys(spout_tasks, (math.inf, 0.0))
        self._in_flight = dict.fromkeys(self._retrying, 0)
        self._held: dict[int, frozenset[int]] = dict.fromkeys(self.holder_tasks, frozenset())
        self._held_count = 0

    @classmethod
    def of(cls, plan: Plan, options: Options) -> RetryStatus | None:
        """That of a topology; None where there are neither windows nor joins."""
        spec = plan.spec
        holders = [
            task
            for name, component in spec.components.items()
            if isinstance(component.body, BoltSpec) and component.body.holding is not None
            for task in plan.task_ids_of(name)
        ]
        if not holders:
            return None
        spouts = [
            task for name, one in spec.components.items() if one.kind == "spout" for task in plan.task_ids_of(name)
        ]
        return cls(spouts, holders, options.message_timeout_s)

    def note_spout(self, task: int, retrying_since_s: float | None, in_flight: int, now: Now) -> None:
        """A spout task tells how it stands.

        Args:
            task: the spout task.
            retrying_since_s: when the oldest message first went out that waits to be tried again, since the Unix epoch.
            in_flight: messages with an attempt out whose trees are open.
            now: the clock.
        """
        since_s = math.inf if retrying_since_s is None else retrying_since_s
        known_s, until_s = self._retrying[task]
        if since_s <= known_s or now.monotonic_s >= until_s:
            self._retrying[task] = since_s, now.monotonic_s + ARRIVAL_S
        self._in_flight[task] = in_flight

    def note_holder(self, task: int, roots: frozenset[int]) -> None:
        """A bolt's task holds tuples of these messages; several may hold one."""
        self._held[task] = roots
        self._held_count = len(frozenset().union(*self._held.values()))

    @property
    def retrying_since_s(self) -> float | None:
        """When the oldest message that is being tried again first went out, since the Unix epoch."""
        since_s = min(since_s for since_s, _ in self._retrying.values())
        return None if since_s == math.inf else since_s

    @property
    def all_is_held(self) -> bool:
        """Whether all messages on their way are where they wait for others, as far as one can know."""
        return self._held_count >= sum(self._in_flight.values())
