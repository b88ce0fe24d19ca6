"""What is the embedded queue's own: its file, its time, its waiting, its indices, and the caller's statements."""

from __future__ import annotations

import operator
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.queues.clocks import Host, ManualHostClock, without_disk
from tupletree.errors import ConfigError, ConnectorError, ProcessingTimeoutError, UnusableDataError, is_outage
from tupletree.queues import Depth, Failure, Letter, Message
from tupletree.queues.sqlite import SqliteBroker, SqliteTransaction, rows
from tupletree.queues.sqlite import broker as embedded


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def broker(path: Path, host: Host) -> Iterator[SqliteBroker]:
    with SqliteBroker(path, clock=ManualHostClock(host), busy_timeout_s=0.05) as broker:
        without_disk(broker)
        broker.declare("q")
        yield broker


def publish(broker: SqliteBroker, *ids: str, **fields: Any) -> None:
    broker.publish("q", [Message(id=one, **fields) for one in ids])


def leased(broker: SqliteBroker, limit: int = 100) -> list[str]:
    return [delivery.message.id for delivery in broker.lease("q", limit, lease_s=30)]


# Time.


def test_a_step_of_the_wall_clock_ends_no_lease_and_no_delay(broker: SqliteBroker, host: Host, path: Path) -> None:
    publish(broker, "held")
    assert leased(broker) == ["held"]
    publish(broker, "later", delay_s=60)
    host.wall_s += 3600
    assert leased(broker) == []
    host.wall_s -= 7200
    with SqliteBroker(path, clock=ManualHostClock(host)) as another:
        assert leased(another) == []
        host.advance(31)
        assert leased(another) == ["held"]
        host.advance(31)
        assert leased(broker) == ["held", "later"]


def test_after_a_reboot_time_goes_on_from_the_wall_clock(broker: SqliteBroker, host: Host, path: Path) -> None:
    publish(broker, "held", "next")
    broker.lease("q", lease_s=600)
    publish(broker, "later", delay_s=60)
    broker.close()
    host.wall_s += 120  # the boot took two minutes
    host.reboot()
    with SqliteBroker(path, clock=ManualHostClock(host)) as after:
        assert leased(after) == ["next", "later"]
        host.advance(500)
        assert "held" in leased(after)


def test_after_a_reboot_with_a_clock_that_is_behind_time_does_not_go_back(
    broker: SqliteBroker, host: Host, path: Path
) -> None:
    publish(broker, "held")
    broker.lease("q", lease_s=30)
    broker.close()
    host.wall_s = 5.0  # no battery
    host.reboot()
    with SqliteBroker(path, clock=ManualHostClock(host)) as after:
        host.advance(31)
        assert leased(after) == ["held"]


def test_a_system_that_does_not_name_its_boot_goes_by_the_wall_clock(path: Path, host: Host) -> None:
    host.boot = ""
    with SqliteBroker(path, clock=ManualHostClock(host)) as broker:
        broker.declare("q")
        publish(broker, "a", delay_s=10)
        assert leased(broker) == []
        host.wall_s += 11
        assert leased(broker) == ["a"]


# Waiting.


def test_who_waits_looks_at_a_counter_and_not_at_the_tables(broker: SqliteBroker, host: Host) -> None:
    statements: list[str] = []
    broker._file._connection.set_trace_callback(statements.append)
    started_s = host.up_s
    assert broker.lease("q", wait_s=60) == []
    assert host.up_s - started_s == pytest.approx(60, abs=0.1)
    assert len(statements) < 60 / 0.02 * 1.1, "no hot loop"
    assert sum("data_version" not in statement for statement in statements) < 20


def test_a_waiting_consumer_gets_what_another_thread_or_process_publishes(path: Path) -> None:
    with SqliteBroker(path) as waiting, SqliteBroker(path) as other:
        waiting.declare("q")
        for publisher in (waiting, other):
            timer = threading.Timer(0.05, publish, [publisher, f"of {publisher is waiting}"])
            timer.start()
            started_s = time.monotonic()
            [delivery] = waiting.lease("q", wait_s=30)
            assert time.monotonic() - started_s < 10
            timer.join()
            waiting.ack([delivery.handle])


def test_closing_ends_the_waiting_of_another_thread(path: Path) -> None:
    broker = SqliteBroker(path)
    broker.declare("q")
    ended: list[object] = []

    def wait() -> None:
        try:
            ended.append(broker.lease("q", wait_s=30))
        except ConnectorError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)  # most probably it waits by now; either order must be right
    broker.close()
    thread.join(10)
    assert len(ended) == 1
    broker.close()


# The file.


def test_a_commit_is_on_the_disk_when_it_returns(path: Path) -> None:
    with SqliteBroker(path) as broker, broker._file.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_file_is_its_owners_alone(broker: SqliteBroker, path: Path) -> None:
    publish(broker, "secret")
    assert {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {
        "queue.db": 0o600,
        "queue.db-wal": 0o600,
        "queue.db-shm": 0o600,
    }


def test_a_file_that_another_process_keeps_locked_is_an_outage_that_ends(broker: SqliteBroker, path: Path) -> None:
    publish(broker, "before")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for operation in (lambda: publish(broker, "during"), lambda: broker.lease("q")):
        with pytest.raises(ConnectorError, match="SQLITE_BUSY") as raised:
            operation()
        assert is_outage(raised.value)
    assert broker.depth("q").ready == 1, "readers do not wait"
    other.execute("ROLLBACK")
    other.close()
    publish(broker, "after")
    assert leased(broker) == ["before", "after"]


def test_a_full_disk_is_an_outage_that_loses_nothing(broker: SqliteBroker) -> None:
    publish(broker, "first", "second")
    first, second = broker.lease("q", 2)
    connection = broker._file._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    for operation in _needing_room(broker, second.handle):
        with pytest.raises(ConnectorError, match="SQLITE_FULL") as raised:
            operation()
        assert is_outage(raised.value)
        assert broker.depth("q").leased == 2, "nothing of it happened"
    assert not broker.ack([first.handle]), "an ack needs no room here"
    connection.execute("PRAGMA max_page_count = 1000000")
    publish(broker, "third", body=b"x" * 100_000)
    broker.settle(acks=[second.handle], publish={"q": [Message(id="child", body=b"x" * 100_000)]})
    assert leased(broker) == ["third", "child"]


def _needing_room(broker: SqliteBroker, handle: str) -> list[Callable[[], object]]:
    large = [Message(id=f"large {number}", body=b"x" * 50_000) for number in range(10)]
    return [
        lambda: broker.publish("q", large),
        lambda: broker.settle(acks=[handle], publish={"q": large}),
        lambda: broker.settle(
            acks=[handle], within=lambda transaction: transaction.execute("CREATE TABLE t AS SELECT zeroblob(500000)")
        ),
        lambda: broker.fail([Failure(handle=handle, reason="x" * 500_000)]),
    ]


def test_a_file_that_is_gone_is_an_error_and_not_a_silent_loss(broker: SqliteBroker, path: Path) -> None:
    publish(broker, "a")
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(ConnectorError, match="removed or replaced"):
        publish(broker, "b")
    path.with_name("elsewhere.db").rename(path)
    assert leased(broker) == ["a"]


@pytest.mark.parametrize("content", [b"no database" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_named_and_no_outage(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UnusableDataError, match=re.escape(str(path))) as raised:
        SqliteBroker(path)
    assert not is_outage(raised.value)


def test_a_file_of_another_format_is_refused(broker: SqliteBroker, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tupletree_queue_meta SET value = '99' WHERE name = 'format'")
    connection.close()
    with pytest.raises(UnusableDataError, match="format 99"):
        SqliteBroker(path)


def test_a_folder_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="its folder"):
        SqliteBroker(tmp_path / "missing" / "queue.db")


def test_a_process_that_was_forked_has_a_connection_of_its_own(broker: SqliteBroker) -> None:
    publish(broker, "a")
    if (child := os.fork()) == 0:
        code = 1
        try:
            publish(broker, "b")
            code = 0 if leased(broker, 1) == ["a"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert leased(broker) == ["b"]


# Rows.


def test_every_statement_is_answered_by_an_index(broker: SqliteBroker) -> None:
    """Whatever the number of messages. A sort, or a look at every row, would grow with it."""
    statements = {
        name: value
        for name, value in {**vars(rows), **vars(embedded)}.items()
        if isinstance(value, str) and re.match(r"\s*(SELECT|UPDATE|DELETE)", value)
    }
    # Some are completed by the rows that they are for.
    for name in [name for name, statement in statements.items() if statement.endswith(("WHERE ", "AND "))]:
        text = statements.pop(name)
        statements |= {f"{name}, {len(seqs)}": text + rows._among(seqs)[0] for seqs in ([1], [1, 2])}
    assert len(statements) > 15
    slow = {}
    for name, statement in statements.items():
        marks = max(map(int, re.findall(r"\?(\d)", statement)), default=statement.count("?"))
        plan = broker._file._connection.execute(f"EXPLAIN QUERY PLAN {statement}", (1,) * marks).fetchall()
        # The list of rows that a call names is read from its start to its end.
        text = "; ".join(row[3] for row in plan if not row[3].startswith("SCAN json_each"))
        if "SCAN" in text or "TEMP B-TREE" in text:
            slow[name] = text
    assert slow == {}


def test_a_large_body_is_not_written_again_by_a_lease_and_leaves_with_the_ack(broker: SqliteBroker, path: Path) -> None:
    publish(broker, "large", body=b"x" * 5_000_000)
    connection = broker._file._connection
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    [first] = broker.lease("q")
    broker.fail([Failure(handle=first.handle)])
    [second] = broker.lease("q")
    assert len(second.message.body) == 5_000_000
    assert path.with_name("queue.db-wal").stat().st_size < 200_000
    broker.ack([second.handle])
    assert connection.execute("SELECT count(*) FROM tupletree_queue_bodies").fetchone() == (0,)


def test_a_batch_with_known_ids_stores_the_others_in_their_order(broker: SqliteBroker) -> None:
    publish(broker, "7", "120")
    batch = [Message(id=str(number), body=b"x" * (3000 if number % 60 == 0 else 10)) for number in range(203)]
    assert broker.publish("q", batch) == 201
    assert broker.publish("q", batch) == 0
    assert broker.depth("q").ready == 203
    assert leased(broker, 300) == ["7", "120", *(str(number) for number in range(203) if number not in {7, 120})]


def test_a_queue_that_keeps_no_order_cannot_be_made_to(broker: SqliteBroker) -> None:
    with pytest.raises(ConfigError, match="cannot be changed"):
        broker.declare("q", ordered=True)
    broker.declare("ordered", ordered=True)
    broker.declare("ordered")
    assert broker.queues() == ["ordered", "q"]
    with pytest.raises(ConfigError, match="no name"):
        broker.declare("")


@pytest.mark.parametrize("handle", ["", "x", "1.2.3.4.5", "a.b.c.d", "0.1.2.x", "'; DROP"])
def test_what_is_no_handle_is_an_error(broker: SqliteBroker, handle: str) -> None:
    for operation in (broker.ack, broker.extend):
        with pytest.raises(ConfigError, match="no handle"):
            operation([handle])


def test_a_handle_of_another_file_is_refused(broker: SqliteBroker, tmp_path: Path) -> None:
    publish(broker, "a")
    [delivery] = broker.lease("q")
    with SqliteBroker(tmp_path / "other.db") as other:
        other.declare("q")
        publish(other, "a")
        other.lease("q")
        assert other.ack([delivery.handle]) == [delivery.handle]
        assert other.depth("q").leased == 1


# The caller's statements.


def test_the_callers_statements_cannot_end_the_transaction(broker: SqliteBroker) -> None:
    for statement in ("COMMIT", " rollback;", "BEGIN", "END"):
        with pytest.raises(ConfigError, match="belongs to the broker"):
            broker.settle(within=operator.methodcaller("execute", statement))
    with pytest.raises(ConfigError, match="within a transaction"):
        broker.settle(within=lambda _: publish(broker, "nested"))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        broker.settle(within=lambda transaction: transaction.execute("SELECT * FROM missing"))
    assert broker.depth("q").open == 0


def test_a_ledger_in_the_same_file_decides_what_is_published(broker: SqliteBroker) -> None:
    """As an execution that is complete when its count is 0: compare, set and publish in one transaction."""
    broker.declare("complete")

    def finish(transaction: SqliteTransaction) -> None:
        transaction.execute("CREATE TABLE IF NOT EXISTS executions (id TEXT PRIMARY KEY, open INTEGER, done INTEGER)")
        transaction.executemany("INSERT OR IGNORE INTO executions VALUES (?, ?, 0)", [("e", 3)])
        transaction.execute("UPDATE executions SET open = open - 1 WHERE id = :id", {"id": "e"})
        if transaction.execute("UPDATE executions SET done = 1 WHERE id = 'e' AND open = 0 AND done = 0").rowcount:
            transaction.publish("complete", [Message(id="e")])

    publish(broker, "a", "b", "c")
    counts = []
    for delivery in broker.lease("q", 3):
        broker.settle(acks=[delivery.handle], within=finish)
        counts.append(broker.depth("complete").ready)
    assert counts == [0, 0, 1]


def test_the_transaction_of_within_may_settle_deliveries(broker: SqliteBroker) -> None:
    for n in range(4):
        publish(broker, f"m{n}")
    done, again, dead, lost = broker.lease("q", 4)
    broker.ack([lost.handle])
    refused: list[str] = []

    def within(transaction: SqliteTransaction) -> None:
        refused.extend(transaction.ack([done.handle]))
        refused.extend(transaction.fail([Failure(handle=again.handle, reason="later"), Failure(handle=lost.handle)]))
        refused.extend(transaction.dead_letter([Letter(handle=dead.handle, reason="never")]))

    broker.settle(within=within)
    assert refused == [lost.handle]
    assert broker.depth("q") == Depth(ready=1, dead=1)
    [again] = broker.lease("q")
    with pytest.raises(ZeroDivisionError):
        broker.settle(within=lambda transaction: [transaction.ack([again.handle]), 1 / 0])
    assert broker.depth("q") == Depth(leased=1, dead=1)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, ProcessingTimeoutError])
def test_an_interruption_undoes_the_transaction_and_leaves_the_queue_usable(
    broker: SqliteBroker, interruption: type[BaseException]
) -> None:
    def interrupt(transaction: SqliteTransaction) -> None:
        transaction.publish("q", [Message(id="undone")])
        raise interruption

    with pytest.raises(interruption):
        broker.settle(publish={"q": [Message(id="undone, too")]}, within=interrupt)
    publish(broker, "a")
    assert leased(broker) == ["a"]
