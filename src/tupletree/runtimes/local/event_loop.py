"""Async calls: one event loop on a thread of its own runs the calls of async components."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as StillWaiting
from typing import Any

from tupletree.errors import ConnectorError
from tupletree.runtimes.threads import start_thread
from tupletree.tasks.mail import Finished
from tupletree.tasks.outbox import AsyncCall

logger = logging.getLogger("tupletree.local")

END_TIMEOUT_S = 5.0
"""How long cancelled calls may take to end: as long as a task may take to answer while everything ends."""


STUCK_S = 10.0
"""Code that blocks the event loop for so long is named with its stack."""


class CallRunner:
    """Starts its thread with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._due: deque[Coroutine[Any, Any, None]] = deque()  # submitted by any thread, started on the loop's
        self._is_woken = False
        self._started: set[asyncio.Task[None]] = set()  # a loop refers to its tasks weakly
        self._running: dict[
            int, dict[int, asyncio.Task[None]]
        ] = {}  # by task and number; used on the loop's thread only
        self._endings: set[asyncio.Task[None]] = set()
        self._asked_s: float | None = None  # when the loop was last probed; None: it has answered
        self._is_stuck = False

    def run(self, task: int, number: int, call: AsyncCall, tell: Callable[[Finished], None]) -> None:
        """Run a call; `tell` is called with its result, on the loop's thread."""
        self._submit(self._run(task, number, call, tell))

    def cancel(self, task: int, numbers: Sequence[int]) -> None:
        """Cancel these calls of a task; each tells its end as ever."""
        self._submit(self._cancel(task, numbers))

    def end(self, task: int, numbers: Sequence[int], call: AsyncCall) -> None:
        """Cancel these calls of a task, and run the ending when all of them have ended. See `Outbox.endings`."""
        try:
            self._submit(self._end(task, numbers, call))
        except ConnectorError:  # none of its calls has had a thread, either
            logger.exception("task %d: it cannot be closed", task)

    def look(self, now_s: float) -> None:
        """Log, once, a call that blocks the event loop. One thread calls this from time to time."""
        with self._starting:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        if self._asked_s is None:
            self._asked_s, self._is_stuck = now_s, False
            loop.call_soon_threadsafe(self._answer)
        elif now_s - self._asked_s >= STUCK_S and not self._is_stuck:
            self._is_stuck = True
            logger.warning(
                "an async component has blocked the event loop, and all others on it, for %.0f s: await what takes "
                "time, or use asyncio.to_thread\n%s",
                now_s - self._asked_s,
                _stack_of(thread),
            )

    def _answer(self) -> None:
        self._asked_s = None

    def settle(self, timeout_s: float = END_TIMEOUT_S) -> bool:
        """Wait until the requested endings are done, and cancel all other calls.

        Returns:
            False if something has not ended in time; it is named in the log and left behind.
        """
        with self._starting:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return True
        try:
            asyncio.run_coroutine_threadsafe(self._settle(timeout_s / 3), loop).result(timeout_s)
        except StillWaiting:
            logger.error(  # noqa: TRY400 - where the call is says more than where this waited
                "async calls have not ended %g s after they were cancelled and are left behind: %s; their thread "
                "is at\n%s",
                timeout_s,
                ", ".join(self._named()) or "one that was about to start",
                _stack_of(thread),
            )
            return False
        return True

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Do what `settle` does, and end the thread unless something is left behind."""
        settled = self.settle(timeout_s)
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None or not settled:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, None]) -> None:
        with self._starting:
            if self._loop is None:
                try:
                    self._loop, self._thread = _started_loop()
                except ConnectorError:
                    coroutine.close()  # it would be told of as never awaited
                    raise
            loop = self._loop
        self._due.append(coroutine)
        if not self._is_woken:
            self._is_woken = True
            loop.call_soon_threadsafe(self._start_due, loop)

    def _start_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start what was submitted, in order; waking the loop once for all costs less than once for each."""
        self._is_woken = False  # before the first is taken: one that is added now is taken too, or wakes the loop again
        while self._due:
            task = loop.create_task(self._due.popleft())
            self._started.add(task)
            task.add_done_callback(self._started.discard)

    async def _run(self, task: int, number: int, call: AsyncCall, tell: Callable[[Finished], None]) -> None:
        mine = _this_task()
        self._running.setdefault(task, {})[number] = mine
        try:
            finished = Finished(number, await call())
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; it fails its tuple
            finished = Finished(number, [], error)
        if self._running[task].get(number) is mine:
            del self._running[task][number]
        tell(finished)

    async def _cancel(self, task: int, numbers: Sequence[int]) -> None:
        running = self._running.get(task, {})
        for number in numbers:
            if number in running:
                running[number].cancel()

    async def _end(self, task: int, numbers: Sequence[int], call: AsyncCall) -> None:
        mine = _this_task()
        self._endings.add(mine)
        try:
            running = self._running.get(task, {}).copy()
            for number in numbers:
                if number in running:
                    running[number].cancel()
            if running:
                await asyncio.wait(running.values())
            await call()
        except BaseException:
            logger.exception("task %d: ending its calls failed; its results are kept", task)
        finally:
            self._endings.discard(mine)

    async def _settle(self, wait_s: float) -> None:
        if await self._has_late_endings(wait_s):
            logger.warning(
                "callbacks of async components have not ended after %g s and are cancelled: %s",
                wait_s,
                ", ".join(self._named()) or "closing them",
            )
            for one in asyncio.all_tasks() - {_this_task(), *self._endings}:
                one.cancel()
            await self._has_late_endings(wait_s)
        others = asyncio.all_tasks() - {_this_task()}
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _has_late_endings(self, wait_s: float) -> bool:
        """Wait for the endings of components at most so long; whether some have not ended."""
        if not self._endings:
            return False
        _, late = await asyncio.wait(self._endings, timeout=wait_s)
        return bool(late)

    def _named(self) -> list[str]:
        """The calls that run, as text; another thread reads them, so one may be missing."""
        return [f"call {number} of task {task}" for task, calls in [*self._running.items()] for number in [*calls]]


def _stack_of(thread: threading.Thread) -> str:
    return "".join(traceback.format_stack(sys._current_frames().get(thread.ident or 0)))  # noqa: SLF001 - documented


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _started_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    try:
        return loop, start_thread(
            threading.Thread(target=_run_for_ever, args=(loop,), name="tupletree-async", daemon=True)
        )
    except BaseException:
        loop.close()
        raise


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    """Run until stopped. A task of the user's own making that raises SystemExit or the like ends no other's calls."""
    while True:
        try:
            loop.run_forever()
        except BaseException:  # the loop raises these in the code that runs it
            logger.exception(
                "a task that an async call started raised an exception that would end the program; the run goes on"
            )
        else:
            return
