"""The local runtime conforms: each scenario alone, and those that may share a run together."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tupletree import Topology
from tupletree.config import Options
from tupletree.runtimes.local.runtime import LocalRun
from tupletree.testing.conformance import SCENARIOS, Ended, HandleRuntime, Scenario, groups, play

HANG_S = 60.0


class LocalRuntime(HandleRuntime):
    def run_from_inactive(
        self, topology: Topology, options: Options, state_dir: Path, while_inactive: Callable[[], None]
    ) -> Ended:
        handle = self.start(topology, options, state_dir, active=False)
        assert isinstance(handle, LocalRun)
        until = time.monotonic() + HANG_S
        while handle.progress().state != "processing":  # its threads start in real time: only a hang guard
            assert time.monotonic() < until, handle.progress()
            time.sleep(0.001)
        while_inactive()
        handle.resume()
        return self.end(handle, state_dir)


LOCAL = LocalRuntime("local", hang_s=HANG_S, gaps={})
COOPERATIVE = LocalRuntime("local", hang_s=HANG_S, gaps={}, options={"local_threads": 1})


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_is_met(scenario: Scenario, tmp_path: Path) -> None:
    play(LOCAL, [scenario], tmp_path).check(scenario)


@pytest.mark.parametrize("runtime", [LOCAL, COOPERATIVE], ids=["threads", "cooperative"])
@pytest.mark.parametrize("group", groups(LOCAL, SCENARIOS), ids=lambda group: "+".join(map(str, group))[:60])
def test_scenarios_do_not_disturb_each_other(group: Sequence[Scenario], runtime: LocalRuntime, tmp_path: Path) -> None:
    played = play(runtime, group, tmp_path)
    for scenario in group:
        played.check(scenario)
