"""The test kit: runs a topology to its end in one thread, on virtual time, and reports the outcome of every message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from tupletree.clock import ManualClock
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.errors import TupletreeError
from tupletree.routing.plan import ACKER, Plan
from tupletree.runtimes.local.supported import refuse_unsupported
from tupletree.tasks.mail import Mail, Now
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.spout import DEFAULT_MAX_PENDING, SpoutMachine
from tupletree.testing.kit.reports import Recorder, TestRun
from tupletree.testing.kit.tracing import Fail, Tracer
from tupletree.testing.virtual.calls import VirtualCalls
from tupletree.testing.virtual.interrupts import Interrupts, beside_event_loop
from tupletree.testing.virtual.machines import MachineSet
from tupletree.testing.virtual.network import DueCall
from tupletree.testing.virtual.scripted import scripts_of, with_scripts
from tupletree.topology.builder import Topology
from tupletree.topology.limits import refuse_stuck

ALL_AT_ONCE = 2**31
MAX_STEPS = 1_000_000
SMALLEST_STEP_S = 0.001
WALL_S = 1_700_000_000.0


def run(
    topology: Topology,
    inputs: Mapping[str, Iterable[Any]] | None = None,
    *,
    fail: Mapping[str, Fail] | None = None,
    options: Mapping[str, Any] | None = None,
    clock: ManualClock | None = None,
    at_least_s: float = 0.0,
    at_most_s: float = 3600.0,
    seed: int = 0,
) -> TestRun:
    """Run a topology in this thread, in milliseconds; pauses and timeouts pass on virtual time.

    Everything comes in the order in which it was sent, so equal calls give equal runs. Sinks write nowhere, their rows
    are in the result. What may be different under load and faults is for `simulate` to show.

    Args:
        topology: what to run.
        inputs: spout → values (their positions are their message ids) or `Emit`s, in place of its source.
        fail: bolt → predicate; the bolt fails the tuples for which it gives True, or an exception to raise.
        options: settings that win over those of the topology.
        clock: where time starts; it moves as time passes.
        at_least_s: virtual seconds that the run takes even if all is done before, for bolts with ticks.
        at_most_s: virtual seconds after which it is stopped; messages that are open then have the outcome `OPEN`.
        seed: for retry pauses and ids.

    Raises:
        ConfigError: a name or an option does not exist.
        TopologyError: the topology has faults, or needs what the local runtime does not have.
        TupletreeError: it does not come to an end, because a spout never stops giving messages.

    >>> from tupletree import Topology, bolt
    >>> from tupletree.sinks import foreach
    >>> from tupletree.sources import Line, items
    >>> @bolt
    ... def shout(line: Line) -> Line:
    ...     return Line(line.text.upper())
    >>> t = Topology("shouting")
    >>> _ = t.sink("out", foreach(print)).shuffle(t.bolt("shout", shout).shuffle(t.spout("lines", items([Line("")]))))
    >>> ended = run(t, {"lines": [Line("a")]})
    >>> ended.outputs["out"][0].text, ended.messages["lines"][0].acked
    ('A', True)
    """
    spec = topology.build()
    refuse_unsupported(spec)
    settings = Options(**{**spec.options, **(options or {})})
    refuse_stuck(spec, settings, DEFAULT_MAX_PENDING)
    plan = Plan.of(spec, settings)
    scripts = scripts_of(spec, inputs or {}, plan.parallelism)
    tracer = Tracer()
    spec = tracer.wrap(with_scripts(spec, scripts, lambda: ALL_AT_ONCE), fail or {})
    plan = Plan.of(spec, settings)
    clock = clock or ManualClock(wall=WALL_S)

    def to_the_end(interrupts: Interrupts) -> TestRun:
        driver = _Driver(plan, settings, clock, tracer, Random(seed))
        started_s = clock.monotonic()
        try:
            driver.to_the_end(started_s + at_least_s, started_s + at_most_s, interrupts)
        finally:
            driver.close()
        return driver.recorder.report(scripts, tracer.warnings, clock.monotonic() - started_s)

    return beside_event_loop(to_the_end)


class _Driver:
    def __init__(self, plan: Plan, options: Options, clock: ManualClock, tracer: Tracer, random: Random) -> None:
        self.recorder = Recorder(plan, tracer)
        self._clock = clock
        self._tracer = tracer
        self._out = Outbox(plan.task_ids_of(ACKER))
        self._queue: deque[Frame | tuple[int, Mail | DueCall]] = deque()
        self._calls = VirtualCalls()
        self._machine_set = MachineSet(plan, options, random, self.recorder)
        self._machine_set.start(self._now, self._out)

    @property
    def _now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall())

    def to_the_end(self, at_least_s: float, at_most_s: float, interrupts: Interrupts) -> None:
        for _ in range(MAX_STEPS):
            interrupts.check()
            if self._step():
                continue
            now_s = self._clock.monotonic()
            spouts = self._machine_set.spouts()
            if now_s >= at_most_s:
                self._abandon()
                return
            if now_s >= at_least_s and all(spout.is_finished for spout in spouts) and self._calls.next_due_s() is None:
                return
            ends_s = at_least_s if now_s < at_least_s else at_most_s
            self._clock.advance(max(SMALLEST_STEP_S, min([*self._due(), ends_s]) - now_s))
        raise TupletreeError(
            "the run does not come to an end",
            got=f"{MAX_STEPS} steps in {self._clock.monotonic():.3f} virtual seconds",
            next_step="give spouts that never end a list of messages: run(topology, {'spout': [...]})",
        )

    def close(self) -> None:
        for machine in self._machine_set.machines.values():
            machine.stop(self._now, self._out)
        for task, numbers, call in self._out.endings:
            self._calls.end(task, numbers, call)
        self._calls.close()
        self.recorder.notes += self._calls.notes

    def _step(self) -> bool:
        """Let everything happen that can happen at this time; whether there was anything."""
        if self._queue:
            self._deliver(self._queue.popleft())
            return True
        came = self._calls.turn(self._clock.monotonic())
        self._queue += came
        polled = [self._turn(task, machine.poll) for task, machine in self._machine_set.machines.items()]
        if came or any(polled) or self._queue:
            return True
        if all(spout.ended for spout in self._machine_set.spouts()):
            flushed = [self._turn(task, machine.flush) for task, machine in self._machine_set.machines.items()]
            return any(flushed)
        return False

    def _turn(self, task: int, action: Any) -> bool:
        self._tracer.task = task
        done: bool = action(self._now, self._out)
        self._carry_out()
        return done

    def _deliver(self, one: Frame | tuple[int, Mail | DueCall]) -> None:
        if isinstance(one, Frame):
            self._tracer.task = one.task
            self.recorder.delivered(one)
            self._machine_set.machines[one.task].work(one, self._now, self._out)
        else:
            self._tracer.task, content = one
            if isinstance(content, DueCall):
                self._calls.start(one[0], content.number, self._tracer.at_task(one[0], content.function))
                return
            self._machine_set.machines[self._tracer.task].receive([content], self._now, self._out)
        self._carry_out()

    def _carry_out(self) -> None:
        out = self._out
        self._queue += out.take_tracks()
        self._queue += out.take_frames()
        self._queue += out.take_mail()
        self._queue += [(task, DueCall(number, function)) for task, number, function in out.calls]
        for task, numbers in out.cancels:
            self._calls.cancel(task, numbers)
        ticks, died = out.ticks[:], out.died[:]
        self.recorder.notes += [f"{note.component}: {note.text}" for note in out.notes]
        self.recorder.told_facts(out.facts)
        for effects in (out.calls, out.cancels, out.ticks, out.died, out.acked, out.notes, out.facts):
            effects.clear()
        self.recorder.died += died
        for one in died:
            spout = self._machine_set.machines[one.spout_task]
            assert isinstance(spout, SpoutMachine)
            spout.letters_stored([one])
        for task in ticks:
            self._tracer.task = task
            self._machine_set.machines[task].tick(self._now, out)
        if ticks or out.died:
            self._carry_out()

    def _due(self) -> list[float]:
        due = [machine.next_due_s() for machine in self._machine_set.machines.values()]
        return [one for one in [*due, self._calls.next_due_s()] if one is not None]

    def _abandon(self) -> None:
        for spout in self._machine_set.spouts():
            spout.abandon(self._now, self._out)
