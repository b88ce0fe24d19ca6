"""The account of one message: where it is, or what happened to it and to all that came of it, through all routes.

Owns the words. What became of messages for certain is the ledger's; which adapter was called when, as far as it was
kept, is the lineage's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tupletree.routes.ledger import Ledger, MessageAccount, MessageRow
from tupletree.routes.ledger.values import DROPPED
from tupletree.routes.lineage import Call, Lineage
from tupletree.routes.lost import QueuePlaces, find_lost_among
from tupletree.texts import counted, moment_text

MAX_BELOW = 1_000
MAX_NAMED = 20
_OPEN = ("pending", "processing", "held", "retrying")
_TOLD_FIRST = ("dead", "retrying", "held", "processing", "pending", "cancelled", "filtered")
"""States in the order of `Account.not_done`. Messages that left the pipeline are where they should be."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to the message: when (Unix time), and what, in words."""

    time_s: float
    what: str


class Relative(msgspec.Struct, frozen=True):
    """A message that it came of, or that came of it: how it stands, in words."""

    id: str
    route: str
    state: str
    what: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be told of a message.

    Attributes:
        id: of the message.
        executions: that it belongs to.
        route: that works it; empty: none, or not known.
        state: in the ledger; empty: the ledger does not have it.
        sentence: where it is, or what happened to it.
        came_of: the messages that it came of.
        events: from its registration on.
        below: how many messages that came of it, directly or not, are in each state.
        more_below: there are more, which are not counted.
        not_done: those of them that are neither done nor left the pipeline, the first 20, dead ones before others.
        traceback: of its last failure, if it is dead.
        is_lost: it can never be delivered; see `with_losses`.
        is_dropped: it is dead, and was handled elsewhere.
    """

    id: str
    executions: Sequence[str] = ()
    route: str = ""
    state: str = ""
    sentence: str = ""
    came_of: Sequence[Relative] = ()
    events: Sequence[Event] = ()
    below: dict[str, int] = {}
    more_below: bool = False
    not_done: Sequence[Relative] = ()
    traceback: str = ""
    is_lost: bool = False
    is_dropped: bool = False

    @property
    def through(self) -> str:
        """How far all that came of it is, as a sentence; empty if nothing did."""
        if not self.below:
            return ""
        total = sum(self.below.values())
        counts = ", ".join(f"{count:,} {state}" for state, count in self.below.items())
        count = f"at least {total:,} messages" if self.more_below else counted(total, "message")
        return f"{count} came of it: {counts}"


def account_of(asked: str, ledger: Ledger, lineage: Lineage | None = None) -> Account | None:
    """The account of a message, or of the first message of an execution.

    Args:
        asked: id of a message, in the ledger or at its broker, or of an execution.
        ledger: of its pipeline.
        lineage: of its pipeline, if any is kept.

    Returns:
        None: neither knows it.
    """
    known = ledger.message(asked)
    if known is None:
        execution = ledger.execution(asked)
        known = ledger.message(execution.init) if execution is not None else None
    calls = lineage.calls(known.message.id if known else asked) if lineage is not None else []
    if known is None:
        return _of_calls(asked, calls) if calls else None
    row = known.message
    parents = [ledger.message(name, children=0) for name in known.parents[:MAX_NAMED]]
    below, more = _below(known, ledger)
    by_state = Counter(one.state for one in below)
    return Account(
        id=row.id,
        executions=known.executions,
        route=row.route,
        state=row.state,
        sentence=_sentence(known, calls),
        came_of=[_relative(parent.message) for parent in parents if parent is not None],
        events=_events(row, calls),
        below={state: by_state[state] for state in sorted(by_state, key=lambda state: (state != "done", state))},
        more_below=more,
        not_done=[_relative(one) for state in _TOLD_FIRST for one in below if one.state == state][:MAX_NAMED],
        traceback=known.traceback,
        is_dropped=row.state == "dead" and row.reason.startswith(DROPPED),
    )


def dropped_among(messages: Sequence[str], ledger: Ledger) -> dict[str, str]:
    """Those of these messages, by id, that are dead and were handled elsewhere, and the words of that."""
    rows = ledger.rows(messages)
    return {row.id: row.reason for row in rows if row.state == "dead" and row.reason.startswith(DROPPED)}


def with_losses(account: Account, ledger: Ledger, queues: QueuePlaces) -> Account:
    """The account, and whether the message can be delivered at all, as its queue says."""
    rows = [row for row in ledger.rows([account.id]) if row.state in _OPEN]
    lost = find_lost_among(ledger, queues, rows)
    if not lost:
        return account
    sentence = f"it is lost: {lost[0].reason}; {account.state} since {moment_text(rows[0].changed_s)}"
    return msgspec.structs.replace(account, sentence=sentence, is_lost=True)


def _below(known: MessageAccount, ledger: Ledger) -> tuple[list[MessageRow], bool]:
    """The messages that came of it, and of these, and so on; and whether there are more."""
    found: dict[str, MessageRow] = {}
    more = known.children_total > len(known.children)
    waiting = list(known.children)
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        if len(found) >= MAX_BELOW:
            return list(found.values()), True
        one = ledger.message(name)
        if one is not None:
            found[name] = one.message
            waiting += one.children
            more = more or one.children_total > len(one.children)
    return list(found.values()), more


def _sentence(known: MessageAccount, calls: Sequence[Call]) -> str:
    row = known.message
    words = _WORDS[row.state](row)
    if row.state == "done":
        count = known.children_total
        words += f"; {counted(count, 'message')} came of it" if count else "; nothing came of it"
    if row.state in {"processing", "held"} and calls and calls[-1].status == "pending":
        words += f"; it is in adapter {calls[-1].adapter} since {moment_text(calls[-1].started_s)}"
    if known.unpublished:
        words += "; its broker has not confirmed it yet, and it is published again at the next start"
    return words


def _attempts(row: MessageRow) -> str:
    return counted(row.failures, "attempt")


def _because(row: MessageRow) -> str:
    """Who is to blame, and for what."""
    error = f"{row.error}: {row.reason}" if row.error else row.reason
    adapter = f"adapter {row.adapter}: " if row.adapter else ""
    return f"{adapter}{error}" if error else adapter.rstrip(": ")


def _pending(row: MessageRow) -> str:
    where = f"it waits in {row.queue} for route {row.route}" if row.route else f"it waits in {row.queue}"
    return f"{where}, since {moment_text(row.created_s)}"


def _retrying(row: MessageRow) -> str:
    again = f"it is tried again at {moment_text(row.due_s)}" if row.due_s else "it is tried again"
    return f"{again} by route {row.route}; {_attempts(row)} failed, the last one: {_because(row)}"


def _dead(row: MessageRow) -> str:
    route = f" of route {row.route}" if row.route else ""
    if row.reason.startswith(DROPPED):
        return f"it died{route} after {_attempts(row)}, and was {row.reason}, at {moment_text(row.changed_s)}"
    return f"it is a dead letter{route} after {_attempts(row)}, since {moment_text(row.changed_s)}: {_because(row)}"


_WORDS: dict[str, Callable[[MessageRow], str]] = {
    "pending": _pending,
    "processing": lambda row: (
        f"route {row.route} works on it, attempt {row.failures + 1}, since {moment_text(row.changed_s)}"
    ),
    "held": lambda row: f"route {row.route} holds it for a batch, since {moment_text(row.changed_s)}",
    "retrying": _retrying,
    "done": lambda row: f"route {row.route} was done with it at {moment_text(row.changed_s)}",
    "filtered": lambda row: f"route {row.route} filtered it at {moment_text(row.changed_s)}: {_because(row)}",
    "unrouted": lambda row: f"it left the pipeline: no route reads {row.queue}, since {moment_text(row.created_s)}",
    "dead": _dead,
    "cancelled": lambda row: f"its execution was cancelled, at {moment_text(row.changed_s)}",
}


def _relative(row: MessageRow) -> Relative:
    return Relative(row.id, row.route, row.state, _WORDS[row.state](row))


def _events(row: MessageRow, calls: Iterable[Call]) -> list[Event]:
    where = f"registered for {row.queue}" + (f", which route {row.route} reads" if row.route else "")
    found = [Event(row.created_s, where), *map(_event_of, calls)]
    if row.state not in {"pending", "processing"}:
        what = row.state + (f": {_because(row)}" if row.state not in {"done", "unrouted"} and _because(row) else "")
        found.append(Event(row.changed_s, what))
    return sorted(found, key=lambda event: event.time_s)


def _event_of(call: Call) -> Event:
    batch = f" in batch {call.batch}" if call.batch else ""
    error = f": {call.error}" if call.error else ""
    what = f"attempt {call.attempt}: adapter {call.adapter} of route {call.route} {call.status}{batch}{error}"
    return Event(call.ended_s or call.started_s, what)


def _of_calls(asked: str, calls: Sequence[Call]) -> Account:
    last = calls[-1]
    return Account(
        id=asked,
        executions=[last.execution],
        route=last.route,
        sentence="the ledger does not have it any more, only calls of adapters are known",
        events=[_event_of(call) for call in calls],
    )
