"""The Spark runtime conforms on one machine; tests/cluster says the same of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.on_spark import Playing
from tupletree.testing.conformance import SCENARIOS, Scenario

pytestmark = pytest.mark.spark


@pytest.fixture(scope="session")
def playing(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Playing:
    return Playing(lambda: tmp_path_factory.mktemp("conformance"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, playing: Playing) -> None:
    playing.play(scenario).check(scenario)
