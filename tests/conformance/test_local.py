"""The local runtime conforms: each scenario alone, and those that may share a run together."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tupletree.testing.conformance import SCENARIOS, HandleRuntime, Scenario, groups, play

HANG_S = 60.0


LOCAL = HandleRuntime("local", hang_s=HANG_S, gaps={})
COOPERATIVE = HandleRuntime("local", hang_s=HANG_S, gaps={}, options={"local_threads": 1})


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, tmp_path: Path) -> None:
    play(LOCAL, [scenario], tmp_path).check(scenario)


@pytest.mark.parametrize("runtime", [LOCAL, COOPERATIVE], ids=["threads", "cooperative"])
@pytest.mark.parametrize("group", groups(LOCAL, SCENARIOS), ids=lambda group: "+".join(map(str, group))[:60])
def test_scenarios_do_not_disturb_each_other(group: Sequence[Scenario], runtime: HandleRuntime, tmp_path: Path) -> None:
    played = play(runtime, group, tmp_path)
    for scenario in group:
        played.check(scenario)
