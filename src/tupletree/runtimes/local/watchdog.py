"""The watchdog of a run: logs tasks that hang, and messages that can never be settled.

A thread cannot be interrupted, so a task that works one frame for longer than `processing_timeout_s` is only logged.
"""

from __future__ import annotations

import logging

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.runtimes.local.assembly import Assembly
from tupletree.runtimes.local.executor import Executor

logger = logging.getLogger("tupletree.local")

STALL_S = 30.0
"""Without timeouts, open messages are logged when there was no verdict for so long."""

IDS_SHOWN = 10


class Watchdog:
    """Checks from time to time, on the supervising thread; what it reads may be a moment old."""

    def __init__(self, assembly: Assembly, options: Options, clock: Clock) -> None:
        self._assembly = assembly
        self._limit_s = options.processing_timeout_s
        self._never_expires = options.message_timeout_s is None
        self._clock = clock
        self._since: dict[Executor, tuple[tuple[int, int] | None, float]] = {}
        self._named: set[Executor] = set()
        self._verdicts = -1
        self._verdict_s = clock.monotonic()
        self._stall_named = False

    def look(self) -> None:
        """Check once."""
        now_s = self._clock.monotonic()
        for executor in self._assembly.executors:
            self._look_at(executor, now_s)
        if self._never_expires:
            self._look_for_stall(now_s)

    def _look_at(self, executor: Executor, now_s: float) -> None:
        step, since_s = self._since.get(executor, (None, now_s))
        calling, in_hand = executor.calling, executor.in_hand
        now_at = calling or (None if in_hand is None else (in_hand, -executor.handled))
        if now_at is None or now_at != step:
            self._since[executor] = now_at, now_s
            self._named.discard(executor)
        elif self._limit_s is not None and now_s - since_s >= self._limit_s and executor not in self._named:
            self._named.add(executor)
            logger.warning(
                "%s, task %d, has worked at one step for %.0f s; other tasks of executor %s wait for it "
                "(blocking=True gives a bolt a thread of its own)\n%s",
                self._assembly.plan.tasks[now_at[0]].component,
                now_at[0],
                now_s - since_s,
                executor.name,
                executor.stack(),
            )

    def _look_for_stall(self, now_s: float) -> None:
        spouts = self._assembly.spouts()
        verdicts = sum(spout.pending.counters.acked + spout.pending.counters.failed for spout in spouts)
        if verdicts != self._verdicts or not any(spout.in_flight for spout in spouts):
            self._verdicts, self._verdict_s, self._stall_named = verdicts, now_s, False
        elif now_s - self._verdict_s >= STALL_S and not self._stall_named:
            self._stall_named = True
            for spout in spouts:
                ids = spout.pending.open_ids(spout.task.task_id)
                if ids:
                    logger.warning(
                        "%s: no verdict for %.0f s, and timeouts are off: %d messages are open, the oldest %s",
                        spout.task.component,
                        now_s - self._verdict_s,
                        len(ids),
                        ", ".join(map(repr, ids[:IDS_SHOWN])),
                    )
