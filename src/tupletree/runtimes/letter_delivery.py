"""Dead letters on their way to those who asked: a callback of `run`, and the sink of `Topology.dead_letters`.

Owns a thread that reads letters back from the disk, in the order in which they were stored, and gives each file of them
to the callback and then to the sink, at least once. What waits is a number per file, however long a sink is away.
Verdicts never wait for it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tupletree.bolts.effects import TaskPlace
from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.durable import pack, private_folder, read_container, replace_file
from tupletree.errors import CheckpointError, ConfigError, is_outage
from tupletree.runtimes.deadletters import read_letters, stored_numbers
from tupletree.runtimes.instances import own_instance
from tupletree.runtimes.threads import start_thread
from tupletree.sinks.files import SinkRowsError
from tupletree.sinks.jsonl import JsonLinesSink
from tupletree.topology.components import Sink, SinkBatch
from tupletree.topology.model import TopologySpec
from tupletree.tracking.outages import OutageWait, ShownOutage, shown_outages
from tupletree.tracking.outcomes import DeadLetter
from tupletree.tracking.retry import RetryPolicy

logger = logging.getLogger("tupletree")

OnDead = Callable[[DeadLetter], None]
"""Called for each dead letter once it is durable, in a thread of its own, at least once. What it raises is logged."""

DEAD_LETTER_SINK = "dead letter sink"
"""The name of an outage of the sink, in status, log and metrics."""

MARKER = "delivered"
CHECK_S = 0.1
FAILED_RUN_S = 5.0
"""How long a run that failed waits for letters that are not delivered yet."""


# More than 12 attributes: one thread, its position in the letters, and its pauses.
class LetterDelivery:
    """See the module docstring. `begin`, then `put` from any thread, then `finish`.

    Args:
        spec: the topology, with the sink if it has one.
        on_dead: the callback; None: there is none.
        run_id: names the run in batch ids.
        directory: where letters are stored.
        options: of the run: how often a call that fails is made.
        clock: where time comes from.
        resumes: letters that an earlier start of the run did not deliver are delivered, too; this is remembered.
    """

    def __init__(
        self,
        spec: TopologySpec,
        on_dead: OnDead | None,
        run_id: str,
        directory: Path,
        options: Options,
        clock: Clock,
        *,
        resumes: bool,
    ) -> None:
        self._spec = spec
        self._on_dead = on_dead
        self._run_id = run_id
        self._directory = directory
        self._policy = RetryPolicy.from_options(options)
        self._clock = clock
        self._resumes = resumes
        component = spec.dead_letters
        self._sink: Sink[Any] | None = None if component is None else own_instance(component, shared=True)
        self._wait = OutageWait(DEAD_LETTER_SINK)
        self._left: deque[int] = deque()
        self._newest = -1
        self._changed = threading.Condition()
        self._fault: BaseException | None = None
        self._is_open = self._is_closing = False
        self._stops = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Open the sink, and begin with what an earlier start has left. Raises what the sink's `open` raises."""
        if self._sink is None and self._on_dead is None:
            return
        if self._resumes:
            told = self._told()
            for number in stored_numbers(self._directory):
                if number > told:
                    self.put(number)
        self._thread = start_thread(threading.Thread(target=self._main, name="tupletree-dead-letters", daemon=True))
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._fault is not None)
        if self._fault is not None:
            raise self._fault

    def put(self, number: int) -> None:
        """Deliver the letters that are stored under this number; they come in the order of their numbers."""
        with self._changed:
            if number > self._newest and not (self._sink is None and self._on_dead is None):
                self._newest = number
                self._left.append(number)
                self._changed.notify_all()

    def finish(self, stop_at_s: Callable[[], float | None], *, failed: bool) -> None:
        """Wait until all letters are delivered, then close the sink. Once that is done, it does nothing.

        Args:
            stop_at_s: when to give up at the latest (monotonic); None: not at all. Asked again and again.
            failed: the run has failed: it does not wait for long.
        """
        if self._thread is None:
            return
        given_up_s = self._clock.monotonic() + FAILED_RUN_S if failed else None
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        while self._thread.is_alive():
            limit_s = min((one for one in (stop_at_s(), given_up_s) if one is not None), default=None)
            if limit_s is not None and self._clock.monotonic() >= limit_s:
                break
            self._thread.join(CHECK_S)
        self._stops.set()
        self._thread.join(FAILED_RUN_S)
        if self._left:
            then = "the next start delivers them" if self._resumes else "they are in the dead letters"
            logger.warning("%s: %d files of dead letters are not delivered: %s", self._spec.name, len(self._left), then)
        self._thread = None

    def shown(self) -> tuple[ShownOutage, ...]:
        """See `Progress.outages`."""
        return shown_outages([self._wait.current], self._clock.monotonic())

    # --- the thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            if self._sink is not None:
                self._sink.open(self._place())
        except BaseException as error:  # noqa: BLE001 - raised by `begin`
            self._fault = error
        with self._changed:
            self._is_open = self._fault is None
            self._changed.notify_all()
        while self._is_open and (number := self._next()) is not None:
            self._deliver(number)
            if self._stops.is_set():
                break
            self._note_told(number)
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception:
                logger.exception("closing the sink of dead letters failed")

    def _place(self) -> TaskPlace:
        return TaskPlace(self._spec.name, "dead_letters", -1, 0, 1, self._clock.wall(), input_types=(DeadLetter,))

    def _next(self) -> int | None:
        """The next file; it stays the first of those that are left until it is delivered. None: the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or self._is_closing)
            return self._left[0] if self._left else None

    def _deliver(self, number: int) -> None:
        try:
            letters = read_letters(self._directory, number)
        except CheckpointError:
            logger.exception("%s: dead letters cannot be delivered", self._spec.name)
            return
        if self._on_dead is not None:
            for letter in letters:
                try:
                    self._on_dead(letter)
                except Exception:
                    logger.exception("%s: the callback for dead letters failed", self._spec.name)
        if self._sink is not None and letters:
            writer = f"{self._run_id}-dead"
            batch = SinkBatch(f"{writer}-{number:010d}", letters, writer, number, self._run_id)
            self._write(self._sink, batch)

    def _write(self, sink: Sink[Any], batch: SinkBatch[DeadLetter]) -> None:
        """Write a batch: again after outages and failures, and without rows that the sink refuses."""
        attempt = 0
        while batch.rows and not self._stops.is_set():
            try:
                sink.write(batch)
            except SinkRowsError as refused:
                bad = {row.position for row in refused.rows}
                logger.exception("the sink of dead letters refuses %d of them", len(bad))
                batch = replace(batch, rows=[row for place, row in enumerate(batch.rows) if place not in bad])
            except Exception as error:
                if is_outage(error):
                    self._pause(error)
                    continue
                attempt += 1
                if self._policy.exhausted(attempt):
                    logger.exception("the sink of dead letters failed %d times, and goes without %s", attempt, batch.id)
                    return
                self._stops.wait(self._policy.delay_s(attempt, random.random))
            else:
                self._say(self._wait.over(self._clock.monotonic()))
                return

    def _pause(self, error: Exception) -> None:
        self._say(self._wait.met(error, self._clock.monotonic()))
        self._stops.wait(max(0.0, self._wait.due_s - self._clock.monotonic()))

    @staticmethod
    def _say(text: str) -> None:
        if text:
            logger.warning("%s: %s", DEAD_LETTER_SINK, text)

    # --- what was delivered -----------------------------------------------------------------------------------

    def _told(self) -> int:
        path = self._directory / MARKER
        return read_container(path, int)[0] if path.exists() else -1

    def _note_told(self, number: int) -> None:
        while self._resumes and not self._stops.is_set():
            try:
                private_folder(self._directory)
                replace_file(self._directory / MARKER, pack(number))
            except OSError as error:
                self._pause(error)
            else:
                self._say(self._wait.over(self._clock.monotonic()))
                break
        with self._changed:
            self._left.popleft()


def refuse_columns(spec: TopologySpec) -> None:
    """Raise ConfigError if the topology's sink for dead letters has columns: a payload may be of any type."""
    if spec.dead_letters is None:
        return
    sink = spec.dead_letters.body
    if getattr(sink, "promise", "") == "exactly_once" and not isinstance(sink, JsonLinesSink):
        raise ConfigError(
            "this sink needs columns with types, and the payload of a dead letter may be anything",
            where=f"dead_letters ({spec.dead_letters.where})",
            got=type(sink).__name__,
            expected="jsonl(…), foreach(…) or a Sink of your own",
            next_step="write a Sink that takes from each DeadLetter what the columns need",
        )
