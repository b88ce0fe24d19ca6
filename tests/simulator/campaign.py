"""Many seeds in a row, each with a topology of its own, and what every one of them must come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.simulator.topologies import Generated, generated
from tupletree import Emit
from tupletree.testing import Faults, SimulationResult, simulate


def simulate_all(seeds: Iterable[int], faults: Faults | None = None) -> Counter[str]:
    """Simulate; returns how often each fault happened, and how the messages ended."""
    totals: Counter[str] = Counter()
    for seed in seeds:
        topology = generated(seed)
        result = simulate(topology.make, topology.inputs, seed=seed, faults=faults)
        missing = rows_expected(topology, result) - rows_of(result)
        assert not missing, f"seed {seed}: acked, but these rows are missing: {missing}"
        if topology.name == "async state":
            # Every successful call of a key counted one more; two with one count would have overlapped.
            # (A frame that arrives twice at a sink has the very same row twice.)
            rows = {id(row): row for rows in result.rows.values() for row in rows}
            twice = [row for row, times in Counter(rows.values()).items() if times > 1]
            assert not twice, f"seed {seed}: two calls of one key had the same state: {twice}"
        totals.update(result.faults)
        for outcome in ("acked", "dead", "left"):
            totals[outcome] += sum(map(len, getattr(result, outcome).values()))
    return totals


def rows_of(result: SimulationResult) -> Counter[Any]:
    return Counter(row for rows in result.rows.values() for row in rows)


def rows_expected(topology: Generated, result: SimulationResult) -> Counter[Any]:
    """What the acked messages leave behind, from a reading of the topology that runs nothing."""
    if topology.expected is None:
        return Counter()
    values = [one.value if isinstance(one, Emit) else one for one in topology.inputs["numbers"]]
    acked = [values[int(str(message_id))].value for message_id in result.acked.get("numbers", [])]
    return Counter(row for value in acked for row in topology.expected(value))
