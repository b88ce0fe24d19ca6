"""Threads for adapters that are plain functions: one that never returns blocks nothing else, not even the exit.

An executor of the standard library waits for its threads at exit; these do not keep a process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tupletree.runtimes.threads import start_thread

R = TypeVar("R")
_Job = Callable[[], None]


class DaemonThreads:
    """Runs functions, each in an idle thread or in a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[queue.SimpleQueue[_Job | None]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    async def run(self, function: Callable[..., R], *arguments: Any) -> R:
        """The function's result. Cancelled, it is left to run on, and its result is dropped.

        Raises:
            ConnectorError: there is no thread for it now.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function, *arguments)
            except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
                error = raised
            try:
                loop.call_soon_threadsafe(_tell, future, result, error)
            except RuntimeError:
                return  # the loop is closed: no caller waits any more

        self._start(job)
        return await future

    def close(self) -> None:
        """End the idle threads; others end with what they do."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for mailbox in idle:
            mailbox.put(None)

    def _start(self, job: _Job) -> None:
        with self._lock:
            mailbox = self._idle.pop() if self._idle else None
        if mailbox is None:
            mailbox = queue.SimpleQueue()
            start_thread(threading.Thread(target=self._serve, args=(mailbox,), name=self._name, daemon=True))
        mailbox.put(job)

    def _serve(self, mailbox: queue.SimpleQueue[_Job | None]) -> None:
        while (job := mailbox.get()) is not None:
            job()
            with self._lock:
                if self._is_closed:
                    return
                self._idle.append(mailbox)


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(
        error, StopIteration | GeneratorExit
    ):  # a future takes none; coroutines that await it would be closed
        future.set_exception(RuntimeError(f"the function raised {error!r}"))
    else:
        future.set_exception(error)
