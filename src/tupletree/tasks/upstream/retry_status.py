"""The retry status: what spouts and bolts of one topology share, so that windows do not end too early.

Owns three answers. Since when is any message being tried again? Is everything that is on its way held by windows and
joins, so that nothing else can come? And is there a source that cannot give a message again, because its limit is full
of messages that windows hold until that one comes? Each machine writes its own entry and reads them all, from whatever
thread it is on: entries are only ever replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.tasks.mail import Now
from tupletree.tasks.upstream.under_way import UnderWay
from tupletree.topology.model import BoltSpec

ARRIVAL_S = 1.0
"""How long a message counts as being tried again after its next attempt went out: it is to reach its windows."""

BLOCKED_S = 0.25
"""How long a source must be blocked: more than twice the time in which windows and joins tell what they hold."""


class RetryStatus:
    """See the module docstring.

    Args:
        spout_tasks: who emits.
        holder_tasks: who holds.
        timeout_s: the message timeout, for those that extend it; None: nothing times out.
        under_way: what is on its way to windows and joins by event time; None where there are none.

    Attributes:
        holder_tasks, timeout_s, under_way: as given.
        hearing_tasks: holders, and tasks with ordered inputs: they are told (`DropRoots`) of each attempt that failed.
    """

    def __init__(
        self,
        spout_tasks: Iterable[int],
        holder_tasks: Iterable[int],
        timeout_s: float | None,
        under_way: UnderWay | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.under_way = under_way
        self.holder_tasks = tuple(holder_tasks)
        ordered = None if under_way is None else under_way.ordered
        self.hearing_tasks = self.holder_tasks if ordered is None else (*self.holder_tasks, *ordered.tasks)
        self._retrying = dict.fromkeys(spout_tasks, (math.inf, 0.0))
        self._in_flight = dict.fromkeys(self._retrying, 0)
        self._held: dict[int, frozenset[int]] = dict.fromkeys(self.holder_tasks, frozenset())
        self._held_count = 0
        self._asking = dict.fromkeys(self._retrying, False)

    @classmethod
    def of(
        cls, plan: Plan, options: Options, make_lock: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> RetryStatus | None:
        """That of a topology; None without windows, joins and ordered inputs. `make_lock`: see `UnderWay`."""
        spec = plan.spec
        holders = [
            task
            for name, component in spec.components.items()
            if isinstance(component.body, BoltSpec) and component.body.holding is not None
            for task in plan.task_ids_of(name)
        ]
        under_way = UnderWay.of(plan, make_lock)
        if not holders and under_way is None:
            return None
        spouts = [
            task for name, one in spec.components.items() if one.kind == "spout" for task in plan.task_ids_of(name)
        ]
        return cls(spouts, holders, options.message_timeout_s, under_way)

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

    def note_asking(self, task: int, asks: bool) -> None:
        """A spout task wants to know, or no longer, what windows and joins hold."""
        if self._asking[task] is not asks:
            self._asking[task] = asks

    def give_up(self, task: int) -> None:
        """Nothing of this spout task is being tried again, by what it tells next; no attempt is on its way."""
        self._retrying[task] = math.inf, 0.0

    def note_holder(self, task: int, roots: frozenset[int]) -> None:
        """A bolt's task holds tuples of these messages; several may hold one."""
        self._held[task] = roots
        self._held_count = len(frozenset().union(*self._held.values()))

    def are_held(self, roots: Iterable[int]) -> bool:
        """Whether windows and joins hold tuples of all these messages, by what they told last."""
        return frozenset().union(*self._held.values()).issuperset(roots)

    @property
    def is_asked(self) -> bool:
        """Whether some spout task wants to know what windows and joins hold."""
        return True in self._asking.values()

    @property
    def retrying_since_s(self) -> float | None:
        """When the oldest message that is being tried again first went out, since the Unix epoch."""
        since_s = min(since_s for since_s, _ in self._retrying.values())
        return None if since_s == math.inf else since_s

    @property
    def all_is_held(self) -> bool:
        """Whether all messages on their way are where they wait for others, as far as one can know."""
        return self._held_count >= sum(self._in_flight.values())


class BlockedSource:
    """Whether the source of one spout task is blocked: a circular wait.

    It is to give a message again; the watermark waits for that; windows hold others until the watermark goes on; and
    these fill the limit, so that the source is not asked. The awaited message is what is waited for no longer: when it
    comes at last, its windows are called again, as after `retry_hold_s`. To ask beyond the limit instead would take as
    much memory as the source gives other messages before this one.

    Attributes:
        given_up_s: a message whose attempt failed by then (monotonic) is waited for no longer.
        due_s: when to `look` again at the latest; None: no need.
    """

    __slots__ = ("_task", "due_s", "given_up_s")

    def __init__(self, task: int) -> None:
        self._task = task
        self.given_up_s = -math.inf
        self.due_s: float | None = None

    def look(self, retry_status: RetryStatus, roots: Callable[[], Iterable[int]] | None, now: Now) -> bool:
        """See how things stand; whether what is awaited was given up just now.

        Args:
            retry_status: who is asked.
            roots: gives the open attempts of the spout task; None: its source may be asked, or nothing is awaited.
            now: the clock.
        """
        retry_status.note_asking(self._task, roots is not None)
        if roots is None:
            self.due_s = None
            return False
        if self.due_s is not None and now.monotonic_s >= self.due_s and retry_status.are_held(roots()):
            self.due_s = None
            self.given_up_s = now.monotonic_s
            retry_status.give_up(self._task)
            return True
        if self.due_s is None or now.monotonic_s >= self.due_s:
            self.due_s = now.monotonic_s + BLOCKED_S  # what is told of what is held may be old
        return False
