"""Writes lineage behind everything else: a bounded buffer, and a thread that empties it into a store.

Owns that nobody waits for lineage: what does not fit the buffer, and what a store refuses, is lost, counted, and said
in the log once. A store that is not available is tried again, ever more rarely, and goes on by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tupletree.clock import Clock, SystemClock
from tupletree.errors import TupletreeError
from tupletree.routes.lineage.rows import Steps, edges_of
from tupletree.routes.lineage.stores import Store
from tupletree.routes.messages import CallRecord

__all__ = ["Counts", "LineageWriter"]

CAPACITY = 100_000
INTERVAL_S = 1.0
RETRY_S = (1.0, 60.0)
SWEEP_S = 60.0

logger = logging.getLogger("tupletree.routes")


@dataclass(frozen=True)
class Counts:
    """What became of records so far.

    Attributes:
        written: they are in the store.
        lost: the buffer was full, or the store refused them.
        waiting: they are in the buffer.
    """

    written: int = 0
    lost: int = 0
    waiting: int = 0


class LineageWriter:
    """Takes records from any thread; one thread writes them.

    Args:
        make_store: gives the store; called again after it failed.
        pipeline: name of the pipeline.
        keep_s: rows that ended longer ago are removed; 0: never.
        capacity: records that wait at most.
        interval_s: a record waits at most this long, unless the store is slow.
        clock: for pauses and ages.
        threaded: False: no thread; call `step`.
    """

    def __init__(
        self,
        make_store: Callable[[], Store],
        pipeline: str,
        *,
        keep_s: float = 0.0,
        capacity: int = CAPACITY,
        interval_s: float = INTERVAL_S,
        clock: Clock | None = None,
        threaded: bool = True,
    ) -> None:
        self._make_store = make_store
        self._keep_s = keep_s
        self._capacity = capacity
        self._interval_s = interval_s
        self._clock = clock or SystemClock()
        self._steps = Steps(pipeline)
        self._known_steps = 0
        self._store: Store | None = None
        self._most_rows = capacity
        self._changed = threading.Condition()
        self._waiting: list[CallRecord] = []
        self._since_s = 0.0
        self._written = 0
        self._lost = 0
        self._overflowing = False
        self._refused = False
        self._retry_s = 0.0
        self._retry_at_s = 0.0
        self._lost_before = 0
        self._sweep_at_s = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"tupletree-{pipeline}-lineage", daemon=True)
        if threaded:
            self._thread.start()

    @property
    def counts(self) -> Counts:
        """See `Counts`."""
        with self._changed:
            return Counts(self._written, self._lost, len(self._waiting))

    def put(self, records: Sequence[CallRecord]) -> None:
        """Take records to be written. Never waits, never raises; what does not fit is lost."""
        with self._changed:
            room = max(0, self._capacity - len(self._waiting))
            if not self._waiting:
                self._since_s = self._clock.monotonic()
                self._changed.notify()
            self._waiting += records[:room] if len(records) > room else records
            lost = len(records) - room
            if lost > 0:
                self._lost += lost
            says_so = lost > 0 and not self._overflowing
            self._overflowing = self._overflowing or lost > 0
            if len(self._waiting) >= self._most_rows:
                self._changed.notify()
        if says_so:
            logger.warning(
                "rows of lineage come faster than they are written: %d are lost, as are those that come until %s has "
                "taken some; messages are not affected",
                lost,
                self._store.where if self._store else "the store",
            )

    def step(self, *, at_once: bool = False) -> float:
        """Write what is due, once.

        Args:
            at_once: what waits is due, however young it is.

        Returns:
            Seconds until something may be due.
        """
        now_s = self._clock.monotonic()
        if now_s < self._retry_at_s and not at_once:
            return self._retry_at_s - now_s
        with self._changed:
            age_s = now_s - self._since_s
            is_due = len(self._waiting) >= self._most_rows or age_s >= self._interval_s
            batch = self._waiting[: self._most_rows] if at_once or is_due else []
            idle_s = self._interval_s - age_s if self._waiting else SWEEP_S
        if not batch:
            return min(idle_s, self._sweep(now_s))
        try:
            written = self._write(self._opened(), batch)
        except TupletreeError as error:
            self._note_outage(now_s, error)
            return self._retry_s
        self._note_written(now_s, len(batch), written)
        return 0.0

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, and end. What cannot be written now, or within this time, is lost. Harmless if repeated."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is None:
            self._write_rest()
        else:
            self._thread.join(timeout_s)
        with self._changed:
            left = len(self._waiting)
            self._waiting = []
            self._lost += left
        if left:
            logger.warning("%d rows of lineage are lost: the store did not take them before the end", left)

    def _run(self) -> None:
        """The thread."""
        pause_s = 0.0
        while True:
            with self._changed:
                if pause_s > 0 and not self._closing:
                    self._changed.wait(pause_s)
                if self._closing:
                    break
            try:
                pause_s = self.step()
            except Exception:  # lineage ends nothing
                logger.exception("lineage: unexpected")
                pause_s = RETRY_S[1]
        self._write_rest()

    def _write_rest(self) -> None:
        try:
            while self.counts.waiting and self.step(at_once=True) == 0.0:
                pass
        except Exception:  # lineage ends nothing
            logger.exception("lineage: unexpected")
        finally:
            if self._store is not None:
                self._store.close()

    def _opened(self) -> Store:
        if self._store is None:
            store = self._make_store()
            store.open()
            self._store = store
            self._most_rows = min(store.most_rows, self._capacity)
        return self._store

    def _write(self, store: Store, batch: Sequence[CallRecord]) -> int:
        """Write what the store takes; rows that it refuses are found by halves. Returns how many were written."""
        rows = [self._steps.row(record) for record in batch]
        steps = self._steps.known()
        try:
            store.write(rows, sorted(edges_of(batch)), steps[self._known_steps :])
        except TupletreeError:
            raise
        except Exception as error:  # noqa: BLE001 - of any kind: the row is to blame, and nobody waits for it
            if len(batch) == 1:
                level = logging.DEBUG if self._refused else logging.WARNING
                logger.log(
                    level,
                    "a row of lineage is lost, of message %r: %s refuses it: %s",
                    rows[0].message,
                    store.where,
                    error,
                )
                self._refused = True
                return 0
            middle = len(batch) // 2
            return self._write(store, batch[:middle]) + self._write(store, batch[middle:])
        self._known_steps = len(steps)
        return len(batch)

    def _note_written(self, now_s: float, taken: int, written: int) -> None:
        with self._changed:
            del self._waiting[:taken]
            self._since_s = now_s
            self._written += written
            self._lost += taken - written
            if len(self._waiting) * 2 < self._capacity:
                self._overflowing = False
            lost = self._lost - self._lost_before
        if self._retry_s:
            logger.info("lineage is written again; %d rows were lost meanwhile", lost)
        self._retry_s = self._retry_at_s = 0.0

    def _note_outage(self, now_s: float, error: TupletreeError) -> None:
        if not self._retry_s:
            self._lost_before = self._lost
            logger.warning(
                "lineage cannot be written now; up to %d rows are kept until it can, messages are not affected\n%s",
                self._capacity,
                error,
            )
        self._retry_s = min(max(self._retry_s * 2, RETRY_S[0]), RETRY_S[1])
        self._retry_at_s = now_s + self._retry_s

    def _sweep(self, now_s: float) -> float:
        """Remove some old rows, if it is time. Returns seconds until it is again."""
        if not self._keep_s or self._store is None:
            return SWEEP_S
        if now_s >= self._sweep_at_s:
            try:
                removed = self._store.forget(self._clock.wall() - self._keep_s)
            except TupletreeError as error:
                logger.debug("old rows of lineage are not removed: %s", error)
                removed = 0
            self._sweep_at_s = now_s + (0.0 if removed else SWEEP_S)
        return self._sweep_at_s - now_s
