"""Progress records: the numbers of one epoch, or of one second of a local run; for listeners, a file, other processes.

Owns the record, and the thread that delivers records, so that a slow listener delays no epoch.
The runtimes fill records from their own accounts. Nothing here is durable.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tupletree.config import Options
from tupletree.runtimes.threads import start_thread
from tupletree.texts import json_bytes
from tupletree.tracking.holds import Hold
from tupletree.tracking.outages import ShownOutage

logger = logging.getLogger("tupletree.runtimes")

KEPT_RECORDS = 100
SAMPLE_EVERY_S = 1.0
PATIENCE_S = 5.0
"""How long the end of a run waits for listeners."""


class ProgressRecord(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers of one epoch (Spark), or of the time since the last record (local, about a second).

    Attributes:
        topology, runtime, run_id: which run.
        epoch: its number; -1 locally.
        generation: the start of the run that settled it, from 1; 0 locally.
        runs: how often its plan was run until a run counted; 0 locally.
        time_s: when the record was made, since the Unix epoch.
        seconds: since the record before, or since the process started on the run.
        emitted, acked, dead: messages that were emitted, were acked, died.
        failed, retried: attempts that failed, and that were made again.
        emitted_per_s, acked_per_s: the same by `seconds`.
        outputs: rows published, by sink.
        step_ms: how long each step took, in milliseconds. Of a Spark epoch: `intake` (asking spouts, routing), `log`
            (making its log durable), `run` (Spark, all runs and their reports), `settle` (verdicts and the entry),
            `publish` (files, sinks, letters), `callbacks` (of spouts). Steps of different epochs overlap. Empty
            locally.
        state_rows_read, state_rows_written, state_bytes_read, state_bytes_written: of keyed and task state in the run
            that counts, by tasks that changed some of it. Includes what is merged. 0 locally.
        open_trees: messages whose tree is open after it.
        pending: messages without an outcome: in flight, waiting, or awaited from their source.
        oldest_s: how long ago the oldest of them was first emitted; None: there is none.
        late: tuples that came too late for their window or join.
        watermarks: by bolt, how far event time has come in its slowest task, since the Unix epoch.
        positions: by spout task, its position, shortened. Empty locally.
        outages: what waits for something outside that is not available, the longest wait first.
        holds: what open messages and their tuples wait for, by kind and component.
    """

    topology: str
    runtime: str
    run_id: str
    epoch: int = -1
    generation: int = 0
    runs: int = 0
    time_s: float
    seconds: float
    emitted: int
    acked: int
    failed: int
    retried: int
    dead: int
    emitted_per_s: float
    acked_per_s: float
    outputs: dict[str, int] = {}
    step_ms: dict[str, float] = {}
    state_rows_read: int = 0
    state_rows_written: int = 0
    state_bytes_read: int = 0
    state_bytes_written: int = 0
    open_trees: int = 0
    pending: int = 0
    oldest_s: float | None = None
    late: int = 0
    watermarks: dict[str, float] = {}
    positions: dict[str, str] = {}
    outages: list[ShownOutage] = []
    holds: list[Hold] = []
    format: int = 1


class _Totals(Protocol):
    """Counters that only grow; each runtime has its own class of them."""

    @property
    def emitted(self) -> int: ...
    @property
    def acked(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def retried(self) -> int: ...
    @property
    def dead(self) -> int: ...


def counts_since(before: _Totals, now: _Totals, seconds: float) -> dict[str, Any]:
    """The fields of a record that count messages and attempts, and their rates."""
    counts = {
        name: getattr(now, name) - getattr(before, name) for name in ("emitted", "acked", "failed", "retried", "dead")
    }
    return {**counts, **{f"{name}_per_s": counts[name] / seconds for name in ("emitted", "acked")}}


def rows_since(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Rows by sink, where there are new ones."""
    return {sink: more for sink, count in now.items() if (more := count - before.get(sink, 0))}


def slowest(watermarks_us: Iterable[tuple[str, int]]) -> dict[str, float]:
    """By bolt, the watermark of its slowest task, in seconds."""
    found: dict[str, float] = {}
    for component, watermark_us in watermarks_us:
        found[component] = min(found.get(component, math.inf), watermark_us / 1e6)
    return found


def progress_file(options: Options) -> Path | None:
    """The file that the options name for records, absolute."""
    return None if options.progress_file is None else Path(options.progress_file).absolute()


Listener = Callable[[ProgressRecord], None]


class Steps:
    """How long the steps of one epoch took, in milliseconds; a step may come in parts."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def measure(self, step: str) -> Iterator[None]:
        """Add the time that the block takes."""
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            self.ms[step] = self.ms.get(step, 0.0) + (time.perf_counter() - begun_s) * 1000.0


class Reporter:
    """Takes records on any thread and delivers them on its own thread, in order, from `begin` to `finish`.

    Args:
        topology: for names.
        file: every record is appended to it as a line of JSON; None: to none.
        sample: makes a record; asked every second and at the end. None: they come by `report`.
    """

    def __init__(self, topology: str, file: Path | None, sample: Callable[[], ProgressRecord] | None = None) -> None:
        self._file = file
        self._sample = sample
        self._listeners: list[tuple[str, Listener]] = []
        self._recent: deque[ProgressRecord] = deque(maxlen=KEPT_RECORDS)
        self._queue: queue.SimpleQueue[ProgressRecord | None] = queue.SimpleQueue()
        self._complained = False
        self._topology = topology
        self._thread = threading.Thread(target=self._main, name=f"tupletree-{topology}-progress", daemon=True)

    def begin(self) -> None:
        """Start delivering."""
        start_thread(self._thread)

    def finish(self) -> None:
        """Deliver what is left. A listener that takes too long is not waited for."""
        self._queue.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            logger.warning("%s: a progress listener has not returned for %g s", self._topology, PATIENCE_S)

    def add(self, listener: Listener) -> None:
        """Call it with each record from now on, on the reporter's thread."""
        name = getattr(listener, "__qualname__", None) or type(listener).__qualname__
        self._listeners = [*self._listeners, (name, listener)]

    def report(self, record: ProgressRecord) -> None:
        """Take a record."""
        self._recent.append(record)
        self._queue.put(record)

    def recent(self) -> list[ProgressRecord]:
        """The last records, oldest first."""
        return list(self._recent.copy())

    def _main(self) -> None:
        while True:
            try:
                record = self._queue.get(timeout=SAMPLE_EVERY_S if self._sample is not None else None)
            except queue.Empty:
                self._take_sample()
                continue
            if record is None:
                break
            self._tell(record)
        self._take_sample()

    def _take_sample(self) -> None:
        if self._sample is not None:
            record = self._sample()
            self._recent.append(record)
            self._tell(record)

    def _tell(self, record: ProgressRecord) -> None:
        if self._file is not None:
            self._append(self._file, json_bytes(record) + b"\n")
        for name, listener in self._listeners:
            try:
                listener(record)
            except Exception:
                logger.exception("%s: the progress listener %s failed; the run goes on", self._topology, name)

    def _append(self, file: Path, line: bytes) -> None:
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as opened:
                opened.write(line)
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.warning("%s: progress cannot be written: %s", self._topology, error)
