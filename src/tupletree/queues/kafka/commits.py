"""What callers want committed, in the order in which it goes to the cluster.

Owns that order: a commit says all of its partitions, so an older one that came after a newer one would undo it. One is
under way at a time, also when its caller has given up, for librdkafka sends again what was not answered.

Only while partitions go to another member a newer one is sent beside one that is not answered: no answer is heard then,
and what is leased of them could not be settled. A connection has both in their order, so the older one comes later only
if it breaks in between and the older one is sent again before the group has its next generation, which refuses it. What
the newer one said is then delivered once more.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tupletree.queues.kafka.codes import CLOSED, REBALANCING

Asked: TypeAlias = Future[list[KafkaError]]
"""Its result is what the cluster refused. Who does not wait any longer cancels it: then it is not sent, or was."""


class Commits:
    """Of one consumer. All but `ask` is for the thread that polls: a consumer lets no other call in while it does."""

    def __init__(self) -> None:
        self._asked: deque[tuple[list[TopicPartition], Asked]] = deque()
        self._sent: Asked | None = None  # is not answered

    def ask(self, offsets: list[TopicPartition]) -> Asked:
        """Commit these soon. Of any thread."""
        asked: Asked = Future()
        self._asked.append((offsets, asked))
        return asked

    def send(self, consumer: Consumer, *, waits: bool = False) -> None:
        """Commit what was asked for.

        Args:
            consumer: whose offsets these are.
            waits: for the answers; else they come to `hear`, by a later poll. Where the cluster is away that takes a
                minute.
        """
        while self._asked and (waits or self._sent is None):
            offsets, asked = self._asked.popleft()
            if not asked.set_running_or_notify_cancel():
                continue  # its caller gave up
            try:
                if waits:
                    answers = consumer.commit(offsets=offsets, asynchronous=False)
                    asked.set_result([one.error for one in answers or () if one.error is not None])
                else:
                    consumer.commit(offsets=offsets, asynchronous=True)
                    self._sent = asked
            except KafkaException as error:
                asked.set_result([error.args[0]])

    def hear(self, error: KafkaError | None, answers: list[TopicPartition]) -> None:
        """The one that was sent is answered."""
        self._tell([error] if error is not None else [one.error for one in answers if one.error is not None])
        self._sent = None

    def interrupt(self) -> None:
        """No answer is heard for a while: the caller that waits for one asks again."""
        self._tell([KafkaError(REBALANCING)])

    def close(self) -> None:
        """Nothing is committed any more."""
        self._tell([KafkaError(CLOSED)])
        for _, asked in self._asked:
            if asked.set_running_or_notify_cancel():
                asked.set_result([KafkaError(CLOSED)])
        self._asked.clear()

    def _tell(self, errors: list[KafkaError]) -> None:
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(errors)
