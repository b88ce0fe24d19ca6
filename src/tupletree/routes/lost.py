"""Messages that are open in the ledger and can never be delivered: no queue has them, or no route reads their queue.

Owns how that is found out for certain while others publish, lease and settle: what the ledger has is read first, then
the outbox, then the queues, and then the ledger again. A message is published before it leaves the outbox, and settled
before its queue forgets it; so one that is in neither, and that nothing happened to meanwhile, is in no queue. Refuses
to settle anything by itself: people may put a message back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from tupletree.errors import ConnectorError
from tupletree.queues import Broker
from tupletree.queues.contract import UnknownQueueError
from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.ledger.values import Execution, Loss, MessageRow
from tupletree.texts import counted

MOST = 10_000
"""Open messages of an execution that are looked for at a time."""

CHUNK = 500
NAMED = 5
FIRST_LOOK_S = 5.0
"""How long an execution that is waited for may stand still before it is looked what became of its messages."""

AGAIN_S = 30.0
"""How often that is looked at while it stands still."""

Away = dict[Broker | None, str]
"""Broker that did not answer → what it said, or why not."""

logger = logging.getLogger("tupletree.routes")


class QueuePlaces(Protocol):
    """Where the queues of a pipeline are.

    Attributes:
        readers: queue → the route of the document that reads it; None: the document is not known.
    """

    @property
    def readers(self) -> Mapping[str, str] | None:
        """See the class."""

    def broker(self, queue: str) -> Broker | None:
        """The broker that has a queue; None: not known."""


class LostMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An open message that can never be delivered as things stand.

    Attributes:
        id: in the ledger.
        route: that was to work it.
        queue: that it was published to.
        state: in the ledger.
        reason: why it is lost.
    """

    id: str
    route: str
    queue: str
    state: str
    reason: str


class LostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is lost of an execution.

    Attributes:
        messages: that are lost.
        not_asked: queue → why it is not known which messages it has.
        more: there are more open messages than were looked for.
    """

    messages: Sequence[LostMessage] = ()
    not_asked: Mapping[str, str] = {}
    more: bool = False

    @property
    def text(self) -> str:
        """In words, for a log line; empty: nothing is lost."""
        if not self.messages:
            return ""
        count = len(self.messages)
        named = "; ".join(f"{one.id}: {one.reason}" for one in self.messages[:NAMED])
        rest = f"; and {count - NAMED:,} more" if count > NAMED else ""
        return f"{counted(count, 'message')} can never be delivered: {named}{rest}"


def find_lost(ledger: Ledger, places: QueuePlaces, execution: str, *, away: Away | None = None) -> LostReport:
    """Look for the open messages of an execution. Nothing changes.

    Args:
        ledger: that has them.
        places: where their queues are.
        execution: its id.
        away: brokers that are not asked, because they did not answer for another execution; added to.
    """
    rows = ledger.messages(execution, state="open", limit=MOST + 1)
    losses, not_asked = _losses(ledger, places, rows[:MOST], {} if away is None else away)
    return LostReport(messages=[*map(_told, losses)], not_asked=not_asked, more=len(rows) > MOST)


def find_lost_among(ledger: Ledger, places: QueuePlaces, rows: Sequence[MessageRow]) -> Sequence[LostMessage]:
    """Look for these messages, which are open."""
    return [*map(_told, _losses(ledger, places, rows, {})[0])]


def settle_lost(ledger: Ledger, places: QueuePlaces, execution: str) -> Sequence[LostMessage]:
    """The lost messages of an execution are dead, with their reasons. One that was found and then moved on is left.

    Returns:
        Those that are dead by it.
    """
    settled: list[LostMessage] = []
    after = 0
    while rows := ledger.messages(execution, state="open", after=after, limit=MOST):
        losses, _ = _losses(ledger, places, rows, {})
        ended = set(ledger.end_lost([*_with_bodies(places, losses)]))
        settled += [_told(loss) for loss in losses if loss.row.id in ended]
        after = rows[-1].number
    return settled


def _told(loss: Loss) -> LostMessage:
    row = loss.row
    return LostMessage(id=row.id, route=row.route, queue=row.queue, state=row.state, reason=loss.reason)


def _losses(
    ledger: Ledger, places: QueuePlaces, rows: Sequence[MessageRow], away: Away
) -> tuple[list[Loss], dict[str, str]]:
    """Which of these are lost, and the queues that could not be asked. The rows were read before this is called.

    A broker is asked once, until it does not answer: each try may take seconds.
    """
    unpublished = set(ledger.unpublished([row.broker_id for row in rows]))
    queues: dict[str, list[MessageRow]] = {}
    for row in rows:
        queues.setdefault(row.queue, []).append(row)
    found: list[Loss] = []
    not_asked: dict[str, str] = {}
    for queue, waiting in queues.items():
        if places.readers is not None and queue not in places.readers:
            found += [Loss(row, f"no route of the document reads its queue {queue}") for row in waiting]
            continue
        waiting = [row for row in waiting if row.broker_id not in unpublished]
        broker: Broker | None = None
        try:
            broker = places.broker(queue)
            if broker in away:
                not_asked[queue] = away[broker]
                continue
            held = _held(broker, queue, [row.broker_id for row in waiting]) if waiting else set()
        except ConnectorError as error:
            not_asked[queue] = error.what
            if broker is not None:
                away[broker] = error.what
        except _UnknownError as error:
            not_asked[queue] = str(error)
        else:
            reason = f"it is not in its queue {queue} any more"
            found += [Loss(row, reason) for row in waiting if row.broker_id not in held]
    now = {row.id: row for row in ledger.rows([loss.row.id for loss in found])}
    return [loss for loss in found if now.get(loss.row.id) == loss.row], not_asked


class _UnknownError(Exception):
    """It cannot be told which messages a queue has."""


def _held(broker: Broker | None, queue: str, ids: Sequence[str]) -> set[str]:
    """Which of these messages a queue has."""
    if broker is None:
        raise _UnknownError("it is not known where it is: name the document with --pipeline FILE")
    try:
        if broker.capabilities.find:
            return {name for at in range(0, len(ids), CHUNK) for name in broker.find(queue, ids[at : at + CHUNK])}
        depth = broker.depth(queue)
    except UnknownQueueError:
        return set()
    if broker.capabilities.counts_open and depth.open == 0:
        return set()
    raise _UnknownError(
        f"its broker cannot be asked for single messages; it holds {depth.open:,}, {len(ids):,} are open"
    )


def _with_bodies(places: QueuePlaces, losses: Sequence[Loss]) -> Iterator[Loss]:
    """With what their queues still hold of them: of messages whose route is gone, and which may be replayed."""
    bodies: dict[str, tuple[bytes, Mapping[str, str]]] = {}
    for queue in {loss.row.queue for loss in losses}:
        wanted = {loss.row.broker_id for loss in losses if loss.row.queue == queue}
        with suppress(ConnectorError):  # they are dead without
            bodies |= _bodies(places.broker(queue), queue, wanted)
    for loss in losses:
        body, headers = bodies.get(loss.row.broker_id, (None, {}))
        yield Loss(loss.row, loss.reason, body, headers)


def _bodies(broker: Broker | None, queue: str, wanted: set[str]) -> dict[str, tuple[bytes, Mapping[str, str]]]:
    found: dict[str, tuple[bytes, Mapping[str, str]]] = {}
    if broker is None:
        return found
    for state in broker.capabilities.peek:
        after = 0
        while len(found) < len(wanted) and (page := broker.peek(queue, state, CHUNK, after=after)):
            after += len(page)
            found |= {
                one.message.id: (one.message.body, one.message.headers) for one in page if one.message.id in wanted
            }
    return found


class LostWatch:
    """Looks for lost messages of an execution that is waited for, when it stands still.

    Args:
        look: finds them.
        monotonic_s: a clock.
    """

    def __init__(self, look: Callable[[], LostReport], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._monotonic_s = monotonic_s
        self._seen: tuple[int, int] | None = None
        self._next_s = 0.0
        self._said: frozenset[str] = frozenset()

    def see(self, execution: Execution) -> str:
        """How it stands now. Returns what there is to say, in words: each time that something else is lost."""
        now_s = self._monotonic_s()
        seen = execution.open, execution.total
        if seen != self._seen:
            self._seen, self._next_s = seen, now_s + FIRST_LOOK_S
        if now_s < self._next_s or execution.ended_s:
            return ""
        self._next_s = now_s + AGAIN_S
        report = self._look()
        lost = frozenset(one.id for one in report.messages)
        if lost <= self._said:
            return ""
        self._said = lost
        return f"execution {execution.id} does not end by itself: {report.text}. tupletree routes settle-lost ends them"
