"""The journal of a durable local run: one SQLite file in its state directory.

Owns the tables and what errors of the file mean. A commit is one transaction, on the disk when `commit` returns. It
refuses to know machines: `checkpoints` says what to store and when.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tupletree.durable import create_new, sync_directory
from tupletree.errors import CheckpointError, ConnectorError, ForeignCheckpointError
from tupletree.texts import json_bytes

FORMAT = 1

Place: TypeAlias = "tuple[str, int]"
"""(component, index of the task)."""

_OUTAGES = ("FULL", "IOERR", "BUSY", "LOCKED", "CANTOPEN", "READONLY", "PERM", "PROTOCOL", "NOMEM")

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE spouts (spout INTEGER PRIMARY KEY, component TEXT NOT NULL, task INTEGER NOT NULL,
    position BLOB NOT NULL, counters BLOB NOT NULL, UNIQUE (component, task));
CREATE TABLE messages (spout INTEGER NOT NULL, id BLOB NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (spout, id));
CREATE TABLE outcomes (spout INTEGER NOT NULL, number INTEGER NOT NULL, ids BLOB NOT NULL,
    PRIMARY KEY (spout, number)) WITHOUT ROWID;
CREATE TABLE state (component TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, expires REAL,
    PRIMARY KEY (component, key)) WITHOUT ROWID;
CREATE INDEX state_expires ON state (expires) WHERE expires IS NOT NULL;
CREATE TABLE replays (request TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class SpoutRow(msgspec.Struct):
    """A spout task: the position of its source, and its counters; both as JSON-compatible data."""

    position: Any
    counters: Any


class StateRow(msgspec.Struct):
    """One value of a bolt's state, as bytes; `expires_s` since the Unix epoch, or None."""

    key: bytes
    value: bytes
    expires_s: float | None


class Commit(msgspec.Struct):
    """What one transaction stores.

    Attributes:
        spouts: place → the task.
        messages: place → (message id, record or None if the message is not open any more), both as bytes.
        outcomes: place → what the source of the task is to be told, as bytes; it is kept until `told`.
        told: places whose earlier outcomes have been told.
        state: component → rows to store.
        gone: component → keys to remove.
        expired_s: state that expired by then is removed; None: not now.
        meta: name → JSON-compatible data.
        replays: ids of replay requests that were accepted.
        replayed: ids of those that need not be known any more.
    """

    spouts: dict[Place, SpoutRow] = {}
    messages: dict[Place, list[tuple[bytes, bytes | None]]] = {}
    outcomes: dict[Place, bytes] = {}
    told: Sequence[Place] = ()
    state: dict[str, list[StateRow]] = {}
    gone: dict[str, list[bytes]] = {}
    expired_s: float | None = None
    meta: dict[str, Any] = {}
    replays: Sequence[str] = ()
    replayed: Sequence[str] = ()


class Journal:
    """The file, opened by one thread at a time.

    Args:
        path: of the file; made if it is not there.

    Raises:
        CheckpointError: it is damaged, of another format, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        try:
            self._connection = self._open()
        except OSError as error:
            raise _unusable(path, str(error)) from error
        except sqlite3.Error as error:
            raise self._damaged(error) if _is_damage(error) else _unusable(path, str(error)) from error
        self._numbers: dict[Place, int] = {}
        self._read_numbers()

    def _open(self) -> sqlite3.Connection:
        is_new = not os.path.lexists(self.path)
        if is_new:
            os.close(create_new(self.path))
            sync_directory(self.path.parent)
        elif self.path.is_symlink() or not self.path.is_file():
            raise _unusable(self.path, "a link or a device, where a file belongs")
        self._inode = self.path.stat().st_ino
        connection = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            # FULL: a commit is on the disk when it returns.
            for setting in ("journal_mode = WAL", "synchronous = FULL", "journal_size_limit = 67108864"):
                connection.execute(f"PRAGMA {setting}").fetchall()
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise self._damaged(found)
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {FORMAT};COMMIT;")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT:
            raise ForeignCheckpointError(
                "the journal has a format that this version cannot read",
                where=str(self.path),
                got=f"format {version}",
                expected=f"format {FORMAT}",
                next_step="use the version of Tupletree that wrote it",
            )

    def register(self, places: Iterable[Place]) -> None:
        """Give these spout tasks numbers, unless they have them; before the first commit that names them."""
        insert = "INSERT OR IGNORE INTO spouts (component, task, position, counters) VALUES (?, ?, 'null', 'null')"
        try:
            self._connection.executemany(insert, [*places])
        except sqlite3.Error as error:
            raise self._damaged(error) if _is_damage(error) else _unusable(self.path, str(error)) from error
        self._read_numbers()

    def _read_numbers(self) -> None:
        self._numbers = {(name, task): number for number, name, task in self._rows("spout, component, task", "spouts")}

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # --- reading ----------------------------------------------------------------------------------------------

    def meta(self) -> dict[str, Any]:
        """What was stored under names."""
        return {name: msgspec.json.decode(value) for name, value in self._rows("name, value", "meta")}

    def spouts(self) -> dict[Place, SpoutRow]:
        """The spout tasks."""
        return {
            (name, task): SpoutRow(msgspec.json.decode(position), msgspec.json.decode(counters))
            for name, task, position, counters in self._rows("component, task, position, counters", "spouts")
        }

    def messages(self) -> Iterator[tuple[Place, bytes, bytes]]:
        """(place, id, record) of every open message; what was stored first, first."""
        places = {number: place for place, number in self._numbers.items()}
        for number, message_id, record in self._rows("spout, id, record", "messages ORDER BY rowid"):
            yield places[number], message_id, record

    def outcomes(self) -> Iterator[tuple[Place, bytes]]:
        """What sources are to be told (again), oldest first."""
        places = {number: place for place, number in self._numbers.items()}
        for number, ids in self._rows("spout, ids", "outcomes ORDER BY number"):
            yield places[number], ids

    def state(self) -> dict[str, list[StateRow]]:
        """Component → its state."""
        found: dict[str, list[StateRow]] = {}
        for name, key, value, expires_s in self._rows("component, key, value, expires", "state"):
            found.setdefault(name, []).append(StateRow(key, value, expires_s))
        return found

    def replays(self) -> set[str]:
        """Ids of replay requests that were accepted."""
        return {request for (request,) in self._rows("request", "replays")}

    def _rows(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(f"SELECT {columns} FROM {table}").fetchall()  # noqa: S608 - of this file
        except sqlite3.Error as error:
            raise self._damaged(error) if _is_damage(error) else _unusable(self.path, str(error)) from error

    # --- writing ----------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Store all of it, durably, or nothing.

        Raises:
            ConnectorError: an outage; the same may be stored later.
            CheckpointError: the file is damaged.
        """
        self._transact(lambda connection: self._write(connection, commit))

    def follow(
        self,
        renames: Mapping[str, str],
        drops: Iterable[str],
        values: Mapping[str, list[StateRow]],
        meta: Mapping[str, Any],
    ) -> None:
        """Bring what is stored to a topology that has changed, durably, or not at all; raises as `commit`.

        Args:
            renames: old name → new name of components.
            drops: components, by their new names, all that is stored of which is removed.
            values: component, by its new name → rows of state in another form.
            meta: name → JSON-compatible data.
        """

        def write(connection: sqlite3.Connection) -> None:
            for table in ("spouts", "state"):
                connection.executemany(
                    f"UPDATE {table} SET component = ? WHERE component = ?",  # noqa: S608 - of this file
                    [(new, old) for old, new in renames.items()],
                )
            of_spout = "spout IN (SELECT spout FROM spouts WHERE component = ?)"
            for table, which in (("messages", of_spout), ("outcomes", of_spout), ("spouts", "component = ?")):
                connection.executemany(f"DELETE FROM {table} WHERE {which}", _ones(drops))  # noqa: S608 - of this file
            connection.executemany("DELETE FROM state WHERE component = ?", _ones(drops))
            self._write(connection, Commit(state=dict(values), meta=dict(meta)))

        drops = [*drops]
        self._transact(write)
        self._read_numbers()

    def _transact(self, write: Callable[[sqlite3.Connection], None]) -> None:
        connection = self._connection
        try:
            if self.path.stat().st_ino != self._inode:
                raise FileNotFoundError("another file has its name")
            connection.execute("BEGIN IMMEDIATE")
            try:
                write(connection)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # it has been rolled back already
                    connection.execute("ROLLBACK")
                raise
        except OSError as error:
            raise self._away(str(error)) from error
        except sqlite3.Error as error:
            if _is_damage(error):
                raise self._damaged(error) from error
            if getattr(error, "sqlite_errorname", "").startswith(tuple(f"SQLITE_{one}" for one in _OUTAGES)):
                raise self._away(str(error)) from error
            raise

    def _write(self, connection: sqlite3.Connection, commit: Commit) -> None:
        many = connection.executemany
        for place, row in commit.spouts.items():
            number = self._numbers[place]
            stored = json_bytes(row.position), json_bytes(row.counters), number
            connection.execute("UPDATE spouts SET position = ?, counters = ? WHERE spout = ?", stored)
        for place, changes in commit.messages.items():
            number = self._numbers[place]
            many(
                "DELETE FROM messages WHERE spout = ? AND id = ?",
                [(number, message_id) for message_id, record in changes if record is None],
            )
            many(
                "INSERT OR REPLACE INTO messages VALUES (?, ?, ?)",
                [(number, message_id, record) for message_id, record in changes if record is not None],
            )
        for place in commit.told:
            connection.execute("DELETE FROM outcomes WHERE spout = ?", (self._numbers[place],))
        for place, ids in commit.outcomes.items():
            connection.execute(
                "INSERT INTO outcomes SELECT ?1, coalesce(max(number), 0) + 1, ?2 FROM outcomes WHERE spout = ?1",
                (self._numbers[place], ids),
            )
        if commit.expired_s is not None:
            connection.execute("DELETE FROM state WHERE expires <= ?", (commit.expired_s,))
        for name, keys in commit.gone.items():
            many("DELETE FROM state WHERE component = ? AND key = ?", [(name, key) for key in keys])
        for name, rows in commit.state.items():
            many(
                "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)",
                [(name, row.key, row.value, row.expires_s) for row in rows],
            )
        many(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(name, json_bytes(one)) for name, one in commit.meta.items()]
        )
        many("INSERT OR IGNORE INTO replays VALUES (?)", _ones(commit.replays))
        many("DELETE FROM replays WHERE request = ?", _ones(commit.replayed))

    def _away(self, got: str) -> ConnectorError:
        return ConnectorError(
            "the journal of the run cannot be written",
            where=str(self.path),
            got=got,
            next_step="make room there, or fix the folder; until then no source is told of acks",
        )

    def _damaged(self, got: object) -> CheckpointError:
        return CheckpointError(
            "the journal of the run is damaged",
            where=str(self.path),
            got=str(got),
            expected="the SQLite file that the run wrote",
            next_step="restore it from a backup, with the file beside it whose name ends in -wal; or start with a "
            "fresh --state-dir, without what was open in this one",
        )


def _ones(texts: Iterable[str]) -> list[tuple[str]]:
    return [(text,) for text in texts]


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT"))


def _unusable(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "the journal of the run cannot be used",
        where=str(path),
        got=got,
        expected="a file that this user may write to, on a local disk with room",
        next_step="fix that and start it again, or name another --state-dir",
    )
