"""The embedded queue: any number of queues in one SQLite file, for the processes of one host, without a server.

Owns what happens to a message, as transactions: publish, lease, settle, move. Refuses to know files, locks and errors
(`file`) and URLs (`registry`).

A row moves between states (see `file`); one index on (queue, state, due) answers who is next, what is due and
what may go, and each queue keeps its counts. So nothing here grows with the number of messages.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tupletree.errors import ConfigError
from tupletree.queues.contract import Broker, Capabilities, LeaseLostError, check_messages, check_name
from tupletree.queues.host_clock import HostClock
from tupletree.queues.messages import (
    DEFAULT_LEASE_S,
    DEFAULT_MAX_BYTES,
    STATES,
    Delivery,
    Depth,
    Failure,
    Letter,
    Message,
    State,
    Stored,
)
from tupletree.queues.sqlite.columns import message_of
from tupletree.queues.sqlite.file import DEAD, DELAYED, LEASED, READY, SETTLED, WAITING, QueueFile
from tupletree.queues.sqlite.rows import Counts, QueueRows

T = TypeVar("T")

REMEMBERS_ACKED_S = 300.0
CHUNK = 1000
"""Messages per transaction of an operation that may concern millions."""

CAPABILITIES = Capabilities(
    idempotent_publish=True,
    remembers_acked_s=REMEMBERS_ACKED_S,
    delay=True,
    retry_delay=True,
    absolute_time=True,
    extend=True,
    fencing=True,
    uncounted=True,
    dead_letters=True,
    find=True,
    peek=STATES,
    move=("ready", "delayed", "dead"),
    purge=STATES,
    key_order=True,
    atomic_move=True,
    atomic_settle=True,
    runs_sql=True,
    ack_anywhere=True,
    several_hosts=False,
    max_body_bytes=500_000_000,
)

_STATES: dict[State, tuple[int, ...]] = {
    "ready": (READY, WAITING),
    "delayed": (DELAYED,),
    "leased": (LEASED,),
    "dead": (DEAD,),
}
_NAMES: dict[int, State] = {state: name for name, states in _STATES.items() for state in states}


class SqliteBroker(Broker):
    """See the module, and `Broker` for what each operation promises. Made by `tupletree.queues.connect`.

    Args:
        path: the file; made if it is not there, readable by this user only.
        remembers_acked_s: seconds for which the id of an acked message is known, so that publishing it again after a
            crash is harmless. About 100 bytes each.
        busy_timeout_s: seconds to wait for another process that writes, before a ConnectorError.
        clock: of this host.

    Raises:
        ConnectorError: the file cannot be opened.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        remembers_acked_s: float = REMEMBERS_ACKED_S,
        busy_timeout_s: float = 10.0,
        clock: HostClock | None = None,
    ) -> None:
        self.capabilities = msgspec.structs.replace(CAPABILITIES, remembers_acked_s=remembers_acked_s)
        self.path = Path(path).absolute()  # a process may change its folder
        self.where = f"sqlite:///{path}"
        clock = clock or HostClock()
        self.monotonic = clock.since_boot_s
        self.sleep = clock.sleep
        self._file = QueueFile(self.path, where=self.where, busy_timeout_s=busy_timeout_s, clock=clock)
        self._rows = QueueRows(self._file, remembers_ms=int(remembers_acked_s * 1000))

    def declare(self, queue: str, *, ordered: bool = False) -> None:
        check_name(queue, self.where)
        with self._file.reading() as connection:
            known = self._rows.find(connection, queue)
        if known is None:
            with self._file.writing() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO tupletree_queues (name, ordered) VALUES (?, ?)", (queue, int(ordered))
                )
                known = self._rows.find(connection, queue)
        assert known is not None
        if known.ordered != ordered and ordered:
            raise ConfigError(
                "the queue is there and keeps no order by key, which cannot be changed",
                where=f"{self.where}, queue {queue!r}",
                next_step="declare another queue with ordered=True, and move the messages to it",
            )

    def queues(self) -> Sequence[str]:
        with self._file.reading() as connection:
            return [name for (name,) in connection.execute("SELECT name FROM tupletree_queues ORDER BY name")]

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """See `Broker.publish`. All of a batch is stored, or nothing."""
        check_messages(messages, self.capabilities, self.where)
        with self._file.writing() as connection:
            return self._rows.publish(connection, queue, messages)

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int) -> list[Delivery]:
        """See `Broker.take`. Asks without a write lock first, so that waiting consumers disturb no other connection."""
        if limit < 1 or not self.has_work(queue):
            return []
        with self._file.writing() as connection:
            return self._rows.lease(connection, self._rows.get(connection, queue), limit, lease_s, max_bytes)

    def has_work(self, queue: str) -> bool:
        """Whether `take` would find a message now; it writes nothing. Raises UnknownQueueError."""
        with self._file.reading() as connection:
            return self._rows.has_work(connection, self._rows.get(connection, queue))

    def take_within(self, queue: str, limit: int, *, lease_s: float, max_bytes: int, wait_s: float) -> list[Delivery]:
        """See `Broker.take_within`. While it waits it looks every 20 ms whether the file was written to."""
        end_s = self.monotonic() + wait_s
        while True:
            seen = self._file.changes()
            taken = self.take(queue, limit, lease_s=lease_s, max_bytes=max_bytes)
            left_s = end_s - self.monotonic()
            if taken or left_s <= 0:
                return taken
            with self._file.reading() as connection:
                due_s = self._rows.due_in_s(connection, self._rows.get(connection, queue))
            if not self._wait_for_change(seen, min(left_s, due_s)):
                return []

    def _wait_for_change(self, seen: tuple[int, int], seconds: float) -> bool:
        """Pause until the file is written to, or the time is over. False when the broker was closed."""
        end_s = self.monotonic() + seconds
        pause_s = 0.001
        while (left_s := end_s - self.monotonic()) > 0:
            self.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, 0.02)
            if self._file.closed:
                return False
            if self._file.changes() != seen:
                break
        return True

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """See `Broker.ack`. Repeating it is not refused for as long as the id is kept."""
        return self._settled(self._rows.ack, handles)

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        return self._settled(self._rows.fail, failures)

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        """See `Broker.extend`. A lease that ended can be extended until its message is leased again."""
        return self._settled(partial(self._rows.extend, lease_s=lease_s), handles)

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        return self._settled(self._rows.dead_letter, letters)

    def _settled(
        self, settle: Callable[[sqlite3.Connection, Sequence[T]], Sequence[str]], given: Sequence[T]
    ) -> Sequence[str]:
        if not given:
            return ()
        with self._file.writing() as connection:
            return settle(connection, given)

    def settle(
        self,
        *,
        acks: Sequence[str] = (),
        failures: Sequence[Failure] = (),
        letters: Sequence[Letter] = (),
        publish: Mapping[str, Sequence[Message]] | None = None,
        within: Callable[[SqliteTransaction], object] | None = None,
    ) -> None:
        """See `Broker.settle`. One transaction, also with what `within` does to tables of the same file."""
        for messages in (publish or {}).values():
            check_messages(messages, self.capabilities, self.where)
        with self._file.writing() as connection:
            refused = [*self._rows.ack(connection, acks)] if acks else []
            refused += self._rows.fail(connection, failures)
            refused += self._rows.dead_letter(connection, letters)
            if refused:
                raise LeaseLostError("leases were lost; nothing was settled", handles=refused, where=self.where)
            for queue, messages in (publish or {}).items():
                self._rows.publish(connection, queue, messages)
            if within is not None:
                within(SqliteTransaction(self, connection, self._rows))

    def depth(self, queue: str) -> Depth:
        """See `Broker.depth`. Of its counts, those whose time has come since are corrected."""
        with self._file.reading() as connection:
            counts = self._rows.counts(connection, self._rows.get(connection, queue))
        return Depth(
            ready=counts[READY] + counts[WAITING], leased=counts[LEASED], delayed=counts[DELAYED], dead=counts[DEAD]
        )

    def peek(self, queue: str, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        states = _states_of([state])
        self._promote(queue)
        found: list[Stored] = []
        with self._file.reading() as connection:
            number = self._rows.get(connection, queue).number
            for code in states:
                # By state, so that the index gives them in their order.
                rows = connection.execute(_PEEK, (number, code, limit - len(found), max(after, 0))).fetchall()
                found += [self._stored(row) for row in rows]
                if len(states) > 1:
                    after -= self._rows.size(connection, number, code)
        return found

    def find(self, queue: str, ids: Sequence[str]) -> set[str]:
        with self._file.reading() as connection:
            number = self._rows.get(connection, queue).number
            rows = connection.execute(_FIND, (number, json.dumps([*ids]), SETTLED)).fetchall()
        return {name for (name,) in rows}

    def _stored(self, row: tuple[Any, ...]) -> Stored:
        state, due, deliveries, published, reason, *of_message = row
        return Stored(
            message=message_of(*of_message),
            state=_NAMES[state],
            deliveries=deliveries,
            due_s=self._file.unix_s(due) if due and _NAMES[state] != "ready" else 0.0,
            published_s=self._file.unix_s(published),
            reason=reason or "",
        )

    def move(self, source: str, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        """See `Broker.move`. 1,000 messages per transaction; a crash leaves each in one of the two queues."""
        states = _states_of([state])
        if state == "leased" or (source == target and state != "dead"):
            raise ConfigError(
                "leased messages cannot be moved" if state == "leased" else "the queue to move to is the same",
                where=f"{self.where}, queue {source!r}",
                expected="dead letters may go back to their own queue; ready and delayed messages to another one",
            )
        self._promote(source)
        moved = 0
        for chunk in self._chosen(source, states, limit, ids):
            with self._file.writing() as connection:
                pair = self._rows.get(connection, source), self._rows.get(connection, target)
                moved += self._rows.move(connection, *pair, states, chunk)
        return moved

    def purge(self, queue: str, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        codes = _states_of(states)
        self._promote(queue)
        purged = 0
        for chunk in self._chosen(queue, codes, 0, ()):
            with self._file.writing() as connection:
                purged += self._rows.purge(connection, self._rows.get(connection, queue), codes, chunk)
        return purged

    def close(self) -> None:
        self._file.close()

    def _promote(self, queue: str) -> None:
        """Let all whose time has come be ready, in steps."""
        while True:
            with self._file.reading() as connection:
                found = self._rows.get(connection, queue)
                if not self._rows.has_due(connection, found):
                    return
            with self._file.writing() as connection:
                counts = Counts()
                self._rows.promote(connection, found, CHUNK, counts)
                self._rows.count(connection, found.number, counts)

    def _chosen(
        self, queue: str, states: Sequence[int], limit: int, ids: Sequence[str]
    ) -> Iterator[Sequence[tuple[int]]]:
        """Row numbers of these states, oldest first, in chunks; none that comes after the call."""
        with self._file.reading() as connection:
            number = self._rows.get(connection, queue).number
            marks = ", ".join("?" * len(states))
            choose = f"SELECT seq FROM tupletree_queue_messages WHERE queue = ? AND state IN ({marks})"  # noqa: S608 - marks
            if ids:
                rows = [
                    row
                    for one in ids
                    for row in connection.execute(f"{choose} AND id = ?", (number, *states, one)).fetchall()
                ]
            else:
                rows = connection.execute(f"{choose} ORDER BY seq LIMIT ?", (number, *states, limit or -1)).fetchall()
        rows = rows[: limit or None]
        for start in range(0, len(rows), CHUNK):
            yield rows[start : start + CHUNK]


class SqliteTransaction:
    """What `settle(within=…)` gets: the open transaction of the queue file.

    For tables of the caller's own in the same file; names that start with `tupletree_queue` are the queue's. Good until
    the call returns.
    """

    def __init__(self, broker: SqliteBroker, connection: sqlite3.Connection, rows: QueueRows) -> None:
        self._broker = broker
        self._connection = connection
        self._rows = rows

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run one statement. Raises ConfigError for one that would end the transaction, else what SQLite raises."""
        self._check(statement)
        return self._connection.execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> sqlite3.Cursor:
        """Run one statement for each set of parameters. Raises as `execute`."""
        self._check(statement)
        return self._connection.executemany(statement, parameters)

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        """As `Broker.publish`, in this transaction."""
        check_messages(messages, self._broker.capabilities, self._broker.where)
        return self._rows.publish(self._connection, queue, messages)

    def take(self, queue: str, limit: int, *, lease_s: float, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Delivery]:
        """As `Broker.take`, in this transaction."""
        return self._rows.lease(self._connection, self._rows.get(self._connection, queue), limit, lease_s, max_bytes)

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        """As `Broker.ack`, in this transaction. Returns the refused handles; it is up to the caller to raise."""
        return self._rows.ack(self._connection, handles)

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        """As `Broker.fail`, in this transaction. Returns the refused handles."""
        return self._rows.fail(self._connection, failures)

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        """As `Broker.dead_letter`, in this transaction. Returns the refused handles."""
        return self._rows.dead_letter(self._connection, letters)

    def _check(self, statement: str) -> None:
        first = statement.split(None, 1)[0].rstrip(";").upper() if statement.strip() else ""
        if first in {"BEGIN", "COMMIT", "END", "ROLLBACK"}:
            raise ConfigError(
                "the transaction belongs to the broker", where=self._broker.where, got=first, next_step="leave it out"
            )


_FIND = """SELECT id FROM tupletree_queue_messages
    WHERE queue = ? AND id IN (SELECT CAST(value AS TEXT) FROM json_each(?)) AND state <> ?"""
_PEEK = """SELECT state, due, deliveries, published, reason, id, key, head,
    CASE WHEN ref IS NULL THEN body ELSE (SELECT b.body FROM tupletree_queue_bodies b WHERE b.ref = m.ref) END
    FROM tupletree_queue_messages m WHERE queue = ? AND state = ? ORDER BY due, seq LIMIT ? OFFSET ?"""


def _states_of(states: Sequence[State]) -> list[int]:
    """Codes of rows. Raises ConfigError for a name that is none."""
    unknown = [state for state in states if state not in _STATES]
    if unknown:
        raise ConfigError("there is no such state", got=repr(unknown[0]), expected=f"of {', '.join(_STATES)}")
    return [code for state in states for code in _STATES[state]]
