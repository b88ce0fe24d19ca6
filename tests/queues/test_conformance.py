"""The embedded queue, and the one that the documentation writes, against the conformance suite."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.queues.clocks import EmbeddedQueue, ManualHostClock
from tests.queues.document import FolderQueue, capabilities_table, table_in_document
from tupletree.queues import Broker, Message
from tupletree.queues.sqlite import SqliteBroker
from tupletree.testing.queue_conformance import SCENARIOS, NotConformingError, QueueScenario, check

BY_NAME = {str(scenario): scenario for scenario in SCENARIOS}
FOLDER_CANNOT = {
    "a queue says which messages it holds": "refused",
    "a dead letter can go back to work": "not asked",
    "a message moved while delayed stays delayed and exists once": "refused",
    "a message with a time of day comes at that time": "refused",
    "an id is known for a time after its ack": "not asked",
    "looking at messages leases none": "refused",
    "messages of a key come in order and one at a time": "refused",
    "moved messages are in one queue only": "refused",
    "purged messages are gone and may be published again": "refused",
    "statements of the caller run in the same transaction": "refused",
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_embedded_queue_does_all_of_it(scenario: QueueScenario, tmp_path: Path) -> None:
    assert check(scenario, EmbeddedQueue(tmp_path)) == "held"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_queue_of_the_documentation_does_what_it_says(
    scenario: QueueScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a file per message: the disk would take most of the time
    assert check(scenario, FolderQueue(tmp_path)) == FOLDER_CANNOT.get(str(scenario), "held")


def test_the_table_of_capabilities_is_current(tmp_path: Path) -> None:
    assert table_in_document() == capabilities_table(tmp_path), "run: python -m tests.queues.document"


class Forgetful(SqliteBroker):
    """Says that all is well, and stores every other message."""

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        return super().publish(queue, messages[::2]) + len(messages) // 2


class Unfenced(SqliteBroker):
    """Takes every ack."""

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        super().ack(handles)
        return ()


@pytest.mark.parametrize(
    ("broker", "finding"),
    [
        (Forgetful, "a consumer that dies with ten gives all ten back"),
        (Unfenced, "the handle of an old lease is refused"),
    ],
)
def test_the_suite_finds_brokers_that_break_the_contract(
    broker: type[SqliteBroker], finding: str, tmp_path: Path
) -> None:
    class Broken(EmbeddedQueue):
        def connect(self, *, skew_s: float = 0.0) -> Broker:
            return broker(self.path, clock=ManualHostClock(self.host, skew_s))

    with pytest.raises(NotConformingError):
        check(BY_NAME[finding], Broken(tmp_path))
