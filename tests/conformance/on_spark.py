"""The Spark runtime under the suite. Scenarios that may share a run do: starting one costs seconds here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tupletree.testing.conformance import SCENARIOS, Gap, HandleRuntime, Need, Played, Scenario, groups, play

__all__ = ["Playing"]


class Playing:
    """Runs the group of a scenario, once.

    Args:
        make_folder: gives an empty folder for each run.
        hang_s: a run that takes longer hangs.
    """

    def __init__(self, make_folder: Callable[[], Path], hang_s: float = 120.0) -> None:
        self._make_folder = make_folder
        self._runtime = HandleRuntime(
            "spark",
            hang_s=hang_s,
            gaps={
                Need.LASTING_BOLTS: Gap(
                    "bolts are opened again for each run: what they keep by hand is left out, and fails at its timeout",
                    refused=False,
                ),
            },
        )
        self._group_of = {one: tuple(group) for group in groups(self._runtime, SCENARIOS) for one in group}
        self._played: dict[tuple[Scenario, ...], Played] = {}

    def play(self, scenario: Scenario) -> Played:
        """The run that the scenario is part of."""
        group = self._group_of[scenario]
        if group not in self._played:
            self._played[group] = play(self._runtime, group, self._make_folder())
        return self._played[group]
