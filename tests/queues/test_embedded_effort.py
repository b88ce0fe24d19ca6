"""How much work operations of the embedded queue are, counted in statements and not in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.queues.clocks import Host, ManualHostClock, without_disk
from tupletree.queues import Message
from tupletree.queues.sqlite import SqliteBroker
from tupletree.queues.sqlite import broker as embedded

PER_MESSAGE = 16
"""Statements that one message of a queue in order may cost an operation, with those of its transaction."""


@pytest.mark.parametrize("keys", [1, 800])
@pytest.mark.parametrize("what", ["move", "purge"])
def test_what_is_moved_or_deleted_costs_the_same_however_many_keys_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, keys: int
) -> None:
    monkeypatch.setattr(embedded, "CHUNK", 10)
    count = 1600
    with SqliteBroker(tmp_path / "queue.db", clock=ManualHostClock(Host())) as broker:
        without_disk(broker)
        broker.declare("from", ordered=True)
        broker.declare("to")
        broker.publish("from", [Message(id=str(number), key=str(number % keys)) for number in range(count)])
        statements = _counting(broker)
        done = broker.move("from", "to") if what == "move" else broker.purge("from")
        assert done == count
        assert statements() < PER_MESSAGE * count
        assert broker.depth("from").open == 0


def _counting(broker: SqliteBroker) -> Callable[[], int]:
    seen: list[str] = []
    with broker._file.reading() as connection:  # the statements of the broker's own connection
        connection.set_trace_callback(seen.append)
    return lambda: len(seen)
