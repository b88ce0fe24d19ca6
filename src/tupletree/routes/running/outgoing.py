"""What goes to brokers after the ledger has it: messages of the outbox, and what brokers are told of deliveries.

Owns that a broker which is away holds up nothing else: what is for it waits, in the outbox or here, until a thread
reaches it. Nothing is lost if the process ends meanwhile: the outbox is in the ledger, and a message that is delivered
again is answered by the ledger.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from tupletree.errors import ConnectorError
from tupletree.queues import Broker, Message
from tupletree.routes.ledger.ledger import Ledger

__all__ = ["Outgoing"]

AGAIN_S = 1.0
"""How often a broker that is away is tried again."""

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


class Outgoing:
    """See the module. Any thread may call.

    Args:
        ledger: with the outbox.
        surroundings: the services.
        most: messages that a call which publishes may hold: the fan-out gate.
        queues: of the pipeline.
    """

    def __init__(self, ledger: Ledger, surroundings: _Surroundings, *, most: int, queues: Sequence[str]) -> None:
        self._ledger = ledger
        self._surroundings = surroundings
        self._most = most
        self._queues = queues
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

    def publish(self, publish: Mapping[str, Sequence[Message]]) -> None:
        """Publish what was registered; what is for a broker that is away stays in the outbox."""
        done: list[str] = []
        for queue, messages in publish.items():
            if self.is_away(queue):
                continue
            try:
                self._publish_to(queue, messages)
            except ConnectorError as error:
                self._note_away(self._surroundings.url_of(queue), error)
            else:
                done += [one.id for one in messages]
        self._ledger.published(done)

    def drain(self) -> int:
        """Publish what is in the outbox for queues of the pipeline, but for brokers that are away; how many messages.

        What else is there is for other pipelines, which share the ledger: their queues have other brokers.
        """
        drained = 0
        while True:
            rows = self._ledger.outbox(CHUNK, only=self._there())
            queues: dict[str, list[Message]] = {}
            for row in rows:
                queues.setdefault(row.queue, []).append(row.message)
            if not queues:
                return drained
            self.publish(queues)
            there = [queue for queue in queues if not self.is_away(queue)]
            self._surroundings.tell_published(there)
            drained += sum(len(queues[queue]) for queue in there)

    def drain_old(self) -> None:
        """Publish what stood in the outbox at the last call, too, and is still there. One thread calls.

        `settle` publishes at once; what is left is of requests (`cancel`, `replay`), and of processes that died.
        """
        rows = self._ledger.outbox(CHUNK, only=self._there())
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

    def _publish_to(self, queue: str, messages: Sequence[Message]) -> None:
        broker = self._surroundings.broker_at(self._surroundings.url_of(queue))
        for start in range(0, len(messages), self._most):
            broker.publish(queue, messages[start : start + self._most])

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
                self._thread = threading.Thread(target=self._serve, name="tupletree-routes-outgoing", daemon=True)
                self._thread.start()

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
            if waiting := self._ledger.outbox(
                1, only=[one for one in self._queues if self._surroundings.url_of(one) == url]
            ):
                self._publish_to(waiting[0].queue, [waiting[0].message])
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
