"""The rows that one transaction changes, in memory: loaded under locks, moved between states, written in bulk.

Owns that counts follow states: whatever a transaction does to a message, `open`, `dead` and `total` of its executions
and the counts of its route move with it, and an execution whose `open` reaches 0 is complete in the same transaction.
Refuses to decide which state a message gets.

Locks are taken in one order everywhere (messages by number, executions by number, counts), so that processes that share
a PostgreSQL ledger do not wait for each other in a circle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import msgspec

from tupletree.errors import InternalError
from tupletree.queues import Message
from tupletree.routes.ids import completion_id
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.stores import Session
from tupletree.routes.ledger.tables import COUNTED
from tupletree.routes.ledger.values import (
    DEAD,
    DONE,
    PENDING,
    RETRYING,
    STATE_NAMES,
    UNROUTED,
    Completed,
    ExecutionState,
    MessageState,
)

CHUNK = 2000
"""Ids in one query, rows in one statement."""

V = TypeVar("V")

_FAILED, _LOST = COUNTED.index("failed"), COUNTED.index("lost")


class RaceError(Exception):
    """Another process registered the same message meanwhile: begin the transaction again, and see it."""


class MessageEntry(msgspec.Struct, gc=False):
    """A message's row, as this transaction leaves it."""

    seq: int
    id: str
    execution: int
    merged: int
    parent: int | None
    route: str
    queue: str
    state: int
    failures: int
    lost: int
    reason: str
    replays: int
    name: str

    @property
    def is_open(self) -> bool:
        """Whether it is not settled."""
        return self.state < DONE


class ExecutionEntry(msgspec.Struct):
    """An execution's row, as this transaction leaves it."""

    number: int
    id: str
    pipeline: str
    state: str
    paused: int
    open: int
    total: int
    dead: int
    init: str
    init_dead: int
    run: int
    on_complete: str
    created_s: float
    ended_s: float | None
    was: int = -1
    changed: bool = False

    @property
    def is_cancelled(self) -> bool:
        """Whether nothing of it is worked any more."""
        return self.state == "cancelled"

    def end(self) -> ExecutionState:
        """How it ended."""
        if self.state == "cancelled":
            return "cancelled"
        if self.init_dead:
            return "failed"
        return "completed_with_dead_letters" if self.dead else "completed"


@dataclass(frozen=True, slots=True)
class NewChild:
    """A message to insert."""

    id: str
    queue: str
    route: str
    reason: str
    parents: Sequence[MessageEntry]
    executions: Sequence[int]

    @property
    def state(self) -> int:
        """Without a reader it leaves the pipeline."""
        return PENDING if self.route else UNROUTED


# More than 12 attributes: one list of rows for each thing that a transaction may change.
class Changes:
    """See the module.

    Args:
        session: the transaction.
        now_s: Unix time.

    Attributes:
        messages: id → row, of those that were loaded and are there.
        executions: number → row, of all that they belong to.
        settled: (route, state) → messages that went into it.
    """

    def __init__(self, session: Session, now_s: float) -> None:
        self.messages: dict[str, MessageEntry] = {}
        self.executions: dict[int, ExecutionEntry] = {}
        self.settled: dict[tuple[str, MessageState], int] = {}
        self._session = session
        self._now_s = now_s
        self._members: dict[int, tuple[int, ...]] = {}
        self._deltas: dict[tuple[int, str], list[int]] = {}
        self._marked: dict[int, tuple[int, int]] = {}
        self._closed: dict[int, tuple[int, str, str]] = {}
        self._failed: list[tuple[Any, ...]] = []
        self._reopened: list[tuple[Any, ...]] = []
        self._gone_on: list[tuple[Any, ...]] = []
        self._children: dict[str, NewChild] = {}

    def load(self, ids: Sequence[str], executions: Iterable[int] = ()) -> None:
        """Read messages and their executions, locked until the end of the transaction. Call it once."""
        entries: list[MessageEntry] = []
        # Sorted first: chunks must not undo the order of locks. Numbers grow with time, ids do not.
        if len(ids) > CHUNK:
            seqs = [row for chunk in in_chunks(ids) for row in self._session.rows(st.MESSAGE_NUMBERS, chunk)]
            ids = [name for name, _ in sorted(seqs, key=lambda row: int(row[1]))]
        for chunk in in_chunks(ids):
            entries += [MessageEntry(*row) for row in self._session.rows(st.LOCK_MESSAGES, chunk)]
        self.messages = {entry.id: entry for entry in entries}
        numbers = {entry.execution for entry in entries if not entry.merged}
        numbers.update(executions)
        merged = [entry.seq for entry in entries if entry.merged]
        for chunk in in_chunks(merged):
            for message, execution in self._session.rows(st.MEMBERS, chunk):
                self._members[message] = (*self._members.get(message, ()), execution)
                numbers.add(execution)
        for chunk in in_chunks(sorted(numbers)):
            for row in self._session.rows(st.LOCK_EXECUTIONS, chunk):
                execution = ExecutionEntry(*row)
                execution.was = execution.open
                self.executions[execution.number] = execution

    def executions_of(self, entry: MessageEntry) -> tuple[int, ...]:
        """Numbers of the executions that a message belongs to."""
        return self._members[entry.seq] if entry.merged else (entry.execution,)

    def live(self, entry: MessageEntry) -> list[int]:
        """Those of them that are not cancelled."""
        if not entry.merged:
            return [] if self.executions[entry.execution].state == "cancelled" else [entry.execution]
        return [number for number in self._members[entry.seq] if self.executions[number].state != "cancelled"]

    # Moving.

    def mark(self, entry: MessageEntry, state: int, *, lost: bool = False) -> None:
        """An open message comes into another open state; `lost` counts an attempt that never ended."""
        if lost:
            entry.lost += 1
            for number in self.executions_of(entry):
                self._delta(number, entry.route)[_LOST] += 1
        self._move(entry, state)
        self._marked[entry.seq] = state, entry.lost

    def close(self, entry: MessageEntry, state: int, reason: str = "", adapter: str = "") -> None:
        """An open message is settled."""
        self._move(entry, state)
        self._closed[entry.seq] = state, storable(reason), storable(adapter)

    def fail(
        self, entry: MessageEntry, state: int, failures: int, reason: str, error: str, adapter: str, due_s: float
    ) -> None:
        """An attempt failed: the message is tried again (RETRYING), or DEAD."""
        entry.failures = failures
        entry.reason = storable(reason)
        for number in self.executions_of(entry):
            self._delta(number, entry.route)[_FAILED] += 1
        self._move(entry, state)
        self._failed.append(
            (state, failures, entry.reason, storable(error), storable(adapter), self._now_s, due_s, entry.seq)
        )

    def _move(self, entry: MessageEntry, state: int) -> None:
        before = entry.state
        entry.state = state
        key = entry.route, STATE_NAMES[state]
        if state >= DONE or state == RETRYING:
            self.settled[key] = self.settled.get(key, 0) + 1
        if before == state:
            return
        for number in self._members[entry.seq] if entry.merged else (entry.execution,):
            delta = self._delta(number, entry.route)
            delta[before] -= 1
            delta[state] += 1
            if state >= DONE:
                execution = self.executions[number]
                execution.changed = True
                execution.open -= 1
                if state == DEAD:
                    execution.dead += 1
                    if execution.init == entry.id:
                        execution.init_dead = 1

    def reopen(self, entry: MessageEntry, name: str) -> None:
        """A dead message is pending again, under this id at its broker, and its executions go on."""
        entry.state, entry.name = PENDING, name
        entry.failures = entry.lost = 0
        entry.replays += 1
        self._reopened.append((entry.replays, name, self._now_s, entry.seq))
        for number in self.executions_of(entry):
            delta = self._delta(number, entry.route)
            delta[DEAD] -= 1
            delta[PENDING] += 1
            execution = self.executions[number]
            if execution.ended_s is not None:
                execution.ended_s = None
                if not execution.is_cancelled:
                    execution.state = "running"
                execution.run += 1
                self._gone_on.append((execution.state, number))
            execution.changed = True
            execution.open += 1
            execution.dead -= 1
            if execution.init == entry.id:
                execution.init_dead = 0

    # Children.

    def add_child(self, child: NewChild) -> bool:
        """Register a message; once: False if it was added before."""
        if child.id in self._children:
            return False
        self._children[child.id] = child
        state = child.state
        for number in child.executions:
            self._delta(number, child.route)[state] += 1
            execution = self.executions[number]
            execution.changed = True
            execution.total += 1
            if state < DONE:
                execution.open += 1
        if state == UNROUTED:
            key = "", STATE_NAMES[UNROUTED]
            self.settled[key] = self.settled.get(key, 0) + 1
        return True

    # Writing.

    def write(self) -> tuple[list[Completed], list[tuple[str, Message]]]:
        """Write everything.

        Returns:
            The executions that are complete by it, and for each (queue, message) that tells so.

        Raises:
            RaceError: roll back and begin again.
        """
        run, session = self._session.run, self._session
        for marked, seqs in _by_values(self._marked).items():
            session.run_one(st.MARK, *marked, self._now_s, seqs)
        for closed, seqs in _by_values(self._closed).items():
            session.run_one(st.CLOSE, *closed, self._now_s, seqs)
        run(st.FAIL, self._failed)
        run(st.REOPEN, self._reopened)
        run(st.REOPEN_EXECUTION, self._gone_on)
        self._write_children(session)
        completed, told = self._write_executions(session)
        run(st.COUNT, [(*key, *self._deltas[key]) for key in sorted(self._deltas) if any(self._deltas[key])])
        return completed, told

    def _write_children(self, session: Session) -> None:
        now = self._now_s
        children = iter(self._children.values())
        while chunk := list(islice(children, CHUNK)):
            rows = []
            merged = []
            for child in chunk:
                many = len(child.parents) > 1 or len(child.executions) > 1
                parent = child.parents[0].seq if child.parents else None
                if many:
                    merged.append(child)
                rows.append(
                    (child.id, child.executions[0], parent, int(many), child.route, child.queue, child.state,
                     "", child.reason, now, now)
                )  # fmt: skip
            if session.run(st.INSERT_MESSAGE, rows) != len(rows):
                raise RaceError
            if merged:
                seqs: dict[str, int] = dict(session.rows(st.MESSAGE_NUMBERS, [child.id for child in merged]))
                session.run(st.INSERT_MEMBER, [(seqs[c.id], number) for c in merged for number in c.executions])
                session.run(st.INSERT_EDGE, [(seqs[c.id], parent.seq) for c in merged for parent in c.parents])

    def _write_executions(self, session: Session) -> tuple[list[Completed], list[tuple[str, Message]]]:
        rows, completed, told = [], [], []
        for number in sorted(self.executions):
            execution = self.executions[number]
            if not execution.changed:
                continue
            ended_s = None
            state = execution.state
            if execution.open == 0:
                ended_s, state = self._now_s, execution.end()
                one = Completed(
                    execution.id, execution.pipeline, state, execution.run, execution.total, execution.dead,
                    execution.created_s, ended_s,
                )  # fmt: skip
                completed.append(one)
                if execution.on_complete:
                    told.append((execution.on_complete, completion_message(one)))
            rows.append(
                (state, execution.open, execution.total, execution.dead, execution.init_dead, ended_s, number,
                 execution.was)
            )  # fmt: skip
        if session.run(st.UPDATE_EXECUTION, rows) != len(rows):
            raise InternalError("the open count of an execution changed under a lock", got=f"{len(rows)} executions")
        return completed, told

    def _delta(self, number: int, route: str) -> list[int]:
        key = number, route
        found = self._deltas.get(key)
        if found is None:
            found = self._deltas[key] = [0] * len(COUNTED)
        return found


def completion_message(completed: Completed) -> Message:
    """What the queue `on_complete` gets; its id is derived, so that it is there once."""
    body = {
        "execution": completed.execution,
        "pipeline": completed.pipeline,
        "state": completed.state,
        "messages": completed.total,
        "dead": completed.dead,
        "created_s": completed.created_s,
        "ended_s": completed.ended_s,
    }
    return Message(
        id=completion_id(completed.execution, completed.run),
        body=json.dumps(body).encode(),
        content_type="application/json",
        headers={"tupletree-execution": completed.execution},
    )


def _by_values(rows: Mapping[int, V]) -> dict[V, list[int]]:
    """Rows by what is written to them, which is the same for most: one statement for all of them."""
    found: dict[V, list[int]] = {}
    for seq, values in rows.items():
        found.setdefault(values, []).append(seq)
    return found


def in_chunks(items: Sequence[Any]) -> Iterable[list[Any]]:
    """Lists of at most CHUNK."""
    for start in range(0, len(items), CHUNK):
        yield list(items[start : start + CHUNK])


def storable(text: str) -> str:
    """Text that every database takes: what has no UTF-8 form is escaped, and NUL is."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def headers_text(headers: Mapping[str, str]) -> str:
    """Headers as a column holds them."""
    return json.dumps(dict(headers)) if headers else ""
