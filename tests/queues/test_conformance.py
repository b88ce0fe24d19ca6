"""The embedded queue, and the one that the documentation writes, against the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.queues.clocks import EmbeddedQueue
from tupletree.testing.queue_conformance import SCENARIOS, QueueScenario, check


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_embedded_queue(scenario: QueueScenario, tmp_path: Path) -> None:
    assert check(scenario, EmbeddedQueue(tmp_path)) == "held"
