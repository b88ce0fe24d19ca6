"""What the ledger is asked: executions, messages, counts, the outbox, and one message's account.

Owns how rows become the classes of `values`. Each question is answered from one state of the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa

from tupletree.queues import Message
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.changes import in_chunks
from tupletree.routes.ledger.stores import LedgerStore, Row, Session
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

_e, _m, _o, _c = executions.c, messages.c, outbox_table.c, counts.c

TELL = st.Statement(
    sa.update(executions)
    .where(_e.id == st.param("id_"), _e.run == st.param("run_"), _e.told == 0, _e.ended_s.is_not(None))
    .values(told=1)
)
_CANCELLED = st.Statement(sa.select(_e.id).where(st.Among(_e.id, "ids"), _e.state == "cancelled"))
_NOT_TOLD_ROWS = (
    sa.select(_e.id, _e.pipeline, _e.state, _e.run, _e.total, _e.dead, _e.created_s, _e.ended_s)
    .where(_e.ended_s.is_not(None), sa.text("told = 0"))
    .order_by(_e.number)
    .limit(st.param("limit_"))
)
_NOT_TOLD = st.Statement(_NOT_TOLD_ROWS)
_NOT_TOLD_OF = st.Statement(_NOT_TOLD_ROWS.where(_e.pipeline == st.param("pipeline_")))
_OUTBOX_ROWS = sa.select(_o.id, _o.queue, _o.body, _o.headers, _o.due_s).order_by(_o.seq).limit(st.param("limit_"))
_OUTBOX = st.Statement(_OUTBOX_ROWS)
_OUTBOX_ONLY = st.Statement(_OUTBOX_ROWS.where(st.Among(_o.queue, "queues"), _o.pipeline == st.param("pipeline_")))


def _message(name: str, body: Any, headers: str, delay_s: float) -> Message:
    return Message(id=name, body=bytes(body), headers=json.loads(headers) if headers else {}, delay_s=delay_s)


# Executions.

_EXECUTION = sa.select(
    _e.id, _e.pipeline, _e.state, _e.paused, _e.open, _e.total, _e.dead, _e.init, _e.run, _e.created_s, _e.ended_s,
    _e.told, _e.reason,
)  # fmt: skip
_FIND = st.Statement(_EXECUTION.where(_e.id == st.param("id_")))
_FIND_ALL = st.Statement(
    _EXECUTION.where(
        sa.or_(st.param("pipeline_", type_=sa.Text) == "", _e.pipeline == st.param("pipeline_", type_=sa.Text)),
        sa.or_(st.param("state_", type_=sa.Text) == "", _e.state == st.param("state_", type_=sa.Text)),
    )
    .order_by(_e.number.desc())
    .limit(st.param("limit_"))
)
_DOCUMENT = st.Statement(
    sa.select(documents.c.document, documents.c.versions)
    .join_from(executions, documents, _e.document == documents.c.number)
    .where(_e.id == st.param("id_"))
)
_COUNTED = (
    sa.select(_c.route, *[sa.func.sum(_c[name]) for name in COUNTED])
    .join_from(executions, counts, _e.number == _c.execution)
    .group_by(_c.route)
    .order_by(_c.route)
)
_COUNTS = st.Statement(_COUNTED.where(_e.id == st.param("id_")))
_COUNTS_OF_PIPELINE = st.Statement(_COUNTED.where(_e.pipeline == st.param("pipeline_")))


def _execution(row: tuple[Any, ...]) -> Execution:
    name, pipeline, state, paused, is_open, total, dead_letters, init, run, created_s, ended_s, told, reason = row
    return Execution(
        name, pipeline, state, bool(paused), is_open, total, dead_letters, init, run, created_s, ended_s or 0.0,
        bool(told), reason,
    )  # fmt: skip


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
    .limit(st.param("limit_"))
)
_MERGED = st.Statement(
    sa.select(*_MESSAGE_COLUMNS)
    .join_from(executions, members, members.c.execution == _e.number)
    .join(messages, _m.seq == members.c.message)
    .where(_e.id == st.param("id_"), *_OF_EXECUTION)
    .order_by(_m.seq)
    .limit(st.param("limit_"))
)
_ONE = sa.select(*_MESSAGE_COLUMNS, _m.parent, _m.merged, _m.execution)
_MESSAGE = st.Statement(_ONE.where(_m.id == st.param("id_")))
_MESSAGE_BY_NAME = st.Statement(
    _ONE.where(_m.name == st.param("name_"), sa.text("name <> ''")).order_by(_m.seq.desc()).limit(1)
)
_IDS = st.Statement(sa.select(_m.id).where(_m.seq == st.param("seq_")))
_EXECUTION_ID = st.Statement(sa.select(_e.id).where(_e.number == st.param("number_")))
_EXECUTION_IDS = st.Statement(
    sa.select(_e.id)
    .join_from(members, executions, members.c.execution == _e.number)
    .where(members.c.message == st.param("seq_"))
    .order_by(_e.number)
)
_CHILDREN = st.Statement(
    sa.union_all(
        sa.select(_m.seq, _m.id).where(_m.parent == st.param("seq_"), _m.merged == 0),
        sa.select(_m.seq, _m.id)
        .join_from(edges, messages, _m.seq == edges.c.child)
        .where(edges.c.parent == st.param("seq_")),
    )
    .order_by(sa.text("1"))
    .limit(st.param("limit_"))
)
_CHILDREN_TOTAL = st.Statement(
    sa.select(
        sa.select(sa.func.count()).where(_m.parent == st.param("seq_"), _m.merged == 0).scalar_subquery()
        + sa.select(sa.func.count()).where(edges.c.parent == st.param("seq_")).scalar_subquery()
    )
)
_ROWS = st.Statement(sa.select(*_MESSAGE_COLUMNS).where(st.Among(_m.id, "ids")))
_UNPUBLISHED_OF = st.Statement(sa.select(_o.id).where(st.Among(_o.id, "ids")))
_NOTED = st.Statement(sa.select(meta.c.value).where(meta.c.name == st.param("name_")))
_NOTE = st.Statement(sa.update(meta).where(meta.c.name == st.param("name_")).values(value=st.param("value_")))
_NOTE_FIRST = st.insert_or_ignore(meta, "name", "value")
_UNPUBLISHED = st.Statement(sa.select(_o.seq).where(_o.id == st.param("id_")))
_TRACEBACK = st.Statement(sa.select(dead.c.traceback).where(dead.c.message == st.param("seq_")))


def _row(row: tuple[Any, ...]) -> MessageRow:
    seq, name, route, queue, state, failures, lost, replays, reason, error, adapter, at_broker, made_s, at_s, due_s = (
        row
    )
    due_s = due_s if state == RETRYING else 0.0
    return MessageRow(
        seq, name, route, queue, STATE_NAMES[state], failures, lost, replays, reason, error, adapter, at_broker,
        made_s, at_s, due_s,
    )  # fmt: skip


class Questions:
    """What may be asked of a ledger; `Ledger` is one.

    Args:
        store: of its tables.
        clock: Unix time.
    """

    def __init__(self, store: LedgerStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def _rows(self, statement: st.Statement, *values: Any) -> list[Row]:
        return self._store.read(lambda session: session.rows(statement, *values))

    def outbox(self, limit: int = 1000, *, pipeline: str = "", only: Sequence[str] | None = None) -> list[OutboxRow]:
        """Messages that are registered and not known to be published, oldest first.

        Drain it at the start of a process and every few seconds: also `cancel` and `arrive` may put something there.
        Publishing a message twice is harmless: an idempotent broker ignores it, elsewhere `arrive` meets it.

        Args:
            limit: how many at most.
            pipeline: whose they are; `only` is needed with it.
            only: of these queues; None: of all, also those of other pipelines that share the ledger.
        """
        now_s = self._clock()
        rows = self._rows(_OUTBOX, limit) if only is None else self._rows(_OUTBOX_ONLY, [*only], pipeline, limit)
        return [
            OutboxRow(name, queue, _message(name, body, headers, max(due_s - now_s, 0.0)))
            for name, queue, body, headers, due_s in rows
        ]

    def completed_not_told(self, limit: int = 100, *, pipeline: str = "") -> list[Completed]:
        """Executions of a pipeline, or of all, that are complete and whose completion was not told yet (`told`)."""
        rows = self._rows(_NOT_TOLD_OF, pipeline, limit) if pipeline else self._rows(_NOT_TOLD, limit)
        return [Completed(*row) for row in rows]

    def execution(self, execution: str) -> Execution | None:
        """An execution by its id."""
        found = self._rows(_FIND, execution)
        return _execution(found[0]) if found else None

    def cancelled(self, executions: Sequence[str]) -> list[str]:
        """Those of these executions that were cancelled."""
        return [name for (name,) in self._rows(_CANCELLED, [*executions])] if executions else []

    def executions(
        self, pipeline: str = "", *, state: ExecutionState | Literal[""] = "", limit: int = 100
    ) -> list[Execution]:
        """Executions, the newest first, of one pipeline or all, in one state or any."""
        return [_execution(row) for row in self._rows(_FIND_ALL, pipeline, state, limit)]

    def document(self, execution: str) -> StoredDocument | None:
        """The document and versions of adapters that it was started with."""
        found = self._rows(_DOCUMENT, execution)
        return StoredDocument(found[0][0], json.loads(found[0][1])) if found else None

    def counts(self, execution: str = "", *, pipeline: str = "") -> list[RouteCounts]:
        """Messages by route and state, of an execution or of all executions of a pipeline.

        Fast at any number of messages. A route without a name stands for queues that no route reads.
        """
        rows = self._rows(_COUNTS, execution) if execution else self._rows(_COUNTS_OF_PIPELINE, pipeline)
        found = []
        for route, *numbers in rows:
            states = dict(zip(STATE_NAMES, map(int, numbers), strict=False))
            found.append(RouteCounts(route, states, int(numbers[-2]), int(numbers[-1])))
        return found

    def messages(
        self,
        execution: str,
        *,
        state: MessageState | Literal["open"] | None = None,
        route: str = "",
        after: int = 0,
        limit: int = 100,
    ) -> list[MessageRow]:
        """Messages of an execution in the order of their registration; `after` a number, up to `limit`."""
        code = _ANY_STATE if state is None else _ANY_OPEN if state == "open" else STATE_NAMES.index(state)

        def work(session: Session) -> list[Row]:
            values = execution, code, route, after, limit
            return [*session.rows(_MESSAGES, *values), *session.rows(_MERGED, *values)]

        return [_row(row) for row in sorted(self._store.read(work))[:limit]]

    def message(self, message: str, *, children: int = 100) -> MessageAccount | None:
        """All that is known of a message, by its id in the ledger or at its broker."""
        return self._store.read(lambda session: _account(session, message, children))

    def rows(self, ids: Sequence[str]) -> list[MessageRow]:
        """These messages, by their ids in the ledger, as far as it has them."""
        return [_row(row) for row in self._of_many(_ROWS, ids)]

    def unpublished(self, ids: Sequence[str]) -> list[str]:
        """Those of these messages, by their ids at their brokers, that stand in the outbox."""
        return [name for (name,) in self._of_many(_UNPUBLISHED_OF, ids)]

    def _of_many(self, statement: st.Statement, ids: Sequence[str]) -> list[Row]:
        return self._store.read(
            lambda session: [row for some in in_chunks(ids) for row in session.rows(statement, some)]
        )

    def noted(self, pipeline: str) -> dict[str, Any] | None:
        """What the last run of a pipeline noted; None: there was none."""
        found = self._rows(_NOTED, _note_of(pipeline))
        return json.loads(found[0][0]) if found else None

    def note(self, pipeline: str, value: Mapping[str, Any]) -> None:
        """A run of a pipeline begins: keep this of its document, as JSON, for people who look later."""
        text, name = json.dumps(value), _note_of(pipeline)

        def work(session: Session) -> None:
            if not session.run_one(_NOTE, text, name):
                session.run(_NOTE_FIRST, [(name, text)])

        if self.noted(pipeline) != value:
            self._store.write(work)


def _note_of(pipeline: str) -> str:
    return f"pipeline {pipeline}"


def _account(session: Session, message: str, limit: int) -> MessageAccount | None:
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
