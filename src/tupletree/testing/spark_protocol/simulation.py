"""A simulation of the Spark protocol: one run of a topology, from its first start to its end, through crashes.

Everything runs in one thread. The settling thread's work is done between two steps of the loop, and steps of the loop
between two of its own, as the seed decides; time is virtual. A crash is an exception: what the process has left on
the disk is noted when it is raised (`Disk`), and whatever is done after that is undone. Owns the schedule; refuses to
judge: the caller is asked at each `Moment`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tupletree.clock import ManualClock, SteadyClock
from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.spark.driver.loop import Loop, LoopEvents
from tupletree.runtimes.spark.incarnation import Incarnation, RunSettings, Surroundings, claim
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.engine import Engine
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.plan_runner import PlanRunner
from tupletree.testing.spark_protocol.disk import Disk
from tupletree.testing.spark_protocol.faults import ProtocolFaults
from tupletree.testing.spark_protocol.runner import FaultyBackend, FaultyRunner, LateTasks
from tupletree.topology.builder import Topology
from tupletree.topology.changes.upgrades import Words

T = TypeVar("T")
R = TypeVar("R")

MAX_STEPS = 6_000
WALL_S = 1_700_000_000.0


class Crash(BaseException):
    """In the place of the end of the driver's process."""


class Moment(Enum):
    """When the caller is asked: as a crash happens, after a restart has finished what was left, at the end."""

    CRASH = "a crash"
    RESTART = "a restart"
    END = "the end"


# More than 12 attributes: one run through crashes: what was told, seen and stored outside of it.
class ProtocolSimulation:
    """See the module docstring.

    Args:
        make: builds the topology; its file sinks write below the folder that it is given.
        options: of the run.
        place: an empty folder.
        seed: decides everything.
        faults: what may go wrong.
        check: called at each moment, with the simulation; raises if a rule is broken.
        words: what the user says at a start of the topology that `make` built for it.

    Attributes:
        folder: what the topology was given.
        incarnation: the present one, with its accounts; None before the first, and while there is none.
        counts: what happened how often.
        is_over: the process has crashed: what it still does, as it unwinds, must have no effect outside.
    """

    def __init__(
        self,
        make: Callable[[Path], Topology],
        options: Options,
        place: Path,
        seed: int,
        faults: ProtocolFaults,
        check: Callable[[Moment, ProtocolSimulation], None],
        words: Callable[[], Words] = Words,
    ) -> None:
        self._words = words
        self.chance = Random(seed)
        self.folder = place / "disk"
        self.folder.mkdir()
        self.incarnation: Incarnation | None = None
        self.counts: Counter[str] = Counter()
        self.is_over = False
        self._make = make
        self._options = options
        self._faults = faults
        self._check = check
        self._disk = Disk(self.folder, place / "aside", self.chance, partial(self.pass_by, "sync"))
        self._late = LateTasks(self.chance)
        self._clock = ManualClock(monotonic=1000.0, wall=WALL_S)
        self._backend = FaultyBackend(self._runner)
        self._loop: Loop | None = None
        self._settling: _SteppedSettling | None = None
        self._in_step = False
        self._broken: BaseException | None = None
        self._steps = 0
        self._crashes = self.chance.randint(0, faults.crashes)
        self._until_crash = 0

    @property
    def state_dir(self) -> Path:
        """The state directory."""
        return self.folder / "state"

    def run(self, begin: Callable[[], None] | None = None) -> None:
        """Run until all input is settled. Raises what a check raises, and whatever ends a run by itself.

        Args:
            begin: another run after one that has ended: what is done in between, without a crash.
        """
        on_reached, urandom = crash_points.on_reached, os.urandom
        # Of this thread alone: what other runs of the process do, in theirs, is none of this world's doings.
        crash_points.on_reached = _in_this_thread(self.pass_by, on_reached or _pass)
        os.urandom = _in_this_thread(self.chance.randbytes, urandom)  # names are drawn from it, and their order matters
        try:
            with self._disk:
                if begin is not None:
                    self._crashes = 0
                    begin()
                    self._crashes = self.chance.randint(0, self._faults.crashes)
                while not self._live():
                    self._disk.restart()
        finally:
            crash_points.on_reached = on_reached
            os.urandom = urandom

    def pass_by(self, what: str) -> None:
        """A point where the process may crash."""
        if self._broken is not None:
            raise self._broken
        if self.is_over:
            raise Crash(what)
        if self._crashes <= 0:
            return
        self._until_crash -= 1
        if self._until_crash < 0:
            self._crashes -= 1
            self._crash(what)

    def pause(self, what: str) -> None:
        """The settling thread waits for something: the loop may go on meanwhile, executors too, and time passes."""
        self.pass_by(what)
        self._clock.advance(self.chance.random() * 0.02)
        if self.chance.random() < 0.1:
            self._late.run_one()
        while self._loop is not None and not self._in_step and self.chance.random() < self._faults.beside:
            self.step_loop()

    def step_loop(self) -> float | None:
        """A step of the loop, unless it is in one: it waits for the settling thread then."""
        assert self._loop is not None
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AssertionError(f"the run does not end: {MAX_STEPS} steps")
        self._in_step = True
        try:
            return self._loop.step()
        finally:
            self._in_step = False

    # --- inside -----------------------------------------------------------------------------------------------

    def _crash(self, what: str) -> None:
        try:
            self._check(Moment.CRASH, self)
        except BaseException as error:
            self._broken = error  # what is called back may raise, and the run goes on
            raise
        machine = self.chance.random() < self._faults.machine
        self.counts["machine" if machine else "process"] += 1
        self.counts[what] += 1
        self.is_over = True
        self._disk.crash(machine=machine)
        raise Crash(what)

    def _live(self) -> bool:
        """One process, from its start to its end; whether this was the end of the run."""
        self.is_over = False
        self._until_crash = int(self.chance.expovariate(1 / 90))
        self._backend.partitions = self.chance.choice((1, 2, 3))
        settings: RunSettings | None = None
        try:
            settings = self._claimed()
            self._run(settings)
        except BaseException as error:
            if not self.is_over:
                raise  # a rule is broken, or the run failed by itself
            self.counts[type(error).__name__] += 1
            return False
        finally:
            self._loop = self._settling = self.incarnation = None
            if settings is not None:
                settings.directory.close()
        return True

    def _claimed(self) -> RunSettings:
        topology = self._make(self.folder)
        request = RunRequest(
            topology,
            self._options,
            None,
            self.state_dir,
            append=False,
            master="",
            redact=None,
            words=self._words(),
        )
        surroundings = Surroundings(
            SteadyClock(self._clock),
            random_bits=self.chance.getrandbits,
            random=self.chance.random,
            sink_calls=lambda _: _InlineCalls(self),
            settling=self._make_settling,
            taking=_InlineExecutor,
        )
        return claim(request, topology.build(), self._backend, surroundings)

    def _run(self, settings: RunSettings) -> None:
        incarnation = self.incarnation = Incarnation(settings, settings.backend.open())
        try:
            loop = incarnation.open(lambda _: LoopEvents(), active=True, may_wait=True)
            self._check(Moment.RESTART, self)
            loop.sweep_orphans()
            loop.begin()
            self._loop = loop
            self._go_on()
        finally:
            self._loop = None
            incarnation.leave()
            incarnation.close()
        incarnation.end()
        self._check(Moment.END, self)

    def _go_on(self) -> None:
        """Steps of the loop and of the settling thread, until the loop is at its end."""
        settling = self._settling
        assert settling is not None
        while True:
            if settling.has_work and self.chance.random() < 0.6:
                settling.step()
                continue
            pause_s = self.step_loop()
            if pause_s is None:
                return
            if pause_s and not settling.has_work:
                self._clock.advance(min(pause_s, 5.0))
            self.pause("between two steps")

    def _runner(self, plan: Plan, blob: bytes) -> PlanRunner:
        between = partial(self.pause, "between two tasks")
        return FaultyRunner(plan, blob, self._faults, self.chance, self._late, between)

    def _make_settling(self, engine: Engine, _runner: PlanRunner, called_back: int) -> _SteppedSettling:
        self._settling = _SteppedSettling(engine, called_back, self.step_loop)
        return self._settling

    def now_s(self) -> float:
        """The time, monotonic."""
        return self._clock.monotonic()

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._clock.advance(seconds)


class _SteppedSettling:
    """See `Settling`: an epoch is settled when the simulation says so."""

    def __init__(self, engine: Engine, called_back: int, step_loop: Callable[[], Any]) -> None:
        self.is_warm = False
        self.fault: BaseException | None = None
        self.called_back = called_back
        self._engine = engine
        self._step_loop = step_loop
        self._records: deque[EpochRecord] = deque()
        self._on_settled: Callable[[EpochOutcomes], None] = lambda _: None

    @property
    def has_work(self) -> bool:
        return bool(self._records)

    def listen(self, on_settled: Callable[[EpochOutcomes], None], wake: Callable[[], None]) -> None:  # noqa: ARG002 - nothing waits
        self._on_settled = on_settled

    def start(self) -> None:
        self._engine.warm_up()
        self.is_warm = True

    def put(self, record: EpochRecord) -> None:
        self._records.append(record)

    def calls_made(self, epoch: int) -> None:
        self.called_back = epoch

    def close(self) -> None:
        self._engine.close()

    def join(self) -> None:
        pass

    def step(self) -> None:
        record = self._records.popleft()

        def before_commit() -> None:
            while self.called_back < record.epoch - 1:
                self._step_loop()

        self._on_settled(self._engine.settle(record, before_commit))


class _InlineExecutor(Executor):
    """Executors take messages in the simulation's thread, while the loop waits."""

    def submit(self, call: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(call(*arguments, **named))
        return done


class _InlineCalls:
    """See `SinkCalls`: calls are made in the simulation's thread, and waiting takes no time."""

    def __init__(self, simulation: ProtocolSimulation) -> None:
        self._simulation = simulation

    def call(self, sink: str, job: Callable[[], T]) -> T:
        self._simulation.pause(f"before a call of {sink}")
        result = job()
        self._simulation.pause(f"after a call of {sink}")
        return result

    def wait(self, seconds: float) -> bool:
        self._simulation.advance(seconds)
        self._simulation.pause("a pause between two calls")
        return False

    def leave(self) -> None:
        pass

    def close(self, jobs: Sequence[Callable[[], None]]) -> None:
        for job in jobs:
            job()


def _pass(_point: str) -> None:
    """No crash."""


def _in_this_thread(ours: Callable[[T], R], theirs: Callable[[T], R]) -> Callable[[T], R]:
    """A function that is `ours` in this thread and `theirs` in all others."""
    own = threading.get_ident()

    def called(given: T) -> R:
        return ours(given) if threading.get_ident() == own else theirs(given)

    return called
