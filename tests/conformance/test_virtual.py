"""The machines conform on virtual time: each scenario alone, and those that may share a run together."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.virtual import VirtualRuntime
from tupletree.testing.conformance import SCENARIOS, Scenario, groups, play

VIRTUAL = VirtualRuntime()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, tmp_path: Path) -> None:
    play(VIRTUAL, [scenario], tmp_path).check(scenario)


@pytest.mark.parametrize("group", groups(VIRTUAL, SCENARIOS), ids=lambda group: "+".join(map(str, group))[:60])
def test_scenarios_do_not_disturb_each_other(group: Sequence[Scenario], tmp_path: Path) -> None:
    played = play(VIRTUAL, group, tmp_path)
    for scenario in group:
        played.check(scenario)
