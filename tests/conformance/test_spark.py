"""The Spark runtime conforms. Scenarios that may share a run do: starting one costs seconds here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tupletree.testing.conformance import SCENARIOS, Gap, HandleRuntime, Need, Played, Scenario, groups, play

pytestmark = pytest.mark.spark

SPARK = HandleRuntime(
    "spark",
    hang_s=120.0,
    gaps={
        Need.LASTING_BOLTS: Gap(
            "bolts are opened anew for each run: what they keep by hand is left out, and fails at its timeout",
            refused=False,
        ),
        Need.ASYNC_SPOUTS: Gap("async spouts: refused until the loop that asks spouts has an event loop"),
    },
)
GROUP_OF = {scenario: tuple(group) for group in groups(SPARK, SCENARIOS) for scenario in group}


@pytest.fixture(scope="session")
def play_group(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Scenario], Played]:
    """Run the group of a scenario, once."""
    played: dict[tuple[Scenario, ...], Played] = {}

    def play_once(scenario: Scenario) -> Played:
        group = GROUP_OF[scenario]
        if group not in played:
            folder: Path = tmp_path_factory.mktemp("conformance")
            played[group] = play(SPARK, group, folder)
        return played[group]

    return play_once


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, play_group: Callable[[Scenario], Played]) -> None:
    play_group(scenario).check(scenario)
