"""What each operation of the embedded queue does to the rows of its tables, within a transaction that is open.

Owns the states of a row, the counts of each queue, the order of keys, and handles as text. Refuses to begin or end a
transaction (`file`).
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from tupletree.errors import did_you_mean
from tupletree.queues.contract import UnknownQueueError
from tupletree.queues.messages import Delivery, Failure, Letter, Message
from tupletree.queues.sqlite.columns import by_lease, columns_of, json_text, message_of, parse_handle
from tupletree.queues.sqlite.file import DEAD, DELAYED, LEASED, READY, WAITING, QueueFile

INLINE_BYTES = 2000
"""A larger body is a row of its own: about what fits a page with its message."""

FOREVER_S = 1e9
_PROMOTED_AT_ONCE = 1000
_COLUMNS = {READY: "ready", DELAYED: "delayed", LEASED: "leased", WAITING: "waiting", DEAD: "dead"}

_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT = """INSERT INTO tupletree_queue_messages
    (queue, id, state, due, published, ordered, key, head, size, ref, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (queue, id) DO NOTHING"""
_ROWS_AT_ONCE = 50
# A statement for 50 rows takes two thirds of the time of 50 statements. 550 parameters: old builds take 999.
_INSERT_MANY = _INSERT.replace(_ROW, ", ".join([_ROW] * _ROWS_AT_ONCE))
_FORGET = "DELETE FROM tupletree_queue_messages WHERE queue = ? AND id = ? AND state = 5 AND due <= ?"
_SWEEP = """DELETE FROM tupletree_queue_messages WHERE seq IN (
    SELECT seq FROM tupletree_queue_messages WHERE queue = ? AND state = 5 AND due <= ? LIMIT ?)"""
_WORK = """SELECT ready, EXISTS (SELECT 1 FROM tupletree_queue_messages WHERE queue = ?1 AND state = 1 AND due <= ?2)
    OR EXISTS (SELECT 1 FROM tupletree_queue_messages WHERE queue = ?1 AND state = 2 AND due <= ?2)
    FROM tupletree_queues WHERE number = ?1"""
_DUE = "SELECT min(due) FROM tupletree_queue_messages WHERE queue = ? AND state = ?"
_DUE_ROWS = """SELECT seq, state FROM tupletree_queue_messages
    WHERE queue = ? AND state = ? AND due <= ? ORDER BY due LIMIT ?"""
_READY = "UPDATE tupletree_queue_messages SET state = 0, due = 0 WHERE seq = ?"
_NEXT = """SELECT seq, size, deliveries, published, id, key, head,
    CASE WHEN ref IS NULL THEN body ELSE (SELECT b.body FROM tupletree_queue_bodies b WHERE b.ref = m.ref) END
    FROM tupletree_queue_messages m WHERE queue = ? AND state = 0 ORDER BY due, seq LIMIT ?"""
# One statement for all rows: the driver lets other threads run between two, and has to wait for its turn then. With `+`
# no index of these columns is considered, which would read all rows of the state.
_AMONG = "seq IN (SELECT CAST(value AS INTEGER) FROM json_each(?))"
_LEASE = """UPDATE tupletree_queue_messages SET state = 2, due = ?, token = ?, deliveries = deliveries + 1
    WHERE """
_ACK = """UPDATE tupletree_queue_messages SET state = 5, due = ?, ordered = 0, key = NULL, head = NULL, reason = NULL,
    size = 0, ref = NULL, body = NULL WHERE token = ? AND +state = 2 AND +queue = ? AND """
_ACKED = "SELECT 1 FROM tupletree_queue_messages WHERE seq = ? AND token = ? AND state = 5 AND queue = ?"
_FAIL = """UPDATE tupletree_queue_messages SET state = ?, due = ?, reason = ?, deliveries = deliveries - ?
    WHERE seq = ? AND token = ? AND state = 2 AND queue = ?"""
_EXTEND = "UPDATE tupletree_queue_messages SET due = ? WHERE seq = ? AND token = ? AND state = 2 AND queue = ?"
_KEYS = (
    "SELECT key FROM tupletree_queue_messages WHERE seq = ? AND token = ? AND state = 2 AND queue = ? AND ordered = 1"
)
_HAS_EARLIER = """SELECT 1 FROM tupletree_queue_messages
    WHERE ordered = 1 AND queue = ? AND key = ? AND state IN (0, 1, 2, 3) LIMIT 1"""
_HAS_HEAD = """SELECT 1 FROM tupletree_queue_messages
    WHERE ordered = 1 AND queue = ? AND key = ? AND state IN (0, 1, 2) LIMIT 1"""
_FIRST_OF_KEY = """SELECT seq, due FROM tupletree_queue_messages
    WHERE ordered = 1 AND queue = ? AND key = ? AND state = 3 ORDER BY seq LIMIT 1"""
_KEYS_AMONG = f"""SELECT key FROM tupletree_queue_messages
    WHERE {_AMONG} AND +ordered = 1 AND +queue = ?"""  # noqa: S608 - text of ours
_PLACE = "UPDATE tupletree_queue_messages SET state = ?, due = ? WHERE seq = ?"
_MOVE = """UPDATE tupletree_queue_messages SET queue = ?, state = ?, due = ?, ordered = ?, deliveries = 0, token = 0,
    seq = (SELECT max(seq) + 1 FROM tupletree_queue_messages) WHERE seq = ?"""


def _among(seqs: Sequence[int]) -> tuple[str, int | str]:
    """The end of a statement for these rows, and its parameter. For one row alone `_AMONG` is slow."""
    return ("seq = ?", seqs[0]) if len(seqs) == 1 else (_AMONG, json_text(seqs))


class QueueRow(msgspec.Struct, frozen=True):
    """A queue that is declared; none of this ever changes."""

    number: int
    name: str
    ordered: bool


class Counts(dict[int, int]):
    """State → how many rows more or less; those that are not counted are ignored."""

    def move(self, before: int | None, after: int | None, rows: int = 1) -> None:
        """Note rows that go from one state to another; None stands for outside of the queue."""
        if before is not None:
            self[before] = self.get(before, 0) - rows
        if after is not None:
            self[after] = self.get(after, 0) + rows


class QueueRows:
    """The statements, on the connection that they are given.

    Args:
        file: for its time.
        remembers_ms: how long the id of an acked message is kept.
    """

    def __init__(self, file: QueueFile, *, remembers_ms: int) -> None:
        self._file = file
        self._remembers_ms = remembers_ms
        self._known: dict[str, QueueRow] = {}
        self._numbered: dict[int, QueueRow] = {}

    def find(self, connection: sqlite3.Connection, name: str) -> QueueRow | None:
        """The queue of this name, if it is declared."""
        found = connection.execute("SELECT number, ordered FROM tupletree_queues WHERE name = ?", (name,)).fetchone()
        return None if found is None else QueueRow(found[0], name, bool(found[1]))

    def get(self, connection: sqlite3.Connection, name: str) -> QueueRow:
        """The queue of this name. Raises UnknownQueueError, with the nearest name."""
        known = self._known.get(name)
        if known is None:
            known = self.find(connection, name)
            if known is None:
                raise _unknown(connection, name, self._file.where)
            self._known[name] = self._numbered[known.number] = known
        return known

    # Publishing.

    def publish(self, connection: sqlite3.Connection, name: str, messages: Sequence[Message]) -> int:
        """Insert what is new, in its order; the number of it."""
        queue = self.get(connection, name)
        now = self._file.now_ms()
        counts = Counts()
        connection.execute(_SWEEP, (queue.number, now, 2 * len(messages) + 100))
        insert = self._insert_in_order if queue.ordered else self._insert
        new = insert(connection, queue, messages, now, counts)
        if new < len(messages):
            # Known ids; of those that were acked long ago, what the sweep left.
            stale = connection.executemany(_FORGET, ((queue.number, message.id, now) for message in messages))
            if stale.rowcount > 0:
                new += insert(connection, queue, messages, now, counts)
        self.count(connection, queue.number, counts)
        return new

    def _insert(
        self, connection: sqlite3.Connection, queue: QueueRow, messages: Sequence[Message], now: int, counts: Counts
    ) -> int:
        """One statement for each run of messages of one state, so that their order is kept and each state counted."""
        rows = []
        for message in messages:
            due = self._due_of(message, now)
            rows.append(columns_of(queue.number, queue.ordered, message, DELAYED if due else READY, due, now))
        new = 0
        for (state, large), run in itertools.groupby(rows, key=_state_and_large):
            if large:
                new += sum(_insert_large(connection, row, counts) for row in run)
            else:
                inserted = _insert_small(connection, list(run))
                counts.move(None, state, inserted)
                new += inserted
        return new

    def _insert_in_order(
        self, connection: sqlite3.Connection, queue: QueueRow, messages: Sequence[Message], now: int, counts: Counts
    ) -> int:
        new = 0
        for message in messages:
            due = self._due_of(message, now)
            state = DELAYED if due else READY
            if message.key and connection.execute(_HAS_EARLIER, (queue.number, message.key)).fetchone():
                state = WAITING
            row = columns_of(queue.number, queue.ordered, message, state, due, now)
            if len(message.body) > INLINE_BYTES:
                new += _insert_large(connection, row, counts)
            else:
                inserted = connection.execute(_INSERT, row).rowcount
                counts.move(None, state, inserted)
                new += inserted
        return new

    def _due_of(self, message: Message, now: int) -> int:
        """When it may be leased; 0 for at once."""
        if not message.delay_s and not message.not_before_s:
            return 0
        due = now + int(message.delay_s * 1000)
        if message.not_before_s:
            due = max(due, self._file.from_unix_ms(message.not_before_s))
        return due if due > now else 0

    # Leasing.

    def has_due(self, connection: sqlite3.Connection, queue: QueueRow) -> bool:
        """Whether the time of a delayed or leased message has come."""
        return bool(connection.execute(_WORK, (queue.number, self._file.now_ms())).fetchone()[1])

    def has_work(self, connection: sqlite3.Connection, queue: QueueRow) -> bool:
        """Whether `lease` would find a message."""
        ready, due = connection.execute(_WORK, (queue.number, self._file.now_ms())).fetchone()
        return ready > 0 or bool(due)

    def due_in_s(self, connection: sqlite3.Connection, queue: QueueRow) -> float:
        """Seconds until the time of the next delayed or leased message comes."""
        dues = [connection.execute(_DUE, (queue.number, state)).fetchone()[0] for state in (DELAYED, LEASED)]
        left = [due - self._file.now_ms() for due in dues if due is not None]
        return max(min(left) / 1000, 0.0) if left else FOREVER_S

    def promote(self, connection: sqlite3.Connection, queue: QueueRow, limit: int, counts: Counts) -> None:
        """Make delayed messages and those whose lease ended ready, up to `limit` of each."""
        now = self._file.now_ms()
        for state in (DELAYED, LEASED):
            due = connection.execute(_DUE_ROWS, (queue.number, state, now, limit)).fetchall()
            if due:
                connection.executemany(_READY, ((seq,) for seq, _ in due))
                counts.move(state, READY, len(due))

    def lease(
        self, connection: sqlite3.Connection, queue: QueueRow, limit: int, lease_s: float, max_bytes: int
    ) -> list[Delivery]:
        """Lease the first of the ready messages, all under a token of their own."""
        counts = Counts()
        self.promote(connection, queue, max(limit, _PROMOTED_AT_ONCE), counts)
        chosen: list[tuple[Any, ...]] = []
        size = 0
        for row in connection.execute(_NEXT, (queue.number, limit)):
            size += row[1]
            if chosen and size > max_bytes:
                break
            chosen.append(row)
        token = 0
        if chosen:
            counts.move(READY, LEASED, len(chosen))
            (token,) = connection.execute(
                "SELECT token + 1 FROM tupletree_queues WHERE number = ?", (queue.number,)
            ).fetchone()
            connection.execute("UPDATE tupletree_queues SET token = ? WHERE number = ?", (token, queue.number))
            end = self._file.now_ms() + int(lease_s * 1000)
            among, rows = _among([row[0] for row in chosen])
            connection.execute(_LEASE + among, (end, token, rows))
        self.count(connection, queue.number, counts)
        zero_s = self._file.unix_s(0)
        prefix = f"{self._file.file_id}.{queue.number}.{token}."
        return [
            Delivery(
                message=message_of(*of_message),
                handle=f"{prefix}{seq}",
                deliveries=deliveries + 1,
                lease_s=lease_s,
                published_s=zero_s + published / 1000,
            )
            for seq, _, deliveries, published, *of_message in chosen
        ]

    # Settling.

    def ack(self, connection: sqlite3.Connection, handles: Sequence[str]) -> list[str]:
        """Keep of each message its id alone, for as long as ids are kept. Returns the refused handles."""
        refused: list[str] = []
        now = self._file.now_ms()
        for prefix, seqs in by_lease(handles).items():
            queue = self._queue_of(connection, prefix)
            if queue is None:
                refused += [f"{prefix}.{seq}" for seq in seqs]
                continue
            number, token = queue.number, int(prefix.rpartition(".")[2])
            rows = [(0, seq, token, number) for seq in seqs]
            keys = self._keys_of(connection, queue, rows)
            counts = Counts()
            among, chosen = _among(seqs)
            acked = connection.execute(_ACK + among, (now + self._remembers_ms, token, number, chosen))
            counts.move(LEASED, None, acked.rowcount)
            if -counts[LEASED] < len(rows):
                refused += [f"{prefix}.{row[1]}" for row in rows if not connection.execute(_ACKED, row[1:]).fetchone()]
            self._release(connection, queue, keys, counts)
            self.count(connection, number, counts)
            connection.execute(_SWEEP, (number, now, 2 * len(rows) + 100))
        return refused

    def fail(self, connection: sqlite3.Connection, failures: Sequence[Failure]) -> list[str]:
        """Give messages back. Their keys stay blocked by them. Returns the refused handles."""
        now = self._file.now_ms()
        changes = []
        for failure in failures:
            state, due = (DELAYED, now + int(failure.delay_s * 1000)) if failure.delay_s > 0 else (READY, 0)
            changes.append((failure.handle, state, (due, failure.reason or None, int(not failure.counts))))
        return self._give_back(connection, changes)

    def dead_letter(self, connection: sqlite3.Connection, letters: Sequence[Letter]) -> list[str]:
        """Make messages dead; the next of their keys comes up. Returns the refused handles."""
        now = self._file.now_ms()
        return self._give_back(connection, [(letter.handle, DEAD, (now, letter.reason, 0)) for letter in letters])

    def _give_back(
        self, connection: sqlite3.Connection, changes: Sequence[tuple[str, int, tuple[Any, ...]]]
    ) -> list[str]:
        refused = []
        counts: dict[str, tuple[QueueRow, Counts, list[str]]] = {}
        for handle, state, values in changes:
            prefix, lease = parse_handle(handle)
            queue = self._queue_of(connection, prefix)
            row = (lease[1], lease[0], queue.number if queue else -1)
            keys = self._keys_of(connection, queue, [(0, *row)]) if queue and state == DEAD else []
            if queue is None or not connection.execute(_FAIL, (state, *values, *row)).rowcount:
                refused.append(handle)
                continue
            _, changed, released = counts.setdefault(queue.name, (queue, Counts(), []))
            changed.move(LEASED, state)
            released += keys
        for queue, changed, released in counts.values():
            self._release(connection, queue, released, changed)
            self.count(connection, queue.number, changed)
        return refused

    def extend(self, connection: sqlite3.Connection, handles: Sequence[str], lease_s: float) -> list[str]:
        """Extend leases. Returns the refused handles."""
        end = self._file.now_ms() + int(lease_s * 1000)
        refused = []
        for handle in handles:
            prefix, (token, seq) = parse_handle(handle)
            queue = self._queue_of(connection, prefix)
            if queue is None or not connection.execute(_EXTEND, (end, seq, token, queue.number)).rowcount:
                refused.append(handle)
        return refused

    def _queue_of(self, connection: sqlite3.Connection, prefix: str) -> QueueRow | None:
        """The queue of a handle without its last part; None if it is of another file."""
        file_id, number, _ = prefix.split(".")
        if file_id != self._file.file_id:
            return None
        known = self._numbered.get(int(number))
        if known is not None:
            return known
        found = connection.execute("SELECT name FROM tupletree_queues WHERE number = ?", (int(number),)).fetchone()
        return self.get(connection, found[0]) if found else None

    # The order of keys.

    def _keys_of(self, connection: sqlite3.Connection, queue: QueueRow, rows: Sequence[tuple[Any, ...]]) -> list[str]:
        """Keys whose order the leases (…, seq, token, queue) hold up."""
        if not queue.ordered:
            return []
        found = (connection.execute(_KEYS, row[1:]).fetchone() for row in rows)
        return [row[0] for row in found if row is not None and row[0]]

    def _release(self, connection: sqlite3.Connection, queue: QueueRow, keys: Sequence[str], counts: Counts) -> None:
        """Let the next message of each key come up, if none is up."""
        now = self._file.now_ms()
        for key in dict.fromkeys(keys):
            if connection.execute(_HAS_HEAD, (queue.number, key)).fetchone():
                continue
            first = connection.execute(_FIRST_OF_KEY, (queue.number, key)).fetchone()
            if first is not None:
                seq, due = first
                state, due = (DELAYED, due) if due > now else (READY, 0)
                connection.execute(_PLACE, (state, due, seq))
                counts.move(WAITING, state)

    # Counting.

    def count(self, connection: sqlite3.Connection, number: int, counts: Counts) -> None:
        """Add to the counts of a queue."""
        changes = {_COLUMNS[state]: rows for state, rows in counts.items() if rows and state in _COLUMNS}
        if changes:
            setting = ", ".join(f"{name} = {name} + ?" for name in changes)
            statement = f"UPDATE tupletree_queues SET {setting} WHERE number = ?"  # noqa: S608 - names of our columns
            connection.execute(statement, (*changes.values(), number))

    def counts(self, connection: sqlite3.Connection, queue: QueueRow) -> Counts:
        """How many messages are in each state now: those whose time has come count as ready."""
        row = connection.execute(
            "SELECT ready, delayed, leased, waiting, dead FROM tupletree_queues WHERE number = ?", (queue.number,)
        ).fetchone()
        found = Counts(zip((READY, DELAYED, LEASED, WAITING, DEAD), row))
        now = self._file.now_ms()
        for state in (DELAYED, LEASED):
            due = connection.execute(
                "SELECT count(*) FROM tupletree_queue_messages WHERE queue = ? AND state = ? AND due <= ?",
                (queue.number, state, now),
            ).fetchone()[0]
            found.move(state, READY, due)
        return found

    # Operators' requests.

    def move(
        self,
        connection: sqlite3.Connection,
        source: QueueRow,
        target: QueueRow,
        states: Sequence[int],
        seqs: Sequence[tuple[int]],
    ) -> int:
        """Move those of the rows that are still in one of the states, each to the target's end."""
        now = self._file.now_ms()
        left, joined = Counts(), Counts()
        keys: list[str] = []
        moved = 0
        for (seq,) in seqs:
            row = connection.execute(
                "SELECT state, due, id, key FROM tupletree_queue_messages WHERE seq = ? AND queue = ?",
                (seq, source.number),
            ).fetchone()
            if row is None or row[0] not in states:
                continue
            state, due, name, key = row
            moved += 1
            left.move(state, None)
            if source.ordered and key:
                keys.append(key)
            if source != target and not self._make_room(connection, target, name):
                connection.execute("DELETE FROM tupletree_queue_messages WHERE seq = ?", (seq,))
                continue
            after, due = (DELAYED, due) if state != DEAD and due > now else (READY, 0)
            ordered = int(target.ordered and bool(key))
            if ordered and connection.execute(_HAS_EARLIER, (target.number, key)).fetchone():
                after = WAITING
            connection.execute(_MOVE, (target.number, after, due, ordered, seq))
            joined.move(None, after)
        self.count(connection, source.number, left)
        self.count(connection, target.number, joined)
        released = Counts()
        self._release(connection, source, keys, released)
        self.count(connection, source.number, released)
        return moved

    def _make_room(self, connection: sqlite3.Connection, target: QueueRow, name: str) -> bool:
        """False if the target holds the id; an id that it only keeps is removed."""
        place = (target.number, name)
        connection.execute("DELETE FROM tupletree_queue_messages WHERE queue = ? AND id = ? AND state = 5", place)
        held = connection.execute("SELECT 1 FROM tupletree_queue_messages WHERE queue = ? AND id = ?", place).fetchone()
        return held is None

    def purge(
        self, connection: sqlite3.Connection, queue: QueueRow, states: Sequence[int], seqs: Sequence[tuple[int]]
    ) -> int:
        """Delete those of the rows that are still in one of the states."""
        counts = Counts()
        purged = 0
        keys: list[str] = []
        if queue.ordered:
            among = json_text([seq for (seq,) in seqs])
            keys = [key for (key,) in connection.execute(_KEYS_AMONG, (among, queue.number))]
        for state in states:
            gone = connection.executemany(
                "DELETE FROM tupletree_queue_messages WHERE seq = ? AND queue = ? AND state = ?",
                ((seq, queue.number, state) for (seq,) in seqs),
            ).rowcount
            counts.move(state, None, gone)
            purged += gone
        self._release(connection, queue, keys, counts)
        self.count(connection, queue.number, counts)
        return purged

    def size(self, connection: sqlite3.Connection, number: int, state: int) -> int:
        """How many rows of a queue are in one state, by its counts."""
        column = _COLUMNS[state]
        statement = f"SELECT {column} FROM tupletree_queues WHERE number = ?"  # noqa: S608 - a name of our columns
        return int(connection.execute(statement, (number,)).fetchone()[0])


def _state_and_large(row: tuple[Any, ...]) -> tuple[int, bool]:
    return row[2], row[8] > INLINE_BYTES


def _insert_small(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
    """Rows with their bodies, in their order; how many were new."""
    new = 0
    many = len(rows) - len(rows) % _ROWS_AT_ONCE
    for start in range(0, many, _ROWS_AT_ONCE):
        values = list(itertools.chain.from_iterable(rows[start : start + _ROWS_AT_ONCE]))
        new += connection.execute(_INSERT_MANY, values).rowcount
    if many < len(rows):
        new += connection.executemany(_INSERT, rows[many:]).rowcount
    return new


def _insert_large(connection: sqlite3.Connection, row: tuple[Any, ...], counts: Counts) -> int:
    """A message whose body is a row of its own; 0 if the id is known."""
    inserted = connection.execute(_INSERT, (*row[:-1], b""))
    if not inserted.rowcount:
        return 0
    seq = inserted.lastrowid
    ref = connection.execute("INSERT INTO tupletree_queue_bodies (body) VALUES (?)", (row[-1],)).lastrowid
    connection.execute("UPDATE tupletree_queue_messages SET ref = ? WHERE seq = ?", (ref, seq))
    counts.move(None, row[2])
    return 1


def _unknown(connection: sqlite3.Connection, name: str, where: str) -> UnknownQueueError:
    names = [known for (known,) in connection.execute("SELECT name FROM tupletree_queues ORDER BY name")]
    meant = did_you_mean(name, names)
    return UnknownQueueError(
        "there is no such queue",
        where=where,
        got=repr(name),
        expected=f"one of {', '.join(names[:20])}" if names and not meant else "",
        next_step=meant or "declare it first, or publish to it with `open_queue`",
    )
