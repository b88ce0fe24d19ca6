"""What goes wrong at SQS, and with it: leases that end, parts of requests, logins, servers that are killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.queues.servers import NOBODYS_LOGIN, SqsServer, sqs_server
from tests.queues.test_sources_and_sinks import Order, price
from tests.until import until
from tupletree import Topology, run
from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues import (
    Failure,
    Letter,
    Message,
    UnknownQueueError,
    connect,
    open_queue,
)
from tupletree.sinks import queue_sink
from tupletree.sources import queue as queue_source

pytest.importorskip("moto")

from tests.queues.sqs_queues import queue_of, theirs
from tupletree.queues.sqs.broker import SqsBroker
from tupletree.queues.sqs.wire import received_of

pytestmark = pytest.mark.xdist_group("sqs")


def test_what_is_acked_after_its_lease_is_refused_and_comes_again(sqs: SqsServer) -> None:
    """As of a consumer that was suspended. The service would take the ack, and take the message from its new holder."""
    with queue_of(sqs, "late") as slow, queue_of(sqs, "late") as other:
        slow.publish([Message(id=f"m{number}") for number in range(25)])
        held = slow.lease(25, lease_s=60)
        sqs.advance(61)
        again = other.lease(25, lease_s=60)
        assert {one.message.id: one.deliveries for one in again} == {f"m{number}": 2 for number in range(25)}
        assert {*slow.ack([one.handle for one in held])} == {one.handle for one in held}
        assert not other.ack([one.handle for one in again])
        assert other.depth().open == 0


def test_a_consumer_that_dies_in_the_middle_of_its_acks_leaves_the_rest_to_others(sqs: SqsServer) -> None:
    with queue_of(sqs, "dying") as dying:
        dying.publish([Message(id=f"m{number}") for number in range(30)])
        held = dying.lease(30, lease_s=60)
        dying.ack([one.handle for one in held[:12]])
    sqs.advance(61)
    with queue_of(sqs, "dying") as other:
        assert {one.message.id for one in other.lease(30)} == {one.message.id for one in held[12:]}


def test_a_lease_of_several_requests_gives_what_it_has_when_the_service_goes_away_between_them(
    sqs: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue_of(sqs, "several") as queue:
        queue.publish([Message(id=f"m{number}") for number in range(30)])
        broker = queue.broker
        assert isinstance(broker, SqsBroker)
        receive = broker._receive

        def receive_and_fail(*given: Any) -> Any:
            answer = receive(*given)
            sqs.tell("fail", "ReceiveMessage", "InternalError", 500, 9)
            return answer

        monkeypatch.setattr(broker, "_receive", receive_and_fail)  # between two requests nothing else can happen
        assert len(queue.lease(30)) == 10
        with pytest.raises(ConnectorError, match="InternalError"):
            queue.lease(30)
        sqs.tell("fail", "ReceiveMessage", "InternalError", 500, 0)
        monkeypatch.undo()
        assert len(queue.lease(30)) == 20


def test_a_part_of_a_request_that_fails_is_a_refused_handle_or_an_outage(sqs: SqsServer) -> None:
    with queue_of(sqs, "parts") as queue:
        sqs.tell("lose", 1, "InternalError", 1)
        with pytest.raises(ConnectorError, match="InternalError") as failed:
            queue.publish([Message(id=f"m{number}") for number in range(4)])
        assert failed.value.is_outage
        leased = queue.lease(10)
        handles = [one.handle for one in leased]
        sqs.tell("lose", 2, "InternalError", 1)
        with pytest.raises(ConnectorError, match="InternalError"):
            queue.ack(handles[:3])
        assert not queue.ack(handles[:3]), "what was deleted is no other one's when the call is made again"
        sqs.tell("lose", 0, "ReceiptHandleIsInvalid", 1)
        assert queue.broker.extend(handles[3:]) == handles[3:]
        assert queue.ack(handles) == handles, "each is settled, or lost"
        sqs.advance(31)
        [left] = queue.lease(10)
        sqs.tell("lose", 0, "InvalidParameterValue", 1)
        assert queue.broker.fail([Failure(handle=left.handle)]) == [left.handle]


def test_what_an_ordered_queue_did_not_take_is_not_overtaken_by_what_comes_behind_it(sqs: SqsServer) -> None:
    with queue_of(sqs, "overtaken", ordered=True) as queue:
        sent = [Message(id=f"m{number}", key="k") for number in range(25)]
        sqs.tell("lose", 9, "InternalError", 1)
        with pytest.raises(ConnectorError, match="InternalError"):
            queue.publish(sent)
        assert queue.depth().ready == 10, "no second request was made"
        queue.publish(sent)
        assert queue.depth().ready == 25


def test_a_server_that_says_neither_when_nor_how_often_has_messages_all_the_same() -> None:
    raw = {"MessageId": "1", "ReceiptHandle": "r", "Body": "x"}
    pack = {"tupletree": {"DataType": "String", "StringValue": '{"id":"m","not_before_ms":5000}'}}
    received = received_of({**raw, "MessageAttributes": pack})
    assert (received.message.id, received.due_s, received.deliveries) == ("m", 5.0, 1)
    odd = received_of({**raw, "Attributes": {"ApproximateReceiveCount": "many"}})
    assert (odd.message, odd.deliveries) == (Message(id="1", body=b"x"), 1)
    broken = {"tupletree": {"DataType": "String", "StringValue": '{"id":"m","body":"base64"}'}}
    assert received_of({**raw, "MessageAttributes": broken}).message.body == b"x"


def test_a_dead_letter_whose_message_could_not_be_deleted_is_not_stored_twice(sqs: SqsServer) -> None:
    with queue_of(sqs, "died-once") as queue:
        queue.publish([Message(id="a")])
        [leased] = queue.lease()
        sqs.tell("fail", "DeleteMessageBatch", "ServiceUnavailable", 503, 1)
        letters = [Letter(handle=leased.handle, reason="poison")]
        with pytest.raises(ConnectorError):
            queue.dead_letter(letters)
        assert not queue.dead_letter(letters)
        assert (queue.depth().open, queue.depth().dead) == (0, 1)


@pytest.mark.parametrize(
    ("code", "status", "is_outage"),
    [
        ("RequestThrottled", 400, True),
        ("AWS.SimpleQueueService.OverLimit", 403, True),
        ("InternalFailure", 500, True),
        ("SomethingNew", 503, True),
        ("AccessDenied", 403, False),
        ("com.amazonaws.sqs#KmsAccessDenied", 400, False),
        ("InvalidClientTokenId", 403, False),
        ("SomethingNew", 400, False),
    ],
)
def test_what_waiting_helps_with_is_an_outage(sqs: SqsServer, code: str, status: int, is_outage: bool) -> None:
    with queue_of(sqs, "codes") as queue:
        sqs.tell("fail", "ReceiveMessage", code, status, 1)
        with pytest.raises(ConnectorError) as failed:
            queue.lease()
        assert failed.value.is_outage == is_outage
        assert not isinstance(failed.value, UnknownQueueError)
        assert "as the test wants it" in str(failed.value)
        assert queue.lease() == []


def test_a_login_that_is_over_is_an_outage_until_there_is_a_newer_one(
    sqs: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queue_of(sqs, "login") as queue:
        try:
            sqs.tell("login", "renewed")
            for _ in range(2):
                with pytest.raises(ConnectorError, match="ExpiredToken") as over:
                    queue.depth()
                assert over.value.is_outage
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
            assert queue.depth().open == 0
        finally:
            sqs.tell("login")


def test_a_queue_that_is_deleted_is_named_and_can_be_declared_again(sqs: SqsServer) -> None:
    with queue_of(sqs, "gone") as queue:
        client = theirs(sqs)
        for name in ("gone", "gone-dead"):
            client.delete_queue(QueueUrl=client.get_queue_url(QueueName=name)["QueueUrl"])
        with pytest.raises(UnknownQueueError, match="gone") as unknown:
            queue.publish([Message()])
        assert not unknown.value.is_outage
        queue.broker.declare("gone")
        assert queue.publish([Message()]) == 1


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("eu-west-1/orders", "?queue=orders"),
        ("127.0.0.1:4566", "?endpoint=http://"),
        ("eu-west-1?timeout_s=1", "timeout_s"),
        ("eu-west-1?endpoint=ftp://127.0.0.1", "http://"),
        ("eu-west-1?endpoint=http://ann:s3cret@127.0.0.1", "without a login"),
        ("ann:s3cret@eu-west-1", "AWS_ACCESS_KEY_ID"),
        ("s3cret@eu-west-1", "AWS_ACCESS_KEY_ID"),
        ("eu-west-1?aws_secret_access_key=s3cret", "unknown option"),
        ("eu-west-1?profile=nobody&queue=q", "nobody"),
        ("?queue=q", "name the region"),
    ],
)
def test_a_wrong_url_is_explained(sqs: SqsServer, rest: str, expected: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        open_queue(f"sqs://{rest}")
    assert expected in str(wrong.value)
    assert "s3cret" not in f"{wrong.value} {wrong.value!r}"


def test_a_login_that_is_missing_or_refused_is_no_outage_and_shown_nowhere(
    sqs: SqsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(sqs.url) as broker:
        sqs.tell("fail", "GetQueueUrl", "SignatureDoesNotMatch", 403, 1)
        with pytest.raises(ConnectorError) as refused:
            broker.depth("q")
    for name in NOBODYS_LOGIN:
        monkeypatch.delenv(name)
    with connect(sqs.url) as broker, pytest.raises(ConnectorError) as missing:
        broker.depth("q")
    for error in (refused.value, missing.value):
        assert not error.is_outage
        assert "s3cret" not in f"{error} {error!r}"


def test_a_service_that_is_away_is_an_outage_and_a_topology_goes_on_when_it_is_back(
    sqs_login: None, tmp_path: Path
) -> None:
    """The server forgets all when it is killed: what is published later shows that the spout goes on."""
    with sqs_server() as server:

        def place(name: str) -> str:
            return f"{server.url}&timeout_s=2&queue={name}"

        t = Topology("pricing")
        orders = t.spout("orders", queue_source(place("orders"), Order))
        t.sink("invoices", queue_sink(place("invoices"))).shuffle(t.bolt("price", price).shuffle(orders))
        with open_queue(place("orders")) as inbound, open_queue(place("invoices")) as invoices:
            handle = run(t, runtime="local", options={"message_timeout_s": 60.0}, state_dir=tmp_path / "local")
            try:
                inbound.publish([Message(id="before", body=b'{"number":1,"pears":1}')])
                until(lambda: invoices.lease(1, wait_s=1))
                server.kill()
                asked: list[Callable[[], object]] = [
                    lambda: inbound.publish([Message()]),
                    lambda: inbound.lease(1),
                    inbound.depth,
                ]
                for ask in asked:
                    with pytest.raises(ConnectorError) as away:
                        ask()
                    assert away.value.is_outage
                server.start(*(name + dead for name in ("orders", "invoices") for dead in ("", "-dead")))
                inbound.publish([Message(id="after", body=b'{"number":2,"pears":2}')])
                [leased] = until(lambda: invoices.lease(1, wait_s=1))
                assert msgspec.json.decode(leased.message.body)["order"] == 2
            finally:
                handle.stop()
                handle.wait(60)
