"""What people ask of executions: cancel, pause, resume, replay or drop dead letters, delete old ones.

Owns in which order each is done, so that a crash or another process in between does no harm. Refuses to know brokers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tupletree.errors import ConfigError
from tupletree.queues import Message
from tupletree.routes.ids import child_id
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.arriving import REPLAY_HEADER, document_number, own_headers
from tupletree.routes.ledger.changes import CHUNK, Changes, MessageEntry, headers_text, in_chunks
from tupletree.routes.ledger.stores import Session
from tupletree.routes.ledger.tables import counts, dead, documents, edges, executions, members, messages
from tupletree.routes.ledger.values import (
    CANCELLED,
    DEAD,
    DONE,
    DROPPED,
    HELD,
    PENDING,
    PROCESSING,
    STATE_NAMES,
    LedgerRules,
    Loss,
    Refusal,
    Replayed,
)

MOST_DELETED = CHUNK
"""Messages that are deleted in one transaction."""

_m, _e = messages.c, executions.c
_GOES_ON = _e.ended_s.is_(None)

CANCEL = st.Statement(
    sa.update(executions)
    .where(_e.id == st.param("id_"), _GOES_ON, _e.state != "cancelled")
    .values(state="cancelled", reason=st.param("reason_"))
)
PAUSE = st.Statement(
    sa.update(executions)
    .where(_e.id == st.param("id_"), _GOES_ON, _e.paused != st.param("paused_"))
    .values(paused=st.param("paused_"))
)
INTERRUPT = st.Statement(
    sa.update(executions).where(_e.id == st.param("id_"), _GOES_ON, _e.state == "running").values(state="interrupted")
)
GO_ON = st.Statement(
    sa.update(executions)
    .where(_e.pipeline == st.param("pipeline_"), _GOES_ON, _e.state == "interrupted")
    .values(state="running")
)
_NUMBER = st.Statement(sa.select(_e.number).where(_e.id == st.param("id_")))
_OPEN = st.Statement(
    sa.select(_m.seq, _m.id)
    .where(_m.execution == st.param("number_"), _m.merged == 0, _m.state < DONE, _m.seq > st.param("after_"))
    .order_by(_m.seq)
    .limit(CHUNK)
)
_OPEN_MERGED = st.Statement(
    sa.select(_m.seq, _m.id)
    .join_from(members, messages, _m.seq == members.c.message)
    .where(members.c.execution == st.param("number_"), _m.state < DONE, _m.seq > st.param("after_"))
    .order_by(_m.seq)
    .limit(CHUNK)
)


def cancel_open(session: Session, execution: str, merged: bool, after: int, now_s: float) -> tuple[int, Changes]:
    """Cancel up to CHUNK open messages of a cancelled execution, but for those that count in a live one, too.

    Returns:
        The number to go on after, 0 at the end; the changes, to be written.
    """
    changes = Changes(session, now_s)
    found = session.rows(_NUMBER, execution)
    rows = session.rows(_OPEN_MERGED if merged else _OPEN, found[0][0], after) if found else []
    changes.load([name for _, name in rows])
    for entry in changes.messages.values():
        if entry.is_open and not changes.live(entry):
            changes.close(entry, CANCELLED, "its execution was cancelled")
    return (rows[-1][0] if len(rows) == CHUNK else 0), changes


def hold(session: Session, ids: Sequence[str], now_s: float) -> Changes:
    """Messages that are processing are held by a batch."""
    changes = Changes(session, now_s)
    changes.load(ids)
    for entry in changes.messages.values():
        if entry.state == PROCESSING:
            changes.mark(entry, HELD)
    return changes


def refuse(session: Session, refusals: Sequence[Refusal], now_s: float) -> Changes:
    """Messages that no broker will take are dead. Those that are settled, or that no route reads, are left."""
    changes = Changes(session, now_s)
    named = {one.message.headers.get(REPLAY_HEADER) or one.message.id: one for one in refusals}
    changes.load([*named])
    dead_rows = []
    for entry in changes.messages.values():
        if entry.is_open:
            message, reason = named[entry.id].message, f"its broker refused it: {named[entry.id].reason}"
            changes.close(entry, DEAD, reason)
            dead_rows.append((entry.seq, message.body, headers_text(message.headers), ""))
    session.run(st.INSERT_DEAD, dead_rows)
    return changes


def end_lost(session: Session, losses: Sequence[Loss], now_s: float) -> tuple[list[str], Changes]:
    """Messages that can never be delivered again are dead; those that are not as they were found are left."""
    changes = Changes(session, now_s)
    found = {loss.row.id: loss for loss in losses}
    changes.load([*found])
    ended, dead_rows, unpublished = [], [], []
    for entry in changes.messages.values():
        loss = found[entry.id]
        row = loss.row
        if (STATE_NAMES[entry.state], entry.failures, entry.lost, entry.replays) != (
            row.state, row.failures, row.lost, row.replays
        ):  # fmt: skip
            continue
        changes.close(entry, DEAD, loss.reason)
        ended.append(entry.id)
        unpublished.append(row.broker_id)
        if loss.body is not None:
            dead_rows.append((entry.seq, loss.body, headers_text(loss.headers), ""))
    session.run(st.INSERT_DEAD, dead_rows)
    if unpublished:
        session.run_one(st.PUBLISHED, unpublished)
    return ended, changes


# Replay.

_DEAD = st.Statement(sa.select(dead.c.message, dead.c.body, dead.c.headers).where(st.Among(dead.c.message, "seqs")))
_FORGET_DEAD = st.Statement(sa.delete(dead).where(dead.c.message == st.param("seq_")))


@dataclass
class Replay:
    """What a replay comes to.

    Attributes:
        replayed: for the caller.
        publish: pipeline → queue → messages.
    """

    replayed: list[Replayed] = field(default_factory=list)
    publish: dict[str, dict[str, list[Message]]] = field(default_factory=dict)

    def add(self, pipeline: str, queue: str, message: Message) -> None:
        """Publish this, too."""
        self.publish.setdefault(pipeline, {}).setdefault(queue, []).append(message)


def replay(session: Session, ids: Sequence[str], now_s: float) -> tuple[Replay, Changes]:
    """Dead messages are pending again, in their executions. Those that are not dead, or cancelled, are left."""
    changes = Changes(session, now_s)
    changes.load(ids)
    done = Replay()
    for entry, body, headers in _letters(session, changes):
        if not changes.live(entry):
            continue
        before = entry.name or entry.id
        # Brokers remember ids of messages that they had: it would not be published again under the same.
        name = f"{entry.id}~{entry.replays + 1}"
        changes.reopen(entry, name)
        session.run(_FORGET_DEAD, [(entry.seq,)])
        message = Message(id=name, body=body, headers={**headers, REPLAY_HEADER: entry.id})
        done.add(changes.executions[changes.live(entry)[0]].pipeline, entry.queue, message)
        done.replayed.append(Replayed(entry.id, entry.id, entry.queue, before))
    return done, changes


_DIED_OF = st.Statement(sa.select(_m.seq, _m.reason, _m.error).where(st.Among(_m.seq, "seqs")))
_NOTHING: sa.ColumnClause[str] = sa.literal_column("''", sa.Text)
_DROP = st.Statement(
    sa.update(messages)
    .where(_m.seq == st.param("seq_"))
    .values(reason=st.param("reason_"), error=_NOTHING, adapter=_NOTHING, changed_s=st.param("now_"))
)


def drop(session: Session, ids: Sequence[str], reason: str, now_s: float) -> list[str]:
    """Dead messages were handled elsewhere: they stay dead, and nothing is kept of them that could be replayed.

    Returns:
        The ids of those that were dead, and not dropped already.
    """
    changes = Changes(session, now_s)
    changes.load(ids)
    entries = {entry.seq: entry.id for entry in changes.messages.values() if entry.state == DEAD}
    dropped = []
    for chunk in in_chunks(sorted(entries)):
        for seq, before, error in session.rows(_DIED_OF, chunk):
            if before.startswith(DROPPED):
                continue
            died_of = f"{error}: {before}" if error else before
            why = f"{DROPPED}: {reason}" if reason else DROPPED
            session.run(_DROP, [(f"{why} (it died of {died_of})" if died_of else why, now_s, seq)])
            session.run(_FORGET_DEAD, [(seq,)])
            dropped.append(entries[seq])
    return dropped


def copy(
    session: Session,
    ids: Sequence[str],
    rules: LedgerRules,
    *,
    execution: str,
    queue: str,
    on_complete: str,
    now_s: float,
) -> Replay:
    """Copies of dead messages begin a new execution, of which the originals are parents."""
    changes = Changes(session, now_s)
    changes.load(ids)
    done = Replay(publish={rules.pipeline: {}})
    rows: list[tuple[Any, ...]] = []
    counted: dict[str, int] = {}
    for entry, body, headers in _letters(session, changes):
        target = queue or entry.queue
        route = rules.readers.get(target, "")
        if not route:
            raise ConfigError(
                "no route reads the queue of a message that is to be replayed",
                where=f"pipeline {rules.pipeline}",
                got=f"{target!r}, of message {entry.id}",
                expected=f"one of {', '.join(sorted(rules.readers))}",
                next_step="name a queue",
            )
        name = child_id([entry.id], execution, 0, 0, target)
        rows.append((name, entry.seq, route, target))
        counted[route] = counted.get(route, 0) + 1
        done.add(rules.pipeline, target, Message(id=name, body=body, headers=headers))
        done.replayed.append(Replayed(entry.id, name, target, entry.name or entry.id))
    if rows:
        document = document_number(session, rules.document, rules.versions)
        many = len(rows)
        session.run(
            st.INSERT_EXECUTION,
            [(execution, rules.pipeline, document, "running", many, many, rows[0][0], on_complete, now_s)],
        )
        number = session.rows(_NUMBER, execution)[0][0]
        for chunk in in_chunks(rows):
            session.run(
                st.INSERT_MESSAGE,
                [(name, number, seq, 0, route, to, PENDING, "", "", now_s, now_s) for name, seq, route, to in chunk],
            )
        session.run(st.COUNT, [(number, route, new, *[0] * 10) for route, new in sorted(counted.items())])
    return done


def _letters(session: Session, changes: Changes) -> list[tuple[MessageEntry, bytes, Mapping[str, str]]]:
    entries = {entry.seq: entry for entry in changes.messages.values() if entry.state == DEAD}
    found: list[tuple[MessageEntry, bytes, Mapping[str, str]]] = []
    for chunk in in_chunks(sorted(entries)):
        for seq, body, headers in session.rows(_DEAD, chunk):
            found.append((entries[seq], bytes(body), own_headers(json.loads(headers)) if headers else {}))
    return found


# Retention.

_EXPIRED = st.Statement(
    sa.select(_e.number).where(_e.ended_s < st.param("before_")).order_by(_e.number).limit(st.param("limit_"))
)
_SEQS = st.Statement(
    sa.select(_m.seq, _m.merged)
    .where(_m.execution == st.param("number_"))
    .order_by(_m.seq)
    .limit(st.param("limit_"))
    .with_for_update()
)
_ENDED = st.Statement(
    sa.select(_e.number).where(_e.number == st.param("number_"), _e.ended_s < st.param("before_")).with_for_update()
)
_OTHER = st.Statement(
    sa.select(members.c.message, sa.func.min(members.c.execution))
    .where(st.Among(members.c.message, "seqs"), members.c.execution != st.param("number_"))
    .group_by(members.c.message)
)
_MOVE = st.Statement(sa.update(messages).where(_m.seq == st.param("seq_")).values(execution=st.param("number_")))
_LEAVE = st.Statement(sa.delete(members).where(members.c.execution == st.param("number_")))
_IS_ORPHAN = ~sa.exists().where(executions.c.document == documents.c.number)
_ORPHANS = st.Statement(sa.select(documents.c.number).where(_IS_ORPHAN).with_for_update(skip_locked=True))
_FORGET = st.Statement(sa.delete(documents).where(st.Among(documents.c.number, "numbers"), _IS_ORPHAN))


def _delete(table: sa.Table, column: str) -> st.Statement:
    return st.Statement(sa.delete(table).where(st.Among(table.c[column], "seqs")))


_OF_MESSAGES = (
    st.Statement(sa.update(messages).where(st.Among(_m.parent, "seqs")).values(parent=None)),
    _delete(dead, "message"),
    _delete(members, "message"),
    _delete(edges, "child"),
    _delete(edges, "parent"),
    _delete(messages, "seq"),
)
_OF_EXECUTION = (
    _LEAVE,
    st.Statement(sa.delete(counts).where(counts.c.execution == st.param("number_"))),
    st.Statement(sa.delete(executions).where(_e.number == st.param("number_"))),
)


def expired(session: Session, before_s: float, limit: int) -> list[int]:
    """Numbers of executions that ended before then."""
    return [number for (number,) in session.rows(_EXPIRED, before_s, limit)]


def delete(session: Session, number: int, before_s: float) -> bool | None:
    """Delete some messages of an execution that ended before then, and in the end itself.

    A message that counts in another execution, too, stays with that.

    Returns:
        True: it is gone. False: it has more. None: it goes on, for a message of it was replayed.
    """
    # Messages are locked before their executions, as everywhere: else this and a replay might wait for each other.
    found = session.rows(_SEQS, number, MOST_DELETED)
    if not session.rows(_ENDED, number, before_s):
        return None
    kept: dict[int, int] = {}
    if merged := [seq for seq, is_merged in found if is_merged]:
        kept = dict(session.rows(_OTHER, merged, number))
        session.run(_MOVE, [(other, seq) for seq, other in sorted(kept.items())])
    seqs = sorted(seq for seq, _ in found if seq not in kept)
    if seqs:
        for statement in _OF_MESSAGES:
            session.run_one(statement, seqs)
    if len(found) == MOST_DELETED:
        return False
    for statement in _OF_EXECUTION:
        session.run_one(statement, number)
    return True


def forget_documents(session: Session) -> None:
    """Delete documents that no execution has; in a transaction of its own, so that it waits for no other one.

    They are locked first: a statement sees only executions that were there when it began, and one may have been
    inserted between the two.
    """
    if numbers := [number for (number,) in session.rows(_ORPHANS)]:
        session.run_one(_FORGET, numbers)
