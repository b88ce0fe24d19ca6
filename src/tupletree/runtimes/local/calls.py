"""Async calls: one event loop on a thread of its own runs what async bolts ask for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from tupletree.flow.mail import Finished
from tupletree.flow.outbox import AsyncCall

__all__ = ["CallRunner"]


class CallRunner:
    """Starts its thread with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run(self, number: int, call: AsyncCall, tell: Callable[[Finished], None]) -> None:
        """Run a call; `tell` hears of its end, on the loop's thread."""
        asyncio.run_coroutine_threadsafe(_run(number, call, tell), self._running_loop())

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
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
