"""The file of the embedded queue: its tables, its clock, how it is opened, and what its errors mean.

Owns the format (`FORMAT`), and that one transaction at a time writes, from BEGIN to COMMIT or ROLLBACK. Refuses to know
what happens to a message: that is `broker`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from tupletree.durable import claim_private, identity_of
from tupletree.errors import ConfigError, ConnectorError, RuntimeUnavailableError, UnusableDataError
from tupletree.queues.host_clock import HostClock

FORMAT = 1
READY, DELAYED, LEASED, WAITING, DEAD, SETTLED = range(6)
"""States of a row: WAITING comes after an earlier message of its key, SETTLED is acked and kept for its id."""

_LEAST_VERSION = (3, 24)  # ON CONFLICT
_OUTAGES = {
    "SQLITE_BUSY": "another process writes to it for too long: look for one that hangs, or raise busy_timeout_s",
    "SQLITE_LOCKED": "another process writes to it for too long: look for one that hangs, or raise busy_timeout_s",
    "SQLITE_FULL": "make room on its disk; it goes on by itself",
    "SQLITE_IOERR": "see to its disk; it goes on by itself",
    "SQLITE_CANTOPEN": "see that its folder is there and that this user may write to it",
    "SQLITE_READONLY": "see that this user may write to the file and its folder",
    "SQLITE_PROTOCOL": "put it on a local disk: network file systems do not lock files as it needs",
    "SQLITE_PERM": "see that this user may write to the file and its folder",
}
_DAMAGES = ("SQLITE_NOTADB", "SQLITE_CORRUPT")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tupletree_queue_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- Boot → how the file's time is made of that boot's clock.
CREATE TABLE IF NOT EXISTS tupletree_queue_clocks (boot TEXT PRIMARY KEY, offset_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS tupletree_queues (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, ordered INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0,
    -- How many rows are in each state, so that the depth of a queue of millions is quick.
    ready INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0, leased INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS tupletree_queue_messages (
    seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, id TEXT NOT NULL, state INTEGER NOT NULL,
    -- DELAYED, WAITING: not before; LEASED: the lease's end; DEAD: the death; SETTLED: forget it then; READY: 0.
    due INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0, deliveries INTEGER NOT NULL DEFAULT 0,
    published INTEGER NOT NULL, ordered INTEGER NOT NULL DEFAULT 0, key TEXT, head BLOB, reason TEXT,
    size INTEGER NOT NULL, ref INTEGER, body BLOB, UNIQUE (queue, id));
CREATE INDEX IF NOT EXISTS tupletree_queue_due ON tupletree_queue_messages (queue, state, due);
CREATE INDEX IF NOT EXISTS tupletree_queue_keys ON tupletree_queue_messages (queue, key, state, seq) WHERE ordered = 1;
-- A large body is a row of its own, so that a lease does not write it again.
CREATE TABLE IF NOT EXISTS tupletree_queue_bodies (ref INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS tupletree_queue_settled AFTER UPDATE OF ref ON tupletree_queue_messages
    WHEN OLD.ref IS NOT NULL AND NEW.ref IS NULL
    BEGIN DELETE FROM tupletree_queue_bodies WHERE ref = OLD.ref; END;
CREATE TRIGGER IF NOT EXISTS tupletree_queue_deleted AFTER DELETE ON tupletree_queue_messages
    WHEN OLD.ref IS NOT NULL
    BEGIN DELETE FROM tupletree_queue_bodies WHERE ref = OLD.ref; END;
"""


# More than 12 attributes: one file with its lock: which file and process it was, and what was read of it once.
class QueueFile:
    """One connection to the file, which threads share: a lock lets one use it at a time.

    Attributes:
        path: of the file.
        where: for errors.
        lock: held from the first statement of an operation to its last.
        file_id: drawn when the file was made; handles carry it.
        commits: how often this connection wrote.
    """

    def __init__(self, path: Path, *, where: str, busy_timeout_s: float, clock: HostClock) -> None:
        if sqlite3.sqlite_version_info < _LEAST_VERSION:
            raise RuntimeUnavailableError(
                "SQLite is too old for the embedded queue",
                got=sqlite3.sqlite_version,
                expected=".".join(map(str, _LEAST_VERSION)),
                next_step="use a Python that is built with a newer one",
            )
        self.path = path
        self.where = where
        self.lock = threading.RLock()
        self.commits = 0
        self.file_id = ""
        self._busy_timeout_s = busy_timeout_s
        self._clock = clock
        self._closed = False
        self._inherited: list[sqlite3.Connection] = []
        with self.lock, self.naming_errors():
            self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        claim_private(self.path, "the queue file", self.where)
        self._inode = identity_of(self.path)
        connection = sqlite3.connect(
            self.path,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        self._pid = os.getpid()
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        self._into_wal(connection)
        # FULL: a commit is on the disk when it returns. The log is written back every 16 MB, and cut to 64 MB.
        for setting in ("synchronous = FULL", "wal_autocheckpoint = 4096", "journal_size_limit = 67108864"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA temp_store = MEMORY")
        meta: dict[str, str] = {}
        with contextlib.suppress(sqlite3.OperationalError):  # no such table: a new file
            meta = dict(connection.execute("SELECT name, value FROM tupletree_queue_meta").fetchall())
        boot = self._clock.boot()
        known = meta and connection.execute("SELECT 1 FROM tupletree_queue_clocks WHERE boot = ?", (boot,)).fetchone()
        if not known:
            meta = self._prepare(connection, boot)
        if meta["format"] != str(FORMAT):
            raise UnusableDataError(
                "the queue file has a format that this version of Tupletree cannot read",
                where=self.where,
                got=f"format {meta['format']}",
                expected=f"format {FORMAT}",
                next_step="use the version of Tupletree that wrote it",
            )
        self.file_id = meta["file"]
        found = connection.execute("SELECT offset_ms FROM tupletree_queue_clocks WHERE boot = ?", (boot,)).fetchone()
        self._offset_ms = int(found[0]) if boot else None

    def _into_wal(self, connection: sqlite3.Connection) -> None:
        """Several processes may be the first: SQLite does not wait for its turn here by itself."""
        end_s = self._clock.since_boot_s() + self._busy_timeout_s
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or self._clock.since_boot_s() > end_s:
                    raise
                self._clock.sleep(0.01)
                continue
            if mode != "wal":
                raise ConnectorError(
                    "the queue file cannot be used by several processes here",
                    where=self.where,
                    got=f"journal mode {mode}",
                    expected="journal mode wal",
                    next_step="put it on a local disk",
                )
            return

    def _prepare(self, connection: sqlite3.Connection, boot: str) -> dict[str, str]:
        """Make what is missing: the tables, and the clock of this boot, which is not behind that of the one before."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in _statements(_SCHEMA):
                connection.execute(statement)
            meta = "INSERT OR IGNORE INTO tupletree_queue_meta VALUES (?, ?)"
            connection.executemany(meta, [("format", str(FORMAT)), ("file", secrets.token_hex(4))])
            last = connection.execute("SELECT max(published) FROM tupletree_queue_messages").fetchone()[0] or 0
            now = max(_ms(self._clock.wall_s()), last)
            connection.execute(
                "INSERT OR IGNORE INTO tupletree_queue_clocks VALUES (?, ?)",
                (boot, now - _ms(self._clock.since_boot_s())),
            )
            found = dict(connection.execute("SELECT name, value FROM tupletree_queue_meta").fetchall())
            connection.execute("COMMIT")
        except BaseException:
            _undo(connection)
            raise
        return found

    def now_ms(self) -> int:
        """The file's time: that of this host's boot clock, so that steps of the wall clock end no lease."""
        if self._offset_ms is None:
            return _ms(self._clock.wall_s())
        return _ms(self._clock.since_boot_s()) + self._offset_ms

    def unix_s(self, at_ms: int) -> float:
        """A moment of the file's time, as Unix time by this host's present clock."""
        return self._clock.wall_s() + (at_ms - self.now_ms()) / 1000

    def from_unix_ms(self, unix_s: float) -> int:
        """A moment of this host's wall clock, in the file's time."""
        return self.now_ms() + _ms(unix_s - self._clock.wall_s())

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for statements that only read."""
        with self.lock, self.naming_errors():
            yield self._usable()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable when the block ends, and undone if it raises."""
        with self.lock, self.naming_errors():
            connection = self._usable()
            if connection.in_transaction:
                raise ConfigError(
                    "an operation of the broker was called within a transaction of its own",
                    where=self.where,
                    next_step="use the transaction that `within` is given",
                )
            try:
                # Within, as a signal may raise after any step, and a transaction must not be left open.
                connection.execute("BEGIN IMMEDIATE")
                self._check_in_place()
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _undo(connection)
                raise
            self.commits += 1

    def changes(self) -> tuple[int, int]:
        """Another value after each write to the file by any process. Cheap: no page is read."""
        with self.reading() as connection:
            return connection.execute("PRAGMA data_version").fetchone()[0], self.commits

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the connection. Harmless if repeated."""
        with self.lock:
            self._closed = True
            if self._pid == os.getpid():
                self._connection.close()

    def _usable(self) -> sqlite3.Connection:
        if self._closed:
            raise ConnectorError("the queue was closed", where=self.where, next_step="connect to it again")
        if self._pid != os.getpid():
            # A connection must not be used, nor closed, on the other side of a fork.
            self._inherited.append(self._connection)
            self._connection = self._open()
        return self._connection

    def _check_in_place(self) -> None:
        """What is written to a file that was deleted is lost with this process."""
        if identity_of(self.path) != self._inode:
            raise ConnectorError(
                "the queue file was removed or replaced while it was in use",
                where=self.where,
                next_step="put it back, or restart everything that uses it",
            )

    @contextlib.contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Raise SQLite's errors about the file as ConnectorError; others, as of a caller's SQL, as they are."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(_DAMAGES):
                raise UnusableDataError(
                    "the queue file is damaged, or no SQLite file",
                    where=self.where,
                    got=f"{error} ({name})",
                    next_step="restore it from a backup, or name another file",
                ) from error
            for outage, next_step in _OUTAGES.items():
                if name.startswith(outage):
                    raise ConnectorError(
                        "the queue file cannot be used now",
                        where=self.where,
                        got=f"{error} ({name})",
                        next_step=next_step,
                    ) from error
            raise


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # a full disk may have undone it already
        connection.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
