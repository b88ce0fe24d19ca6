"""Run events of OpenLineage's own client, kept in memory."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.serde import Serde
from openlineage.client.transport.transport import Transport

from tests.routes.lineage.records import ingest
from tupletree.clock import ManualClock
from tupletree.routes.lineage import LineageWriter
from tupletree.routes.lineage.interop.openlineage import RunEvents


class Memory(Transport):
    """Keeps events as the JSON objects that a server gets."""

    kind = "memory"

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_away = False

    def emit(self, event: Any) -> None:
        if self.is_away:
            raise OSError("no route to host")
        self.events.append(Serde.to_dict(event))


class Sent:
    """A writer of events on a clock of its own."""

    def __init__(self) -> None:
        self.transport = Memory()
        self.clock = ManualClock()
        self.ended: deque[tuple[str, str, float]] = deque()
        self.runs = RunEvents(
            OpenLineageClient(transport=self.transport),
            "ingest",
            routes={"convert": ("/q/convert", ["/q/segment"]), "segment": ("/q/segment", [])},
            ended=self.ended,
        )
        self.writer = LineageWriter(lambda: self.runs, "ingest", clock=self.clock, interval_s=0.0, threaded=False)

    def pass_by(self, seconds: float = 1.0) -> list[tuple[str, str]]:
        """Time goes by; (job, state) of what was sent."""
        before = len(self.transport.events)
        self.writer.step()
        self.clock.advance(seconds)
        self.writer.step()
        return [(event["job"]["name"], event["eventType"]) for event in self.transport.events[before:]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "false")
    return Sent()


def test_an_execution_is_a_run_and_each_of_its_routes_is_one_below_it(sent: Sent) -> None:
    sent.writer.put([record for record in ingest() if record.execution == "e1"])
    assert sent.pass_by() == [
        ("ingest", "START"),
        ("ingest.convert", "START"),
        ("ingest.segment", "START"),
        ("ingest.index", "START"),
    ]
    sent.ended.append(("e1", "completed", 1_021.0))
    assert sent.pass_by() == [
        ("ingest.convert", "COMPLETE"),
        ("ingest.segment", "COMPLETE"),
        ("ingest.index", "COMPLETE"),
        ("ingest", "COMPLETE"),
    ]
    above, convert, *_ = sent.transport.events
    assert convert["run"]["facets"]["parent"]["run"]["runId"] == above["run"]["runId"]
    assert convert["run"]["facets"]["parent"]["job"]["name"] == "ingest"
    assert [one["name"] for one in convert["inputs"]] == ["/q/convert"]
    assert [one["name"] for one in convert["outputs"]] == ["/q/segment"]
    assert convert["eventTime"] == "1970-01-01T00:16:40+00:00"
    runs = {event["run"]["runId"] for event in sent.transport.events}
    assert len(runs) == 4  # each starts and ends


def test_another_process_of_the_pipeline_speaks_of_the_same_runs(sent: Sent) -> None:
    sent.writer.put(ingest()[:1])
    sent.pass_by()
    other = Sent()
    other.writer.put(ingest()[1:2])
    other.pass_by()
    ids = [[event["run"]["runId"] for event in one.transport.events] for one in (sent, other)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("state", "ends"),
    [("completed_with_dead_letters", "FAIL"), ("failed", "FAIL"), ("cancelled", "ABORT"), ("completed", "COMPLETE")],
)
def test_an_execution_ends_as_the_ledger_says(sent: Sent, state: str, ends: str) -> None:
    sent.writer.put(ingest()[:5])
    sent.pass_by()
    sent.ended.append(("e1", state, 1_021.0))
    assert sent.pass_by()[-1] == ("ingest", ends)
    segment, execution = sent.transport.events[-2:]
    if ends == "FAIL":
        assert segment["run"]["facets"]["errorMessage"]["message"] == "clean: ValueError: no text"
        assert execution["run"]["facets"]["errorMessage"]["message"] == "clean: ValueError: no text"
    else:
        assert "errorMessage" not in segment["run"]["facets"]


def test_records_that_came_before_a_completion_are_sent_before_it(sent: Sent) -> None:
    sent.ended.append(("e1", "completed", 1_021.0))
    sent.writer.put(ingest()[:1])
    assert [state for _, state in sent.pass_by()] == ["START", "START", "COMPLETE", "COMPLETE"]


def test_a_server_that_is_away_gets_all_events_later_in_order(sent: Sent) -> None:
    sent.transport.is_away = True
    sent.writer.put(ingest()[:1])
    assert sent.pass_by() == []
    sent.writer.put(ingest()[3:4])
    assert sent.pass_by() == []
    sent.transport.is_away = False
    assert [name for name, _ in sent.pass_by(5.0)] == ["ingest", "ingest.convert", "ingest.segment"]


def test_the_client_is_closed_with_the_store_and_may_fail_to(caplog: pytest.LogCaptureFixture) -> None:
    class Closing(Memory):
        closed: list[float] = []  # noqa: RUF012 - shared on purpose

        def close(self, timeout: float = -1) -> bool:
            self.closed.append(timeout)
            if len(self.closed) > 1:
                raise OSError("broken")
            return True

    for _ in range(2):
        RunEvents(OpenLineageClient(transport=Closing()), "ingest").close()
    assert Closing.closed == [5.0, 5.0]
    assert "the client of OpenLineage could not be closed" in caplog.text
