"""What the ledger is asked: executions, messages, counts, the outbox, and one message's account.

Only reads. Owns how rows become the classes of `values`.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from tupletree.queues import Message
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.stores import Session
from tupletree.routes.ledger.tables import executions
from tupletree.routes.ledger.tables import outbox as outbox_table
from tupletree.routes.ledger.values import Completed, OutboxRow

__all__ = ["TELL", "outbox", "untold"]

_e = executions.c
_o = outbox_table.c

TELL = st.Statement(
    sa.update(executions)
    .where(_e.id == st.param("id_"), _e.run == st.param("run_"), _e.told == 0, _e.ended_s.is_not(None))
    .values(told=1),
    "id_",
    "run_",
)
_UNTOLD = st.Statement(
    sa.select(_e.id, _e.pipeline, _e.state, _e.run, _e.total, _e.dead, _e.created_s, _e.ended_s)
    .where(_e.ended_s.is_not(None), sa.text("told = 0"))
    .order_by(_e.number)
    .limit(st.param("limit_")),
    "limit_",
)
_OUTBOX = st.Statement(
    sa.select(_o.id, _o.queue, _o.body, _o.headers, _o.due_s).order_by(_o.seq).limit(st.param("limit_")), "limit_"
)


def untold(session: Session, limit: int) -> list[Completed]:
    """See `Ledger.completed_untold`."""
    return [Completed(*row) for row in session.rows(_UNTOLD, limit)]


def outbox(session: Session, limit: int, now_s: float) -> list[OutboxRow]:
    """See `Ledger.outbox`."""
    return [
        OutboxRow(name, queue, _message(name, body, headers, max(due_s - now_s, 0.0)))
        for name, queue, body, headers, due_s in session.rows(_OUTBOX, limit)
    ]


def _message(name: str, body: Any, headers: str, delay_s: float) -> Message:
    return Message(id=name, body=bytes(body), headers=json.loads(headers) if headers else {}, delay_s=delay_s)
