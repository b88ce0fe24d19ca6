"""Async calls: one event loop on a thread of its own runs what async bolts ask for."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import TimeoutError as StillWaiting

from tupletree.flow.mail import Finished
from tupletree.flow.outbox import AsyncCall

__all__ = ["CallRunner"]

logger = logging.getLogger("tupletree.local")

END_TIMEOUT_S = 5.0
"""How long cancelled calls may take to end: as long as a task may take to answer while everything ends."""


class CallRunner:
    """Starts its thread with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run(self, number: int, call: AsyncCall, tell: Callable[[Finished], None]) -> None:
        """Run a call; `tell` hears of its end, on the loop's thread."""
        asyncio.run_coroutine_threadsafe(_run(number, call, tell), self._running_loop())

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Cancel what runs, and end the thread. A call that blocks it, or will not be cancelled, is left behind."""
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(timeout_s)
        except StillWaiting:
            logger.error(  # noqa: TRY400 - where the call is says more than where this waited
                "async calls have not ended %g s after they were cancelled and are left behind; their thread is at\n%s",
                timeout_s,
                "".join(traceback.format_stack(sys._current_frames().get(thread.ident or 0))),  # noqa: SLF001 - documented
            )
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tupletree-async", daemon=True)
                self._thread.start()
            return self._loop


async def _run(number: int, call: AsyncCall, tell: Callable[[Finished], None]) -> None:
    try:
        finished = Finished(number, await call())
    except BaseException as error:  # noqa: BLE001 - user code may raise anything; it fails its tuple
        finished = Finished(number, [], error)
    tell(finished)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
