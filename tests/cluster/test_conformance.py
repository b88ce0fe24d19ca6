"""The Spark runtime conforms on a standalone cluster of two workers: the whole suite, windows and state included."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.on_spark import Playing
from tupletree.testing.conformance import SCENARIOS, Scenario

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def playing(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Playing:
    return Playing(lambda: tmp_path_factory.mktemp("conformance"), hang_s=300.0)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, playing: Playing) -> None:
    playing.play(scenario).check(scenario)
