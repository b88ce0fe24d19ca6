"""Pacing: waits before calls of a bolt that has a `max_rate`, in a stage of a worker.

Each task of the bolt has an equal share of the rate, and each attempt of a stage begins without any: what earlier ones
have used is not known to it, so its first call waits for the time of one call.
"""

from __future__ import annotations

import asyncio
import time

from tupletree.tracking.rate_limit import RateLimit

monotonic = time.monotonic
sleep = time.sleep


class Pacing:
    """The pace of one task in one attempt of a stage.

    Args:
        per_s: calls per second of the task.
    """

    def __init__(self, per_s: float) -> None:
        now_s = monotonic()
        self._limit = RateLimit(per_s, now_s, first_s=1.0 / per_s)

    def wait(self) -> None:
        """Wait until the next call may be made."""
        pause_s = self._limit.reserve(monotonic())
        if pause_s > 0.0:
            sleep(pause_s)

    async def come(self) -> None:
        """The same, while other calls go on."""
        pause_s = self._limit.reserve(monotonic())
        if pause_s > 0.0:
            await asyncio.sleep(pause_s)
