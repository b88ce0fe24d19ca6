"""Orphans: tuples that a task holds although their messages are over: they failed or expired elsewhere.

Owns when a task asks the ackers about what it holds, and which. Once per message timeout it asks about the roots that
it held the last time too, and drops those that their ackers do not know. It waits for the second time because an
opening may still be on its way. Nothing is sent on failures themselves: a tuple may come after the mail that its root
has failed, so such mail would have to be kept, and most failures are of tuples that no task holds. Only windows,
joins and tasks with ordered inputs are told of them (see `RetryStatus`): they may see a tuple again before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from tupletree.routing.plan import ACKER, Plan, Task
from tupletree.tasks.mail import DropRoots, OrphanQuery
from tupletree.tasks.outbox import Outbox
from tupletree.topology.model import BoltSpec
from tupletree.topology.ordering import ordered_inputs

WITHOUT_TIMEOUT_S = 30.0
"""How often to ask where messages never expire; they may fail all the same."""

Purge = Callable[[AbstractSet[int], AbstractSet[int]], None]
"""Takes roots that are over, and all that were told to be for a while, themselves among them."""


def orphan_check_of(
    plan: Plan,
    task: Task,
    timeout_s: float | None,
    held: Callable[[], Iterable[int]],
    purge: Purge,
) -> OrphanCheck | None:
    """The check of a bolt task that may keep tuples after a call; None for others. See `OrphanCheck`."""
    component = plan.spec.components[task.component]
    bolt: BoltSpec = component.body
    ackers = plan.deputies_of(ACKER)
    if ackers and (not bolt.settles_each_call or ordered_inputs(component)):
        return OrphanCheck(task.task_id, ackers, timeout_s, held, purge)
    return None


class OrphanCheck:
    """The check of one task.

    Args:
        task: its id.
        acker_tasks: by index; at least one.
        timeout_s: the message timeout.
        held: gives the roots of what the task holds.
        purge: drops what is held for roots that are over only.

    Attributes:
        due_s: when `poll` asks next (monotonic).
    """

    def __init__(
        self,
        task: int,
        acker_tasks: Sequence[int],
        timeout_s: float | None,
        held: Callable[[], Iterable[int]],
        purge: Purge,
    ) -> None:
        self.due_s = 0.0
        self._task = task
        self._acker_tasks = acker_tasks
        self._period_s = WITHOUT_TIMEOUT_S if timeout_s is None else timeout_s
        self._held = held
        self._purge = purge
        self._before: AbstractSet[int] = frozenset()
        self._gone: set[int] = set()

    def poll(self, now_s: float, out: Outbox) -> bool:
        """Ask, if it is time; whether it did."""
        if now_s < self.due_s:
            return False
        self.due_s = now_s + self._period_s
        before, self._before = self._before, dict.fromkeys(self._held()).keys()
        self._gone = set()
        by_acker: dict[int, list[int]] = {}
        for root in self._before:
            if root in before:
                by_acker.setdefault(self._acker_tasks[root % len(self._acker_tasks)], []).append(root)
        out.mail += [(acker, OrphanQuery(self._task, roots)) for acker, roots in by_acker.items()]
        return bool(by_acker)

    def receive(self, drops: Iterable[DropRoots]) -> None:
        """Take answers of ackers, and mail of spouts, together. A tuple is dropped when all its messages are over."""
        over = {root for drop in drops for root in drop.roots}
        if over:
            self._gone |= over
            self._purge(over, self._gone)
