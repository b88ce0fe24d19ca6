"""The call timeout of a worker: a call of user code that takes too long is interrupted, or its process is ended.

A timer signal comes twice per limit and looks at the stack: a call that it has seen for a whole limit gets a
`ProcessingTimeoutError`, which fails its tuple. So a call is interrupted between limit and 1.5 limits, and calls cost
nothing. For an async call the limit is about each step in which it blocks the event loop, also of tasks that it
started; how long it may wait is limited by `async_bolts`. Code that never returns to Python cannot be interrupted;
there faulthandler's own thread, which each signal defers, writes the stack and ends the process, and its crash marker
tells the next attempt (`crash_markers`).
"""

from __future__ import annotations

import faulthandler
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from tupletree.bolts.failures import OUR_MODULES
from tupletree.errors import ProcessingTimeoutError

RETRY_S = 0.01
"""The next check if the call is just in code of ours, such as a collector, which must not be interrupted."""

LEAST_GRACE_S = 5.0
"""How late a signal may be at least, on a busy machine, before the process is ended."""

EVENT_LOOP = "asyncio.events"
"""The module that calls the steps of async code."""

IGNORED_INTERRUPTS = 3
"""A call that goes on after so many interrupts is ended with its process."""


class CallTimeout:
    """A context around all work of a stage's attempt. Does nothing outside of the main thread, or without a limit.

    Args:
        limit_s: how long one call may take.
        crash_report: file descriptor for the stack if the process must end.
    """

    def __init__(self, limit_s: float | None, crash_report: int) -> None:
        on_main = threading.current_thread() is threading.main_thread()
        self._limit_s = limit_s if on_main else None
        self._crash_report = crash_report
        self._call: FrameType | None = None
        self._since_s = 0.0
        self._interrupts = 0
        self._before: object = None

    def __enter__(self) -> Self:
        if self._limit_s is not None:
            self._before = signal.signal(signal.SIGALRM, self._on_signal)
            signal.setitimer(signal.ITIMER_REAL, self._limit_s / 2, self._limit_s / 2)
            self._defer_the_end(self._limit_s)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._limit_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGALRM, self._before)  # type: ignore[arg-type]  # it is what signal gave
            self._call = None

    def _defer_the_end(self, limit_s: float) -> None:
        faulthandler.dump_traceback_later(limit_s + max(limit_s / 2, LEAST_GRACE_S), exit=True, file=self._crash_report)

    def _on_signal(self, _signal: int, frame: FrameType | None) -> None:
        limit_s = self._limit_s
        if limit_s is None:
            return
        call, is_in_ours = _call_in(frame)
        now_s = time.monotonic()
        if call is None or call is not self._call:
            self._call, self._since_s, self._interrupts = call, now_s, 0
            self._defer_the_end(limit_s)
        elif now_s - self._since_s < limit_s:
            self._defer_the_end(limit_s)
        elif is_in_ours:
            signal.setitimer(signal.ITIMER_REAL, RETRY_S, limit_s / 2)
        else:
            self._interrupts += 1
            if self._interrupts <= IGNORED_INTERRUPTS:
                self._defer_the_end(limit_s)
            raise ProcessingTimeoutError(
                f"the call took longer than processing_timeout_s ({limit_s:g} s) and was interrupted"
            )


def _call_in(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """(the frame of the user's code that ours, or an event loop, called; whether ours, or the loop, is within it)."""
    call: FrameType | None = None
    is_in_ours = False
    met_ours = frame is not None and _module_of(frame).startswith("asyncio.")  # must not be interrupted, either
    while frame is not None:
        caller, module = frame.f_back, _module_of(frame)
        if module.startswith("tupletree."):
            met_ours = True
        elif caller is not None and not module.startswith("asyncio."):
            by = _module_of(caller)
            if by == EVENT_LOOP or by.startswith(OUR_MODULES):
                call, is_in_ours = frame, met_ours
        frame = caller
    return call, is_in_ours


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
