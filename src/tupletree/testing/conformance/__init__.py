"""The conformance suite: what every runtime must do, for authors of one.

Describe the runtime once, then check every scenario on it:

    class Mine(RuntimeUnderTest):
        name = "mine"
        def run(self, topology, options, state_dir): ...

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
    def test_conformance(scenario, tmp_path):
        play(Mine(), [scenario], tmp_path).check(scenario)

Where starting a run is expensive, scenarios with equal options may share one: `groups(runtime)` says which, and `play`
takes the whole group. What a runtime cannot do is a `Gap` with its reason; a gap that says that the topology is refused
is checked like anything else. Needs no test framework: a scenario that is not met raises `NotConformingError`.
"""

from tupletree.testing.conformance.columns import COLUMNS
from tupletree.testing.conformance.groupings import GROUPINGS
from tupletree.testing.conformance.holding import HOLDING
from tupletree.testing.conformance.life import LIFE
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.playing import Played, groups, play
from tupletree.testing.conformance.runtime import Ended, Gap, HandleRuntime, Need, NotConformingError, RuntimeUnderTest
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.testing.conformance.states import STATES
from tupletree.testing.conformance.timeouts import TIMEOUTS
from tupletree.testing.conformance.trees import TREES
from tupletree.testing.conformance.tuning import TUNING
from tupletree.testing.conformance.verdicts import VERDICTS
from tupletree.testing.conformance.waiting import WAITING

__all__ = [
    "SCENARIOS",
    "Bench",
    "Ended",
    "Gap",
    "HandleRuntime",
    "Need",
    "NotConformingError",
    "Observed",
    "Played",
    "RuntimeUnderTest",
    "Scenario",
    "groups",
    "play",
]

SCENARIOS: tuple[Scenario, ...] = (
    *GROUPINGS,
    *TREES,
    *HOLDING,
    *VERDICTS,
    *TIMEOUTS,
    *LIFE,
    *STATES,
    *COLUMNS,
    *TUNING,
    *WAITING,
)
