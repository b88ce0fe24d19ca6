"""What the parts of a run share: it is closed whatever fails, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.routes.running.test_pipelines import pipeline, route
from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes.ledger import Ledger
from tupletree.routes.running.services import Services


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[SqliteBroker]:
    """The embedded queues that were closed."""
    found: list[SqliteBroker] = []
    close = SqliteBroker.close

    def noting(broker: SqliteBroker) -> None:
        found.append(broker)
        close(broker)

    monkeypatch.setattr(SqliteBroker, "close", noting)
    return found


def test_a_queue_that_was_opened_is_closed_if_the_ledger_cannot_be(tmp_path: Path, closed: list[SqliteBroker]) -> None:
    p = pipeline(tmp_path, route("one"), ledger="mysql://me:hunter2@host/db")
    with pytest.raises(ConfigError) as caught:
        p.open()
    assert len(closed) == 1
    assert "hunter2" not in str(caught.value)


def test_all_is_closed_if_the_outbox_cannot_be_published(
    tmp_path: Path, closed: list[SqliteBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Services) -> int:
        raise ConnectorError("away")

    monkeypatch.setattr(Services, "drain_outbox", away)
    with pytest.raises(ConnectorError):
        pipeline(tmp_path, route("one")).open()
    assert len(closed) == 1


def test_a_ledger_that_cannot_be_closed_does_not_keep_a_queue_open(
    tmp_path: Path, closed: list[SqliteBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Ledger) -> None:
        raise ConnectorError("away")

    run = pipeline(tmp_path, route("one")).open()
    monkeypatch.setattr(Ledger, "close", away)
    with pytest.raises(ConnectorError):
        run.stop()
    assert len(closed) == 1


@pytest.mark.parametrize("url", ["postgresql://me@host:hunter2/db", "hunter2"])
def test_a_url_of_a_ledger_that_cannot_be_read_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ledger.open(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
