"""Several processes on one ledger, and very many messages."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

import pytest

from tests.routes.ledger.ledgers import RULES, Bench, child
from tupletree.routes.ids import child_id, init_id
from tupletree.routes.ledger import Arrival, Ledger, NewMessage
from tupletree.routes.messages import Child, Settlement, Standing


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("database"))
    return f"sqlite:///{tmp_path}/ledger.db"


def standing(message: str, queue: str = "a", attempt: int = 1) -> Standing:
    return Standing(id=message, route=RULES.readers[queue], queue=queue, handle="", executions=(), attempt=attempt)


def test_processes_that_settle_the_same_messages_in_any_order_count_each_once_and_never_deadlock(url: str) -> None:
    """Four connections settle the same 60 messages of three executions, each in an order and batches of its own."""
    first = Ledger.open(url)
    roots = [standing(init_id(first.start(RULES, NewMessage("a", b""), execution=f"e{n}"))) for n in range(3)]
    for root in roots:
        children = [child([root], "b", n) for n in range(20)]
        first.settle([Settlement(messages=[root], outcome="done", children=children)], RULES)
    waiting = [child([root], "b", n).id for root in roots for n in range(20)]
    completed: list[str] = []
    failed: list[BaseException] = []

    def process(number: int) -> None:
        ledger = Ledger.open(url)
        try:
            turned = waiting[number * 15 :] + waiting[: number * 15]
            ids = turned if number % 2 else turned[::-1]
            for start in range(0, 60, 7):
                batch = ids[start : start + 7]
                ledger.arrive([Arrival(one, "b", "B") for one in batch], RULES)
                done = [
                    Settlement(messages=[one], outcome="done", children=[child([one], "c")])
                    for one in (standing(name, "b") for name in batch)
                ]
                ledger.settle(done, RULES)
            thirds = [child([standing(one, "b")], "c").id for one in ids]
            for start in range(0, 60, 11):
                done = [Settlement(messages=[standing(one, "c")], outcome="done") for one in thirds[start : start + 11]]
                completed.extend(one.execution for one in ledger.settle(done, RULES).completed)
        except BaseException as error:  # noqa: BLE001 - the test says what it was
            failed.append(error)
        finally:
            ledger.close()

    threads = [threading.Thread(target=process, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(completed) == ["e0", "e1", "e2"]
    assert [(one.open, one.total, one.state) for one in first.executions()] == [(0, 41, "completed")] * 3
    first.close()


def test_processes_that_meet_the_same_message_of_others_first_begin_one_execution(url: str) -> None:
    ledgers = [Ledger.open(url) for _ in range(4)]
    arrivals = [Arrival(f"m{n}", "a", "A") for n in range(30)]
    failed: list[BaseException] = []

    def meet(ledger: Ledger, order: list[Arrival]) -> None:
        try:
            ledger.arrive(order, RULES)
        except BaseException as error:  # noqa: BLE001 - the test says what it was
            failed.append(error)

    threads = [
        threading.Thread(target=meet, args=(ledger, arrivals[:: 1 if n % 2 else -1]))
        for n, ledger in enumerate(ledgers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [(one.open, one.total) for one in ledgers[0].executions(limit=100)] == [(1, 1)] * 30
    for ledger in ledgers:
        ledger.close()


def test_a_message_may_have_100_000_children(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    execution = ledger.start(RULES, NewMessage("a", b""))
    root = init_id(execution)
    children = [Child(id=child_id([root], "A", 0, n, "b"), queue="b", body=b"x" * 50) for n in range(100_000)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    effects = ledger.settle([Settlement(messages=[standing(root)], outcome="done", children=children)], RULES)
    more_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert more_mb < 250, f"{more_mb:.0f} MB"
    found = ledger.execution(execution)
    assert found is not None
    assert (found.open, found.total, len(effects.outbox)) == (100_000, 100_001, 100_000)
    account = ledger.message(root)
    assert account is not None
    assert (account.children_total, len(account.children)) == (100_000, 100)
    ledger.close()


def test_the_ledger_takes_what_has_no_form_in_a_database(shop: Bench) -> None:
    shop.start()
    [one] = shop.take("a")
    shop.end(one, "failed", reason="caf\udce9 \0", error="E", traceback="\udce9\0", permanent=True)
    account = shop.ledger.message(one.id)
    assert account is not None
    assert (account.message.reason, account.traceback) == ("caf\\udce9 \\x00", "\\udce9\\x00")
