"""Queues on a real Redis server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.queues.asked_of_each import found_where_the_server_was_killed, shared_by_four_consumers
from tests.queues.servers import RedisServer, redis_server
from tupletree.cli.main import main
from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues import Broker, Failure, Letter, Message, connect, open_queue
from tupletree.queues.messages import State
from tupletree.testing.queue_conformance import SCENARIOS, BrokerUnderTest, QueueScenario, check

redis = pytest.importorskip("redis")
from tupletree.queues.redis import RedisBroker, open_redis  # noqa: E402
from tupletree.queues.urls import parse_url  # noqa: E402

CANNOT = {
    "messages of a key come in order and one at a time": "refused",
    "statements of the caller run in the same transaction": "refused",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


class RedisQueue(BrokerUnderTest):
    """Time is the server's, and goes on as the test moves it."""

    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.offset_ms = 0
        self.brokers: list[RedisBroker] = []

    def connect(self, *, skew_s: float = 0.0) -> Broker:
        broker = open_redis(parse_url(self.server.url))
        broker.offset_ms = self.offset_ms
        broker.sleep = self.advance
        broker.monotonic = lambda: self.offset_ms / 1000
        self.brokers.append(broker)
        return broker

    def advance(self, seconds: float) -> None:
        self.offset_ms += round(seconds * 1000)
        for broker in self.brokers:
            broker.offset_ms = self.offset_ms
            broker._scripts.clear()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_queue_on_redis_does_all_that_it_says(scenario: QueueScenario, server: RedisServer) -> None:
    assert check(scenario, RedisQueue(server)) == CANNOT.get(str(scenario), "held")


def test_a_server_that_is_killed_in_the_middle_loses_nothing_that_was_promised() -> None:
    with redis_server() as server, open_queue(f"{server.url}?queue=q") as queue:
        found = found_where_the_server_was_killed(server, queue)
        assert {*found.values()} == {1}


def test_a_message_whose_body_is_trimmed_is_a_dead_letter_and_not_lost_without_a_word(server: RedisServer) -> None:
    with open_queue(f"{server.url}?queue=trimmed") as queue:
        queue.publish([Message(id="gone", body=b"x"), Message(id="there", body=b"y")])
        [gone] = queue.lease(1, lease_s=0.001)
        client = redis.Redis(port=server.port)
        client.xdel("tupletree:{trimmed}:stream", gone.handle.split(".")[1])
        assert [one.message.id for one in queue.lease(10, lease_s=3600, wait_s=5)] == ["there"]
        while not (dead := queue.peek("dead")):
            queue.lease(10, lease_s=3600)
        assert [(one.message.id, one.deliveries) for one in dead] == [("gone", 1)]
        assert "its body is gone" in dead[0].reason


def test_entries_that_other_programs_add_to_the_stream_are_messages(server: RedisServer) -> None:
    with open_queue(f"{server.url}?queue=foreign") as queue:
        client = redis.Redis(port=server.port)
        first = client.xadd("tupletree:{foreign}:stream", {"body": b"\xff", "who": "them"})
        second = client.xadd("tupletree:{foreign}:stream", {"order": "7", "pears": "3"})
        messages = {one.message.id: one for one in queue.lease(10)}
        assert messages[first.decode()].message.body == b"\xff"
        assert messages[second.decode()].message.body == b'{"order":"7","pears":"3"}'
        queue.ack([messages[first.decode()].handle])
        queue.fail([Failure(handle=messages[second.decode()].handle)])
        [again] = queue.lease(10)
        assert (again.message, again.deliveries) == (messages[second.decode()].message, 2)


def test_fields_of_other_programs_with_names_of_ours_are_theirs(server: RedisServer) -> None:
    with open_queue(f"{server.url}?queue=named&remembers_acked_s=0.001") as queue:
        client = redis.Redis(port=server.port)
        client.xadd("tupletree:{named}:stream", {"id": "theirs", "n": "many", "body": "x"})
        assert [one.message.id for one in queue.peek()] == ["theirs"]
        [leased] = queue.lease(10)
        assert (leased.message.id, leased.deliveries) == ("theirs", 1)
        assert queue.find(["theirs"]) == {"theirs"}
        queue.ack([leased.handle])
        assert queue.find(["theirs"]) == set()


def test_ids_of_acked_messages_are_forgotten_although_only_other_programs_publish(server: RedisServer) -> None:
    with open_queue(f"{server.url}?queue=forgotten&remembers_acked_s=0.001") as queue:
        client = redis.Redis(port=server.port)
        for _ in range(5):
            client.xadd("tupletree:{forgotten}:stream", {"body": "x"})
            queue.ack([one.handle for one in queue.lease(1, wait_s=5)])
            time.sleep(0.005)  # the server forgets by its own clock, after a millisecond
        assert client.zcard("tupletree:{forgotten}:acked") <= 1


def test_a_field_of_others_that_is_called_as_one_of_ours_was_stops_nothing(server: RedisServer) -> None:
    with open_queue(f"{server.url}?queue=heads") as queue:
        client = redis.Redis(port=server.port)
        client.xadd("tupletree:{heads}:stream", {"head": "title", "text": "b"})
        queue.publish([Message(id="ours", body=b"x")])
        bodies = {one.message.body for one in queue.lease(10)}
        assert bodies == {b'{"head":"title","text":"b"}', b"x"}


def test_a_batch_of_large_bodies_goes_in_several_calls(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.queues.redis.broker.CHUNK_BYTES", 1000)
    sizes = [10, 990, 2000, 10, 10]
    with open_queue(f"{server.url}?queue=large") as queue:
        assert queue.publish([Message(id=str(number), body=b"x" * size) for number, size in enumerate(sizes)]) == 5
        assert [len(one.message.body) for one in queue.lease(10)] == sizes


def test_heads_ids_and_bodies_of_a_lease_stay_with_their_messages(server: RedisServer) -> None:
    with open_queue(f"{server.url}?queue=mixed") as queue:
        client = redis.Redis(port=server.port)
        sent = [
            Message(
                id=f"ü{number}", body=b"\xff" * (number % 4), key=str(number % 3), headers={"of": "é" * (number % 2)}
            )
            for number in range(1200)
        ]
        queue.publish(sent[:600])
        client.xadd("tupletree:{mixed}:stream", {"id": "theirs", "tupletree": b"\x93\xa0\xa0\x80", "body": "x"})
        client.xadd("tupletree:{mixed}:stream", {"order": "7"})
        queue.publish(sent[600:])
        leased = queue.lease(2000)  # several calls: a lease may be larger than one
        assert [one.message for one in leased[:600] + leased[602:]] == sent
        assert [one.message.body for one in leased[600:602]] == [b"x", b'{"order":"7"}']
        assert len({one.handle for one in leased}) == 1202
        assert {one.deliveries for one in leased} == {1}
        assert not queue.ack([one.handle for one in leased])
        assert queue.depth().open == 0


def test_a_lease_of_several_calls_gives_what_it_has_when_the_server_goes_away_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with redis_server() as server, open_queue(f"{server.url}?queue=q") as queue:
        queue.publish([Message(id=str(number)) for number in range(700)])
        broker = queue.broker
        assert isinstance(broker, RedisBroker)
        run = broker._run

        def run_and_die(*arguments: Any) -> Any:
            answer = run(*arguments)
            server.kill()
            return answer

        monkeypatch.setattr(broker, "_run", run_and_die)  # between two calls nothing else can happen
        assert [one.message.id for one in queue.lease(700)] == [str(number) for number in range(500)]
        monkeypatch.undo()
        with pytest.raises(ConnectorError):
            queue.lease(700)


def test_a_password_with_every_sign_is_taken_and_never_shown() -> None:
    with redis_server() as server:
        redis.Redis(port=server.port).config_set("requirepass", "p@ss/w:rd?&")
        url = f"redis://:p%40ss%2Fw%3Ard%3F%26@127.0.0.1:{server.port}/0?queue=q"
        with open_queue(url) as queue:
            queue.publish([Message(id="1")])
            assert "p%40ss" not in repr(queue.broker)
            assert "p@ss" not in repr(queue.broker)
        with pytest.raises(ConnectorError, match=r"redis://:?\*\*\*@|NOAUTH|WRONGPASS|invalid") as refused:
            connect(url.replace("p%40ss", "wrong"))
        assert not refused.value.is_outage
        assert "wrong" not in str(refused.value)


def test_wrong_urls_are_named() -> None:
    with pytest.raises(ConfigError, match="number of a database"):
        connect("redis://127.0.0.1/first")
    with pytest.raises(ConfigError, match="unknown option"):
        connect("redis://127.0.0.1/0?timeout=3")
    with pytest.raises(ConnectorError, match="cannot be reached"):
        connect("redis://127.0.0.1:1/0")


def test_many_consumers_of_one_queue_share_its_messages(server: RedisServer) -> None:
    shared_by_four_consumers(f"{server.url}?queue=many")


@pytest.mark.parametrize("state", ["ready", "leased", "delayed", "dead"])
def test_pages_of_what_a_queue_holds_are_all_of_it_and_bring_nothing_else(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    name = f"pages-{state}"
    with open_queue(f"{server.url}?queue={name}") as queue:
        queue.publish([Message(id=f"m{number}", delay_s=60.0 * (state == "delayed")) for number in range(8)])
        leased = queue.lease(8, lease_s=60.0) if state in {"leased", "dead"} else []
        if state == "dead":
            queue.dead_letter([Letter(handle=one.handle, reason="no") for one in leased])
        answers: list[int] = []
        run = RedisBroker._run

        def counted(*given: Any) -> Any:
            answers.append(len(found := run(*given)))
            return found

        monkeypatch.setattr(RedisBroker, "_run", counted)
        pages = [queue.peek(state, 3, after=after) for after in (0, 3, 6, 9)]
    assert sorted(one.message.id for page in pages for one in page) == [f"m{number}" for number in range(8)]
    assert answers == [len(page) for page in pages] == [3, 3, 2, 0]


def test_who_publishes_is_warned_that_a_crash_of_the_server_may_lose_messages_and_who_looks_is_not(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{server.url}?queue=warned"
    with redis.Redis(port=server.port) as client:
        client.config_set("appendfsync", "everysec")
        try:
            assert main(["queues", "publish", url, "--id", "1", "--body", "x", "--create"]) == 0
            assert "may lose what was published last" in caplog.text
            caplog.clear()
            for command in ("depth", "peek", "dead"):
                assert main(["queues", command, url]) == 0
            assert caplog.text == ""
        finally:
            client.config_set("appendfsync", "always")
