"""The ledger: what became of every message of every execution, and when an execution is complete.

Owns the operations, each of which is one transaction. Two places, the same tables and statements:

- `Ledger.open(url)`: a database of its own, SQLite or PostgreSQL. Messages to publish stand in an outbox. The caller
  does what `SettleEffects` says: publish, then `published(effects.outbox)`, then acks, retries, dead letters. After a
  crash between any two of these the next process finishes: it drains `outbox()` at its start, and what `arrive` says to
  a delivery that was settled is to ack it.
- `Ledger.within(broker)`: tables in the embedded queue's own file. Queues of that file are published to, acked, failed
  and dead-lettered in the ledger's transaction, so there is nothing left to do for them: effects name only what belongs
  to other brokers, and the outbox only messages for those.

How a message goes:

1. `start` registers an execution with its first message.
2. A delivery comes to `arrive` before it is worked, which says what to do with it, and which attempt it is
   (`ArrivalAnswer`).
3. What its attempt came to comes to `settle`, in batches. A settlement may come twice, late, or from two processes: the
   first that ends a message counts, each later one is answered as the first was.

Every operation may be called by any thread, blocks, and raises ConnectorError where the database is away: nothing
happened, or all of it, and repeating it is harmless.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence

from tupletree.errors import ConfigError, InternalError
from tupletree.queues import Delivery, Failure, Letter, Message, RefusedMessagesError
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes.ids import init_id, stranger_execution
from tupletree.routes.ledger import requests
from tupletree.routes.ledger import statements as st
from tupletree.routes.ledger.arriving import arrivals_of, arrive, document_number, register
from tupletree.routes.ledger.changes import Changes, RaceError, headers_text, in_chunks, storable
from tupletree.routes.ledger.queries import TELL, Questions
from tupletree.routes.ledger.settling import BatchSettler
from tupletree.routes.ledger.stores import LedgerDatabase, LedgerStore, QueueFileStore, Session, T
from tupletree.routes.ledger.values import (
    Arrival,
    ArrivalAnswer,
    Completed,
    LedgerRules,
    Loss,
    NewMessage,
    Refusal,
    Replayed,
    SettleEffects,
    ToRetry,
)
from tupletree.routes.messages import Settlement

MOST_RACES = 1000
"""Transactions in a row that another process was quicker than: each time it has registered something."""


class Ledger(Questions):
    """See the module. Made by `open` or `within`.

    Args:
        store: of its tables.
        clock: Unix time.
    """

    def __init__(
        self, store: LedgerStore, *, queues: Collection[str] = (), clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(store, clock)
        self._own_queues = frozenset(queues)
        try:
            store.prepare()
        except BaseException:
            store.close()
            raise

    @classmethod
    def open(cls, url: str, *, clock: Callable[[], float] = time.time) -> Ledger:
        """A ledger in a database: `sqlite:///file.db`, `postgresql+psycopg://…`. Its tables are made.

        Raises:
            ConfigError: no such kind of database.
            ConnectorError: the database cannot be reached.
            RuntimeUnavailableError: its driver is not installed.
        """
        return cls(LedgerDatabase(url), clock=clock)

    @classmethod
    def within(
        cls,
        broker: SqliteBroker,
        *,
        queues: Collection[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Ledger:
        """A ledger in the embedded queue's file; the broker stays the caller's, who closes it after the ledger.

        Args:
            broker: on the file.
            queues: those of the pipeline that live in it, declared; None: all that are declared there now.
            clock: Unix time.
        """
        return cls(QueueFileStore(broker), queues=broker.queues() if queues is None else queues, clock=clock)

    # The way of a message.

    def start(self, rules: LedgerRules, init: NewMessage, *, on_complete: str = "", execution: str = "") -> str:
        """Begin an execution; its message is in its queue, or in the outbox, when this returns.

        Args:
            rules: of its pipeline; document and versions are kept.
            init: its first message; a route must read its queue.
            on_complete: queue that gets a message when it is complete; empty: none.
            execution: its id, 1 to 200 characters; the same again changes nothing. Empty: a random one.

        Returns:
            The id of the execution.
        """
        execution = execution or secrets.token_hex(12)
        message = Message(id=init_id(execution), body=init.body, headers=init.headers)

        def work(session: Session) -> None:
            if session.rows(st.EXECUTION_NUMBERS, [execution]):
                return
            now_s = self._clock()
            document = document_number(session, rules.document, rules.versions)
            route = rules.readers.get(init.queue, "")
            if not route:
                raise ConfigError(
                    "no route reads the queue of the first message",
                    where=f"pipeline {rules.pipeline}",
                    got=repr(init.queue),
                    expected=f"one of {', '.join(sorted(rules.readers))}",
                )
            register(
                session, rules, document, [(execution, message.id, init.queue, route, "")],
                on_complete=on_complete, now_s=now_s,
            )  # fmt: skip
            self._publish(session, {init.queue: [message]}, now_s, rules.pipeline)

        self._write(work)
        return execution

    def arrive(self, arrivals: Sequence[Arrival], rules: LedgerRules) -> list[ArrivalAnswer]:
        """Deliveries, before they are worked. What is to be worked is *processing* from now on.

        A message that the ledger does not know begins an execution of its own, with an id that is derived from the
        pipeline, the queue and the message's id. Call it for each delivery, once: where it comes again for a message
        that is processing, the attempt before is taken as lost with its process. That is no failed attempt; after 20 in
        a row without an end the message is dead.

        Returns:
            A verdict for each, in order.
        """
        if not arrivals:
            return []
        return self._write(lambda session: self._arrive(session, arrivals, rules))

    def _arrive(self, session: Session, arrivals: Sequence[Arrival], rules: LedgerRules) -> list[ArrivalAnswer]:
        now_s = self._clock()
        verdicts, changes, settling = arrive(session, arrivals, rules, now_s)
        settling.effects.acks, settling.effects.letters = [], []  # the verdicts say so
        self._finish(session, changes, settling, now_s)
        return verdicts

    def leases(self, queue: str) -> bool:
        """Whether a queue lives in the ledger's file, so that `lease` may be called for it."""
        return queue in self._own_queues

    def lease(
        self, queue: str, route: str, rules: LedgerRules, limit: int, *, lease_s: float
    ) -> tuple[list[Delivery], list[ArrivalAnswer]]:
        """`Broker.lease`, and `arrive` with what was leased, in one transaction. Only where `leases` says so.

        A crash leaves both or nothing: no message is leased that the ledger was not asked about.

        Args:
            queue: its name.
            route: that works its messages.
            rules: of the pipeline.
            limit: most messages.
            lease_s: seconds.

        Returns:
            The deliveries, and a verdict for each.
        """
        if not self._store.has_work(queue):
            return [], []

        def work(session: Session) -> tuple[list[Delivery], list[ArrivalAnswer]]:
            assert session.queue is not None, "the queue lives in the ledger's file"
            deliveries = session.queue.take(queue, limit, lease_s=lease_s)
            if not deliveries:
                return [], []
            return deliveries, self._arrive(session, arrivals_of(deliveries, queue, route), rules)

        return self._write(work)

    def settle(
        self, settlements: Sequence[Settlement], rules: LedgerRules, now_s: float | None = None
    ) -> SettleEffects:
        """What attempts came to, in one transaction: all of it is in the ledger when this returns.

        Args:
            settlements: of any routes of the pipeline.
            rules: of the pipeline: readers of queues and the routes' error handling.
            now_s: Unix time; None: by the ledger's clock.

        Returns:
            What is left to do.
        """
        now_s = self._clock() if now_s is None else now_s
        if not settlements:
            return SettleEffects()
        ids = list(dict.fromkeys([one.id for settlement in settlements for one in settlement.messages]))
        children = [child.id for settlement in settlements for child in settlement.children]

        def work(session: Session) -> SettleEffects:
            changes = Changes(session, now_s)
            changes.load(ids)
            if len(changes.messages) < len(ids):
                self._adopt(session, changes, settlements, rules, now_s)
                changes = Changes(session, now_s)
                changes.load(ids)
            known: set[str] = set()
            for chunk in in_chunks(children):
                known.update([name for name, _ in session.rows(st.MESSAGE_NUMBERS, chunk)])
            settling = BatchSettler(changes, rules, known, now_s)
            for settlement in settlements:
                settling.settle(settlement)
            self._finish(session, changes, settling, now_s)
            return settling.effects

        return self._write(work)

    def _adopt(
        self, session: Session, changes: Changes, settlements: Sequence[Settlement], rules: LedgerRules, now_s: float
    ) -> None:
        """Messages that never arrived here, as this ledger is new or was tidied up: executions of their own."""
        missing = {
            (stranger_execution(rules.pipeline, one.queue, one.id), one.id, one.queue, one.route, "")
            for settlement in settlements
            for one in settlement.messages
            if one.id not in changes.messages
        }
        document = document_number(session, rules.document, rules.versions)
        register(session, rules, document, list(missing), on_complete=rules.on_complete, now_s=now_s)

    def _finish(self, session: Session, changes: Changes, settling: BatchSettler, now_s: float) -> None:
        """Write what was decided; in the queue's file, tell the queues of this file, too."""
        effects = settling.effects
        completed, told = changes.write()
        session.run(
            st.INSERT_DEAD, [(seq, body, headers_text(headers), text) for seq, body, headers, text in settling.dead]
        )
        for queue, message in told:
            effects.publish.setdefault(queue, []).append(message)
        effects.completed = completed
        effects.settled = changes.settled
        refused: list[Refusal] = []
        effects.publish = self._publish(session, effects.publish, now_s, settling.pipeline, refused)
        if refused:
            effects.completed += self._write_changes(session, requests.refuse(session, refused, now_s), now_s)
        effects.outbox = [message.id for messages in effects.publish.values() for message in messages]
        if session.queue is not None:
            self._tell_own(session, effects)

    def _publish(
        self,
        session: Session,
        publish: dict[str, list[Message]],
        now_s: float,
        pipeline: str,
        refused: list[Refusal] | None = None,
    ) -> dict[str, list[Message]]:
        """Publish to queues of this file; what is for others goes to the outbox, and is given back.

        What the file's queue refuses goes to `refused`, if that is given; else it raises RefusedMessagesError.
        """
        left: dict[str, list[Message]] = {}
        for queue, messages in publish.items():
            if session.queue is not None and queue in self._own_queues:
                try:
                    session.queue.publish(queue, messages)
                except RefusedMessagesError as error:
                    if refused is None:
                        raise
                    faults = {one.position: one.reason for one in error.refused}
                    refused += [Refusal(messages[position], reason) for position, reason in faults.items()]
                    session.queue.publish(queue, [one for at, one in enumerate(messages) if at not in faults])
                continue
            left[queue] = messages
            rows = [
                (
                    one.id,
                    queue,
                    one.body,
                    headers_text(one.headers),
                    now_s + one.delay_s if one.delay_s else 0.0,
                    pipeline,
                )
                for one in messages
            ]
            for chunk in in_chunks(rows):
                session.run(st.INSERT_OUTBOX, chunk)
        return left

    def _tell_own(self, session: Session, effects: SettleEffects) -> None:
        queue, own = session.queue, self._own_queues
        assert queue is not None
        # A lease that is lost is no matter: its message is settled in the ledger, and its next delivery is answered so.
        acks = [one for one in effects.acks if one.queue in own]
        retries = [one for one in effects.retries if one.standing.queue in own]
        letters = [one for one in effects.letters if one.standing.queue in own]
        if acks:
            queue.ack([one.handle for one in acks])
            effects.acks = [one for one in effects.acks if one.queue not in own]
        if retries:
            queue.fail([_failure(one) for one in retries])
            effects.retries = [one for one in effects.retries if one.standing.queue not in own]
        if letters:
            queue.dead_letter([Letter(handle=one.standing.handle, reason=one.reason) for one in letters])
            effects.letters = [one for one in effects.letters if one.standing.queue not in own]

    # The outbox.

    def published(self, ids: Sequence[str]) -> None:
        """Their brokers have confirmed them."""
        if ids:
            self._write(lambda session: [session.run_one(st.PUBLISHED, chunk) for chunk in in_chunks(ids)])

    def refuse(self, refusals: Sequence[Refusal]) -> list[Completed]:
        """Their brokers will never take these: they leave the outbox, and are dead, with their bodies.

        Returns:
            The executions that are complete by it.
        """

        def work(session: Session) -> list[Completed]:
            now_s = self._clock()
            session.run_one(st.PUBLISHED, [one.message.id for one in refusals])
            return self._write_changes(session, requests.refuse(session, refusals, now_s), now_s)

        return self._write(work) if refusals else []

    # Completion.

    def told(self, execution: str, run: int) -> bool:
        """Claim the telling of a completion. True for one caller, once: it tells; the others do not."""
        return self._write(lambda session: session.run_one(TELL, execution, run)) > 0

    # Requests.

    def cancel(self, execution: str, reason: str = "") -> bool:
        """Nothing of it is worked any more, from now on; what is in work ends, and is not published.

        Its open messages are cancelled, but for those that a batch merged with messages of a live execution. They stay
        in their queues until they are delivered, and are acked then.

        Returns:
            Whether it is cancelled by this call, or was before. False: it had ended, or is not known.
        """
        reason = storable(reason)
        self._write(lambda session: session.run_one(requests.CANCEL, reason, execution))
        found = self.execution(execution)
        if found is None or found.state != "cancelled":
            return False
        for merged in (False, True):
            after = -1
            while after:
                after = self._change(
                    lambda session, now_s: requests.cancel_open(session, execution, merged, max(after, 0), now_s)  # noqa: B023 - called at once
                )
        return True

    def pause(self, execution: str) -> bool:
        """`arrive` says `give_back` to its messages. False: it was paused, has ended, or is not known."""
        return self._write(lambda session: session.run_one(requests.PAUSE, 1, execution)) > 0

    def resume(self, execution: str) -> bool:
        """The end of `pause`. False: it was not paused, has ended, or is not known."""
        return self._write(lambda session: session.run_one(requests.PAUSE, 0, execution)) > 0

    def interrupt(self, execution: str) -> bool:
        """Its run ends before it does; `go_on` is called by the next one."""
        return self._write(lambda session: session.run_one(requests.INTERRUPT, execution)) > 0

    def go_on(self, pipeline: str) -> int:
        """A run begins: executions of the pipeline that were interrupted are running. Says how many."""
        return self._write(lambda session: session.run_one(requests.GO_ON, pipeline))

    def hold(self, ids: Sequence[str]) -> None:
        """Messages that are processing are *held* by a batch: for people who look."""
        self._change(lambda session, now_s: (None, requests.hold(session, ids, now_s)))

    def end_lost(self, losses: Sequence[Loss]) -> list[str]:
        """Open messages that can never be delivered again are dead, unless something happened to them since.

        What is known of their bodies is kept with them: only these can be replayed.

        Returns:
            The ids of those that are dead by it.
        """
        ended: list[str] = []
        for chunk in in_chunks(losses):
            ended += self._change(lambda session, now_s: requests.end_lost(session, chunk, now_s))  # noqa: B023 - at once
        return ended

    def replay(self, ids: Sequence[str]) -> list[Replayed]:
        """Dead messages are pending again, in their executions, which run again; attempts are counted from 1.

        Each is published under an id of its own, as brokers remember those that they had; a header names its id in the
        ledger. Its dead letter stays at its broker, where it may be purged.

        Returns:
            Those that were replayed: others are not dead, not known, or their execution was cancelled.
        """

        def work(session: Session) -> list[Replayed]:
            now_s = self._clock()
            done, changes = requests.replay(session, ids, now_s)
            changes.write()
            for pipeline, publish in done.publish.items():
                self._publish(session, publish, now_s, pipeline)
            return done.replayed

        return self._write(work)

    def drop(self, ids: Sequence[str], reason: str = "") -> list[str]:
        """Dead messages were handled elsewhere: they stay dead, with that reason, and cannot be replayed any more.

        What is kept of their bodies is deleted; their dead letters stay at their brokers, where they may be purged.

        Returns:
            The ids of those that were dropped: others are not dead, not known, or were dropped before.
        """
        dropped: list[str] = []
        for chunk in in_chunks(ids):
            dropped += self._write(lambda session: requests.drop(session, chunk, reason, self._clock()))  # noqa: B023 - at once
        return dropped

    def replay_into(
        self,
        ids: Sequence[str],
        rules: LedgerRules,
        *,
        queue: str = "",
        execution: str = "",
        on_complete: str = "",
    ) -> tuple[str, list[Replayed]]:
        """Copies of dead messages begin a new execution, of this or another pipeline; the dead are their parents.

        Args:
            ids: of dead messages; others are left out.
            rules: of the pipeline that works the copies.
            queue: for the copies; empty: each in the queue that its original was in.
            execution: id of the new execution; the same again changes nothing. Empty: a random one.
            on_complete: as for `start`.

        Returns:
            The id of the execution, and the copies; without any, there is no execution.

        Raises:
            ConfigError: no route of the pipeline reads the queue of one of them; nothing was copied.
        """
        execution = execution or secrets.token_hex(12)

        def work(session: Session) -> list[Replayed]:
            if session.rows(st.EXECUTION_NUMBERS, [execution]):
                return []
            now_s = self._clock()
            done = requests.copy(
                session, ids, rules, execution=execution, queue=queue, on_complete=on_complete, now_s=now_s
            )
            self._publish(session, done.publish[rules.pipeline], now_s, rules.pipeline)
            return done.replayed

        return execution, self._write(work)

    def delete_ended(self, before_s: float, *, limit: int = 1_000_000) -> int:
        """Delete executions that ended before this Unix time, with their messages; says how many.

        What is still delivered of a deleted execution counts as published by others: keep them for longer than any
        message may stay in a queue.
        """
        deleted = 0
        while deleted < limit:
            most = min(limit - deleted, 100)
            numbers = self._store.read(lambda session: requests.expired(session, before_s, most))  # noqa: B023 - at once
            if not numbers:
                break
            for number in numbers:
                gone: bool | None = False
                while gone is False:
                    gone = self._write(lambda session: requests.delete(session, number, before_s))  # noqa: B023 - at once
                deleted += gone is True
        if deleted:
            self._write(requests.forget_documents)
        return deleted

    def _change(self, work: Callable[[Session, float], tuple[T, Changes]]) -> T:
        """A transaction whose changes are written at its end."""

        def write(session: Session) -> T:
            now_s = self._clock()
            result, changes = work(session, now_s)
            self._write_changes(session, changes, now_s)
            return result

        return self._write(write)

    def _write_changes(self, session: Session, changes: Changes, now_s: float) -> list[Completed]:
        """Write what a request came to, and publish that executions are complete by it."""
        completed, told = changes.write()
        pipelines = {one.execution: one.pipeline for one in completed}
        for queue, message in told:
            pipeline = pipelines[message.headers["tupletree-execution"]]
            self._publish(session, {queue: [message]}, now_s, pipeline)
        return completed

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def _write(self, work: Callable[[Session], T]) -> T:
        for _ in range(MOST_RACES):
            try:
                return self._store.write(work)
            except RaceError:
                continue
        raise InternalError("a transaction of the ledger met a message that is there already, again and again")


def _failure(retry: ToRetry) -> Failure:
    return Failure(handle=retry.standing.handle, delay_s=retry.delay_s, reason=retry.reason, counts=retry.counts)
