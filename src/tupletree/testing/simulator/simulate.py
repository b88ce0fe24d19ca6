"""The simulator: a whole topology under a seeded scheduler that reorders, delays, repeats, loses, kills and restarts.

The machines and dispatch are those that the local runtime runs; only what is between them is simulated. A seed decides
everything, so a run that fails can be run again, step by step. Seeded simulation of a whole system is FoundationDB's
idea (Zhou et al., "FoundationDB: a distributed unbundled transactional key value store", SIGMOD 2021).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tupletree.config import Options
from tupletree.errors import TupletreeError
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan
from tupletree.runtimes.local.supported import refuse_unsupported
from tupletree.tasks.bolt import BoltMachine
from tupletree.tasks.spout import DEFAULT_MAX_PENDING
from tupletree.testing.kit.tracing import Tracer
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.simulator.oracle import Violation
from tupletree.testing.simulator.simulation import Simulation
from tupletree.testing.virtual.away import Away
from tupletree.testing.virtual.scripted import scripts_of, with_scripts
from tupletree.topology.builder import Topology
from tupletree.topology.limits import refuse_stuck
from tupletree.topology.render import to_text
from tupletree.tracking.outcomes import Outcome

LARGEST_BATCH = 5
MAX_CALM_STEPS = 10_000
MAX_ROTATIONS = 20


class SimulationError(TupletreeError):
    """A rule was broken under this seed. Its text tells which, the seed, the topology and the last events."""

    def __init__(self, seed: int, broken: str, topology: str, events: Iterable[str]) -> None:
        lines = "\n".join(f"  {line}" for line in events)
        super().__init__(f"seed {seed}: {broken}\n\n{topology}\n\nthe last events:\n{lines}\n\nreplay with seed={seed}")
        self.seed = seed
        self.broken = broken


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """How a simulation ended, with every rule kept.

    Attributes:
        seed: what decided it.
        acked, dead: spout → ids of messages, in order of their first emission.
        left: spout → ids of messages that were open when the topology stopped; their sources were told.
        attempts: how many went out.
        rows: sink → rows that were written, by task, in order.
        made: sink → (number, row) in the order of writing, of sinks that are `ordered`: see `SinkBatch.made`.
        faults: fault → how often it happened.
        steps, seconds: how long it took, in steps and in virtual time.
        fingerprint: equal for equal runs, and hardly otherwise.
    """

    seed: int
    acked: Mapping[str, list[MessageId]] = field(default_factory=dict)
    dead: Mapping[str, list[MessageId]] = field(default_factory=dict)
    left: Mapping[str, list[MessageId]] = field(default_factory=dict)
    attempts: int = 0
    rows: Mapping[str, list[Any]] = field(default_factory=dict)
    made: Mapping[str, list[tuple[int, Any]]] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    fingerprint: int = 0


def simulate(
    make_topology: Callable[[], Topology],
    inputs: Mapping[str, Iterable[Any]],
    *,
    seed: int,
    faults: Faults | None = None,
    steps: int = 400,
) -> SimulationResult:
    """Run a topology on virtual time under faults, and hold it to the guarantee after every step.

    Checked: no message is acked before every tuple of its tree is processed and its rows are written, none twice, none
    after it is dead; verdicts concern the attempt that is out; nothing expires too early or too late; in the end every
    message is acked or dead (or given back, if the run was stopped), the history says so of each attempt, all memory is
    free, and the end does come.
    Sinks are replaced, so nothing is written anywhere. Equal seeds give equal runs, as long as bolts are deterministic.

    Args:
        make_topology: makes it again for each run, because bolts may keep things.
        inputs: spout → values (ids are their positions) or `Emit`s, in place of its source; they must end. Spouts that
            are not named here run as they are, and must end as well.
        seed: decides everything that is left to chance.
        faults: how likely each fault is; None is the usual mixture.
        steps: how many steps faults go on for; then the run goes on without them to its end.

    Raises:
        SimulationError: a rule was broken.
        TopologyError: the local runtime could not run this topology.
    """
    random = Random(seed)
    spec = make_topology().build()
    refuse_unsupported(spec)
    options = Options(**spec.options)
    refuse_stuck(spec, options, DEFAULT_MAX_PENDING)
    plan = Plan.of(spec, options)
    scripts = scripts_of(spec, inputs, plan.parallelism)
    spec = with_scripts(spec, scripts, lambda: random.randint(1, LARGEST_BATCH), may_wait=True)
    chosen = (faults or Faults()).some(random) if faults is None or faults.any else faults
    if options.message_timeout_s is None:
        chosen = chosen.without_loss()
    away = Away(spec)
    if chosen.outage:
        spec = Tracer().wrap(spec, away.fails())
    simulation = Simulation(Plan.of(spec, options), options, scripts, random, chosen, away)
    run = _Run(simulation, steps)
    try:
        run.to_the_end()
    except Violation as broken:
        raise SimulationError(seed, str(broken), to_text(spec), run.events()) from None
    except Exception as error:
        raise SimulationError(seed, f"{type(error).__name__}: {error}", to_text(spec), run.events()) from error
    finally:
        simulation.close()
    return run.result(seed)


class _Run:
    def __init__(self, simulation: Simulation, fault_steps: int) -> None:
        self._simulation = simulation
        self._fault_steps = fault_steps
        drains = simulation.inject_fault("drain")
        self._drain_at = simulation.random.randrange(fault_steps) if drains and fault_steps else None

    def to_the_end(self) -> None:
        """Raises Violation."""
        simulation = self._simulation
        while not self._is_over():
            if simulation.steps == self._drain_at:
                simulation.drain()
            if simulation.steps == self._fault_steps:
                simulation.calm()
            if simulation.steps > self._fault_steps + MAX_CALM_STEPS:
                raise Violation(f"it does not end: {MAX_CALM_STEPS} steps after the last fault, {self._what_is_open()}")
            simulation.ending = self._drains or all(spout.ended for spout in simulation.machine_set.spouts())
            if not simulation.step() and not simulation.wait() and not self._is_over():
                raise Violation(f"nothing will ever happen any more, and {self._what_is_open()}")
        simulation.calm()
        if self._drains:
            simulation.abandon()
        self._check_outcomes()
        self._let_memory_go()
        self._check_memory()

    @property
    def _drains(self) -> bool:
        return self._drain_at is not None and self._simulation.steps > self._drain_at

    def _is_over(self) -> bool:
        simulation = self._simulation
        spouts = simulation.machine_set.spouts()
        done = all(spout.is_drained for spout in spouts) if self._drains else all(one.is_finished for one in spouts)
        busy = len(simulation.network) or simulation.is_ending
        return done and not busy and not any(one.is_busy for one in simulation.machine_set.machines.values())

    def _what_is_open(self) -> str:
        simulation = self._simulation
        named = [str(message) for message in simulation.oracle.messages.values() if message.outcome is None]
        busy = [one.task.component for one in simulation.machine_set.machines.values() if one.is_busy]
        open_ = ", ".join(named[:5]) or "nothing"
        return f"{len(simulation.network)} on the way, open: {open_}, busy: {busy or 'no task'}"

    def _check_outcomes(self) -> None:
        simulation = self._simulation
        for message in simulation.oracle.messages.values():
            if message.outcome is None:
                raise Violation(f"it ended without a verdict on {message}")
            if message.told is None:
                raise Violation(f"the source never heard of {message}: {message.outcome.value}")
        simulation.oracle.check_facts()

    def _let_memory_go(self) -> None:
        """Time passes, so that what is kept for late arrivals is dropped."""
        simulation = self._simulation
        for _ in range(MAX_ROTATIONS):
            simulation.rotate()
            busy = any(spout.writing for spout in simulation.machine_set.spouts())
            if not busy and not any(acker.size for acker in simulation.machine_set.ackers()):
                return

    def _check_memory(self) -> None:
        simulation = self._simulation
        for acker in simulation.machine_set.ackers():
            if acker.size:
                raise Violation(f"acker task {acker.task.task_id} still holds {acker.size} entries")
        for spout in simulation.machine_set.spouts():
            if spout.pending.size or spout.open_count or spout.writing:
                raise Violation(f"spout task {spout.task.task_id} still holds {spout.pending.size} entries")
        for sink in simulation.machine_set.sinks():
            held = [root for root in sink.held_roots() if simulation.oracle.attempts[root].sure is None]
            if held or sink.is_busy:
                raise Violation(f"sink task {sink.task.task_id} still holds rows of {held[:3]}")
        for machine in simulation.machine_set.machines.values():
            if isinstance(machine, BoltMachine) and machine.is_busy:
                raise Violation(f"bolt task {machine.task.task_id} still holds {[*machine.held_roots()][:3]}")
        if simulation.machine_set.attempts:
            raise Violation(f"attempt numbers of {len(simulation.machine_set.attempts)} roots are still held")

    def events(self) -> list[str]:
        """The last events, one line each."""
        start_s = 1000.0
        return [
            f"{now_s - start_s:9.3f} s  {what}  {_shown(detail)}" for now_s, what, detail in self._simulation.events
        ]

    def result(self, seed: int) -> SimulationResult:
        """The result."""
        simulation = self._simulation
        by_outcome: dict[Outcome, dict[str, list[MessageId]]] = {outcome: {} for outcome in Outcome}
        for message in simulation.oracle.messages.values():
            assert message.outcome is not None
            spout = simulation.plan.tasks[message.spout_task].component
            by_outcome[message.outcome].setdefault(spout, []).append(message.message_id)
        rows: dict[str, list[Any]] = {}
        for sink_task, written in sorted(simulation.oracle.rows.items()):
            rows.setdefault(simulation.plan.tasks[sink_task].component, []).extend(written)
        made: dict[str, list[tuple[int, Any]]] = {}
        for sink_task, number, row in simulation.oracle.made:
            made.setdefault(simulation.plan.tasks[sink_task].component, []).append((number, row))
        return SimulationResult(
            seed=seed,
            acked=by_outcome[Outcome.ACKED],
            dead=by_outcome[Outcome.DEAD],
            left=by_outcome[Outcome.OPEN],
            attempts=len(simulation.oracle.attempts),
            rows=rows,
            made=made,
            faults=Counter(simulation.happened),
            steps=simulation.steps,
            seconds=simulation.now_s - 1000.0,
            fingerprint=simulation.random.getrandbits(64),
        )


def _shown(detail: object, limit: int = 400) -> str:
    text = str(detail)
    return text if len(text) <= limit else f"{text[:limit]}…"
