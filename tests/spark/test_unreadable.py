"""What a worker could not read: the driver waits for its end only if it is an outage."""

from __future__ import annotations

import pytest

from tupletree import errors
from tupletree.errors import CheckpointError, ConnectorError, SourceChangedError, TupletreeError, is_outage
from tupletree.queues.contract import RefusedConnectionError, UnknownQueueError
from tupletree.runtimes.spark.format.wire import Unreadable
from tupletree.runtimes.spark.settle.shutdown import BEYOND_RESTARTS

KINDS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, TupletreeError)] + [
    RefusedConnectionError,
    UnknownQueueError,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_an_outage_in_the_driver_only_if_it_was_one(kind: type[TupletreeError]) -> None:
    raised = kind.__new__(kind)
    TupletreeError.__init__(raised, "it went wrong", where="a.log", got="this", expected="that", next_step="do so")
    found = Unreadable.of(raised, "lines").error()
    assert is_outage(found) is is_outage(raised)
    assert str(found) == "spout 'lines', a.log: it went wrong\n  got: this\n  expected: that\n  next: do so"


def test_what_no_restart_can_change_ends_the_run() -> None:
    for kind in (CheckpointError, SourceChangedError):
        assert isinstance(Unreadable.of(kind("gone"), "lines").error(), BEYOND_RESTARTS)
    assert not isinstance(Unreadable.of(ConnectorError("away"), "lines").error(), BEYOND_RESTARTS)
