"""Old executions are deleted while others begin, and while what is deleted goes on: by several processes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.databases import query
from tests.routes.ledger.ledgers import RULES, Bench, bench
from tests.until import until
from tupletree.routes.ledger import Ledger, NewMessage, arriving, ledger, requests
from tupletree.routes.ledger.stores import Session

HANG_S = 60.0


@pytest.fixture
def both(tmp_path: Path, database: str) -> Any:
    """A ledger in PostgreSQL, and another process's."""
    shop = bench("postgresql", tmp_path, database)
    other = Ledger.open(database, clock=lambda: shop.host.wall_s)
    yield shop, other
    other.close()
    shop.close()


def begin_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[], object], meanwhile: Callable[[], object]
) -> None:
    """`meanwhile` happens when an execution that begins has found its document, and is not there yet."""
    found, go_on = threading.Event(), threading.Event()
    register = arriving.register

    def waits(*given: Any, **named: Any) -> None:
        if not found.is_set():
            found.set()
            assert go_on.wait(HANG_S)
        register(*given, **named)

    monkeypatch.setattr(ledger, "register", waits)
    starting = threading.Thread(target=start)
    starting.start()
    assert found.wait(HANG_S)
    try:
        meanwhile()
    finally:
        go_on.set()
        starting.join(HANG_S)
    assert not starting.is_alive()


def test_the_document_of_an_execution_that_begins_is_not_deleted_with_the_last_one_of_before(
    both: tuple[Bench, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, other = both
    shop.start(execution="old")
    shop.end(shop.take("a")[0])
    begin_in_the_middle(
        monkeypatch,
        lambda: other.start(RULES, NewMessage("a", b"{}"), execution="new"),
        lambda: shop.ledger.delete_ended(shop.host.wall_s + 1),
    )
    assert [one.id for one in shop.ledger.executions()] == ["new"]
    stored = shop.ledger.document("new")
    assert stored is not None
    assert stored.document == RULES.document


def test_a_document_that_is_being_deleted_is_stored_again_for_an_execution_that_begins(
    both: tuple[Bench, Ledger], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    shop, other = both
    shop.start(execution="old")
    shop.end(shop.take("a")[0])
    shop.ledger.delete_ended(shop.host.wall_s + 1)
    shop.start(execution="another")
    shop.end(shop.take("a")[0])
    forget = requests.forget_documents
    starting = threading.Thread(target=lambda: other.start(RULES, NewMessage("a", b"{}"), execution="new"))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%documents%'"

    def slowly(session: Session) -> None:
        forget(session)
        starting.start()
        until(lambda: query(database, waiting)[0][0] == 1)

    monkeypatch.setattr(requests, "forget_documents", slowly)
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 1
    starting.join(HANG_S)
    stored = shop.ledger.document("new")
    assert stored is not None
    assert stored.document == RULES.document


def test_an_execution_that_goes_on_again_meanwhile_is_not_deleted(shop: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dead message is replayed when it was already found to have ended."""
    shop.start(execution="mended")
    [failing] = shop.take("a")
    shop.end(failing, "failed", reason="no", permanent=True)
    shop.start(execution="old")
    shop.end(shop.take("a")[0])
    expired = requests.expired
    replayed: list[object] = []

    def then_replayed(session: Session, before_s: float, limit: int) -> list[int]:
        found = expired(session, before_s, limit)
        if not replayed:
            replaying = threading.Thread(target=lambda: replayed.extend(shop.ledger.replay([failing.id])))
            replaying.start()
            replaying.join(HANG_S)
        return found

    monkeypatch.setattr(requests, "expired", then_replayed)
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 1
    assert len(replayed) == 1
    assert [one.id for one in shop.ledger.executions()] == ["mended"]
    shop.drain()
    [again] = shop.take("a")
    assert again.id == failing.id
    [completed] = shop.end(again).completed
    assert (completed.execution, completed.state) == ("mended", "completed")
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 1


class StoppedError(Exception):
    """The process ended here."""


def test_an_execution_of_many_messages_that_goes_on_again_half_deleted_still_ends(
    shop: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.start(execution="large")
    [root] = shop.take("a")
    shop.end(root, "done", "b", "b", "b", "b")
    bad, *good = shop.take("b", 4)
    shop.end(bad, "failed", reason="no", permanent=True)
    for one in good:
        shop.end(one)
    delete = requests.delete
    calls: list[int] = []

    def then_stopped(session: Session, number: int, before_s: float) -> bool | None:
        calls.append(number)
        if len(calls) > 1:
            raise StoppedError
        return delete(session, number, before_s)

    monkeypatch.setattr(requests, "MOST_DELETED", 1)
    monkeypatch.setattr(requests, "delete", then_stopped)
    with pytest.raises(StoppedError):
        shop.ledger.delete_ended(shop.host.wall_s + 1)
    monkeypatch.setattr(requests, "delete", delete)
    assert len(shop.ledger.replay([bad.id])) == 1
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 0
    shop.drain()
    [again] = shop.take("b")
    [completed] = shop.end(again).completed
    assert completed.execution == "large"
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 1
    assert shop.ledger.executions() == []
