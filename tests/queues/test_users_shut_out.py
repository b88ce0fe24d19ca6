"""A broker that shuts a run's user out: an outage for source and sink, and at the start the start's error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.queues.servers import RabbitServer, SqsServer, nats_server, redis_server
from tests.queues.sqs_queues import queue_of
from tests.spark.counting import QUICK
from tests.until import until
from tupletree import Topology, bolt
from tupletree.config import resolve_options
from tupletree.errors import ConnectorError
from tupletree.queues import Message, Queue, open_queue
from tupletree.queues.access import shut_out_is_outage
from tupletree.queues.contract import RefusedConnectionError, RefusedRequestError
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.sinks import queue_sink
from tupletree.sources import queue as queue_source
from tupletree.testing.in_process import start_in_process

RUNTIMES = ["local", "in_process"]
NATS_USERS = 'authorization {{ users: [{{user: ann, password: "{password}"}}, {{user: op, password: op}}] }}\n'


@dataclass(frozen=True)
class Word:
    text: str


@bolt
def louder(word: Word) -> Word:
    return Word(word.text.upper())


@dataclass
class Shared:
    """A broker with a user whom an operator can shut out.

    Attributes:
        url: the user's, but for the queue.
        operators: the operator's.
        shut_out, let_in: the user.
    """

    url: str
    operators: str
    shut_out: Callable[[], object]
    let_in: Callable[[], object]


def at_redis(tmp_path: Path) -> Iterator[Shared]:
    redis = pytest.importorskip("redis")
    with redis_server() as server:
        operator = redis.Redis(port=server.port)

        def user(state: str) -> None:
            operator.execute_command("ACL", "SETUSER", "ann", "reset", state, ">right", "~*", "&*", "+@all")

        def shut_out() -> None:
            user("off")
            operator.execute_command("CLIENT", "KILL", "USER", "ann")

        user("on")
        yield Shared(
            server.url.replace("//", "//ann:right@") + "?queue=", f"{server.url}?queue=", shut_out, lambda: user("on")
        )
        operator.close()


def at_nats(tmp_path: Path) -> Iterator[Shared]:
    settings = tmp_path / "nats.conf"
    settings.write_text(NATS_USERS.format(password="right"))
    with nats_server("-c", str(settings)) as server:

        def password(text: str) -> None:
            settings.write_text(NATS_USERS.format(password=text))
            server.kill()  # one that reads its settings again while it serves is without JetStream for a while
            server.start("-c", str(settings))

        yield Shared(
            server.url.replace("//", "//ann:right@") + "?queue=",
            server.url.replace("//", "//op:op@") + "?queue=",
            lambda: password("rotated"),
            lambda: password("right"),
        )


def at_rabbitmq(server: RabbitServer) -> Iterator[Shared]:
    server.control("add_user", "bob", "right")

    def let_in() -> None:
        server.control("set_permissions", "bob", ".*", ".*", ".*")

    def shut_out() -> None:
        server.control("clear_permissions", "bob")
        server.control("close_all_user_connections", "bob", "shut out")

    let_in()
    yield Shared(server.url.replace("//", "//bob:right@") + "?queue=", f"{server.url}?queue=", shut_out, let_in)
    server.control("delete_user", "bob")


@pytest.fixture(params=["redis", "nats", "rabbitmq"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    if request.param == "rabbitmq":
        yield from at_rabbitmq(request.getfixturevalue("rabbitmq"))
    else:
        yield from (at_redis if request.param == "redis" else at_nats)(tmp_path)


def topology(url: str, name: str, read_on: Literal["driver", "executors"] = "driver") -> Topology:
    t = Topology("words")
    words = t.spout("words", queue_source(f"{url}{name}-in", Word, read_on=read_on))
    t.sink("out", queue_sink(f"{url}{name}-out")).shuffle(t.bolt("louder", louder).shuffle(words))
    return t


def begin(runtime: str, t: Topology, folder: Path) -> RunHandle:
    settings = resolve_options(
        code={**QUICK, "message_timeout_s": 60.0} if runtime == "in_process" else {"message_timeout_s": 60.0}
    )
    request = RunRequest(t, settings, None, folder, append=False, master="", redact=None)
    return start_locally(request) if runtime == "local" else start_in_process(request)


def is_published(queue: Queue, message: Message) -> bool:
    """By an operator; not while a server that was started again is not ready."""
    try:
        queue.publish([message])
    except ConnectorError:
        return False
    return True


def words_of(queue: Queue) -> list[bytes]:
    """What came; nothing while who hands out messages at NATS is shut out, and nobody else has begun to."""
    try:
        found = queue.lease(10, wait_s=0.2)
    except ConnectorError:
        return []
    queue.ack([one.handle for one in found])
    return [one.message.body for one in found]


@pytest.mark.parametrize(
    ("shared", "runtime", "read_on"),
    [
        *((broker, runtime, "driver") for broker in ("redis", "nats", "rabbitmq") for runtime in RUNTIMES),
        ("redis", "in_process", "executors"),
        ("nats", "in_process", "executors"),
    ],
    indirect=["shared"],
)
def test_a_run_whose_user_is_shut_out_waits_and_goes_on_when_it_is_let_in(
    shared: Shared,
    tmp_path: Path,
    runtime: str,
    read_on: Literal["driver", "executors"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = f"waits-{runtime}-{read_on}"
    handle = begin(runtime, topology(shared.url, name, read_on), tmp_path / "state")
    try:
        until(lambda: handle.progress().state == "processing", what=handle.progress)
        with open_queue(f"{shared.operators}{name}-in") as inbound, open_queue(f"{shared.operators}{name}-out") as out:
            inbound.publish([Message(id="1", body=b'{"text":"before"}')])
            assert until(lambda: words_of(out)) == [b'{"text":"BEFORE"}']
            shared.shut_out()
            shown = until(
                lambda: [one for one in handle.progress().outages if "any more" in one.error], what=handle.progress
            )
            assert "the broker does not let this user in any more" in shown[0].error
            assert "the run waits" in shown[0].error
            assert "right" not in shown[0].error, "its password"
            assert handle.progress().state == "waiting"
            until(lambda: is_published(inbound, Message(id="2", body=b'{"text":"after"}')))
            shared.let_in()
            assert until(lambda: words_of(out)) == [b'{"text":"AFTER"}']
    finally:
        handle.stop()
        summary = handle.wait(60)
    assert (summary.acked, summary.failed) == (2, 0)
    assert "restart" not in caplog.text


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_user_who_is_not_let_in_at_the_start_is_told_at_once(shared: Shared, tmp_path: Path, runtime: str) -> None:
    shared.shut_out()
    with pytest.raises(ConnectorError) as refused:
        begin(runtime, topology(shared.url, f"start-{runtime}"), tmp_path / "state").wait(60)
    shared.let_in()
    assert refused.value.exit_code == 1
    assert "any more" not in str(refused.value)
    assert "restart" not in str(refused.value)


def test_what_is_refused_because_of_a_message_is_no_outage() -> None:
    with pytest.raises(RefusedRequestError) as refused, shut_out_is_outage("sink 'out'"):
        raise RefusedRequestError("too large")
    assert not refused.value.is_outage
    with pytest.raises(ConnectorError) as away, shut_out_is_outage("sink 'out'"):
        raise RefusedConnectionError("redis://***: WRONGPASS")
    assert away.value.is_outage
    assert "redis://***: WRONGPASS" in str(away.value)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidClientTokenId"])
def test_a_user_of_sqs_who_may_not_any_more_waits(sqs: SqsServer, code: str) -> None:
    with queue_of(sqs, "shut-out") as queue:
        asked: dict[str, Callable[[], object]] = {
            "ReceiveMessage": queue.lease,
            "SendMessageBatch": lambda: queue.publish([Message()]),
        }
        for operation, call in asked.items():
            sqs.tell("fail", operation, code, 403, 1)
            with pytest.raises(ConnectorError) as away, shut_out_is_outage("spout 'in'"):
                call()
            assert away.value.is_outage
            call()
