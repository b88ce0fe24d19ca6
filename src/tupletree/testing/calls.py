"""Calls of async bolts on virtual time: sleeping takes none, and a call that waits for ever is left alone.

Owns an event loop whose clock jumps to the next thing that is due.
"""

from __future__ import annotations

import asyncio
import selectors
import threading

from tupletree.flow.mail import Finished
from tupletree.flow.outbox import AsyncCall

__all__ = ["VirtualCalls"]

PATIENCE_S = 1.0
"""Real time that a call may wait for a thread of its own making."""


class _WaitsForEver(BaseException):
    pass


class _Selector(selectors.DefaultSelector):
    """Never waits, but notes for how long it should have."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(PATIENCE_S if threading.active_count() > 1 else 0)
            if not ready:
                raise _WaitsForEver
            return ready
        self.skipped_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


class VirtualCalls:
    """Runs one call after the other, to its end; each says how long it would have taken."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None

    def run(self, number: int, call: AsyncCall) -> tuple[Finished | None, float]:
        """Run a call.

        Returns:
            (its end, or None if it never ends; seconds of virtual time that it took).
        """
        if self._loop is None:
            self._loop = _Loop()
        loop = self._loop
        before_s = loop.time()
        task = loop.create_task(call())
        try:
            results = loop.run_until_complete(task)
        except _WaitsForEver:
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            return None, 0.0
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; it fails its tuple
            return Finished(number, [], error), loop.time() - before_s
        return Finished(number, results), loop.time() - before_s

    def close(self) -> None:
        """Close the loop."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
