"""Queues on Amazon SQS: moto's server, in a process of its own, is the service. No real one could be had.

With TESTS_SQS=sqs://… (a region, or an endpoint) the conformance suite runs in an account of yours, in real time; it
leaves its queues there, whose names begin with `conformance-`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.queues.asked_of_each import priced_from_one_queue_into_another, the_command_checks_counts_and_shows
from tests.queues.servers import SqsServer
from tests.queues.test_sources_and_sinks import Runner, run_local, run_spark
from tupletree.errors import ConfigError
from tupletree.queues import (
    Broker,
    Delivery,
    Failure,
    Letter,
    Message,
    NotCapableError,
    RefusedMessagesError,
    connect,
)
from tupletree.testing.queue_conformance import SCENARIOS, BrokerUnderTest, QueueScenario, check

pytest.importorskip("moto")

from tests.queues.sqs_queues import broker_of, queue_of, theirs

pytestmark = pytest.mark.xdist_group("sqs")


CANNOT = {
    "a message moved while delayed stays delayed and exists once": "refused",
    "a queue says which messages it holds": "refused",
    "an id is known for a time after its ack": "not asked",
    "an id that the queue holds is not stored again": "not asked",
    "any connection may settle a handle": "not asked",
    "looking at messages leases none": "refused",
    "moved messages are in one queue only": "refused",
    "purged messages are gone and may be published again": "refused",
    "statements of the caller run in the same transaction": "refused",
}

YOURS = os.environ.get("TESTS_SQS", "")


class SqsQueue(BrokerUnderTest):
    name = "sqs"

    def __init__(self, server: SqsServer | None, lease_s: float) -> None:
        self.server = server
        self.lease_s = lease_s

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        return broker_of(self.server) if self.server else connect(YOURS)

    def advance(self, seconds: float) -> None:
        if self.server:
            self.server.advance(seconds)
        else:
            time.sleep(seconds)  # the service's clock is not ours to set


TIMED = {"delay", "retry_delay", "absolute_time", "extend", "key_order"}
SHORT = [(scenario, 20.0 if YOURS else 30.0) for scenario in SCENARIOS]
LONG = [(scenario, 3_000.0) for scenario in SCENARIOS if TIMED & {*scenario.needs} or "longer" in scenario.name]


@pytest.mark.parametrize(("scenario", "lease_s"), SHORT if YOURS else SHORT + LONG, ids=str)
def test_the_queue_on_sqs_does_all_that_it_says(
    scenario: QueueScenario, request: pytest.FixtureRequest, lease_s: float
) -> None:
    """Delays of the long ones are beyond what the service keeps by itself, and the longest lease is within reach."""
    server = None if YOURS else request.getfixturevalue("sqs")
    assert check(scenario, SqsQueue(server, lease_s)) == CANNOT.get(str(scenario), "held")


def bodies_of(leased: list[Delivery]) -> list[bytes]:
    return [one.message.body for one in leased]


@pytest.mark.parametrize("ordered", [False, True], ids=["standard", "ordered"])
def test_a_delay_beyond_what_the_service_keeps_is_kept_and_counts_no_delivery(sqs: SqsServer, ordered: bool) -> None:
    """28 hours: the message comes and is hidden for 12 of them, twice, and never comes too early."""
    with queue_of(sqs, f"days-{ordered}", ordered=ordered) as queue:
        queue.publish([Message(id="later", delay_s=100_000.0), Message(id="now")])
        assert [one.message.id for one in queue.lease(10, lease_s=60)] == ["now"]
        for _ in range(9):
            sqs.advance(11_000)
            assert "later" not in {one.message.id for one in queue.lease(10, lease_s=60)}
        sqs.advance(1_100)
        [later] = [one for one in queue.lease(10, lease_s=60) if one.message.id == "later"]
        assert (later.message, later.deliveries) == (Message(id="later"), 1)
        queue.broker.fail([Failure(handle=later.handle, delay_s=30.5)])
        sqs.advance(30)
        assert "later" not in {one.message.id for one in queue.lease(10, lease_s=60)}
        sqs.advance(1.1)
        [again] = [one for one in queue.lease(10, lease_s=60) if one.message.id == "later"]
        assert again.deliveries == 2
        assert abs(again.published_s - later.published_s) < 1e-6


def test_a_lease_that_cannot_be_extended_any_more_is_refused_and_kept_to_its_end(sqs: SqsServer) -> None:
    with queue_of(sqs, "longest") as queue, queue_of(sqs, "longest") as other:
        queue.publish([Message(id="a")])
        [leased] = queue.lease(lease_s=100_000)
        assert leased.lease_s == 43_000
        sqs.advance(42_999.2)
        assert queue.broker.extend([leased.handle], 60) == [leased.handle]
        assert not other.lease()
        sqs.advance(1)
        assert [one.deliveries for one in other.lease()] == [2]


def test_many_bodies_of_any_size_go_in_as_many_requests_as_they_need(sqs: SqsServer) -> None:
    """Ten messages, and 256 KB, are the most of a request."""
    sizes = [1, 0, 749_000, 100_000, 100_000, 100_000, *([60_000] * 9), *([10] * 30)]
    sent = [Message(id=f"m{number}", body=b"\xff" * size) for number, size in enumerate(sizes)]
    with queue_of(sqs, "sizes") as queue:
        assert queue.publish(sent) == len(sent)
        found = queue.lease(100)
        assert {one.message.id: one.message for one in found} == {one.id: one for one in sent}
        assert not queue.ack([one.handle for one in found])
        assert queue.depth().open == 0


def test_a_message_that_a_queue_does_not_take_is_refused_by_name(sqs: SqsServer) -> None:
    theirs(sqs).create_queue(QueueName="small", Attributes={"MaximumMessageSize": "20000"})
    with queue_of(sqs, "small") as queue:
        batch = [Message(id="fits", body=b"x" * 19_000), Message(id="not", body=b"\xff" * 19_000)]
        with pytest.raises(RefusedMessagesError) as refused:
            queue.publish(batch)
        assert [(one.position, one.id) for one in refused.value.refused] == [(1, "not")]
        assert "20,000 fit" in str(refused.value)
        assert queue.depth().open == 0
        headers = {f"h{number}": "x" * 500_000 for number in range(2)}
        with pytest.raises(RefusedMessagesError):
            queue.publish([Message(headers=headers, body=b"x" * 100_000)])


def test_what_dies_keeps_its_body_and_a_reason_of_any_length_is_cut(sqs: SqsServer) -> None:
    with queue_of(sqs, "reasons") as queue:
        queue.publish([Message(id="large", body=b"\0" * 750_000, headers={"a": "b" * 20_000})])
        [large] = queue.lease()
        queue.dead_letter([Letter(handle=large.handle, reason="«\0»" + "é" * 50_000)])
        [stored] = queue.peek("dead")
        assert stored.message == large.message
        assert stored.reason.startswith("«\ufffd»éé")
        assert 3_000 < len(stored.reason) <= 8_000


def test_other_programs_read_and_write_messages_as_they_are_used_to(sqs: SqsServer) -> None:
    with queue_of(sqs, "mixed") as queue:
        client = theirs(sqs)
        url = client.get_queue_url(QueueName="mixed")["QueueUrl"]
        attributes = {
            "who": {"DataType": "String", "StringValue": "them"},
            "count": {"DataType": "Number", "StringValue": "3"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\xff"},
            "tupletree": {"DataType": "String", "StringValue": "no JSON of ours"},
        }
        said = client.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes=attributes)
        [leased] = queue.lease(10)
        assert (leased.message.id, leased.message.body) == (said["MessageId"], b"{}")
        mine = {"who": "them", "count": "3", "raw": "\N{REPLACEMENT CHARACTER}", "tupletree": "no JSON of ours"}
        assert leased.message.headers == mine
        queue.dead_letter([Letter(handle=leased.handle, reason="not ours")])
        [letter] = queue.peek("dead")
        assert (letter.message, letter.reason, letter.deliveries) == (leased.message, "not ours", 1)

        queue.publish([Message(body="né".encode(), headers={"kind": "order"}), Message(body=b"", headers={"": ""})])
        asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
        plain, empty = client.receive_message(**asked)["Messages"]
        assert (plain["Body"], plain["MessageAttributes"]["kind"]["StringValue"]) == ("né", "order")
        assert [*empty["MessageAttributes"]] == ["tupletree"]


def test_a_message_of_another_program_that_fills_all_there_is_can_die(sqs: SqsServer) -> None:
    with queue_of(sqs, "full") as queue:
        client = theirs(sqs)
        url = client.get_queue_url(QueueName="full")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="x" * 1_048_576)
        [leased] = queue.lease()
        assert not queue.dead_letter([Letter(handle=leased.handle, reason="too long")])
        [letter] = queue.peek("dead")
        assert letter.message.body == b"x" * 1_048_576
        assert "redrive policy, or another program" in letter.reason
        assert queue.depth().open == 0


def test_what_the_service_itself_gives_up_is_a_dead_letter(sqs: SqsServer) -> None:
    with queue_of(sqs, "redriven") as queue:
        client = theirs(sqs)
        url, dead = (client.get_queue_url(QueueName=name)["QueueUrl"] for name in ("redriven", "redriven-dead"))
        asked = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
        policy = {"deadLetterTargetArn": asked["QueueArn"], "maxReceiveCount": "2"}
        client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": msgspec.json.encode(policy).decode()})
        queue.publish([Message(id="poison", body=b"x")])
        for _ in range(3):
            queue.broker.fail([Failure(handle=one.handle) for one in queue.lease()])
        [letter] = queue.peek("dead")
        assert (letter.message.id, letter.message.body) == ("poison", b"x")
        assert "redrive policy" in letter.reason
        assert queue.broker.move("redriven", "redriven", state="dead") == 1
        assert [one.deliveries for one in queue.lease()] == [1]


def test_a_queue_of_another_program_gets_one_for_its_dead_letters(sqs: SqsServer) -> None:
    client = theirs(sqs)
    url = client.create_queue(QueueName="their-own", Attributes={"VisibilityTimeout": "7"})["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")
    with connect(sqs.url) as broker:
        assert "their-own" not in broker.queues()
        [leased] = broker.lease("their-own")
        broker.dead_letter([Letter(handle=leased.handle, reason="poison")])
        assert "their-own" in broker.queues()
        assert broker.depth("their-own").dead == 1


def test_dead_letters_are_shown_moved_and_deleted(sqs: SqsServer) -> None:
    with queue_of(sqs, "dead-letters") as queue:
        published = [Message(id=f"m{number:02}", body=b"x", headers={"n": str(number)}) for number in range(25)]
        queue.publish(published)
        leased = queue.lease(25)
        queue.dead_letter([Letter(handle=one.handle, reason=f"«{one.message.id}»") for one in leased])
        for _ in range(2):  # a look leaves them where they are
            shown = queue.peek("dead", 2, after=11)
            assert len(shown) == 2
            assert {one.reason for one in shown} == {f"«{one.message.id}»" for one in shown}
            assert {one.deliveries for one in shown} == {1}
        assert queue.broker.move("dead-letters", "dead-letters", state="dead", ids=["m02", "m24", "none"]) == 2
        taken = queue.lease(10)
        assert sorted((one.message for one in taken), key=lambda one: one.id) == [
            published[2],
            published[24],
        ]  # in any order
        assert {one.deliveries for one in taken} == {1}
        assert queue.broker.move("dead-letters", "dead-letters", state="dead", limit=3) == 3
        assert queue.depth().dead == 20
        assert queue.broker.purge("dead-letters", states=["dead"]) == 20
        assert queue.depth().dead == 0
        for refused in (lambda: queue.broker.purge("dead-letters"), queue.peek):
            with pytest.raises(NotCapableError):
                refused()


def test_an_ordered_queue_keeps_keys_in_order_for_all_connections(sqs: SqsServer) -> None:
    with queue_of(sqs, "ordered", ordered=True) as first, queue_of(sqs, "ordered") as second:
        assert "ordered.fifo" in first.broker.queues()
        sent = [Message(id=f"{key}{number}", key=key) for number in range(6) for key in ("a", "ü b", "c" * 200)]
        first.publish(sent)
        assert first.publish(sent[:4]) == 4  # the service knows them for five minutes, and does not say so
        done: list[str] = []
        while leased := [*first.lease(2), *second.lease(10)]:
            assert len({one.message.key for one in leased}) == len(leased) <= 3
            done += [one.message.id for one in leased]
            for queue in (first, second):
                queue.ack([one.handle for one in leased])
        assert Counter(done) == Counter(one.id for one in sent)
        for key in ("a", "ü b", "c" * 200):
            assert [one for one in done if one.startswith(key)] == [one.id for one in sent if one.key == key]


def test_a_dead_letter_of_an_ordered_queue_goes_back_though_its_id_is_known_for_five_minutes(sqs: SqsServer) -> None:
    with queue_of(sqs, "back.fifo") as queue:
        queue.publish([Message(id="a", key="k"), Message(id="b", key="k")])
        for expected in ("a", "b"):
            [leased] = queue.lease(10)
            assert leased.message.id == expected
            queue.dead_letter([Letter(handle=leased.handle, reason="poison")])
        assert [one.message.id for one in queue.peek("dead")] == ["a", "b"]
        assert queue.broker.move("back.fifo", "back.fifo", state="dead") == 2
        [leased] = queue.lease(10)
        assert (leased.message, leased.deliveries) == (Message(id="a", key="k"), 1)


def test_a_queue_that_is_not_ordered_cannot_become_so(sqs: SqsServer) -> None:
    with queue_of(sqs, "plain") as queue, pytest.raises(ConfigError, match="not ordered"):
        queue.broker.declare("plain", ordered=True)


def test_a_queue_may_have_any_name(sqs: SqsServer) -> None:
    for name in ("Größe ≥ 3", "a/b", "orders-dead", "x" * 400, "tupletree-1", "a.fifo", "ü.fifo"):
        with queue_of(sqs, name) as queue:
            queue.publish([Message(id=name[:100])])
            assert [one.message.id for one in queue.lease(2)] == [name[:100]]
            assert queue.depth().ready == 1
            assert queue.depth().dead == 0


def test_the_command_checks_counts_and_shows(sqs: SqsServer, capsys: pytest.CaptureFixture[str]) -> None:
    the_command_checks_counts_and_shows(f"{sqs.url}&queue=commanded", capsys)


def test_many_consumers_of_one_queue_share_its_messages(sqs: SqsServer) -> None:
    ids = [f"m{number}" for number in range(600)]
    with queue_of(sqs, "many") as queue:
        assert queue.publish([Message(id=one) for one in ids]) == 600
    seen: list[str] = []

    def consume() -> None:
        with queue_of(sqs, "many") as mine:
            while len(seen) < 600:
                leased = mine.lease(37, lease_s=600)
                seen.extend(one.message.id for one in leased)
                assert not mine.ack([one.handle for one in leased])

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(seen) == Counter(ids)


@pytest.mark.parametrize("runner", [run_local, run_spark], ids=["local", "spark"])
def test_a_topology_reads_one_queue_and_writes_another(sqs: SqsServer, tmp_path: Path, runner: Runner) -> None:
    priced_from_one_queue_into_another(lambda name: f"{sqs.url}&queue={name}", tmp_path, runner)
