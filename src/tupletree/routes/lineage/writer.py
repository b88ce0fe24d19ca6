"""Writes lineage behind everything else: a bounded buffer, and a thread that empties it into a store.

Owns that nothing waits for lineage: what does not fit the buffer, and what a store refuses, is lost, counted, and said
in the log once. A store that is not available is tried again, ever more rarely, and goes on by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tupletree.clock import Clock, SystemClock
from tupletree.errors import TupletreeError
from tupletree.routes.lineage.rows import REST_S
from tupletree.routes.lineage.stores import RecordStore
from tupletree.routes.messages import CallRecord
from tupletree.runtimes.threads import start_thread

CAPACITY = 100_000
INTERVAL_S = 1.0
RETRY_S = (1.0, 60.0)

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


# More than 12 attributes: one thread and its queue: limits, what waits, and what it tells of both.
class LineageWriter:
    """Takes records from any thread; one thread writes them.

    Args:
        make_store: gives the store; called again after it failed.
        name: of the pipeline, for the thread's name.
        what: that is written, for the log.
        capacity: records that wait at most.
        interval_s: a record waits at most this long, unless the store is slow.
        clock: for pauses and ages.
        threaded: False: no thread; call `step`.
    """

    def __init__(
        self,
        make_store: Callable[[], RecordStore],
        name: str,
        *,
        what: str = "lineage",
        capacity: int = CAPACITY,
        interval_s: float = INTERVAL_S,
        clock: Clock | None = None,
        threaded: bool = True,
    ) -> None:
        self._make_store = make_store
        self._what = what
        self._capacity = capacity
        self._interval_s = interval_s
        self._clock = clock or SystemClock()
        self._store: RecordStore | None = None
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
        self._rest_at_s = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"tupletree-{name}-{what}", daemon=True)
        if threaded:
            start_thread(self._thread)

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
                "%s: records come faster than they are written: %d are lost, as are those that come until %s has "
                "taken some; messages are not affected",
                self._what,
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
            idle_s = self._interval_s - age_s if self._waiting else REST_S
        if not batch:
            return min(idle_s, self._rest(now_s))
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
            logger.warning("%s: %d records are lost: the store did not take them before the end", self._what, left)

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
                logger.exception("%s: unexpected", self._what)
                pause_s = RETRY_S[1]
        self._write_rest()

    def _write_rest(self) -> None:
        try:
            while self.counts.waiting and self.step(at_once=True) == 0.0:
                pass
        except Exception:  # lineage ends nothing
            logger.exception("%s: unexpected", self._what)
        finally:
            if self._store is not None:
                self._store.close()

    def _opened(self) -> RecordStore:
        if self._store is None:
            store = self._make_store()
            try:
                store.open()
            except BaseException:
                store.close()  # the next try makes another one
                raise
            self._store = store
            self._most_rows = min(store.most_rows, self._capacity)
        return self._store

    def _write(self, store: RecordStore, batch: Sequence[CallRecord]) -> int:
        """Write what the store takes; records that it refuses are found by halves. Returns how many were written."""
        try:
            store.write(batch)
        except TupletreeError:
            raise
        except Exception as error:  # noqa: BLE001 - of any kind: the row is to blame, and no caller waits for it
            if len(batch) == 1:
                logger.log(
                    logging.DEBUG if self._refused else logging.WARNING,
                    "%s: a record is lost, of message %r: %s refuses it: %s",
                    self._what,
                    batch[0].message,
                    store.where,
                    error,
                )
                self._refused = True
                return 0
            middle = len(batch) // 2
            return self._write(store, batch[:middle]) + self._write(store, batch[middle:])
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
            logger.info("%s is written again; %d records were lost meanwhile", self._what, lost)
        self._retry_s = self._retry_at_s = 0.0

    def _note_outage(self, now_s: float, error: TupletreeError) -> None:
        if not self._retry_s:
            self._lost_before = self._lost
            logger.warning(
                "%s cannot be written now; up to %d records are kept until it can, messages are not affected\n%s",
                self._what,
                self._capacity,
                error,
            )
        self._retry_s = min(max(self._retry_s * 2, RETRY_S[0]), RETRY_S[1])
        self._retry_at_s = now_s + self._retry_s

    def _rest(self, now_s: float) -> float:
        """Let the store do what is due by time. Returns seconds until something may be due."""
        if self._store is None:
            return REST_S
        if now_s >= self._rest_at_s:
            try:
                pause_s = self._store.rest(self._clock.wall())
            except TupletreeError as error:
                logger.debug("%s: what is due by time is put off: %s", self._what, error)
                pause_s = REST_S
            self._rest_at_s = now_s + pause_s
        return self._rest_at_s - now_s
