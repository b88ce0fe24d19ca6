"""The settling thread: gives logged epochs to the engine, one after the other.

Owns the order between an epoch's commit and the callbacks of the last one, and how the thread ends. Knows no spouts:
`Loop`, which does, runs in the run's own thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.engine import Engine
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner
from tupletree.runtimes.spark.settle.shutdown import Closing

GRACE_S = 2.0
"""How long the present epoch may go on when the run ends, before its job is cancelled: it may end by itself."""

CANCEL_EVERY_S = 0.2
"""A job that was just about to start when it was cancelled goes on: it is cancelled again."""


class Settling(Protocol):
    """Settles logged epochs, in order, beside the loop. Attributes as of `SettlingThread`."""

    is_warm: bool
    fault: BaseException | None
    called_back: int

    def listen(self, on_settled: Callable[[EpochOutcomes], None], wake: Callable[[], None]) -> None:
        """Before `start`: what is called with each settled epoch, in the settling thread, and after each change."""

    def start(self) -> None:
        """Begin."""

    def put(self, record: EpochRecord) -> None:
        """Queue a logged epoch to be settled."""

    def calls_made(self, epoch: int) -> None:
        """Note that the callbacks of this epoch are made, so the next one may commit."""

    def close(self) -> None:
        """Take no further epoch."""

    def join(self) -> None:
        """After `close`: wait for the end of the present epoch."""


class SettlingThread(Settling):
    """See `Settling` and the module docstring. All methods may be called from any thread.

    Args:
        engine, runner: of the run.
        called_back: the last epoch whose callbacks are made.

    Attributes:
        is_warm: the warm-up (a run without rows) is done. No message is pulled before it: a message's timeout runs
            from its emission, and must not pass while Spark starts its workers.
        fault: what ended the thread.
        called_back: the last epoch whose callbacks are made; see `calls_made`.
    """

    def __init__(self, engine: Engine, runner: PlanRunner, called_back: int) -> None:
        self.is_warm = False
        self.fault: BaseException | None = None
        self.called_back = called_back
        self._engine = engine
        self._runner = runner
        self._on_settled: Callable[[EpochOutcomes], None] = lambda _: None
        self._wake: Callable[[], None] = lambda: None
        self._records: deque[EpochRecord] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._main, name="tupletree-settling", daemon=True)

    def listen(self, on_settled: Callable[[EpochOutcomes], None], wake: Callable[[], None]) -> None:
        self._on_settled = on_settled
        self._wake = wake

    def start(self) -> None:
        self._thread.start()

    def put(self, record: EpochRecord) -> None:
        with self._changed:
            self._records.append(record)
            self._changed.notify_all()

    def calls_made(self, epoch: int) -> None:
        with self._changed:
            self.called_back = epoch
            self._changed.notify_all()

    def close(self) -> None:
        """Take no further epoch: one that is not committed now runs again at the next start."""
        self._engine.close()
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def join(self) -> None:
        """After `close`: wait for the end of the present epoch, which may still publish; its job is cancelled soon."""
        if self._thread.ident is None:
            return
        self._thread.join(GRACE_S)
        while self._thread.is_alive():
            self._runner.cancel()
            self._thread.join(CANCEL_EVERY_S)

    def _main(self) -> None:
        try:
            self._engine.warm_up()
            self.is_warm = True
            self._wake()
            while (record := self._next()) is not None:
                self._on_settled(self._engine.settle(record, partial(self._await_callbacks, record.epoch - 1)))
                self._wake()
        except BaseException as error:  # noqa: BLE001 - the loop raises it
            if not self._is_closing:
                self.fault = error
        finally:
            self._wake()

    def _next(self) -> EpochRecord | None:
        with self._changed:
            self._changed.wait_for(lambda: self._records or self._is_closing)
            return None if self._is_closing else self._records.popleft()

    def _await_callbacks(self, epoch: int) -> None:
        """Wait for the callbacks of the last epoch, so that a restart repeats those of one epoch only."""
        with self._changed:
            self._changed.wait_for(lambda: self.called_back >= epoch or self._is_closing)
        if self.called_back < epoch:
            raise Closing
