"""What goes to brokers after the ledger has it: messages of the outbox, and acks, failures and dead letters.

Owns that a broker which is away holds up nothing else: what is for it waits, in the outbox or here, until a thread
reaches it; and that a message which its broker refuses is dead, and holds up nothing either. Nothing is lost if the
process ends meanwhile: the outbox is in the ledger, and a message that is delivered again is answered by the ledger.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tupletree.errors import ConnectorError, is_outage
from tupletree.queues import Broker, Message, RefusedMessagesError, UnknownQueueError
from tupletree.queues.access import shut_out_is_outage
from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.ledger.values import Completed, Refusal
from tupletree.runtimes.threads import start_thread

AGAIN_S = 1.0
"""How often a broker that is away is tried again."""

REFUSED_TRIES = 5
"""Attempts to publish a message that its broker neither takes nor names as refused, without being away."""

CHUNK = 500

logger = logging.getLogger("tupletree.routes")


class _Surroundings(Protocol):
    """What it needs of the services."""

    def url_of(self, queue: str) -> str:
        """The URL of the broker that has a queue."""

    def broker_at(self, url: str) -> Broker:
        """The broker at a URL."""

    def tell_published(self, queues: Iterable[str]) -> None:
        """Messages are in these queues."""

    def tell_completed(self, completed: Sequence[Completed]) -> None:
        """These executions are complete."""


class Outgoing:
    """See the module. Any thread may call.

    Args:
        ledger: with the outbox.
        surroundings: the services.
        most: messages that a call which publishes may hold: the fan-out gate.
        pipeline: its name.
        queues: of the pipeline.
    """

    def __init__(
        self, ledger: Ledger, surroundings: _Surroundings, *, most: int, pipeline: str, queues: Sequence[str]
    ) -> None:
        self._ledger = ledger
        self._surroundings = surroundings
        self._most = most
        self._pipeline = pipeline
        self._queues = queues
        self._tries: dict[str, int] = {}  # message → attempts to publish it that failed, though its broker is there
        self._lock = threading.Lock()
        self._seen: frozenset[str] = frozenset()
        self._away: dict[str, list[Callable[[], object]]] = {}  # URL of a broker → calls that wait for it
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def is_away(self, queue: str) -> bool:
        """Whether the broker of a queue could not be reached when it was last tried."""
        return self._surroundings.url_of(queue) in self._away

    def tell(self, url: str, call: Callable[[], object]) -> None:
        """Make a call to a broker; when it is away, later, and in the order of the calls."""
        with self._lock:
            waiting = self._away.get(url)
            if waiting is not None:
                waiting.append(call)
                return
        try:
            call()
        except ConnectorError as error:
            self._note_away(url, error, call)

    def publish(self, publish: Mapping[str, Sequence[Message]]) -> int:
        """Publish what was registered; what is for a broker that is away stays in the outbox. Returns how many."""
        done: list[str] = []
        for queue, messages in publish.items():
            if self.is_away(queue):
                continue
            try:
                done += self._publish_to(queue, messages)
            except ConnectorError as error:
                self._note_away(self._surroundings.url_of(queue), error)
        self._ledger.published(done)
        return len(done)

    def drain(self) -> int:
        """Publish what is in the outbox for queues of the pipeline, but for brokers that are away; how many messages.

        What else is there is for other pipelines, which share the ledger: their queues have other brokers.
        """
        drained = 0
        while True:
            rows = self._ledger.outbox(CHUNK, pipeline=self._pipeline, only=self._there())
            queues: dict[str, list[Message]] = {}
            for row in rows:
                queues.setdefault(row.queue, []).append(row.message)
            published = self.publish(queues) if queues else 0
            if not published:
                return drained
            self._surroundings.tell_published([queue for queue in queues if not self.is_away(queue)])
            drained += published

    def drain_old(self) -> None:
        """Publish what stood in the outbox at the last call, too, and is still there. One thread calls.

        `settle` publishes at once; what is left is of requests (`cancel`, `replay`), and of processes that died.
        """
        rows = self._ledger.outbox(CHUNK, pipeline=self._pipeline, only=self._there())
        seen, self._seen = self._seen, frozenset(row.id for row in rows)
        queues: dict[str, list[Message]] = {}
        for row in rows:
            if row.id in seen:
                queues.setdefault(row.queue, []).append(row.message)
        if queues:
            self.publish(queues)
            self._surroundings.tell_published(queues)

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _there(self) -> list[str]:
        return [queue for queue in self._queues if not self.is_away(queue)]

    def _publish_to(self, queue: str, messages: Sequence[Message]) -> list[str]:
        """Publish; returns the ids of those that need no further attempt: the others stay in the outbox.

        Raises:
            ConnectorError: the broker is away.
        """
        broker = self._surroundings.broker_at(self._surroundings.url_of(queue))
        done: list[str] = []
        for start in range(0, len(messages), self._most):
            done += self._publish_chunk(broker, queue, messages[start : start + self._most])
        return done

    def _publish_chunk(self, broker: Broker, queue: str, messages: Sequence[Message]) -> list[str]:
        try:
            _hand_over(broker, queue, messages)
        except RefusedMessagesError as error:
            faults = {one.position: one.reason for one in error.refused}
            self._refuse(queue, [Refusal(messages[position], reason) for position, reason in faults.items()])
            left = [one for position, one in enumerate(messages) if position not in faults]
            return self._publish_chunk(broker, queue, left) if left else []
        except Exception as error:
            if is_outage(error):
                raise
            if len(messages) == 1:
                self._note_try(queue, messages[0], error)
                return []
            # Which of them it is for is not known.
            return [name for one in messages for name in self._publish_chunk(broker, queue, [one])]
        if self._tries:
            self._forget_tries(messages)
        return [one.id for one in messages]

    def _note_try(self, queue: str, message: Message, error: Exception) -> None:
        """The broker is there and did not take this, for a reason of its own."""
        text = f"{type(error).__name__}: {error}"
        with self._lock:
            tries = self._tries[message.id] = self._tries.get(message.id, 0) + 1
        if tries < REFUSED_TRIES:
            logger.warning("message %s could not be published to queue %s: %s", message.id, queue, text)
        else:
            self._refuse(queue, [Refusal(message, f"{tries} attempts to publish it failed, the last one: {text}")])

    def _refuse(self, queue: str, refusals: Sequence[Refusal]) -> None:
        """The broker will never take these: they are dead."""
        first = refusals[0]
        others = f", and {len(refusals) - 1:,} more" if len(refusals) > 1 else ""
        logger.error("queue %s refuses message %s%s: dead. %s", queue, first.message.id, others, first.reason)
        self._forget_tries([one.message for one in refusals])
        self._surroundings.tell_completed(self._ledger.refuse(refusals))

    def _forget_tries(self, messages: Iterable[Message]) -> None:
        """These are published, or dead."""
        with self._lock:
            for one in messages:
                self._tries.pop(one.id, None)

    def _note_away(self, url: str, error: ConnectorError, *calls: Callable[[], object]) -> None:
        with self._lock:
            is_new = url not in self._away
            self._away.setdefault(url, []).extend(calls)
        if is_new:
            logger.warning("%s; what is for it waits, and other queues go on", error)
        self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._serve, name="tupletree-routes-outgoing", daemon=True)
                self._thread = start_thread(thread)

    def _serve(self) -> None:
        while not self._closing.wait(AGAIN_S):
            try:
                returned = [url for url in [*self._away] if self._is_back(url)]
                if returned:
                    self.drain()
            except ConnectorError as error:
                logger.warning("the outbox cannot be published now: %s", error)
            except Exception:
                logger.exception("the outbox could not be published; it is tried again")

    def _is_back(self, url: str) -> bool:
        """Make the calls that wait for a broker; whether it took them, and a message, if it has one to take."""
        try:
            its = [one for one in self._queues if self._surroundings.url_of(one) == url]
            if waiting := self._ledger.outbox(1, pipeline=self._pipeline, only=its):
                self._ledger.published(self._publish_to(waiting[0].queue, [waiting[0].message]))
            while self._away[url]:
                try:
                    self._away[url][0]()
                except ConnectorError:
                    raise
                except Exception:
                    # Tried again, it would keep the broker away for good. Its messages are delivered again.
                    logger.exception("a call that waited for a broker failed, and is dropped")
                with self._lock:
                    self._away[url].pop(0)
        except ConnectorError:
            return False
        with self._lock:
            if self._away[url]:
                return False  # one more came: the next turn
            del self._away[url]
        logger.warning("%s is back", self._surroundings.broker_at(url).where)
        return True


def _hand_over(broker: Broker, queue: str, messages: Sequence[Message]) -> None:
    """Publish them. No message is to blame for a queue that is gone since the pipeline declared it."""
    with shut_out_is_outage(f"queue {queue}"):
        try:
            broker.publish(queue, messages)
        except UnknownQueueError:
            logger.warning(
                "queue %s is not there any more (a broker that was set up anew?): it is declared again, and what was "
                "in it is gone",
                queue,
            )
            broker.declare(queue)
            broker.publish(queue, messages)
