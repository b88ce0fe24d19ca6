"""Queues on Kafka: librdkafka's mock cluster, in a process of its own, is the server.

With TESTS_KAFKA=kafka://… the conformance suite runs on a cluster of yours.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.queues.asked_of_each import priced_from_one_queue_into_another, the_command_checks_counts_and_shows
from tests.queues.servers import KafkaCluster, kafka_cluster
from tests.queues.test_sources_and_sinks import Runner, run_local, run_spark
from tests.until import until
from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues import Broker, Delivery, Failure, Letter, Message, NotCapableError, Queue, connect, open_queue
from tupletree.testing.queue_conformance import (
    SCENARIOS,
    BrokerUnderTest,
    NotConformingError,
    QueueScenario,
    check,
)

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tupletree.queues.kafka import member
from tupletree.queues.kafka.broker import KafkaBroker
from tupletree.queues.kafka.client import CLOCK, KafkaClient

pytestmark = pytest.mark.xdist_group("kafka")

CANNOT = {
    "a message moved while delayed stays delayed and exists once": "refused",
    "a queue says which messages it holds": "refused",
    "an id is known for a time after its ack": "not asked",
    "an id that the queue holds is not stored again": "not asked",
    "any connection may settle a handle": "not asked",
    "looking at messages leases none": "refused",
    "messages of a key come in order and one at a time": "refused",
    "moved messages are in one queue only": "refused",
    "purged messages are gone and may be published again": "refused",
    "statements of the caller run in the same transaction": "refused",
}

ONE = "partitions=1&session_s=2"
"""The order of publishing is that of one partition; a consumer that dies is missed soon."""

LATE_S = 0.7
"""So much later than at its time a thread may see on a busy machine that a lease is over."""

PRODUCE, OFFSET_COMMIT, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS = 0, 8, 22, 27
"""The protocol's numbers of these requests, and of answers to them."""


class KafkaQueue(BrokerUnderTest):
    """Time is the server's."""

    name = "kafka"
    lease_s = 3.0

    def __init__(self, server: KafkaCluster, lease_s: float = 3.0) -> None:
        self.lease_s = lease_s
        self.url = f"{os.environ.get('TESTS_KAFKA') or server.url}?{ONE}"

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        return connect(self.url)

    def advance(self, seconds: float) -> None:
        time.sleep(seconds + LATE_S)  # the server's clock is not ours to set


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_queue_on_kafka_does_all_that_it_says(scenario: QueueScenario, kafka: KafkaCluster) -> None:
    expected = CANNOT.get(str(scenario), "held")
    # Time is real: on a busy machine a lease may end between two steps that it should outlast. What is wrong by
    # itself is wrong with long leases, too. Two that join while a delay lasts take a second each.
    first_s = 8.0 if str(scenario).startswith("clocks") else 3.0
    for lease_s in (first_s, 12.0):
        with suppress(NotConformingError):
            assert check(scenario, KafkaQueue(kafka, lease_s)) == expected
            return
    assert check(scenario, KafkaQueue(kafka, 30.0)) == expected


def queue_of(kafka: KafkaCluster, name: str, options: str = ONE) -> Queue:
    return open_queue(f"{kafka.url}?queue={name}&{options}")


def test_acks_in_any_order_are_durable_and_so_is_how_often_the_others_came(kafka: KafkaCluster) -> None:
    with queue_of(kafka, "any-order") as first:
        first.publish([Message(id=f"m{number}") for number in range(8)])
        leased = first.lease(6)
        assert not first.ack([leased[at].handle for at in (4, 1, 2)])
        assert not first.fail([Failure(handle=leased[5].handle, counts=False)])
        assert first.depth().open == 5
    with queue_of(kafka, "any-order") as second:
        found = {one.message.id: one.deliveries for one in second.lease(10)}
        assert found == {"m0": 2, "m3": 2, "m5": 1, "m6": 1, "m7": 1}


def test_no_more_is_leased_when_too_much_is_open_behind_the_first_one(kafka: KafkaCluster) -> None:
    with queue_of(kafka, "gap", f"{ONE}&max_gap=5") as queue:
        queue.publish([Message(id=f"m{number}") for number in range(20)])
        leased = queue.lease(20)
        assert [one.message.id for one in leased] == [f"m{number}" for number in range(5)]
        queue.ack([one.handle for one in leased[1:]])
        assert not queue.lease(20, wait_s=0.3)
        queue.ack([leased[0].handle])
        assert [one.message.id for one in queue.lease(20, wait_s=10)] == [f"m{number}" for number in range(5, 10)]


FOUR = "partitions=4&session_s=10"
"""The mock cluster waits as long as a session, less a second, for members that do not come to a new generation."""


@contextmanager
def sharing(first: Queue, second: Queue) -> Iterator[tuple[list[Delivery], list[Delivery], member.Member]]:
    """What the first one has leased, its member that is to let partitions go, and, at the end, the other's leases."""
    first.publish([Message(id=f"m{number}", key=str(number)) for number in range(40)])
    leased: list[Delivery] = []
    while len(leased) < 40:
        leased += first.lease(40, lease_s=600, wait_s=10)
    others: list[Delivery] = []

    def lease_others() -> bool:
        """Ask again while the group cannot be joined, as a spout does: on a busy machine it may take long."""
        with suppress(ConnectorError):
            others.extend(second.lease(40, lease_s=60, wait_s=20))
        return bool(others)

    waiting = threading.Thread(target=lambda: until(lease_others, patience_s=150))
    waiting.start()
    mine = first.broker._joined[first.name].members[0]  # type: ignore[attr-defined] # of this broker alone
    until(lambda: any(part.is_leaving for part in mine._parts.values()) or len(mine._parts) < 4, patience_s=150)
    yield leased, others, mine
    waiting.join()
    assert others


def test_a_partition_that_goes_to_another_one_waits_for_its_leases(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "DRAIN_S", 60.0)
    expelled: list[member.Member] = []
    drop_all = member.Member._drop_all

    def drop(gone: member.Member, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        expelled.append(gone)
        drop_all(gone, consumer, partitions)

    monkeypatch.setattr(member.Member, "_drop_all", drop)
    for attempt in range(5):
        name = f"drained-{attempt}"
        with queue_of(kafka, name, FOUR) as first, queue_of(kafka, name, FOUR) as second:
            with sharing(first, second) as (leased, others, mine):
                refused = first.ack([one.handle for one in leased])
                first.publish([Message(id=f"n{number}", key=str(number)) for number in range(40)])
            # The mock cluster's time is real: on a busy machine a member may be so late that it is taken for gone.
            if mine not in expelled and not mine.is_over:
                assert not refused
                assert {one.message.id[0] for one in others} == {"n"}
                return
    pytest.fail("the members were taken for gone each time")


def test_a_partition_that_goes_to_another_one_takes_the_leases_along_that_were_not_settled_in_time(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "DRAIN_S", 0.1)
    with queue_of(kafka, "not-drained", FOUR) as first, queue_of(kafka, "not-drained", FOUR) as second:
        with sharing(first, second) as (leased, others, _):
            pass
        assert {one.deliveries for one in others} == {2}
        refused = {*first.ack([one.handle for one in leased])}
        assert {one.message.id for one in others} <= {one.message.id for one in leased if one.handle in refused}


def test_a_commit_that_comes_while_the_group_changes_is_made_again(kafka: KafkaCluster) -> None:
    with queue_of(kafka, "rebalancing") as queue:
        queue.publish([Message(id="a")])
        [leased] = queue.lease()
        kafka.tell("error", OFFSET_COMMIT, REBALANCE_IN_PROGRESS, 3)
        assert not queue.ack([leased.handle])
        assert queue.depth().open == 0


def test_a_commit_that_was_given_up_does_not_undo_a_newer_one(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "DRAIN_S", 5.0)  # for the leases that stay
    with queue_of(kafka, "given-up") as queue:
        queue.publish([Message(id=f"m{number}") for number in range(4)])
        leased = queue.lease(4, lease_s=60)
        broker: KafkaBroker = queue.broker  # type: ignore[assignment]
        patient, joined = broker._client.server, broker._joined["given-up"].members[0]
        kafka.tell("slow", OFFSET_COMMIT, 1500, 1)
        monkeypatch.setattr(broker._client, "server", msgspec.structs.replace(patient, timeout_s=0.2))
        with pytest.raises(ConnectorError, match="no commit is answered"):
            queue.ack([leased[1].handle])
        monkeypatch.setattr(broker._client, "server", patient)
        refused: list[str] = []
        acking = threading.Thread(target=lambda: refused.extend(queue.ack([leased[2].handle])))
        acking.start()
        until(lambda: joined._parts[0].leases[2].is_settling)
        # Its partition goes while both are on their way.
        monkeypatch.setattr(joined, "_tend", joined._consumer.unsubscribe)
        acking.join()
        assert not refused
    with queue_of(kafka, "given-up") as queue:
        assert {one.message.id: one.deliveries for one in queue.lease(4)} == {"m0": 2, "m1": 2, "m3": 2}


def test_the_handles_of_a_member_that_the_group_does_not_know_any_more_are_refused() -> None:
    with kafka_cluster() as kafka, queue_of(kafka, "expelled") as queue:
        queue.publish([Message(id="a")])
        [leased] = queue.lease()
        kafka.tell("error", OFFSET_COMMIT, ILLEGAL_GENERATION, 1)
        assert [*queue.ack([leased.handle])] == [leased.handle]
        [again] = queue.lease(wait_s=60)
        assert (again.message.id, again.deliveries) == ("a", 2)
        assert not queue.ack([again.handle])


def test_a_cluster_that_is_away_is_an_outage_and_nothing_is_lost() -> None:
    with kafka_cluster() as kafka, queue_of(kafka, "away", "partitions=1&session_s=60&timeout_s=2") as queue:
        queue.publish([Message(id=f"m{number}") for number in range(4)])
        first, second, *_ = queue.lease(4, lease_s=300)
        queue.ack([first.handle])
        kafka.tell("down")
        for call in (
            lambda: queue.publish([Message()]),
            lambda: queue.ack([second.handle]),
            lambda: queue.lease(1),
            queue.depth,
        ):
            with pytest.raises(ConnectorError) as away:
                call()
            assert away.value.is_outage
        kafka.tell("up")
        until(lambda: _succeeds(queue.depth))
        assert not queue.ack([second.handle])
        assert queue.depth().open in {2, 3}  # what was published in vain is stored or not
        assert {one.message.id for one in queue.lease(9)} <= {"m2", "m3"}


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except ConnectorError:
        return False
    return True


@pytest.mark.parametrize("refused", ["to make the topic", "to write to it"])
def test_a_user_that_may_not_use_the_topic_of_the_clock_has_this_hosts_time_and_is_told_so_once(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    make = KafkaClient.make

    def refuse() -> None:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))

    def make_others(client: KafkaClient, settings: Any, partitions: Any) -> None:
        if CLOCK in settings:
            client.call(refuse)
        make(client, settings, partitions)

    with queue_of(kafka, f"refused-{refused.split()[1]}") as orders:
        orders.publish([Message(id="m1"), Message(id="m2", delay_s=0.5)])
        if refused == "to make the topic":
            monkeypatch.setattr(KafkaClient, "make", make_others)
        else:
            kafka.tell("error", PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED, 1)
        taken = [orders.lease(wait_s=10)[0] for _ in range(2)]
        assert {one.message.id for one in taken} == {"m1", "m2"}
        assert list(orders.ack([one.handle for one in taken])) == []
    assert [one.message.split(":")[0] for one in caplog.records if "clock" in one.message] == [
        "delays are kept by this host's clock"
    ]


def test_messages_that_were_deleted_before_they_were_done_are_told_of(
    kafka: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with queue_of(kafka, "deleted") as queue:
        queue.publish([Message(id=f"m{number}") for number in range(10)])
        queue.ack([one.handle for one in queue.lease(2)])
        queue.broker.fail([Failure(handle=one.handle) for one in queue.lease(3)])
    kafka.tell("delete", "deleted", 0, 6)
    with queue_of(kafka, "deleted") as queue:
        assert [one.message.id for one in queue.lease(10)] == ["m6", "m7", "m8", "m9"]
        assert "4 messages of partition 0 were deleted before they were done" in caplog.text
        assert queue.depth().open == 4


def test_many_consumers_of_one_queue_share_its_messages(kafka: KafkaCluster) -> None:
    ids = [f"m{number}" for number in range(2000)]
    url = f"{kafka.url}?queue=many&partitions=6&session_s=2"
    with open_queue(url) as queue:
        assert queue.publish([Message(id=one, key=one) for one in ids]) == 2000
    acked: list[str] = []

    def consume() -> None:
        with open_queue(url) as mine:
            while len(acked) < 2000:
                leased = {one.handle: one.message.id for one in mine.lease(37, lease_s=60, wait_s=0.2)}
                refused = {*mine.ack([*leased])}  # on a busy machine a partition may be gone: these come again
                acked.extend(name for handle, name in leased.items() if handle not in refused)

    with ThreadPoolExecutor(3) as threads:
        for consumed in [threads.submit(consume) for _ in range(3)]:
            consumed.result(150)
    assert Counter(acked) == Counter(ids)


def test_what_other_programs_publish_are_messages(kafka: KafkaCluster) -> None:
    with queue_of(kafka, "foreign") as queue:
        theirs = Producer({"bootstrap.servers": kafka.address})
        odd: dict[str, str | bytes | None] = {"who": b"them", "tupletree-deliveries": b"many", "none": None}
        odd["tupletree-headers"] = b"\xff"
        theirs.produce("foreign", b"\xff", b"key", headers=odd)
        theirs.produce("foreign", None)
        theirs.flush()
        first, second = queue.lease(10)
        assert (first.message.id, first.message.body, first.message.key) == ("foreign-0-0", b"\xff", "key")
        assert first.message.headers == {"who": "them", "none": "", "tupletree-headers": "\N{REPLACEMENT CHARACTER}"}
        assert (second.message.id, second.message.body, second.deliveries) == ("foreign-0-1", b"", 1)
        queue.dead_letter([Letter(handle=first.handle, reason="not ours")])
        [letter] = queue.peek("dead")
        assert (letter.message.id, letter.message.body) == ("foreign-0-0", b"\xff")


def test_dead_letters_are_shown_moved_and_deleted(kafka: KafkaCluster) -> None:
    with queue_of(kafka, "dead") as queue:
        published = [Message(id=f"m{number}", body=b"x", headers={"n": str(number)}) for number in range(4)]
        queue.publish(published)
        queue.dead_letter([Letter(handle=one.handle, reason=f"«{one.message.id}»") for one in queue.lease(4)])
        shown = queue.peek("dead", 2, after=1)
        assert [(one.message, one.reason, one.deliveries) for one in shown] == [
            (published[1], "«m1»", 1),
            (published[2], "«m2»", 1),
        ]
        assert queue.broker.move("dead", "dead", state="dead", ids=["m2"]) == 1
        assert queue.broker.move("dead", "dead", state="dead", limit=1) == 1
        taken = [one.message for _ in range(2) for one in queue.lease(wait_s=10)]
        assert taken == [published[2], published[0]]
        assert [one.message.id for one in queue.peek("dead")] == ["m1", "m3"]
        assert queue.broker.purge("dead", states=["dead"]) == 2
        assert queue.depth().dead == 0
        with pytest.raises(NotCapableError):
            queue.broker.purge("dead")


def test_letters_are_not_moved_where_it_cannot_be_kept_that_they_were(kafka: KafkaCluster) -> None:
    draw = random.Random(7)
    chosen = [f"m{number}" for number in range(1, 24_000) if draw.random() < 0.5]
    with queue_of(kafka, "odd") as queue:
        theirs = Producer({"bootstrap.servers": kafka.address})
        for number in range(24_000):
            theirs.produce("odd.dead", b"", headers={"tupletree-id": f"m{number}"}, partition=0)
            theirs.poll(0)
        theirs.flush()
        for _ in range(2):  # again nothing is moved twice
            with pytest.raises(ConnectorError) as refused:
                queue.broker.move("odd", "odd", state="dead", ids=chosen)
            assert not refused.value.is_outage
            assert "move or delete the oldest letters first" in str(refused.value)
            moved = queue.depth().ready
            assert 5_000 < moved < len(chosen)
            assert moved % 500 == 0
            assert queue.depth().dead == 24_000 - moved
        assert queue.broker.move("odd", "odd", state="dead", limit=5_000) == 5_000
        queue.broker.move("odd", "odd", state="dead", ids=chosen)
        left = {one.message.id for one in queue.peek("dead", 24_000)}
        assert left.isdisjoint(chosen)
        assert queue.depth().ready == 24_000 - len(left)


def test_a_queue_may_have_any_name(kafka: KafkaCluster) -> None:
    for name in ("Größe ≥ 3", "a/b", "orders.dead", "x" * 400):
        with open_queue(f"{kafka.url}?{ONE}&queue={name}") as queue:
            queue.publish([Message(id=name[:100])])
            assert [one.message.id for one in queue.lease(2)] == [name[:100]]
            assert queue.depth().ready == 1


def test_the_command_checks_counts_and_shows(kafka: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    the_command_checks_counts_and_shows(f"{kafka.url}?queue=commanded&{ONE}", capsys)


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("127.0.0.1:9/orders", "?queue=orders"),
        ("127.0.0.1:9?partitions=0", "partitions"),
        ("127.0.0.1:9?max_gap=100000", "max_gap"),
        ("ann:s3cret@127.0.0.1:9?sasl=GSSAPI", "SCRAM-SHA-256"),
    ],
)
def test_a_wrong_url_is_explained(rest: str, expected: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        connect(f"kafka://{rest}")
    assert expected in str(wrong.value)
    assert "s3cret" not in str(wrong.value)


def test_a_cluster_that_is_not_there_is_an_outage_and_its_password_is_shown_nowhere() -> None:
    with pytest.raises(ConnectorError) as away:
        connect("kafka://ann:s3cret@127.0.0.1:1,127.0.0.1:2?timeout_s=1")
    assert away.value.is_outage
    assert "s3cret" not in f"{away.value!r} {away.value}"


@pytest.mark.parametrize("runner", [run_local, run_spark], ids=["local", "spark"])
def test_a_topology_reads_one_queue_and_writes_another(kafka: KafkaCluster, tmp_path: Path, runner: Runner) -> None:
    priced_from_one_queue_into_another(
        lambda name: f"{kafka.url}?queue={name}&partitions=3&session_s=2", tmp_path, runner
    )


class Impatient(Consumer):
    """Its offsets are never there in time."""

    def committed(self, partitions: list[TopicPartition], timeout: float = 0.0) -> list[TopicPartition]:
        assert timeout > 0
        return super().committed(partitions, timeout=0.0)


def test_partitions_whose_offsets_do_not_come_in_time_are_an_outage(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves a callback came out of `poll` as what is no exception, ended the thread, and was told nobody."""
    monkeypatch.setattr("tupletree.queues.kafka.client.Consumer", Impatient)
    with open_queue(f"{kafka.url}?queue=impatient&{ONE}") as queue, pytest.raises(ConnectorError, match="imed out"):
        until(lambda: queue.lease(1, wait_s=0.1))
    assert not [one for one in threading.enumerate() if one.name.startswith("tupletree-kafka-impatient")]
