"""The conformance suite for queues: what every broker must do, for authors of one.

Describe the broker once, then check every scenario on it:

    class Mine(BrokerUnderTest):
        name = "mine"
        def connect(self, *, skew_s=0.0): ...
        def advance(self, seconds): ...

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
    def test_conformance(scenario):
        check(scenario, Mine())

What a broker cannot do is in its `Capabilities`: such a scenario is not asked, but that it says so when it is asked
is checked. Needs no test framework: a scenario that is not met raises `NotConformingError`. docs/queues.md shows the
whole of it on a broker of a page.
"""

from tupletree.testing.conformance.runtime import NotConformingError
from tupletree.testing.queue_conformance.failing import FAILING
from tupletree.testing.queue_conformance.harness import Bench, BrokerUnderTest, QueueScenario, check
from tupletree.testing.queue_conformance.leasing import LEASING
from tupletree.testing.queue_conformance.operating import OPERATING
from tupletree.testing.queue_conformance.publishing import PUBLISHING
from tupletree.testing.queue_conformance.settling import SETTLING

__all__ = ["SCENARIOS", "Bench", "BrokerUnderTest", "NotConformingError", "QueueScenario", "check"]

SCENARIOS: tuple[QueueScenario, ...] = (*PUBLISHING, *LEASING, *FAILING, *SETTLING, *OPERATING)
