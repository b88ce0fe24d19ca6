"""Dead letters of a queue on a Kafka cluster, for those who look at them or move them.

Owns reading a topic without being a member of a group, and which of its records are done. What is done is kept as for
messages: by an offset that is committed, and a text beside it (`Marks`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from confluent_kafka import KafkaException, TopicPartition

from tupletree.errors import ConnectorError
from tupletree.queues.kafka.client import KafkaClient, group_of
from tupletree.queues.kafka.codes import END
from tupletree.queues.kafka.offsets import MOST_TEXT, Marks
from tupletree.queues.kafka.wire import dead_of
from tupletree.queues.messages import Stored


def counted(client: KafkaClient, topic: str) -> int:
    """How many records of a topic are not done: of all offsets that there are, less those that are settled."""
    spans = client.spans(topic).values()
    return sum(max(0, one.end - one.first - Marks(one.first, one.text).settled) for one in spans)


class LettersInTheWayError(ConnectorError):
    """It cannot be kept which letters were moved, so none of these are. Waiting does not help."""

    is_outage = False


class DeadLetters:
    """Of one queue, in the order of their partitions. Close it by `with`."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._ends: dict[int, int] = {}
        self._marks: dict[int, Marks] = {}

    def __enter__(self) -> Self:
        spans = self._client.spans(self._topic)
        self._ends = {number: one.end for number, one in spans.items()}
        self._marks = {number: Marks(one.first, one.text) for number, one in spans.items()}
        self._consumer = self._client.consumer(group_of(self._topic))
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> Iterator[tuple[tuple[int, int], Stored]]:
        """Each with its place: partition and offset."""
        for number, end in sorted(self._ends.items()):
            marks = self._marks[number]
            if marks.base >= end:
                continue
            self._consumer.assign([TopicPartition(self._topic, number, marks.base)])
            for record in self._records(end):
                if marks.reach(record.offset()):
                    yield (number, record.offset()), dead_of(record)

    def _records(self, end: int) -> Iterator[Any]:
        """Of the partition that is assigned, up to this offset."""
        end_s = time.monotonic() + self._client.server.timeout_s
        while True:
            records: list[Any] = self._client.call(lambda: self._consumer.consume(500, 0.1))
            for record in records:
                error = record.error()
                if error is not None and error.code() == END:
                    return
                if error is not None:
                    raise self._client.error(error)
                end_s = time.monotonic() + self._client.server.timeout_s
                yield record
                if (record.offset() or 0) >= end - 1:
                    return
            if time.monotonic() > end_s:
                raise ConnectorError(f"{self._client.server.where}: topic {self._topic!r} cannot be read now")

    def check(self, places: Sequence[tuple[int, int]]) -> None:
        """Before they are moved: it can be kept that these are done.

        Raises:
            LettersInTheWayError: the letters that stay and those that went are too many, in too odd an order.
        """
        done: dict[int, set[int]] = {}
        for number, offset in places:
            done.setdefault(number, set()).add(offset)
        for number, offsets in done.items():
            marks = self._marks[number]
            base, text = marks.text_without(offsets)
            if len(text) > MOST_TEXT:
                raise LettersInTheWayError(
                    f"{self._client.server.where}: too many letters would stay before and between those that are moved",
                    where=f"topic {self._topic!r}, partition {number}, offsets {base} to {max(offsets)}",
                    got=f"{len(text):,} bytes say which of them are done, beside the committed offset",
                    expected=f"at most {MOST_TEXT:,}",
                    next_step="move or delete the oldest letters first (`move` with a limit and no ids), then these",
                )

    def settle(self, places: Sequence[tuple[int, int]]) -> None:
        """These letters are done: they were moved."""
        for number, offset in places:
            self._marks[number].settle(offset)
        self._commit({number for number, _ in places})

    def settle_all(self) -> int:
        """All letters are done. Returns how many that are."""
        count = counted(self._client, self._topic)
        for number, end in self._ends.items():
            self._marks[number] = Marks(end)
        self._commit({*self._ends})
        return count

    def _commit(self, numbers: set[int]) -> None:
        offsets = []
        for number in numbers:
            marks = self._marks[number]
            offsets.append(TopicPartition(self._topic, number, marks.base, marks.text()))
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            raise self._client.error(error.args[0]) from error
        for one in answers or ():
            if one.error is not None:
                raise self._client.error(one.error)
