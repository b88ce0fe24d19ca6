"""In which order commits go to the cluster, and whose answer is whose."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tupletree.queues.kafka.codes import AGAIN, CLOSED, LOST
from tupletree.queues.kafka.commits import Asked, Commits


class Sent:
    """What a consumer was told to commit; the test answers when it likes, as no cluster would on request."""

    def __init__(self) -> None:
        self.texts: list[str | None] = []
        self.fault: KafkaError | None = None

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        if self.fault is not None:
            raise KafkaException(self.fault)
        self.texts += [one.metadata for one in offsets]
        return None if asynchronous else offsets


def fresh() -> tuple[Commits, Any]:
    return Commits(), Sent()


def at(text: str) -> list[TopicPartition]:
    return [TopicPartition("orders", 0, 7, text)]


def codes(asked: Asked) -> set[int]:
    return {error.code() for error in asked.result(0)}


def test_a_newer_commit_waits_until_an_older_one_that_was_given_up_is_answered() -> None:
    commits, sent = fresh()
    given_up = commits.ask(at("old"))
    commits.send(sent)
    assert not given_up.cancel()  # it is under way
    newer = commits.ask(at("new"))
    commits.send(sent)
    assert sent.texts == ["old"]
    commits.hear(KafkaError(KafkaError._TIMED_OUT), [])
    assert not newer.done()  # that was not its answer
    commits.send(sent)
    commits.hear(None, at("new"))
    assert (sent.texts, newer.result(0)) == (["old", "new"], [])


def test_one_that_is_given_up_before_it_is_sent_never_is() -> None:
    commits, sent = fresh()
    commits.ask(at("first"))
    commits.send(sent)
    assert commits.ask(at("given up")).cancel()
    last = commits.ask(at("last"))
    commits.hear(None, at("first"))
    commits.send(sent)
    commits.hear(None, at("last"))
    assert (sent.texts, last.result(0)) == (["first", "last"], [])


def test_when_partitions_go_the_one_under_way_is_asked_for_again_and_not_repeated_as_it_was() -> None:
    commits, sent = fresh()
    first = commits.ask(at("old"))
    commits.send(sent)
    commits.interrupt()
    assert codes(first) <= AGAIN
    again = commits.ask(at("new"))
    commits.send(sent, waits=True)
    assert (sent.texts, again.result(0)) == (["old", "new"], [])
    later = commits.ask(at("later"))
    commits.send(sent)
    assert not later.done()
    commits.hear(None, at("old"))  # the answer that was not waited for
    assert not later.done()
    commits.send(sent)
    commits.hear(None, at("later"))
    assert (sent.texts, later.result(0)) == (["old", "new", "later"], [])


def test_one_that_the_library_refuses_does_not_hold_up_the_next_one() -> None:
    commits, sent = fresh()
    sent.fault = KafkaError(KafkaError._STATE)
    refused = commits.ask(at("refused"))
    commits.send(sent)
    sent.fault = None
    following = commits.ask(at("next"))
    commits.send(sent)
    commits.hear(None, at("next"))
    assert codes(refused) <= LOST
    assert (sent.texts, following.result(0)) == (["next"], [])


def test_nobody_waits_for_a_consumer_that_is_closed() -> None:
    commits, sent = fresh()
    under_way = commits.ask(at("under way"))
    commits.send(sent)
    given_up, waiting = commits.ask(at("given up")), commits.ask(at("waiting"))
    given_up.cancel()
    commits.close()
    assert codes(under_way) == codes(waiting) == {CLOSED}
    assert sent.texts == ["under way"]
