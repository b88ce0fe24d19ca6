"""The thread that calls sinks: it does nothing else, so that a connection never changes its thread.

`SinkCalls` is all that `sink_delivery` knows of it. The settling thread waits for a call, but not beyond the end of
the run. Refuses to know what is called.
"""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from tupletree.runtimes.spark.settle.shutdown import Closing
from tupletree.runtimes.threads import start_thread

logger = logging.getLogger("tupletree.spark")

T = TypeVar("T")

_CHECK_S = 0.1
_LEAVE_S = 5.0


class SinkCalls(Protocol):
    """Makes calls of sinks, one after the other. Used by one thread; `leave` by any."""

    def call(self, sink: str, job: Callable[[], T]) -> T:
        """Make a call of a sink and wait for its end. Raises what it raises, and Closing if the run ends first."""

    def wait(self, seconds: float) -> bool:
        """Wait between calls; whether the run ended meanwhile."""

    def leave(self) -> None:
        """Stop waiting: the run ends."""

    def close(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Make the last calls, as far as none is stuck."""


class SinkThread(SinkCalls):
    """See `SinkCalls`. A daemon: a call that never ends must not keep the process alive.

    Args:
        slow_s: a call that takes longer is logged; None: none is.
    """

    def __init__(self, slow_s: float | None) -> None:
        self._slow_s = math.inf if slow_s is None else slow_s
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def call(self, sink: str, job: Callable[[], T]) -> T:
        future = self._do(job)
        began_s = time.monotonic()
        named_after_s = self._slow_s
        while True:
            try:
                return future.result(_CHECK_S)
            except TimeoutError:
                if future.done():
                    raise  # the sink's own
                if self._closing.is_set():
                    raise Closing from None
            took_s = time.monotonic() - began_s
            if took_s >= named_after_s:
                named_after_s = 2.0 * took_s
                text = "sink %s has been in one call for %.0f s, and the run waits for it; its stack:\n%s"
                logger.warning(text, sink, took_s, self._stack())

    def wait(self, seconds: float) -> bool:
        return self._closing.wait(seconds)

    def leave(self) -> None:
        self._closing.set()

    def close(self, jobs: Sequence[Callable[[], None]]) -> None:
        self._closing.set()
        for job in jobs:
            future = self._do(job)
            try:
                future.result(_LEAVE_S)
            except TimeoutError:
                logger.warning("a sink is stuck in a call: it is not closed")
                return
            except Exception:
                logger.exception("closing a sink failed")
        self._jobs.put(None)

    def _do(self, job: Callable[[], T]) -> Future[T]:
        if self._thread is None:
            self._thread = start_thread(threading.Thread(target=self._main, name="tupletree-sinks", daemon=True))
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def _stack(self) -> str:
        """Its present stack, as text."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread else None  # noqa: SLF001 - documented
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _main(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - raised in the caller of the job
                future.set_exception(error)
            else:
                future.set_result(result)
