"""The simulator as a runtime of the conformance suite: no faults, but everything that travels takes its own time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

from tupletree import Topology
from tupletree.config import Options
from tupletree.data.payloads import to_jsonable
from tupletree.routing.plan import Plan
from tupletree.testing.conformance import Ended, Gap, Need, RuntimeUnderTest
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.simulator.simulation import Simulation
from tupletree.testing.virtual.away import Away

MAX_STEPS = 100_000


class SimulatedRuntime(RuntimeUnderTest):
    name = "simulator"
    slack_s = 1.0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.gaps = {Need.INACTIVE_START: Gap("its spouts start active", refused=False)}

    def run(self, topology: Topology, options: Options, state_dir: Path) -> Ended:
        spec = topology.build()
        simulation = Simulation(Plan.of(spec, options), options, {}, Random(self.seed), Faults.none(), Away(spec))
        try:
            self._to_the_end(simulation)
        finally:
            simulation.close()
        for task_id, rows in simulation.oracle.rows.items():
            folder = spec.components[simulation.plan.tasks[task_id].component].body.directory
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{task_id}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        counters = [spout.pending.counters for spout in simulation.machine_set.spouts()]
        return Ended(
            emitted=sum(one.emitted for one in counters),
            acked=sum(one.acked for one in counters),
            failed=sum(one.failed for one in counters),
            retried=sum(one.retried for one in counters),
            dead=sum(one.dead for one in counters),
            open=sum(spout.open_count for spout in simulation.machine_set.spouts()),
            letters=[
                one.letter(spec.name, to_jsonable(one.value), type(one.value).__qualname__) for one in simulation.dead
            ],
        )

    def _to_the_end(self, simulation: Simulation) -> None:
        while simulation.steps < MAX_STEPS:
            spouts = simulation.machine_set.spouts()
            busy = any(machine.is_busy for machine in simulation.machine_set.machines.values())
            if all(one.is_finished for one in spouts) and not len(simulation.network) and not busy:
                return
            simulation.ending = all(one.ended for one in spouts)
            if not simulation.step():
                simulation.wait()
        raise AssertionError(f"seed {self.seed}: the flow does not end")
