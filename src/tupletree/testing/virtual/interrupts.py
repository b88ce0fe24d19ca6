"""Ctrl-C while a topology runs on virtual time, in the caller's thread or beside a running event loop.

What a bolt raises fails its tuple, also a KeyboardInterrupt. So a true one, which comes out of the code that is at
work, must be noted where it comes from.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Interrupts:
    """Notes SIGINT while it is entered, in the main thread and where no other handler is set; ask with `check`."""

    def __init__(self) -> None:
        self._came = False
        self._before: Any = None

    def __enter__(self) -> Self:
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def stop(self) -> None:
        """Let the next `check` raise; for another thread."""
        self._came = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if one came, also if other code caught it."""
        if self._came:
            raise KeyboardInterrupt

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._came = True
        raise KeyboardInterrupt


def beside_event_loop(work: Callable[[Interrupts], T]) -> T:
    """The result of `work`, in this thread; in one of its own where this thread runs an event loop (a notebook's).

    An event loop cannot run within another, and async components need one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with Interrupts() as interrupts:
            return work(interrupts)
    interrupts = Interrupts()
    result: Future[T] = Future()
    context = contextvars.copy_context()

    def main() -> None:
        try:
            result.set_result(context.run(work, interrupts))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            result.set_exception(error)

    threading.Thread(target=main, name="tupletree-testing", daemon=True).start()
    try:
        return result.result()
    finally:
        interrupts.stop()
