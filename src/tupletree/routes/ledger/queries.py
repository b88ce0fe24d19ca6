"""What the ledger is asked: executions, messages, counts, the outbox, and one message's account.

Only reads. Owns how rows become the classes of `values`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa

from tupletree.queues import Message
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.changes import in_chunks
from tupletree.routes.ledger.stores import Session
from tupletree.routes.ledger.tables import COUNTED, counts, dead, documents, edges, executions, members, messages, meta
from tupletree.routes.ledger.tables import outbox as outbox_table
from tupletree.routes.ledger.values import (
    DONE,
    RETRYING,
    STATE_NAMES,
    Completed,
    Execution,
    ExecutionState,
    MessageAccount,
    MessageRow,
    MessageState,
    OutboxRow,
    RouteCounts,
    StoredDocument,
)

__all__ = ["TELL", "account", "count", "document", "find", "find_all", "list_messages", "not_told", "outbox"]

_e, _m, _o, _c = executions.c, messages.c, outbox_table.c, counts.c

TELL = st.Statement(
    sa.update(executions)
    .where(_e.id == st.param("id_"), _e.run == st.param("run_"), _e.told == 0, _e.ended_s.is_not(None))
    .values(told=1),
    "id_", "run_",
)  # fmt: skip
_CANCELLED = st.Statement(sa.select(_e.id).where(st.Among(_e.id, "ids"), _e.state == "cancelled"), "ids")
_NOT_TOLD_ROWS = (
    sa.select(_e.id, _e.pipeline, _e.state, _e.run, _e.total, _e.dead, _e.created_s, _e.ended_s)
    .where(_e.ended_s.is_not(None), sa.text("told = 0"))
    .order_by(_e.number)
    .limit(st.param("limit_"))
)
_NOT_TOLD = st.Statement(_NOT_TOLD_ROWS, "limit_")
_NOT_TOLD_OF = st.Statement(_NOT_TOLD_ROWS.where(_e.pipeline == st.param("pipeline_")), "pipeline_", "limit_")
_OUTBOX_ROWS = sa.select(_o.id, _o.queue, _o.body, _o.headers, _o.due_s).order_by(_o.seq).limit(st.param("limit_"))
_OUTBOX = st.Statement(_OUTBOX_ROWS, "limit_")
_OUTBOX_ONLY = st.Statement(
    _OUTBOX_ROWS.where(
        st.Among(_o.queue, "queues"), sa.or_(_o.pipeline == st.param("pipeline_"), sa.text("pipeline = ''"))
    ),
    "queues", "pipeline_", "limit_",
)  # fmt: skip


def cancelled(session: Session, executions: Sequence[str]) -> list[str]:
    """See `Ledger.cancelled`."""
    return [name for (name,) in session.rows(_CANCELLED, [*executions])]


def not_told(session: Session, limit: int, pipeline: str) -> list[Completed]:
    """See `Ledger.completed_not_told`."""
    rows = session.rows(_NOT_TOLD_OF, pipeline, limit) if pipeline else session.rows(_NOT_TOLD, limit)
    return [Completed(*row) for row in rows]


def outbox(session: Session, limit: int, now_s: float, pipeline: str, only: Sequence[str] | None) -> list[OutboxRow]:
    """See `Ledger.outbox`."""
    rows = session.rows(_OUTBOX, limit) if only is None else session.rows(_OUTBOX_ONLY, [*only], pipeline, limit)
    return [
        OutboxRow(name, queue, _message(name, body, headers, max(due_s - now_s, 0.0)))
        for name, queue, body, headers, due_s in rows
    ]


def _message(name: str, body: Any, headers: str, delay_s: float) -> Message:
    return Message(id=name, body=bytes(body), headers=json.loads(headers) if headers else {}, delay_s=delay_s)


# Executions.

_EXECUTION = sa.select(
    _e.id, _e.pipeline, _e.state, _e.paused, _e.open, _e.total, _e.dead, _e.init, _e.run, _e.created_s, _e.ended_s,
    _e.told, _e.reason,
)  # fmt: skip
_FIND = st.Statement(_EXECUTION.where(_e.id == st.param("id_")), "id_")
_FIND_ALL = st.Statement(
    _EXECUTION.where(
        sa.or_(st.param("pipeline_", type_=sa.Text) == "", _e.pipeline == st.param("pipeline_", type_=sa.Text)),
        sa.or_(st.param("state_", type_=sa.Text) == "", _e.state == st.param("state_", type_=sa.Text)),
    )
    .order_by(_e.number.desc())
    .limit(st.param("limit_")),
    "pipeline_", "state_", "limit_",
)  # fmt: skip
_DOCUMENT = st.Statement(
    sa.select(documents.c.document, documents.c.versions)
    .join_from(executions, documents, _e.document == documents.c.number)
    .where(_e.id == st.param("id_")),
    "id_",
)
_COUNTS = st.Statement(
    sa.select(_c.route, *[sa.func.sum(_c[name]) for name in COUNTED])
    .join_from(executions, counts, _e.number == _c.execution)
    .where(_e.id == st.param("id_"))
    .group_by(_c.route)
    .order_by(_c.route),
    "id_",
)
_COUNTS_OF_PIPELINE = st.Statement(
    sa.select(_c.route, *[sa.func.sum(_c[name]) for name in COUNTED])
    .join_from(executions, counts, _e.number == _c.execution)
    .where(_e.pipeline == st.param("pipeline_"))
    .group_by(_c.route)
    .order_by(_c.route),
    "pipeline_",
)


def find(session: Session, execution: str) -> Execution | None:
    """See `Ledger.execution`."""
    found = session.rows(_FIND, execution)
    return _execution(found[0]) if found else None


def find_all(session: Session, pipeline: str, state: ExecutionState | str, limit: int) -> list[Execution]:
    """See `Ledger.executions`."""
    return [_execution(row) for row in session.rows(_FIND_ALL, pipeline, state, limit)]


def _execution(row: tuple[Any, ...]) -> Execution:
    name, pipeline, state, paused, is_open, total, dead_letters, init, run, created_s, ended_s, told, reason = row
    return Execution(
        name, pipeline, state, bool(paused), is_open, total, dead_letters, init, run, created_s, ended_s or 0.0,
        bool(told), reason,
    )  # fmt: skip


def document(session: Session, execution: str) -> StoredDocument | None:
    """See `Ledger.document`."""
    found = session.rows(_DOCUMENT, execution)
    return StoredDocument(found[0][0], json.loads(found[0][1])) if found else None


def count(session: Session, *, execution: str = "", pipeline: str = "") -> list[RouteCounts]:
    """See `Ledger.counts`."""
    rows = session.rows(_COUNTS, execution) if execution else session.rows(_COUNTS_OF_PIPELINE, pipeline)
    found = []
    for route, *numbers in rows:
        states = dict(zip(STATE_NAMES, map(int, numbers), strict=False))
        found.append(RouteCounts(route, states, int(numbers[-2]), int(numbers[-1])))
    return found


# Messages.

_MESSAGE_COLUMNS = (
    _m.seq, _m.id, _m.route, _m.queue, _m.state, _m.failures, _m.lost, _m.replays, _m.reason, _m.error, _m.adapter,
    _m.name, _m.created_s, _m.changed_s, _m.due_s,
)  # fmt: skip
_ANY_STATE, _ANY_OPEN = -1, -2
_STATE = st.param("state_", type_=sa.Integer)
_OF_EXECUTION = (
    sa.or_(_STATE == _ANY_STATE, _m.state == _STATE, sa.and_(_STATE == _ANY_OPEN, _m.state < DONE)),
    sa.or_(st.param("route_", type_=sa.Text) == "", _m.route == st.param("route_", type_=sa.Text)),
    _m.seq > st.param("after_", type_=sa.BigInteger),
)
_MESSAGES = st.Statement(
    sa.select(*_MESSAGE_COLUMNS)
    .join_from(executions, messages, _m.execution == _e.number)
    .where(_e.id == st.param("id_"), _m.merged == 0, *_OF_EXECUTION)
    .order_by(_m.seq)
    .limit(st.param("limit_")),
    "id_", "state_", "route_", "after_", "limit_",
)  # fmt: skip
_MERGED = st.Statement(
    sa.select(*_MESSAGE_COLUMNS)
    .join_from(executions, members, members.c.execution == _e.number)
    .join(messages, _m.seq == members.c.message)
    .where(_e.id == st.param("id_"), *_OF_EXECUTION)
    .order_by(_m.seq)
    .limit(st.param("limit_")),
    "id_", "state_", "route_", "after_", "limit_",
)  # fmt: skip
_MESSAGE = st.Statement(
    sa.select(*_MESSAGE_COLUMNS, _m.parent, _m.merged, _m.execution).where(_m.id == st.param("id_")),
    "id_",
)
_MESSAGE_BY_NAME = st.Statement(
    sa.select(*_MESSAGE_COLUMNS, _m.parent, _m.merged, _m.execution)
    .where(_m.name == st.param("name_"), sa.text("name <> ''"))
    .order_by(_m.seq.desc())
    .limit(1),
    "name_",
)
_IDS = st.Statement(sa.select(_m.id).where(_m.seq == st.param("seq_")), "seq_")
_EXECUTION_ID = st.Statement(sa.select(_e.id).where(_e.number == st.param("number_")), "number_")
_EXECUTION_IDS = st.Statement(
    sa.select(_e.id)
    .join_from(members, executions, members.c.execution == _e.number)
    .where(members.c.message == st.param("seq_"))
    .order_by(_e.number),
    "seq_",
)
_CHILDREN = st.Statement(
    sa.union_all(
        sa.select(_m.seq, _m.id).where(_m.parent == st.param("seq_"), _m.merged == 0),
        sa.select(_m.seq, _m.id)
        .join_from(edges, messages, _m.seq == edges.c.child)
        .where(edges.c.parent == st.param("seq_")),
    )
    .order_by(sa.text("1"))
    .limit(st.param("limit_")),
    "seq_", "limit_",
)  # fmt: skip
_CHILDREN_TOTAL = st.Statement(
    sa.select(
        sa.select(sa.func.count()).where(_m.parent == st.param("seq_"), _m.merged == 0).scalar_subquery()
        + sa.select(sa.func.count()).where(edges.c.parent == st.param("seq_")).scalar_subquery()
    ),
    "seq_",
)
_ROWS = st.Statement(sa.select(*_MESSAGE_COLUMNS).where(st.Among(_m.id, "ids")), "ids")
_UNPUBLISHED_OF = st.Statement(sa.select(_o.id).where(st.Among(_o.id, "ids")), "ids")
_NOTED = st.Statement(sa.select(meta.c.value).where(meta.c.name == st.param("name_")), "name_")
_NOTE = st.Statement(
    sa.update(meta).where(meta.c.name == st.param("name_")).values(value=st.param("value_")), "value_", "name_"
)
_NOTE_FIRST = st.insert_or_ignore(meta, "name", "value")
_UNPUBLISHED = st.Statement(sa.select(_o.seq).where(_o.id == st.param("id_")), "id_")
_TRACEBACK = st.Statement(sa.select(dead.c.traceback).where(dead.c.message == st.param("seq_")), "seq_")


def list_messages(
    session: Session, execution: str, state: MessageState | Literal["open"] | None, route: str, after: int, limit: int
) -> list[MessageRow]:
    """See `Ledger.messages`."""
    code = _ANY_STATE if state is None else _ANY_OPEN if state == "open" else STATE_NAMES.index(state)
    rows = session.rows(_MESSAGES, execution, code, route, after, limit)
    rows += session.rows(_MERGED, execution, code, route, after, limit)
    return [_row(row) for row in sorted(rows)[:limit]]


def _row(row: tuple[Any, ...]) -> MessageRow:
    seq, name, route, queue, state, failures, lost, replays, reason, error, adapter, at_broker, made_s, at_s, due_s = (
        row
    )
    due_s = due_s if state == RETRYING else 0.0
    return MessageRow(
        seq, name, route, queue, STATE_NAMES[state], failures, lost, replays, reason, error, adapter, at_broker,
        made_s, at_s, due_s,
    )  # fmt: skip


def rows(session: Session, ids: Sequence[str]) -> list[MessageRow]:
    """See `Ledger.rows`."""
    return [_row(row) for chunk in in_chunks(ids) for row in session.rows(_ROWS, chunk)]


def unpublished(session: Session, ids: Sequence[str]) -> list[str]:
    """See `Ledger.unpublished`."""
    return [name for chunk in in_chunks(ids) for (name,) in session.rows(_UNPUBLISHED_OF, chunk)]


def noted(session: Session, pipeline: str) -> dict[str, Any] | None:
    """See `Ledger.noted`."""
    found = session.rows(_NOTED, f"pipeline {pipeline}")
    return json.loads(found[0][0]) if found else None


def note(session: Session, pipeline: str, value: Mapping[str, Any]) -> None:
    """See `Ledger.note`."""
    text, name = json.dumps(value), f"pipeline {pipeline}"
    if not session.run_one(_NOTE, text, name):
        session.run(_NOTE_FIRST, [(name, text)])


def account(session: Session, message: str, limit: int) -> MessageAccount | None:
    """See `Ledger.message`."""
    found = session.rows(_MESSAGE, message) or session.rows(_MESSAGE_BY_NAME, message)
    if not found:
        return None
    *columns, parent, merged, number = found[0]
    row = _row(tuple(columns))
    seq = row.number
    if merged:
        of = [name for (name,) in session.rows(_EXECUTION_IDS, seq)]
        parents = [name for _, name in session.rows(st.PARENTS, [seq])]
    else:
        of = [name for (name,) in session.rows(_EXECUTION_ID, number)]
        parents = [name for (name,) in session.rows(_IDS, parent)] if parent is not None else []
    traceback = session.rows(_TRACEBACK, seq)
    return MessageAccount(
        message=row,
        executions=of,
        parents=parents,
        children=[name for _, name in session.rows(_CHILDREN, seq, limit)],
        children_total=session.rows(_CHILDREN_TOTAL, seq)[0][0],
        unpublished=bool(session.rows(_UNPUBLISHED, row.broker_id)),
        traceback=traceback[0][0] if traceback else "",
    )
