"""Queues on a real NATS server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.queues.asked_of_each import (
    found_where_the_server_was_killed,
    priced_from_one_queue_into_another,
    shared_by_four_consumers,
)
from tests.queues.servers import NatsServer, nats_server
from tests.queues.test_sources_and_sinks import Runner, run_local, run_spark
from tupletree.errors import ConnectorError
from tupletree.queues import Broker, Letter, Message, NotCapableError, connect, open_queue
from tupletree.queues.contract import RefusedConnectionError
from tupletree.testing.queue_conformance import SCENARIOS, BrokerUnderTest, QueueScenario, check

pytest.importorskip("nats")
from tupletree.queues.nats.client import STATUS, Answer, NatsClient, Request, Server
from tupletree.queues.nats.streams import Streams

CANNOT = {
    "a delayed message comes when its time has come": "refused",
    "a lease that waits takes a message whose time comes": "not asked",
    "a handle is good for one end": "not asked",
    "a message moved while delayed stays delayed and exists once": "refused",
    "a message with a time of day comes at that time": "refused",
    "clocks of callers that are five minutes apart change nothing": "not asked",
    "looking at messages leases none": "refused",
    "messages of a key come in order and one at a time": "refused",
    "moved messages are in one queue only": "refused",
    "parents whose lease is lost are named": "not asked",
    "purged messages are gone and may be published again": "refused",
    "statements of the caller run in the same transaction": "refused",
    "the handle of an old lease is refused": "not asked",
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


class NatsQueue(BrokerUnderTest):
    """Time is the server's."""

    name = "nats"
    lease_s = 0.5

    def __init__(self, server: NatsServer) -> None:
        self.url = f"{server.url}?lease_s={self.lease_s}&remembers_acked_s=1"

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        return connect(self.url)

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)  # the server's clock is not ours to set


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_queue_on_nats_does_all_that_it_says(scenario: QueueScenario, server: NatsServer) -> None:
    assert check(scenario, NatsQueue(server)) == CANNOT.get(str(scenario), "held")


def test_a_server_that_is_killed_in_the_middle_loses_nothing_that_was_promised() -> None:
    with nats_server() as server, open_queue(f"{server.url}?queue=q&lease_s=3600") as queue:
        found = found_where_the_server_was_killed(server, queue)
        assert not queue.broker.capabilities.durable_acks
        assert {*found.values()} <= {1, 2, 3}  # what was acked just before each kill may come again


def test_a_lease_that_waits_while_the_server_dies_says_so_at_once() -> None:
    with nats_server() as server, open_queue(f"{server.url}?queue=q") as queue:
        dying = threading.Timer(0.2, server.kill)
        dying.start()
        began_s = time.monotonic()
        with pytest.raises(ConnectorError):
            queue.lease(wait_s=60)
        assert time.monotonic() - began_s < 9  # no timeout was waited for
        dying.join()


def test_a_lease_that_waits_ends_with_its_connection(server: NatsServer) -> None:
    queue = open_queue(f"{server.url}?queue=closing")
    closing = threading.Timer(0.2, queue.close)
    closing.start()
    with pytest.raises(ConnectorError, match=r"ended|closed"):
        queue.lease(wait_s=60)
    closing.join()


@pytest.mark.parametrize(("server_s", "lease_s"), [(0.3, 1.5), (30.0, 0.3)], ids=["longer", "shorter"])
def test_a_lease_may_be_longer_or_shorter_than_the_server_s(
    server: NatsServer, server_s: float, lease_s: float
) -> None:
    name = f"of-{server_s}"
    with open_queue(f"{server.url}?queue={name}&lease_s={server_s}") as queue, connect(server.url) as other:
        queue.publish([Message(id="a"), Message(id="acked")])
        began_s = time.monotonic()
        first, acked = queue.lease(2, lease_s=lease_s)
        queue.ack([acked.handle])
        [again] = other.lease(name, 2, wait_s=20)
        assert time.monotonic() - began_s >= lease_s * 0.95
        assert (again.message.id, again.deliveries) == (first.message.id, 2)


def test_the_length_of_a_lease_is_the_queue_s_whoever_opens_it_with_another(server: NatsServer) -> None:
    with (
        open_queue(f"{server.url}?queue=two&lease_s=1") as first,
        open_queue(f"{server.url}?queue=two&lease_s=60") as second,
        connect(server.url) as third,
    ):
        first.publish([Message(id="long"), Message(id="short")])
        [long] = second.lease(1, lease_s=4)
        [short] = third.lease("two", 1, lease_s=0.3)
        began_s = time.monotonic()
        [again] = first.lease(2, wait_s=20)
        assert again.message.id == short.message.id
        assert time.monotonic() - began_s < 2.5
        first.ack([again.handle])
        [again] = first.lease(2, wait_s=20)  # it is kept up beyond the server's 1 s
        assert again.message.id == long.message.id
        assert time.monotonic() - began_s > 3.0


def test_a_lease_is_kept_up_again_after_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    with nats_server() as server, open_queue(f"{server.url}?queue=k&lease_s=4&timeout_s=1") as queue:
        queue.publish([Message(id="a")])
        assert queue.lease(1, lease_s=60)
        server.kill()
        ends_s = time.monotonic() + 20
        while "could not be kept up" not in caplog.text and time.monotonic() < ends_s:
            time.sleep(0.05)  # a thread of the connection meets a dead server
        server.start()
        with connect(server.url) as other:
            assert not other.lease("k", 1, wait_s=6)


def test_a_header_that_only_looks_like_ours_blocks_nothing(server: NatsServer) -> None:
    import asyncio

    import nats

    async def publish() -> None:
        client = await nats.connect(server.url)
        for number, text in enumerate(["no base64!", "AAAA", "gqFh"]):
            await client.request(f"tupletree.queue.odd.{number}", b"x", headers={"Tupletree": text})
        await client.close()

    with open_queue(f"{server.url}?queue=odd") as queue:
        asyncio.run(publish())
        leased = queue.lease(10)
        assert [one.message.headers for one in leased] == [
            {"Tupletree": "no base64!"},
            {"Tupletree": "AAAA"},
            {"Tupletree": "gqFh"},
        ]


def test_messages_are_not_taken_for_gone_while_their_stream_cannot_answer(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_queue(f"{server.url}?queue=leaderless") as queue:
        queue.publish([Message(id="a")])
        [leased] = queue.lease()
        asked = NatsClient.ask

        def leaderless(client: NatsClient, requests: Sequence[Request]) -> Sequence[Answer]:
            if "MSG.GET" in requests[0].subject:
                body = (
                    b'{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
                )
                return [Answer(body)] * len(requests)
            return asked(client, requests)

        monkeypatch.setattr(NatsClient, "ask", leaderless)
        with pytest.raises(ConnectorError, match="temporarily"):
            queue.broker.find("leaderless", ["a"])
        with pytest.raises(ConnectorError, match="temporarily"):
            queue.dead_letter([Letter(handle=leased.handle, reason="x")])
        monkeypatch.undo()
        assert queue.broker.find("leaderless", ["a", "b"]) == {"a"}


def test_dead_letters_are_shown_moved_and_deleted(server: NatsServer) -> None:
    with open_queue(f"{server.url}?queue=dead") as queue:
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
        assert [one.message for one in queue.lease(9)] == [published[2], published[0]]
        assert queue.broker.purge("dead", states=["dead"]) == 2
        assert queue.depth().dead == 0
        with pytest.raises(NotCapableError):
            queue.broker.purge("dead")


def test_one_dead_letter_is_moved_without_a_look_at_the_others(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_queue(f"{server.url}?queue=many-dead") as queue:
        queue.publish([Message(id=f"m{number}") for number in range(50)])
        queue.dead_letter([Letter(handle=one.handle, reason="no") for one in queue.lease(50)])
        asked: list[Request] = []
        ask = NatsClient.ask

        def counted(client: NatsClient, requests: Sequence[Request]) -> Sequence[Answer]:
            asked.extend(requests)
            return ask(client, requests)

        monkeypatch.setattr(NatsClient, "ask", counted)
        assert queue.broker.move("many-dead", "many-dead", state="dead", limit=1) == 1
        assert len(asked) < 10
        assert [one.message.id for one in queue.lease(9)] == ["m0"]


def test_what_other_programs_publish_are_messages(server: NatsServer) -> None:
    import asyncio

    import nats

    async def publish() -> None:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        await stream.publish("tupletree.queue.foreign.a", b"\xff", headers={"who": "them", "Nats-Msg-Id": "theirs"})
        await stream.publish("tupletree.queue.foreign.b", b"plain")
        await client.close()

    with open_queue(f"{server.url}?queue=foreign") as queue:
        asyncio.run(publish())
        first, second = queue.lease(10)
        assert (first.message.id, first.message.body, first.message.headers["who"]) == ("theirs", b"\xff", "them")
        assert (second.message.id, second.message.body) == ("2", b"plain")
        queue.dead_letter([Letter(handle=first.handle, reason="not ours")])
        [letter] = queue.peek("dead")
        assert (letter.message.id, letter.message.body) == ("theirs", b"\xff")


def test_a_wrong_password_is_refused_and_shown_nowhere() -> None:
    with nats_server("--user", "ann", "--pass", "right@/") as server:
        right = server.url.replace("nats://", "nats://ann:right%40%2F@")
        with open_queue(f"{right}?queue=q") as queue:
            assert queue.depth().ready == 0
        wrong = server.url.replace("nats://", "nats://ann:s3cret@")
        with pytest.raises(RefusedConnectionError) as refused:
            connect(wrong)
        assert "s3cret" not in f"{refused.value!r} {refused.value}"


def test_a_server_that_is_not_there_is_an_outage() -> None:
    with pytest.raises(ConnectorError) as away:
        connect("nats://127.0.0.1:1?timeout_s=5")
    assert away.value.is_outage


def test_a_server_without_jetstream_is_named() -> None:
    with nats_server("-js=false") as server, pytest.raises(ConnectorError, match="JetStream"):
        connect(server.url)


def test_many_consumers_of_one_queue_share_its_messages(server: NatsServer) -> None:
    shared_by_four_consumers(f"{server.url}?queue=many")


@pytest.mark.parametrize("runner", [run_local, run_spark], ids=["local", "spark"])
def test_a_topology_reads_one_queue_and_writes_another(server: NatsServer, tmp_path: Path, runner: Runner) -> None:
    priced_from_one_queue_into_another(lambda name: f"{server.url}?queue={name}", tmp_path, runner)


class Unheard(NatsClient):
    """A connection to a server whose JetStream is not ready: nobody answers for it."""

    def __init__(self) -> None:
        self.server = Server(url="nats://127.0.0.1:4222", where="nats://127.0.0.1:4222")

    def ask(self, requests: Sequence[Request]) -> Sequence[Answer]:
        return [Answer(b"", headers={STATUS: "503"}) for _ in requests]


def test_whatever_is_asked_while_jetstream_is_not_ready_is_an_outage() -> None:
    """What a queue is made of was taken for made, and what a consumer is like for a `KeyError`, which ended a run."""
    streams = Streams(Unheard())
    asked: list[Callable[[], object]] = [
        lambda: streams.declare("q", remembers_acked_s=1.0, lease_s=1.0, replicas=1),
        streams.names,
        lambda: streams.stored("q", [Request("s")]),
        lambda: streams.letters("q", 1),
        lambda: streams.consumer("q"),
        lambda: streams.lease_of("q"),
        lambda: streams.info("q"),
        lambda: streams.api("INFO"),
    ]
    for ask in asked:
        with pytest.raises(ConnectorError) as away:
            ask()
        assert away.value.is_outage
