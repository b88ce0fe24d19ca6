"""Deliveries before they are worked: which message of the ledger each is, and whether to work it.

Owns that a message which others published to a queue of the pipeline becomes an execution of its own. Refuses to know
brokers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from tupletree.queues import Delivery
from tupletree.routes.ids import stranger_execution, stranger_id
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.changes import Changes, MessageEntry, RaceError, in_chunks
from tupletree.routes.ledger.settling import MAX_LOST, BatchSettler, answer_to_closed
from tupletree.routes.ledger.stores import Session
from tupletree.routes.ledger.tables import documents, messages
from tupletree.routes.ledger.values import (
    CANCELLED,
    HELD,
    PENDING,
    PROCESSING,
    UNROUTED,
    Arrival,
    ArrivalAnswer,
    LedgerRules,
)
from tupletree.routes.messages import Settlement, Standing

REPLAY_HEADER = "tupletree-message"
"""Header of a message that was replayed: its id in the ledger. Brokers know its own id still, and would refuse it."""

_WHERE = st.Statement(
    sa.select(messages.c.id, messages.c.queue, messages.c.route, messages.c.state).where(st.Among(messages.c.id, "ids"))
)
_DOCUMENT = st.Statement(
    sa.select(documents.c.number)
    .where(documents.c.hash == st.param("hash_"))
    .with_for_update(read=True, key_share=True)  # others may not delete it before this execution names it
)
_INSERT_DOCUMENT = st.insert_or_ignore(documents, "hash", "document", "versions")


def own_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a message as they were before its replay: what is made of it is another message."""
    own = dict(headers)
    own.pop(REPLAY_HEADER, None)
    return own


def document_number(session: Session, document: str, versions: Mapping[str, str]) -> int:
    """Of the stored copy of a document and its adapters' versions.

    Raises:
        RaceError: another process deleted it just now.
    """
    text = json.dumps(dict(sorted(versions.items())))
    name = hashlib.sha256(f"{document}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
    found = session.rows(_DOCUMENT, name)
    if not found:
        session.run(_INSERT_DOCUMENT, [(name, document, text)])
        found = session.rows(_DOCUMENT, name)
    if not found:
        raise RaceError
    return int(found[0][0])


def register(
    session: Session,
    rules: LedgerRules,
    document: int,
    new: Sequence[tuple[str, str, str, str, str]],
    *,
    on_complete: str,
    now_s: float,
) -> None:
    """Insert executions with their first messages, which are not there.

    Args:
        session: the transaction.
        rules: of the pipeline.
        document: number of its stored copy.
        new: (execution, message, queue, route, id at the broker if that is another) of each.
        on_complete: queue that is told of their completion.
        now_s: Unix time.

    Raises:
        RaceError: another process inserted one of them.
    """
    new = sorted(new)
    rows: list[tuple[Any, ...]] = [
        (
            execution,
            rules.pipeline,
            document,
            "running",
            1,
            1,
            message,
            on_complete if queue != on_complete else "",
            now_s,
        )
        for execution, message, queue, _, _ in new
    ]
    if session.run(st.INSERT_EXECUTION, rows) != len(rows):
        raise RaceError
    numbers: dict[str, int] = {}
    for chunk in in_chunks([one[0] for one in new]):
        numbers.update((name, number) for name, number in session.rows(st.EXECUTION_NUMBERS, chunk))
    rows = [
        (message, numbers[execution], None, 0, route, queue, PENDING, name, "", now_s, now_s)
        for execution, message, queue, route, name in new
    ]
    if session.run(st.INSERT_MESSAGE, rows) != len(rows):
        raise RaceError
    counted = [(numbers[execution], route, 1, *[0] * 10) for execution, _, _, route, _ in new]
    session.run(st.COUNT, counted)


def arrive(
    session: Session, arrivals: Sequence[Arrival], rules: LedgerRules, now_s: float
) -> tuple[list[ArrivalAnswer], Changes, BatchSettler]:
    """Judge deliveries; see `Ledger.arrive`. Nothing is written yet but the rows of new executions."""
    names = [arrival.headers.get(REPLAY_HEADER) or arrival.id for arrival in arrivals]
    changes = Changes(session, now_s)
    if session.writes_alone:
        changes.load(list(dict.fromkeys(names)))
        is_known = all(map(_is_of, map(changes.messages.get, names), arrivals))
    else:
        is_known = False  # rows are locked in one order, so all of them at once
    if not is_known:
        names = _names(session, arrivals, rules, now_s)
        changes = Changes(session, now_s)
        changes.load(list(dict.fromkeys(names)))
    settling = BatchSettler(changes, rules, (), now_s)
    parents = _parents(session, list(changes.messages.values()))
    verdicts = [
        _judge(changes, settling, arrival, changes.messages[name], rules, parents)
        for name, arrival in zip(names, arrivals, strict=True)
    ]
    return verdicts, changes, settling


def arrivals_of(deliveries: Sequence[Delivery], queue: str, route: str) -> list[Arrival]:
    """Deliveries of a queue to its route."""
    return [
        Arrival(message.id, queue, route, message.body, message.headers)
        for message in [delivery.message for delivery in deliveries]
    ]


def _is_of(entry: MessageEntry | None, arrival: Arrival) -> bool:
    """As `_names` says it of one message: whether a delivery is of it, and not of one that others published."""
    return entry is not None and entry.queue == arrival.queue and not (entry.state == UNROUTED and not entry.route)


def _names(session: Session, arrivals: Sequence[Arrival], rules: LedgerRules, now_s: float) -> list[str]:
    """The message of the ledger that each delivery is; those that it does not know are registered."""
    names = [arrival.headers.get(REPLAY_HEADER) or arrival.id for arrival in arrivals]
    known: dict[str, str] = {}
    for chunk in in_chunks(names):
        known.update(
            # No route read its queue when it was registered, so it has ended. One that a route worked, and for which no
            # queue was found, is known: it is over.
            (name, "" if state == UNROUTED and not route else queue)
            for name, queue, route, state in session.rows(_WHERE, chunk)
        )
    strangers: dict[str, Arrival] = {}
    for position, arrival in enumerate(arrivals):
        if known.get(names[position], "") != arrival.queue:
            names[position] = stranger_id(arrival.queue, arrival.id)
            strangers[names[position]] = arrival
    if strangers:
        there: set[str] = set()
        for chunk in in_chunks(list(strangers)):
            there.update(name for name, _ in session.rows(st.MESSAGE_NUMBERS, chunk))
        new = [
            (stranger_execution(rules.pipeline, one.queue, one.id), name, one.queue, one.route, one.id)
            for name, one in strangers.items()
            if name not in there
        ]
        if new:
            document = document_number(session, rules.document, rules.versions)
            register(session, rules, document, new, on_complete=rules.on_complete, now_s=now_s)
    return names


def _parents(session: Session, entries: Sequence[MessageEntry]) -> dict[str, tuple[str, ...]]:
    """Message → ids of the messages that it came of."""
    found: dict[int, tuple[str, ...]] = {}
    for chunk in in_chunks([entry.seq for entry in entries if entry.merged]):
        for child, parent in session.rows(st.PARENTS, chunk):
            found[child] = (*found.get(child, ()), parent)
    single = {entry.seq: entry.parent for entry in entries if not entry.merged and entry.parent is not None}
    ids: dict[int, str] = {}
    for chunk in in_chunks(sorted(set(single.values()))):
        ids.update((seq, name) for seq, name in session.rows(st.IDS, chunk))
    found.update((seq, (ids[parent],)) for seq, parent in single.items() if parent in ids)
    return {entry.id: found.get(entry.seq, ()) for entry in entries}


def _judge(
    changes: Changes,
    settling: BatchSettler,
    arrival: Arrival,
    entry: MessageEntry,
    rules: LedgerRules,
    parents: Mapping[str, tuple[str, ...]],
) -> ArrivalAnswer:
    if not entry.is_open:
        return ArrivalAnswer(answer_to_closed(entry, rules), entry.id, reason=entry.reason or "it was settled before")
    live = changes.live(entry)
    if not live:
        changes.close(entry, CANCELLED, "its execution was cancelled")
        return ArrivalAnswer("ack", entry.id, reason="its execution was cancelled")
    executions = [changes.executions[number] for number in live]
    if all([execution.paused for execution in executions]):  # noqa: C419 - a list of one is quicker
        return ArrivalAnswer("give_back", entry.id, reason="its execution is paused")
    lost = entry.state in (PROCESSING, HELD)
    if lost and entry.lost + 1 >= MAX_LOST:
        settling.settle(_lost(entry, arrival))
        return ArrivalAnswer(answer_to_closed(entry, rules), entry.id, reason=entry.reason)
    changes.mark(entry, PROCESSING, lost=lost)
    return ArrivalAnswer(
        "work",
        entry.id,
        attempt=entry.failures + 1,
        executions=tuple([execution.id for execution in executions]),
        parents=parents[entry.id],
        replays=entry.replays,
    )


def _lost(entry: MessageEntry, arrival: Arrival) -> Settlement:
    standing = Standing(
        id=entry.id, route=entry.route, queue=entry.queue, handle="", executions=(), attempt=entry.failures + 1,
        body=arrival.body, headers=own_headers(arrival.headers), replays=entry.replays,
    )  # fmt: skip
    return Settlement(
        messages=[standing],
        outcome="failed",
        reason=f"its process ended {MAX_LOST} times while it was worked",
        error="ProcessEnded",
        permanent=True,
    )
