"""Event loops on virtual time: a sleep takes none, and a timeout passes at once where nothing else can happen before.

Owns the time that all loops of a test share. Real time passes only where something outside may answer: a connection, or
a thread of the adapter's own making.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tupletree.routes.running.daemon_threads import DaemonThreads

R = TypeVar("R")

START_S = 1_700_000_000.0
RESOLUTION_S = 1e-6
PATIENCE_S = 1.0
"""Real seconds for which an answer from outside is waited for, each time."""


class VirtualTime:
    """Unix time of a test: it moves when nothing else can happen."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    @property
    def now_s(self) -> float:
        """The time."""
        return START_S + self.passed_s

    def move_to(self, time_s: float) -> None:
        """Let time pass until then; it never goes back."""
        self.passed_s = max(self.passed_s, time_s - START_S)

    def __call__(self) -> float:
        """The time."""
        return self.now_s


class _Selector(selectors.DefaultSelector):
    """Moves time instead of waiting."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time
        self._threads = threading.active_count()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        # One file is the loop's own, by which other threads wake it.
        if timeout is None or len(self.get_map()) > 1 or threading.active_count() > self._threads:
            ready = super().select(PATIENCE_S if timeout is None else min(timeout, PATIENCE_S))
        if not ready and timeout is not None:
            self._time.passed_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual; threads that are asked for by it take none."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__(_Selector(time))
        self._virtual = time
        # A timer that is due now, but for rounding, is due: otherwise the loop would turn without an end.
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._virtual.passed_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002 - the stub's type variables say no more
        """The function's result: it has ended when this returns."""
        future: asyncio.Future[Any] = self.create_future()
        result, error = _joined(func, *args)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        return future


class InlineThreads(DaemonThreads):
    """Runs each function in a thread and waits for it, so that calls come in one order and no time passes."""

    async def run(self, function: Callable[..., R], *arguments: Any) -> R:
        """The function's result."""
        result, error = _joined(function, *arguments)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # what the function returned


def _joined(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """What a function returns or raises, in a thread of its own: it may run event loops."""
    found: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            found.append((function(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            found.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    return found[0]
