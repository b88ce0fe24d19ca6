"""What becomes of messages whose attempts have ended: the rules, over rows that are loaded and locked.

Owns the answer to each settlement, also to one that comes twice, late, or for a cancelled execution. Refuses to run
statements (`changes`) and to talk to brokers: what they must be told comes out as `SettleEffects`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from tupletree.queues import Message
from tupletree.routes.document.spec import ErrorHandling
from tupletree.routes.ids import child_id
from tupletree.routes.ledger.changes import Changes, MessageEntry, NewChild, storable
from tupletree.routes.ledger.values import (
    CANCELLED,
    DEAD,
    DONE,
    FILTERED,
    PENDING,
    RETRYING,
    UNROUTED,
    LedgerRules,
    SettleEffects,
    ToDeadLetter,
    ToRetry,
)
from tupletree.routes.messages import Child, Settlement, Standing

MAX_LOST = 20
"""Attempts that never ended, as their process did, before a message is dead: it may be what ends the process."""

NO_READER = "no route of the pipeline reads this queue"
_ENDS = {"done": DONE, "filtered": FILTERED, "unrouted": UNROUTED}


_NO_RETRIES = ErrorHandling(max_retries=0, retry_delay_seconds=0.0)
"""Of a route that is not in the document any more."""


class BatchSettler:
    """Settles one batch.

    Args:
        changes: with the messages of all settlements loaded.
        rules: of the pipeline.
        known: which of the settlements' children are registered already.
        now_s: Unix time.

    Attributes:
        effects: what brokers are to be told; `publish` holds what was registered here.
        dead: (message, body, headers, traceback) of new dead letters.
    """

    def __init__(self, changes: Changes, rules: LedgerRules, known: Collection[str], now_s: float) -> None:
        self.effects = SettleEffects()
        self.dead: list[tuple[int, bytes, Mapping[str, str], str]] = []
        self._changes = changes
        self._rules = rules
        self._known = known
        self._now_s = now_s

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self._rules.pipeline

    def settle(self, settlement: Settlement) -> None:
        """Apply one settlement."""
        for child in settlement.children:
            if child.headers and (fault := fault_of(child.queue, child.headers)):
                settlement = msgspec.structs.replace(
                    settlement,
                    outcome="failed",
                    permanent=True,
                    children=(),
                    reason=fault,
                    error="RefusedMessagesError",
                )
                break
        standings = settlement.messages
        if settlement.outcome in _ENDS:
            if len(standings) == 1 or not settlement.children or self._all_live(standings):
                self._end(settlement)
            else:
                # What a batch made together, of which a part has ended otherwise, or that had one of them twice, as it
                # was delivered again: those that are open are batched again.
                self.effects.late += 1
                for standing in standings:
                    self._give_back(standing, "another member of its batch was settled before, or it was there twice")
        elif settlement.outcome == "failed":
            for standing in standings:
                self._fail(standing, settlement)
        else:
            for standing in standings:
                self._give_back(standing, settlement.reason)

    def _all_live(self, standings: Sequence[Standing]) -> bool:
        entries = [self._changes.messages[standing.id] for standing in standings]
        different = len({entry.seq for entry in entries}) == len(entries)
        return different and all(
            _is_awaited(entry, standing) and self._changes.live(entry)
            for entry, standing in zip(entries, standings, strict=True)
        )

    def _end(self, settlement: Settlement) -> None:
        state = _ENDS[settlement.outcome]
        changes, acks = self._changes, self.effects.acks
        parents = []
        for standing in settlement.messages:
            entry = changes.messages[standing.id]
            if not _is_awaited(entry, standing):
                self._conform(entry, standing)
                continue
            acks.append(standing)
            if changes.live(entry):
                changes.close(entry, state, settlement.reason, settlement.adapter)
                parents.append(entry)
            else:
                changes.close(entry, CANCELLED, "its execution was cancelled")
        if parents and settlement.children:
            self._register(settlement.children, parents)

    def _register(self, children: Sequence[Child], parents: Sequence[MessageEntry]) -> None:
        changes = self._changes
        if len(parents) == 1:
            executions = changes.live(parents[0])
        else:
            executions = list(dict.fromkeys(number for parent in parents for number in changes.live(parent)))
        readers, known, publish = self._rules.readers, self._known, self.effects.publish
        for child in children:
            if child.id in known:
                continue
            route = readers.get(child.queue, "")
            reason = "" if route else NO_READER
            if not changes.add_child(NewChild(child.id, child.queue, route, reason, parents, executions)):
                continue
            message = Message(id=child.id, body=child.body, headers=child.headers, delay_s=child.delay_s)
            publish.setdefault(child.queue, []).append(message)

    def _fail(self, standing: Standing, settlement: Settlement) -> None:
        entry = self._changes.messages[standing.id]
        if self._is_over(entry, standing):
            return
        if standing.attempt <= entry.failures:  # told before
            self.effects.late += 1
            self.effects.retries.append(ToRetry(standing, counts=False))
        else:
            self._count_failure(entry, standing, settlement)

    def _count_failure(self, entry: MessageEntry, standing: Standing, settlement: Settlement) -> None:
        failures = entry.failures + 1
        retries = self._retries_of(entry)
        adapter, error = settlement.adapter, settlement.error
        if settlement.permanent or failures > retries.max_retries:
            self._changes.fail(entry, DEAD, failures, settlement.reason, error, adapter, 0.0)
            self.dead.append((entry.seq, standing.body, standing.headers, storable(settlement.traceback)))
            self._bring_out(entry, standing, retries.dead_letter_queue)
        else:
            delay_s = max(retries.delay_s(failures), settlement.retry_after_s)
            due_s = self._now_s + delay_s
            self._changes.fail(entry, RETRYING, failures, settlement.reason, error, adapter, due_s)
            self.effects.retries.append(ToRetry(standing, delay_s, entry.reason))

    def _bring_out(self, entry: MessageEntry, standing: Standing, queue: str | None) -> None:
        """To the dead-letter queue, where it is a message of its own: if a route reads it, the execution goes on."""
        if not queue:
            self.effects.letters.append(ToDeadLetter(standing, entry.reason))
            return
        self.effects.acks.append(standing)
        # A replay counts failures from 0 again.
        name = child_id((entry.id,), entry.route, -1 - entry.replays, entry.failures, queue)
        headers = {
            **standing.headers,
            "tupletree-dead-message": entry.id,
            "tupletree-dead-route": entry.route,
            "tupletree-dead-attempts": str(entry.failures),
            "tupletree-dead-reason": entry.reason,
        }
        self._register([Child(id=name, queue=queue, body=standing.body, headers=headers)], [entry])

    def _give_back(self, standing: Standing, reason: str) -> None:
        """An attempt that does not count."""
        entry = self._changes.messages[standing.id]
        if self._is_over(entry, standing):
            return
        if entry.state != RETRYING:
            self._changes.mark(entry, PENDING)
        self.effects.retries.append(ToRetry(standing, 0.0, storable(reason), counts=False))

    def _is_over(self, entry: MessageEntry, standing: Standing) -> bool:
        """Whether a message needs no further attempt: it is settled, or was cancelled, which settles it here."""
        if not _is_awaited(entry, standing):
            self._conform(entry, standing)
            return True
        if self._changes.live(entry):
            return False
        self._changes.close(entry, CANCELLED, "its execution was cancelled")
        self.effects.acks.append(standing)
        return True

    def _conform(self, entry: MessageEntry, standing: Standing) -> None:
        """It was settled before: its broker is told the same again. What was replayed since was dead then."""
        self.effects.late += 1
        was_dead = entry.is_open or entry.state == DEAD
        if was_dead and not self._retries_of(entry).dead_letter_queue:
            self.effects.letters.append(ToDeadLetter(standing, entry.reason))
        else:
            self.effects.acks.append(standing)

    def _retries_of(self, entry: MessageEntry) -> ErrorHandling:
        return _retries_of(entry, self._rules)


def _is_awaited(entry: MessageEntry, standing: Standing) -> bool:
    """Whether what an attempt came to counts: its message is open, and was not dead and replayed since."""
    return entry.is_open and standing.replays >= entry.replays


def fault_of(queue: str, headers: Mapping[str, str]) -> str:
    """Why no broker could take a child with these headers. Its batch would never be published then."""
    for text in (*headers, *headers.values()):
        try:
            text.isascii() or text.encode()
        except (UnicodeEncodeError, AttributeError):
            return f"what it made for queue {queue!r} has a header that is no text: {text!r:.100}"
    return ""


def answer_to_closed(entry: MessageEntry, rules: LedgerRules) -> Literal["ack", "dead_letter"]:
    """What the broker of a settled message is told: `ack`, or `dead_letter` where it keeps it."""
    is_kept = entry.state == DEAD and not _retries_of(entry, rules).dead_letter_queue
    return "dead_letter" if is_kept else "ack"


def _retries_of(entry: MessageEntry, rules: LedgerRules) -> ErrorHandling:
    """How the route handles errors that works the message, which may have another name than when it was registered."""
    return rules.error_handling.get(rules.readers.get(entry.queue, entry.route), _NO_RETRIES)
