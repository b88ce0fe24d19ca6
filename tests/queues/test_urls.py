"""URLs of queues, the table of schemes, and what is never shown."""

from __future__ import annotations

import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.queues.clocks import EmbeddedQueue
from tupletree.errors import ConfigError, RuntimeUnavailableError, TupletreeError
from tupletree.queues import Broker, Message, QueueUrl, connect, open_queue, register_scheme, registry, schemes
from tupletree.queues.sqlite import SqliteBroker
from tupletree.queues.urls import parse_url, without_secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:///orders.db?queue=a%20b&busy_timeout_s=3", ("", "", "", 0, "orders.db", "a b")),
        ("sqlite:////var/o%20p@1.db", ("", "", "", 0, "/var/o p@1.db", "")),
        ("redis://127.0.0.1:6379/0?queue=q", ("", "", "127.0.0.1", 6379, "0", "q")),
        ("amqp://user:p%40ss%2Fw%3A@host/vhost", ("user", "p@ss/w:", "host", 0, "vhost", "")),
        ("amqp://user:p@ss/w:rd@host:5672/vhost", ("user", "p@ss/w:rd", "host", 5672, "vhost", "")),
        ("redis://:a/b@host:1/0", ("", "a/b", "host", 1, "0", "")),
        ("kafka://host:9092/topic@1", ("", "", "host", 9092, "topic@1", "")),
        ("kafka://host/topic@1", ("", "", "host", 0, "topic@1", "")),
        ("nats://[::1]:4222/s", ("", "", "[::1]", 4222, "s", "")),
    ],
)
def test_a_url_is_taken_apart_whatever_its_password_holds(text: str, expected: tuple[Any, ...]) -> None:
    url = parse_url(text)
    assert (url.user, url.password, url.host, url.port, url.path, url.queue) == expected


def test_no_secret_is_shown() -> None:
    url = parse_url("redis://me:hunter2@host/0?queue=q&sasl_password=hunter3&api_key=hunter4&Token=hunter5&a=1")
    for shown in (repr(url), str(url), f"{url}", url.shown):
        assert "hunter" not in shown
        assert "redis://me:***@host/0" in shown
        assert "a=1" in shown
        assert "queue=q" in shown


@pytest.mark.parametrize(
    "text",
    [
        "me:hunter2@host",
        "://hunter2",
        "redis://me:hunter2@host:99999/0",
        "redis://me:hunter2@host:x/0",
        "a b://hunter2",
    ],
)
def test_the_error_of_a_wrong_url_shows_nothing_of_its_password(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(text)
    assert "hunter" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlit:///q.db", "did you mean sqlite://?"),
        ("gopher://me:hunter2@host", "sqlite://"),
        ("gopher://me:hunter2@host", "register_scheme"),
        ("gopher://me:hunter2@host", "an entry point of the group tupletree.queues"),
        ("sqlite:///", "sqlite:////var"),
        ("sqlite://q.db", "sqlite:///orders.db"),
        ("sqlite:///:memory:", "is a file"),
        ("sqlite:///q.db?busy_timeout=1", "did you mean 'busy_timeout_s'?"),
        ("sqlite:///q.db?quue=orders", "did you mean 'queue'?"),
        ("sqlite:///q.db?busy_timeout_s=soon", "a number"),
        ("sqlite:///q.db?busy_timeout_s=-1", "0 or more"),
        ("sqlite:///q.db?remembers_acked_s=nan", "0 or more"),
    ],
)
def test_a_wrong_url_is_an_error_with_the_next_step(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        connect(text)
    assert expected in str(raised.value)
    assert "hunter" not in str(raised.value)


def test_a_queue_is_opened_by_its_url(tmp_path: Path) -> None:
    with open_queue(f"sqlite:///{tmp_path}/q.db?queue=orders&remembers_acked_s=0", ordered=True) as queue:
        assert queue.name == "orders"
        assert queue.publish([Message(id="1")]) == 1
        assert not queue.ack([one.handle for one in queue.lease()])
        assert queue.publish([Message(id="1")]) == 1
        assert queue.broker.capabilities.remembers_acked_s == 0
        assert "orders" in repr(queue)
    with connect(f"sqlite:///{tmp_path}/q.db") as broker:
        assert broker.queues() == ["orders"]
        assert isinstance(broker, SqliteBroker)


def test_a_scheme_can_be_added_by_hand_and_by_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Documents whose snippets ran before in this process may have added schemes of their own.
    monkeypatch.setattr(registry, "_schemes", {"sqlite": registry._schemes["sqlite"]})

    def opened(url: QueueUrl) -> Broker:
        return EmbeddedQueue(tmp_path).connect()

    register_scheme("mine", opened)
    with open_queue("mine://host/?queue=q") as queue:
        assert queue.depth().open == 0
    point = EntryPoint("theirs", "package_of_theirs:opened", registry.ENTRY_POINTS)
    monkeypatch.setattr(
        registry, "entry_points", lambda **given: [point] if given.get("name") in {None, "theirs"} else []
    )
    assert schemes() == ["mine", "sqlite", "theirs"]
    monkeypatch.setitem(sys.modules, "package_of_theirs", SimpleNamespace(opened=opened))
    with connect("theirs://host/") as broker:
        assert broker.queues() == ["q"]


def test_a_broker_whose_packages_are_missing_names_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_schemes", dict(registry._schemes))
    register_scheme("redis", "a_module_that_is_not_there:connect", extra="redis")
    with pytest.raises(RuntimeUnavailableError) as raised:
        connect("redis://me:hunter2@host/0")
    assert isinstance(raised.value, TupletreeError)
    assert "pip install 'tupletree[redis]'" in str(raised.value)
    assert "hunter" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:p#w'x/y@host:1/0?db=1", "redis://***@host:1/0?db=1"),
        ("see redis://me:pw@a/0, nats://tok@b and http://c/d@e", "see redis://***@a/0, nats://***@b and http://c/d@e"),
        ('{"password": "hunter22", "user": "me"}', '{"password": "***", "user": "me"}'),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("host=h password='a b' port=1", "host=h password='***' port=1"),
        ("GET https://h/x?token=abc&page=1", "GET https://h/x?token=***&page=1"),
        ("url=https://h/x?a=1&api_key=abc", "url=https://h/x?a=1&api_key=***"),
        (
            "cannot open redis://me:pw@host/0?ssl_password=x&db=1",
            "cannot open redis://***@host/0?ssl_password=***&db=1",
        ),
        ("error: token=abc", "error: token=***"),
        ("tokens: 3 words, no url ://", "tokens: 3 words, no url ://"),
    ],
)
def test_secrets_in_texts_of_others_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_long_hostile_text_takes_no_longer_than_its_length() -> None:
    began_s = time.process_time()
    for text in (
        "://a:" * 100_000,
        "a=" * 200_000,
        "password" * 50_000,
        "token=" * 100_000,
        "token='a" * 100_000,
        "://" + "@" * 300_000,
    ):
        without_secrets(text)
    assert time.process_time() - began_s < 20  # a quadratic time would be minutes
