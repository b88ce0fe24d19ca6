"""Pauses or stops a run of which too many messages have died; see `tracking.dead_limit` for when that is."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tupletree.config import Options
from tupletree.tracking.dead_limit import DeadLimit

logger = logging.getLogger("tupletree")


class DeadGuard:
    """One per run. Any thread of the run may call it.

    Args:
        topology: its name, for the log.
        options: of the run.
        stop, pause: stop or pause the run.

    Attributes:
        reason: why the run was paused or stopped; empty while it goes on.
    """

    def __init__(self, topology: str, options: Options, stop: Callable[[], None], pause: Callable[[], None]) -> None:
        self.reason = ""
        self._topology = topology
        self._limit = DeadLimit.of(options)
        self._stops = options.on_max_dead == "stop"
        self._act = stop if self._stops else pause

    def begin(self, acked: int, dead: int, still_open: int = 0) -> None:
        """Count from here on: the run starts, or goes on after a pause, in which so many messages are open."""
        self._limit.begin(acked, dead, still_open)
        self.reason = ""

    def look(self, acked: int, dead: int) -> None:
        """Pause or stop the run if too many messages have died by now."""
        reason = self._limit.exceeded(acked, dead)
        if not reason or self.reason:
            return
        self.reason = reason
        then = "stopping" if self._stops else "paused until it is resumed"
        logger.error("%s: %s; %s", self._topology, reason, then)
        self._act()
