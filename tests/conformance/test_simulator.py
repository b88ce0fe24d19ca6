"""The simulator conforms, whatever the order of things: each scenario under a few seeds."""

from pathlib import Path

import pytest

from tests.conformance.simulated import SimulatedRuntime
from tupletree.testing.conformance import SCENARIOS, Scenario, play


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, seed: int, tmp_path: Path) -> None:
    play(SimulatedRuntime(seed), [scenario], tmp_path).check(scenario)
