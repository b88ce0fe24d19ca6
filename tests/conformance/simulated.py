"""The simulator as a runtime of the conformance suite: no faults, but everything that travels takes its own time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

from tupletree import Topology
from tupletree.config import Options
from tupletree.data.payloads import to_jsonable
from tupletree.routing.plan import Plan
from tupletree.testing.away import Away
from tupletree.testing.conformance import Ended, Gap, Need, RuntimeUnderTest
from tupletree.testing.simulator.faults import Faults
from tupletree.testing.simulator.simulation import World

MAX_STEPS = 100_000


class SimulatedRuntime(RuntimeUnderTest):
    name = "simulator"
    slack_s = 1.0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.gaps = {Need.INACTIVE_START: Gap("its spouts start active", refused=False)}

    def run(self, topology: Topology, options: Options, state_dir: Path) -> Ended:
        spec = topology.build()
        world = World(Plan.of(spec, options), options, {}, Random(self.seed), Faults.none(), Away(spec))
        try:
            self._to_the_end(world)
        finally:
            world.close()
        for task_id, rows in world.oracle.rows.items():
            folder = spec.components[world.plan.tasks[task_id].component].body.directory
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{task_id}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        counters = [spout.pending.counters for spout in world.crew.spouts()]
        return Ended(
            emitted=sum(one.emitted for one in counters),
            acked=sum(one.acked for one in counters),
            failed=sum(one.failed for one in counters),
            retried=sum(one.retried for one in counters),
            dead=sum(one.dead for one in counters),
            open=sum(spout.open_count for spout in world.crew.spouts()),
            letters=[one.letter(spec.name, to_jsonable(one.value), type(one.value).__qualname__) for one in world.dead],
        )

    def _to_the_end(self, world: World) -> None:
        while world.steps < MAX_STEPS:
            spouts = world.crew.spouts()
            busy = any(machine.is_busy for machine in world.crew.machines.values())
            if all(one.is_finished for one in spouts) and not len(world.transit) and not busy:
                return
            world.ending = all(one.ended for one in spouts)
            if not world.step():
                world.wait()
        raise AssertionError(f"seed {self.seed}: the flow does not end")
