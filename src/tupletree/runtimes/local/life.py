"""One life of a topology, from construction to the last closed task, or to the error that ends it.

Owns the order of things: activate ackers, bolts and sinks, spouts, system; stop system, drain the spouts, then close
spouts, bolts and sinks, ackers. It waits for executors, never the other way round, and for each only for a limited
time: a task that hangs is named with its stack and left behind.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as StillWaiting
from dataclasses import dataclass, field
from typing import Any

from tupletree.clock import Clock
from tupletree.config import Options
from tupletree.errors import ConnectorError, InternalError, TupletreeError
from tupletree.ids import hex_id
from tupletree.runtimes.local.assembly import Assembly
from tupletree.runtimes.local.event_loop import CallRunner
from tupletree.runtimes.local.executor import Executor
from tupletree.runtimes.local.watchdog import Watchdog
from tupletree.texts import counted
from tupletree.tracking.message_ids import id_text, plain_id
from tupletree.tracking.records import Released

logger = logging.getLogger("tupletree.local")

START_TIMEOUT_S = 60.0
"""How long a component may take to open."""

STOP_TIMEOUT_S = 5.0
"""How long a task may take to answer while everything ends, before its thread is given up."""

CHECK_S = 1.0
QUIET_POLL_S = 0.002
IDS_SHOWN = 10


class Agreement:
    """Whether something is true on every executor; each reports it for itself, on its own thread."""

    def __init__(self) -> None:
        self._agreed: set[str] = set()

    def note(self, who: str, holds: bool, of: int) -> bool:
        """Record what one of `of` executors reports; returns whether it is true on all of them now."""
        (self._agreed.add if holds else self._agreed.discard)(who)
        return len(self._agreed) == of


@dataclass
class RunSignals:
    """What the run, its executors and its supervising thread share.

    Attributes:
        state: created, activated, processing, draining, stopping, stopped or failed.
        ending: nothing new will come: executors release what is held back whenever they are idle.
        draining: a stop was requested.
        finished: every spout's input is over, and every message has ended.
        drained: nothing is in flight.
        all_ended, all_finished, all_drained: what the executors of spouts report, each for its own: their inputs are
            over, all their messages have ended, nothing of theirs is in flight.
        stop_at_s: when a drain runs out of time (monotonic); None: no stop was requested.
        leaves_buffer: what spouts have given is not emitted any more once the stop is requested.
        fault: why an executor ended.
        wake: set whenever one of these changes.
    """

    state: str = "created"
    ending: bool = False
    draining: bool = False
    finished: bool = False
    drained: bool = False
    stop_at_s: float | None = None
    leaves_buffer: bool = False
    fault: BaseException | None = None
    all_ended: Agreement = field(default_factory=Agreement)
    all_finished: Agreement = field(default_factory=Agreement)
    all_drained: Agreement = field(default_factory=Agreement)
    wake: threading.Event = field(default_factory=threading.Event)

    def stop_asked(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_at_s is not None

    def begin_life(self) -> None:
        """Reset what is about one life."""
        self.ending = self.draining = self.finished = self.drained = False
        self.all_ended, self.all_finished, self.all_drained = Agreement(), Agreement(), Agreement()
        self.fault = None


class Life:
    """See the module docstring. Its methods run on the supervising thread.

    Attributes:
        left: messages that were open when a drain timed out; of a run that is not durable, failed to their sources.
        hung: executors that did not answer.
        cannot_open: a component could not be opened; one that fails later is another case.
    """

    def __init__(
        self, assembly: Assembly, options: Options, clock: Clock, control: RunSignals, calls: CallRunner
    ) -> None:
        self.left: list[Released] = []
        self.hung: set[Executor] = set()
        self.cannot_open = False
        self._assembly = assembly
        self._options = options
        self._clock = clock
        self._control = control
        self._calls = calls

    def activate(self) -> None:
        """Open every component. Raises what a component raised, or TupletreeError if opening does not end."""
        for executor in self._assembly.executors:
            executor.launch()
        for group in self._assembly.groups():
            opening = [(task, self._assembly.owners[task].start_task(task)) for task in group]
            for task, future in opening:
                try:
                    future.result(START_TIMEOUT_S)
                except StillWaiting:
                    self._give_up(self._assembly.owners[task], "opening")
                    raise TupletreeError(
                        f"opening {self._component(task)!r} has not ended after {START_TIMEOUT_S:g} s"
                    ) from None
                except CancelledError:
                    raise self._control.fault or InternalError("an executor ended without an error") from None
                except BaseException as error:
                    self.cannot_open = True
                    if isinstance(error, TupletreeError):
                        raise
                    raise ConnectorError(
                        f"{self._component(task)!r} cannot be opened: {type(error).__name__}: {error}"
                    ) from error
        self._control.state = "processing"

    def process(self) -> None:
        """Let it run until its input is over, or a stop was requested and is done. Raises the error of an executor."""
        control = self._control
        watch = Watchdog(self._assembly, self._options, self._clock)
        while not (control.finished or control.stop_asked()):
            self._rest(CHECK_S)
            watch.look()
            self._calls.look(self._clock.monotonic())
        self._drain()

    def _drain(self) -> None:
        control = self._control
        self._stop_tasks(self._assembly.groups()[-1])
        if control.stop_asked():
            control.state = "draining"
            for spout in self._assembly.spouts():
                try:
                    self._ask(
                        self._assembly.owners[spout.task.task_id],
                        lambda _, __, spout=spout: spout.drain(leaves_buffer=control.leaves_buffer),
                    )
                except Exception:  # it drains all the same
                    logger.exception("deactivating spout %s failed", spout.task.component)
            control.draining = True  # no spout emits any more, so what is drained stays drained
        control.ending = True
        while not (control.drained or control.finished) and self._time_left():
            for executor in self._assembly.executors:
                executor.nudge()
            self._rest(0.05)
        moved, moved_s = -1, 0.0
        while not self._is_quiet() and self._time_left():
            now_s = self._clock.monotonic()
            executors = self._assembly.executors
            handled = sum(executor.handled for executor in executors)
            if handled != moved or any(executor.in_hand is not None for executor in executors):
                moved, moved_s = handled, now_s
            elif now_s - moved_s >= self._options.drain_timeout_s:
                self._name_busy()
                break
            self._rest(QUIET_POLL_S)

    def _name_busy(self) -> None:
        """Log calls that do not end although every message has its verdict and no other work is left."""
        machines = self._assembly.machines.values()
        busy = dict.fromkeys(machine.task.component for machine in machines if machine.is_busy)
        logger.warning(
            "every message has its verdict, and calls of %s have not ended for %g s: they are cancelled",
            ", ".join(busy) or "something",
            self._options.drain_timeout_s,
        )

    def _time_left(self) -> bool:
        stop_at_s = self._control.stop_at_s
        return stop_at_s is None or self._clock.monotonic() < stop_at_s

    def _rest(self, seconds: float) -> None:
        control = self._control
        control.wake.wait(seconds)
        control.wake.clear()
        if control.fault is not None:
            raise control.fault

    def _is_quiet(self) -> bool:
        """Whether no work is left: all executors are idle twice in a row, and nothing was worked in between."""
        answers = []
        for _ in range(2):
            probes = [executor.probe() for executor in self._assembly.executors]
            try:
                answers.append([probe.result(max(0.05, min(1.0, self._seconds_left()))) for probe in probes])
            except (StillWaiting, CancelledError):
                return False
        return answers[0] == answers[1] and all(quiet for quiet, _ in answers[0])

    def _seconds_left(self) -> float:
        stop_at_s = self._control.stop_at_s
        return 1.0 if stop_at_s is None else stop_at_s - self._clock.monotonic()

    # --- the end ----------------------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Give up what is left (see `SpoutMachine.abandon`), then close spouts, bolts and sinks, ackers."""
        self._control.state = "stopping"
        ackers, bolts, spouts, _ = self._assembly.groups()
        for spout in self._assembly.spouts():
            left = self._ask(self._assembly.owners[spout.task.task_id], spout.abandon)
            self.left += left or []
        if self.left:
            named = ((id_text(plain_id(one.message_id)), hex_id(one.root)) for one in self.left[:IDS_SHOWN])
            shown = ", ".join(f"{message} (root {root})" for message, root in named)
            more = f" and {len(self.left) - IDS_SHOWN} more" if len(self.left) > IDS_SHOWN else ""
            logger.warning(
                "%s not finished, %s: %s%s",
                counted(len(self.left), "message was", "messages were"),
                "kept for the next start" if self._options.durable else "failed to their source",
                shown,
                more,
            )
        for group in (spouts, bolts, ackers):
            self._stop_tasks(group)

    def halt(self) -> None:
        """End every thread; those that do not end are left behind. Each closes what an error left open."""
        for executor in self._assembly.executors:
            executor.halt()
        for executor in self._assembly.executors:
            if executor.thread is None:
                continue
            executor.thread.join(0.0 if executor in self.hung else STOP_TIMEOUT_S)
            if executor.thread.is_alive() and executor not in self.hung:
                self._give_up(executor, "ending")

    def _stop_tasks(self, group: Sequence[int]) -> None:
        closing = [(task, self._assembly.owners[task].stop_task(task)) for task in group]
        for task, future in closing:
            try:
                self._await(self._assembly.owners[task], future)
            except Exception:
                logger.exception("closing %s failed; its results are kept", self._component(task))

    def _ask(self, executor: Executor, action: Any) -> Any:
        return self._await(executor, executor.submit(action))

    def _await(self, executor: Executor, future: Future[Any]) -> Any:
        """The future's result; None if its executor hangs or has ended."""
        try:
            return future.result(0.0 if executor in self.hung else STOP_TIMEOUT_S)
        except CancelledError:
            return None
        except StillWaiting:
            self._give_up(executor, "stopping")
            return None

    def _give_up(self, executor: Executor, doing: str) -> None:
        if executor in self.hung:
            return
        self.hung.add(executor)
        task = executor.in_hand
        logger.error(
            "%s: executor %s does not answer while %s and is left behind; at work: %s\n%s",
            self._assembly.plan.spec.name,
            executor.name,
            doing,
            "nothing" if task is None else f"{self._component(task)}, task {task}",
            executor.stack(),
        )

    def _component(self, task: int) -> str:
        return self._assembly.plan.tasks[task].component
