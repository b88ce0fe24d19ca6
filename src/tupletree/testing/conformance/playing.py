"""Plays scenarios on a runtime: those with equal options may share one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tupletree.config import Options, resolve_options
from tupletree.errors import TopologyError
from tupletree.routing.plan import Plan
from tupletree.testing.conformance.feeding import STILL_INACTIVE, heard
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import Ended, Gap, NotConformingError, RuntimeUnderTest
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.builder import Topology

QUICK = {
    "backoff_initial_ms": 1.0,
    "backoff_max_ms": 5.0,
    "service_backoff_max_ms": 5.0,
    "spout_idle_wait_ms": 5.0,
    "max_attempts": 3,
    "message_timeout_s": 60.0,
}
"""Options that a scenario does not set: retries come at once, and timeouts do not come in between."""


@dataclass
class Played:
    """A run that is over, of one scenario or several."""

    seen: dict[Scenario, Observed]

    def check(self, scenario: Scenario) -> None:
        """Raise NotConformingError if a scenario of the run was not met."""
        if scenario in self.seen:
            scenario.check(self.seen[scenario])


def gaps_of(scenario: Scenario, runtime: RuntimeUnderTest) -> list[Gap]:
    """Why this scenario cannot be met on this runtime; empty if it must."""
    return [gap for need, gap in runtime.gaps.items() if need in scenario.needs]


def groups(runtime: RuntimeUnderTest, scenarios: Iterable[Scenario]) -> list[list[Scenario]]:
    """Scenarios that may share a run: with equal options, and none with a gap or a run of a kind of its own."""
    shared: dict[Any, list[Scenario]] = {}
    for scenario in scenarios:
        alone = scenario.runs_alone or scenario.starts_inactive or scenario.allow_cycle
        alone = alone or bool(gaps_of(scenario, runtime))
        key: Any = scenario if alone else frozenset(scenario.options(runtime).items())
        shared.setdefault(key, []).append(scenario)
    return list(shared.values())


def play(runtime: RuntimeUnderTest, scenarios: Sequence[Scenario], folder: Path) -> Played:
    """Run scenarios of one group together.

    A scenario with a gap is not run, but for seeing that the runtime refuses it if the gap says so.

    Args:
        runtime: what to run on.
        scenarios: one, or one of the `groups`.
        folder: an empty folder for sinks and state.

    Raises:
        NotConformingError: the run did not end as runs do, or a topology was not refused that was to be.
    """
    first = scenarios[0]
    topology = Topology("conformance", allow_cycle=first.allow_cycle)
    benches = {one: Bench(one.name, topology, runtime, folder / one.name) for one in scenarios}
    for scenario, bench in benches.items():
        scenario.build(bench)
    options = resolve_options(code={**QUICK, **runtime.options, **first.options(runtime)})
    gaps = [gap for one in scenarios for gap in gaps_of(one, runtime)]
    if gaps:
        if any(gap.refused for gap in gaps):
            _see_it_refused(runtime, first, topology, options, folder)
        return Played({})
    plan = Plan.of(topology.build(), options)
    for bench in benches.values():
        bench.lay_out(plan)
    ended = _run(runtime, topology, options, folder, benches, inactive=first.starts_inactive)
    names = ", ".join(one.name for one in scenarios)
    if (ended.open, ended.emitted) != (0, ended.acked + ended.dead) or len(ended.letters) != ended.dead:
        raise NotConformingError(
            f"{names} on {runtime.name}: emitted must be acked + dead, with a letter for each dead: {ended}"
        )
    return Played(
        {
            one: Observed(one.name, runtime, options, folder / one.name, bench.keys, ended)
            for one, bench in benches.items()
        }
    )


def _run(
    runtime: RuntimeUnderTest,
    topology: Topology,
    options: Options,
    folder: Path,
    benches: dict[Scenario, Bench],
    *,
    inactive: bool,
) -> Ended:
    if not inactive:
        return runtime.run(topology, options, folder / "state")

    def mark() -> None:
        for bench in benches.values():
            for key in bench.keys.values():
                heard(key).events.append(STILL_INACTIVE)

    return runtime.run_from_inactive(topology, options, folder / "state", mark)


def _see_it_refused(
    runtime: RuntimeUnderTest, scenario: Scenario, topology: Topology, options: Options, folder: Path
) -> None:
    try:
        runtime.run(topology, options, folder / "state")
    except TopologyError:
        return
    raise NotConformingError(f"{scenario.name}: {runtime.name} is said to refuse it, and ran it")
