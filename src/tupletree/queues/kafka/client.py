"""A connection to a Kafka cluster, for callers of any thread.

Owns the producer, topics and their ends, committed offsets of those who are no member of a group, and what the errors
of confluent-kafka mean. Refuses to know messages and leases: those are in `broker` and `member`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tupletree.errors import ConnectorError
from tupletree.queues.contract import RefusedConnectionError, UnknownQueueError
from tupletree.queues.kafka.codes import ALL_AWAY, AWAY, NO_TOPIC, REFUSED, SPOILT
from tupletree.queues.kafka.wire import Record
from tupletree.queues.urls import without_secrets

T = TypeVar("T")

logger = logging.getLogger("tupletree.queues")

CLOCK = "tupletree-clock"
"""The topic by which the cluster's time is known."""

A_DAY_S = 86_400.0

POLL_S = 0.05
"""How long the producer waits for a report at a time."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cluster is and who asks.

    Attributes:
        where: the URL for errors and logs.
        common: settings of librdkafka for every client: addresses, login, TLS.
        secrets: texts that are never shown.
        timeout_s: seconds until an answer is given up.
        max_body_bytes: of a message.
        session_s: seconds after which the messages of a consumer that is silent go to others.
        partitions, replicas: of topics that are made; replicas -1 is the cluster's own number.
    """

    where: str
    common: dict[str, Any]
    secrets: tuple[str, ...] = ()
    timeout_s: float = 10.0
    max_body_bytes: int = 1_000_000
    session_s: float = 10.0
    partitions: int = 4
    replicas: int = -1


class Span(msgspec.Struct, frozen=True):
    """What one partition holds for a group: offsets from `first` to before `end`; `text` stands beside the first."""

    first: int
    end: int
    text: str


def group_of(topic: str) -> str:
    """The group of consumers that share a topic."""
    return f"tupletree.{topic}"


class KafkaClient:
    """Of one connection.

    Raises:
        ConnectorError: the cluster cannot be reached, or refuses the login.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.is_closed = False
        self._last_error: KafkaError | None = None
        self._known: set[str] = set()
        self._epoch_s: float | None = None
        self._changing = threading.Lock()
        self._producer: Producer | None = None
        self._observer: Consumer | None = None  # is in no group
        self._admin = AdminClient(self.settings())
        self.topics()

    def settings(self, **more: Any) -> dict[str, Any]:
        """Of a client of librdkafka."""
        timeout_ms = round(self.server.timeout_s * 1000)
        return {
            "client.id": "tupletree",
            "socket.timeout.ms": max(1000, timeout_ms),
            "socket.connection.setup.timeout.ms": max(1000, timeout_ms),
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,  # what it would log comes as an error of ours
            "error_cb": self.hear,
            **self.server.common,
            **more,
        }

    def hear(self, error: KafkaError) -> None:
        """What librdkafka reports beside answers: why it cannot connect."""
        if self._last_error is None or error.code() != ALL_AWAY:
            self._last_error = error

    # --- topics -----------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, int]:
        """Topic → how many partitions it has."""
        found = self.call(lambda: self._admin.list_topics(timeout=self.server.timeout_s))
        self._last_error = None
        return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}

    def check(self) -> None:
        """Raises ConnectorError: the cluster was said to be away, and still is."""
        if self._last_error is not None:
            self.topics()

    def need(self, queue: str, topics: Iterable[str]) -> None:
        """Raises UnknownQueueError: one of these topics of a queue is not there."""
        if self._known.issuperset(topics):
            return
        there = self.topics()
        if missing := [one for one in topics if one not in there]:
            raise UnknownQueueError(
                f"{self.server.where}: queue {queue!r} is not declared: there is no topic {missing[0]!r}",
                next_step="declare it, or correct its name",
            )
        self._known.update(topics)

    def forget(self, topics: Iterable[str]) -> None:
        """Look again whether they are there: they may have been deleted."""
        self._known.difference_update(topics)

    def make(self, settings: Mapping[str, Mapping[str, str]], partitions: Mapping[str, int]) -> None:
        """Make topics, each with its settings. One that is there stays as it is."""
        there = self.topics()
        new = [
            NewTopic(name, partitions[name], self.server.replicas, config=dict(settings[name]))
            for name in settings
            if name not in there
        ]
        if not new:
            return
        for made in self._admin.create_topics(new, operation_timeout=self.server.timeout_s).values():
            try:
                self.call(made.result)
            except ConnectorError as error:
                if not _is(error, KafkaError.TOPIC_ALREADY_EXISTS):
                    raise
        self._await_topics([one.topic for one in new])

    def _await_topics(self, names: Sequence[str]) -> None:
        """Until all of the cluster know them: another broker may answer the next request."""
        end_s = time.monotonic() + self.server.timeout_s
        while not {*names} <= {*self.topics()}:
            if time.monotonic() > end_s:
                raise ConnectorError(f"{self.server.where}: topics were made, and are not there: {', '.join(names)}")
            time.sleep(POLL_S)

    def spans(self, topic: str) -> dict[int, Span]:
        """What each partition holds for the topic's group."""
        where = [TopicPartition(topic, number) for number in range(self.topics().get(topic, 0))]
        asked = [ConsumerGroupTopicPartitions(group_of(topic), where)]
        [answer] = self._admin.list_consumer_group_offsets(asked, request_timeout=self.server.timeout_s).values()
        committed = {one.partition: one for one in self.call(answer.result).topic_partitions}
        found = {}
        for one in where:
            first, end = self.ends(one)
            mine = committed.get(one.partition)
            if mine is not None and first <= mine.offset <= end:
                found[one.partition] = Span(mine.offset, end, mine.metadata or "")
            else:  # nothing was committed; or that was deleted, or the topic made again
                found[one.partition] = Span(first, end, "")
        return found

    def ends(self, where: TopicPartition) -> tuple[int, int]:
        """The first offset that a partition has, and the one after the last."""
        with self._changing:
            if self._observer is None and not self.is_closed:
                self._observer = self.consumer("tupletree")
            observer = self._observer
        if observer is None:
            raise ConnectorError(f"the connection to {self.server.where} was closed")
        found: tuple[int, int] = self.call(lambda: observer.get_watermark_offsets(where, timeout=self.server.timeout_s))
        return found

    # --- time -------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """The cluster's Unix time, whatever clock this host has: from a record that was stored there, and its time.

        Where this user may not store it, it is this host's time.
        """
        if self._epoch_s is None:
            before_s = time.monotonic()
            try:
                self.make({CLOCK: {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}}, {CLOCK: 1})
                before_s = time.monotonic()
                stamp = self.publish([Record(CLOCK, None, b"", [])]).stamp_s
            except ConnectorError as error:
                if not (isinstance(error, RefusedConnectionError) or _is(error, KafkaError.POLICY_VIOLATION)):
                    raise
                logger.warning("delays are kept by this host's clock: topic %s cannot be used: %s", CLOCK, error.what)
                stamp = 0.0
            after_s = time.monotonic()
            own_s = time.time()
            if abs(stamp - own_s) > A_DAY_S:  # it gives no time of storing
                stamp, before_s = own_s, after_s
            self._epoch_s = stamp - (before_s + after_s) / 2
        return self._epoch_s + time.monotonic()

    # --- consumers --------------------------------------------------------------------------------------------

    def consumer(self, group: str, **more: Any) -> Consumer:
        """One that commits only what it is told to."""
        return Consumer(
            self.settings(
                **{
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "allow.auto.create.topics": False,
                    **more,
                }
            )
        )

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(self, records: Sequence[Record]) -> _Reports:
        """Store records; all of them are in all replicas that are in sync when this returns.

        Raises:
            ConnectorError: some may be stored, and some not.
        """
        reports = _Reports(len(records))
        producer = self._publishing()
        for one in records:
            self._produce(producer, one, reports)
        end_s = time.monotonic() + self.server.timeout_s * (2 + len(records) // 10_000)
        while reports.left:  # each is reported, at the latest after `delivery.timeout.ms`
            if self.is_closed:
                raise ConnectorError(f"the connection to {self.server.where} was closed")
            if time.monotonic() > end_s:
                raise ConnectorError(f"{self.server.where}: {reports.left} messages are not stored in time")
            producer.poll(POLL_S)
        if reports.error is not None:
            if reports.error.fatal() or reports.error.code() in SPOILT:
                self._producer = None
            raise self.error(reports.error)
        return reports

    def _produce(self, producer: Producer, record: Record, reports: _Reports) -> None:
        while True:
            try:
                producer.produce(
                    record.topic, record.value, record.key, headers=[*record.headers], on_delivery=reports.hear
                )
            except BufferError:  # its queue is full
                producer.poll(POLL_S)
            except KafkaException as error:
                self._producer = None
                raise self.error(error.args[0]) from error
            else:
                return

    def _publishing(self) -> Producer:
        with self._changing:
            if self.is_closed:
                raise ConnectorError(f"the connection to {self.server.where} was closed")
            if self._producer is None:
                size = self.server.max_body_bytes + 100_000
                self._producer = Producer(
                    self.settings(
                        **{
                            "enable.idempotence": True,
                            "acks": "all",
                            "linger.ms": 2,
                            "delivery.timeout.ms": max(1000, round(self.server.timeout_s * 1000)),
                            "request.timeout.ms": max(1000, round(self.server.timeout_s * 1000)) - 100,
                            "message.max.bytes": min(size, 1_000_000_000),
                            "queue.buffering.max.kbytes": max(1_048_576, 2 * size // 1000),
                            "partitioner": "murmur2_random",  # a key is where programs in Java put it, too
                        }
                    )
                )
            return self._producer

    # --- errors -----------------------------------------------------------------------------------------------

    def call(self, ask: Callable[[], T]) -> T:
        """What it gives, with errors of ours."""
        if self.is_closed:
            raise ConnectorError(f"the connection to {self.server.where} was closed")
        try:
            return ask()
        except KafkaException as error:
            raise self.error(error.args[0]) from error
        except RuntimeError as error:  # of a consumer that was closed meanwhile
            if not self.is_closed:
                raise
            raise ConnectorError(f"the connection to {self.server.where} was closed") from error

    def error(self, error: KafkaError) -> ConnectorError:
        """What it means. Of a cluster that is away it tells why, if librdkafka did."""
        last, where = self._last_error, self.server.where
        shown = error.str()
        if error.code() in AWAY and last:
            shown, error = last.str(), last if last.code() in REFUSED else error
        text = without_secrets(shown, *self.server.secrets)
        if error.code() in REFUSED:
            return RefusedConnectionError(f"{where}: {text}")
        is_away = last is not None and last.code() in AWAY
        if error.code() in NO_TOPIC and not (error.code() < 0 and is_away):
            self._known.clear()
            return UnknownQueueError(f"{where}: {text}", next_step="declare the queue, or correct its name")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return _TooLargeError(
                f"{where}: {text}", next_step="raise `max.message.bytes` of its topic, or lower ?max_body_bytes="
            )
        return ConnectorError(f"{where}: {text}")

    def close(self) -> None:
        """Disconnect. Harmless if repeated."""
        with self._changing:
            self.is_closed = True
            producer, self._producer = self._producer, None
            observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()
        if producer is not None:
            producer.flush(0)


class _TooLargeError(ConnectorError):
    """The server takes smaller messages than its topic's settings say here. Waiting does not help."""

    is_outage = False


class _Reports:
    """What was told of records that are under way."""

    def __init__(self, expected: int) -> None:
        self._lock = threading.Lock()
        self.left = expected
        self.error: KafkaError | None = None
        self.stamp_s = 0.0  # when the cluster stored the last one, by its clock

    def hear(self, error: KafkaError | None, record: Any) -> None:
        with self._lock:
            self.left -= 1
            self.error = self.error or error
            kind, stamp_ms = record.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                self.stamp_s = stamp_ms / 1000


def _is(error: ConnectorError, code: int) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == code
