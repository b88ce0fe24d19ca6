"""Ledgers for tests: in a database, and in the embedded queue's file; a clock that stands still; short messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.queues.clocks import Host, ManualHostClock, without_disk
from tupletree.queues import Delivery, Failure, Letter
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes.document.spec import ErrorHandling
from tupletree.routes.ids import child_id
from tupletree.routes.ledger import Arrival, ArrivalAnswer, Ledger, LedgerRules, NewMessage, SettleEffects
from tupletree.routes.ledger.arriving import own_headers
from tupletree.routes.messages import Child, Outcome, Settlement, Standing

__all__ = ["RULES", "Bench", "bench", "child", "rules"]


def rules(**changes: Any) -> LedgerRules:
    """Routes A → B → C over the queues a, b, c; C's dead letters go to d, which route D reads."""
    handling = {
        "A": ErrorHandling(max_retries=2),
        "B": ErrorHandling(max_retries=1, retry_delay_seconds=10),
        "C": ErrorHandling(max_retries=0, dead_letter_queue="d"),
        "D": ErrorHandling(max_retries=0, dead_letter_queue="lost"),
    }
    readers = {"a": "A", "b": "B", "c": "C", "d": "D"}
    return LedgerRules("shop", readers, handling, document="pipeline: shop", versions={"f": "1"}, **changes)


RULES = rules()
QUEUES = ("a", "b", "c", "d", "out", "lost", "ended")


@dataclass
class Bench:
    """A ledger beside an embedded queue, and what a sink does with its effects."""

    ledger: Ledger
    broker: SqliteBroker
    rules: LedgerRules = RULES
    host: Host = field(default_factory=Host)

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.host.advance(seconds)

    def start(self, body: bytes = b"{}", **options: Any) -> str:
        """An execution with one message in queue a; publishes it."""
        execution = self.ledger.start(self.rules, NewMessage("a", body), **options)
        self.drain()
        return execution

    def drain(self) -> None:
        """As at the start of a process."""
        rows = self.ledger.outbox()
        for row in rows:
            self.broker.publish(row.queue, [row.message])
        self.ledger.published([row.id for row in rows])

    def lease(self, queue: str, limit: int = 1, **options: Any) -> list[Delivery]:
        """From the broker alone."""
        return self.broker.lease(queue, limit, **options)

    def arrive(self, deliveries: Sequence[Delivery], queue: str) -> list[ArrivalAnswer]:
        """Ask the ledger."""
        route = self.rules.readers[queue]
        return self.ledger.arrive(
            [Arrival(one.message.id, queue, route, one.message.body, one.message.headers) for one in deliveries],
            self.rules,
        )

    def take(self, queue: str, limit: int = 1) -> list[Standing]:
        """Lease and arrive; all of it is to be worked."""
        found = self.lease(queue, limit)
        verdicts = self.arrive(found, queue)
        assert [verdict.action for verdict in verdicts] == ["work"] * len(found)
        return [self.standing(one, verdict, queue) for one, verdict in zip(found, verdicts, strict=True)]

    def standing(self, one: Delivery, verdict: ArrivalAnswer, queue: str) -> Standing:
        """Of a delivery that is to be worked."""
        return Standing(
            id=verdict.id,
            route=self.rules.readers[queue],
            queue=queue,
            handle=one.handle,
            executions=verdict.executions,
            attempt=verdict.attempt,
            replays=verdict.replays,
            body=one.message.body,
            headers=own_headers(one.message.headers),
        )

    def settle(self, *settlements: Settlement) -> SettleEffects:
        """Settle, and do what is left to do."""
        effects = self.ledger.settle(settlements, self.rules)
        self.perform(effects)
        return effects

    def perform(self, effects: SettleEffects) -> None:
        """Publish, mark, then ack, fail and dead-letter."""
        for queue, messages in effects.publish.items():
            self.broker.publish(queue, messages)
        self.ledger.published(effects.outbox)
        self.broker.ack([one.handle for one in effects.acks])
        self.broker.fail(
            [
                Failure(handle=one.standing.handle, delay_s=one.delay_s, reason=one.reason, counts=one.counts)
                for one in effects.retries
            ]
        )
        self.broker.dead_letter([Letter(handle=one.standing.handle, reason=one.reason) for one in effects.letters])

    def end(self, standing: Standing, outcome: Outcome = "done", *to: str, **options: Any) -> SettleEffects:
        """Settle one message, with a child for each queue."""
        children = [child([standing], queue, index) for index, queue in enumerate(to)]
        return self.settle(Settlement(messages=[standing], outcome=outcome, children=children, **options))

    def close(self) -> None:
        """Close both."""
        self.ledger.close()
        self.broker.close()


def bench(kind: str, folder: Path, url: str = "", **options: Any) -> Bench:
    """`kind`: `database`, `queue file`, or `postgresql` with its URL."""
    host = Host()
    broker = SqliteBroker(folder / "queues.db", clock=ManualHostClock(host))
    without_disk(broker)
    for queue in QUEUES:
        broker.declare(queue)
    if kind == "queue file":
        ledger = Ledger.within(broker, clock=lambda: host.wall_s)
    else:
        ledger = Ledger.open(url or f"sqlite:///{folder}/ledger.db", clock=lambda: host.wall_s)
    return Bench(ledger, broker, host=host, **options)


def child(parents: Sequence[Standing], queue: str, index: int = 0, body: bytes = b"{}", **options: Any) -> Child:
    """A child as the chain makes it."""
    name = child_id([one.id for one in parents], parents[0].route, 0, index, queue)
    return Child(id=name, queue=queue, body=body, **options)
