"""The local runtime conforms: each scenario alone, and those that may share a run together."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tupletree.testing.conformance import SCENARIOS, Gap, HandleRuntime, Need, Scenario, groups, play

LOCAL = HandleRuntime(
    "local",
    hang_s=60.0,
    gaps={Need.INACTIVE_START: Gap("`run` has no way to ask for it yet", refused=False)},
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, tmp_path: Path) -> None:
    play(LOCAL, [scenario], tmp_path).check(scenario)


@pytest.mark.parametrize("group", groups(LOCAL, SCENARIOS), ids=lambda group: "+".join(map(str, group))[:60])
def test_scenarios_do_not_disturb_each_other(group: Sequence[Scenario], tmp_path: Path) -> None:
    played = play(LOCAL, group, tmp_path)
    for scenario in group:
        played.check(scenario)
