"""Calls of async components on virtual time: sleeping takes none, and a call that waits for ever is not ended.

Owns an event loop that runs nothing until it is given a turn, and whose clock is the one of the test.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tupletree.errors import TupletreeError
from tupletree.tasks.mail import Finished
from tupletree.tasks.outbox import AsyncCall

MAX_LAST_TURNS = 1000

PATIENCE_S = 1.0
"""Real time that calls may wait for a thread of their own making."""

WORKERS = "tupletree-virtual"


class _Selector(selectors.DefaultSelector):
    """Never waits, but for threads: ends the turn, and notes for how long it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.end_turn: Callable[[], None] = lambda: None
        self.wait_s: float | None = None
        self.jobs = 0  # given to workers
        self.is_patient = True
        self._others = _other_threads()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.is_patient and (self.jobs or _other_threads() > self._others):
            ready = super().select(PATIENCE_S)
            self.is_patient = bool(ready)
        if not ready:
            self.wait_s = timeout
            self.end_turn()
        return ready


def _other_threads() -> int:
    return sum(not thread.name.startswith(WORKERS) for thread in threading.enumerate())


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, selector: _Selector, now: Callable[[], float]) -> None:
        super().__init__(selector)
        self._turns = selector
        self._now = now
        selector.end_turn = self.stop
        self.set_default_executor(ThreadPoolExecutor(thread_name_prefix=WORKERS))

    def time(self) -> float:
        return self._now()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # the stub's type variables say no more
        future = super().run_in_executor(executor, func, *args)
        self._turns.jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _: object) -> None:
        self._turns.jobs -= 1


class VirtualCalls:
    """Runs calls beside each other, a turn at a time.

    Attributes:
        notes: what went wrong at the end of a component.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._due_s: float | None = None
        self._selector: _Selector | None = None
        self._loop: _Loop | None = None
        self._fresh = False  # something may be able to go on
        self._running: dict[asyncio.Task[None], tuple[int, int]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._finished: list[tuple[int, Finished]] = []
        self.notes: list[str] = []

    def start(self, task: int, call_number: int, call: AsyncCall) -> None:
        """Start a call with the next turn."""
        loop = self._open_loop()
        self._running[loop.create_task(self._run(task, call_number, call))] = task, call_number
        self._fresh = True

    def turn(self, now_s: float) -> list[tuple[int, Finished]]:
        """Run everything that can run at this time; (task, its end) for each call that ended."""
        self._now_s = now_s
        if self._loop is None or not (self._fresh or self._is_due(now_s)):
            return []
        assert self._selector is not None
        self._selector.is_patient = self._fresh
        while True:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001, S112 - a task of the user's making; no other call ends by that
                continue
            break
        wait_s = self._selector.wait_s
        self._due_s = None if wait_s is None else now_s + wait_s
        self._fresh = self._selector.jobs > 0
        finished, self._finished = self._finished, []
        return finished

    def next_due_s(self) -> float | None:
        """When a call will go on that sleeps now."""
        return self._due_s

    @property
    def is_ending(self) -> bool:
        """Whether an ending has not ended."""
        return bool(self._endings)

    def forget(self, tasks: Collection[int]) -> None:
        """Cancel the calls of these tasks; their ends are not reported."""
        self._finished = [entry for entry in self._finished if entry[0] not in tasks]
        for one in [one for one, (task, _) in self._running.items() if task in tasks]:
            del self._running[one]
            one.cancel()
            self._fresh = True

    def cancel(self, task: int, numbers: Collection[int]) -> None:
        """Cancel these calls of a task; their ends are reported. See `Outbox.cancels`."""
        for one, (whose, number) in self._running.items():
            if whose == task and number in numbers:
                one.cancel()
                self._fresh = True

    def end(self, task: int, numbers: Collection[int], call: AsyncCall) -> None:
        """Cancel these calls of a task, and run the ending when all of them have ended. See `Outbox.endings`.

        The ends of these calls are not reported.
        """
        self._finished = [entry for entry in self._finished if entry[0] != task]
        running = [one for one, (whose, _) in self._running.items() if whose == task]
        for one in running:
            if self._running.pop(one)[1] in numbers:
                one.cancel()
        ending = self._open_loop().create_task(self._end(running, call))
        self._endings.add(ending)
        self._fresh = True

    def let_end(self, now_s: float) -> float:
        """Let the endings end, as far as they do; the time at which they have. What else ends is told by a turn."""
        finished: list[tuple[int, Finished]] = []
        for _ in range(MAX_LAST_TURNS):
            finished += self.turn(now_s)
            if not self._endings or self._due_s is None:
                break
            now_s = max(now_s, self._due_s)
        self._finished = finished
        self._fresh = self._fresh or bool(finished)
        return now_s

    def close(self) -> None:
        """Let the endings end, as far as they do, cancel everything and close the loop."""
        self.let_end(self._now_s)
        self.forget({task for task, _ in self._running.values()})
        for ending in self._endings:
            ending.cancel()
        self._fresh = True
        if self._loop is not None:
            self.turn(self._now_s)
            self._loop.close()
            self._loop = self._selector = None

    def _is_due(self, now_s: float) -> bool:
        return self._due_s is not None and self._due_s <= now_s

    def _open_loop(self) -> _Loop:
        if self._loop is None:
            if asyncio._get_running_loop() is not None:  # noqa: SLF001 - documented for code that runs loops
                raise TupletreeError(
                    "async components cannot run here on virtual time",
                    got="a thread that runs an event loop",
                    next_step="call this in a thread of its own: asyncio.to_thread(...)",
                )
            self._selector = _Selector()
            self._loop = _Loop(self._selector, lambda: self._now_s)
        return self._loop

    async def _run(self, task: int, call_number: int, call: AsyncCall) -> None:
        try:
            finished = Finished(call_number, await call())
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; it fails its tuple
            finished = Finished(call_number, [], error)
        mine = asyncio.current_task()
        assert mine is not None
        if self._running.pop(mine, None) is not None:
            self._finished.append((task, finished))

    async def _end(self, running: list[asyncio.Task[None]], call: AsyncCall) -> None:
        try:
            if running:
                await asyncio.wait(running)
            await call()
        except BaseException as error:  # noqa: BLE001 - what a component does at its end changes no outcome
            self.notes.append(f"closing a task failed: {type(error).__name__}: {error}")
        finally:
            mine = asyncio.current_task()
            assert mine is not None
            self._endings.discard(mine)
