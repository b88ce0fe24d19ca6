"""`tupletree queues`."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tupletree.cli.main import main
from tupletree.cli.queues import BATCH
from tupletree.queues import Broker, Letter, Message, QueueUrl, open_queue, registry


class Queues:
    """Runs the command on a queue file, and reads what it printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = folder / "q.db"
        self._capsys = capsys

    def url(self, queue: str = "") -> str:
        return f"sqlite:///{self.path}" + (f"?queue={queue}" if queue else "")

    def run(self, command: str, queue: str, *arguments: str, code: int = 0) -> str:
        assert main(["queues", command, self.url(queue), *arguments]) == code
        captured = self._capsys.readouterr()
        return captured.err if code else captured.out

    def lines(self, command: str, queue: str, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.run(command, queue, *arguments, "--json").splitlines()]

    def depth(self, queue: str) -> dict[str, int]:
        depth: dict[str, int] = self.lines("depth", queue)[0]["queues"][queue]
        return depth


@pytest.fixture
def queues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Queues:
    return Queues(tmp_path, capsys)


def test_a_message_is_published_looked_at_and_drained(queues: Queues) -> None:
    arguments = ["--id", "order-1", "--body", "3 pears", "--key", "k", "--header", "a=ü=1", "--content-type", "text/x"]
    assert "published: 1" in queues.run("publish", "orders", *arguments, "--create")
    assert "1 had an id that is in the queue already" in queues.run("publish", "orders", *arguments)
    assert "order-1" in queues.run("peek", "orders")
    [seen] = queues.lines("peek", "orders")
    assert (seen["state"], seen["deliveries"]) == ("ready", 0)
    [drained] = queues.lines("drain", "orders")
    assert drained == {
        "id": "order-1",
        "content_type": "text/x",
        "headers": {"a": "ü=1"},
        "key": "k",
        "body": "3 pears",
    }
    assert queues.depth("orders") == {"ready": 0, "leased": 0, "delayed": 0, "dead": 0}


def test_each_line_of_standard_input_is_a_message(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2500)) + b"last"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert queues.lines("publish", "in", "--create", "--delay-s", "60") == [
        {"queue": "in", "published": 2501, "known": 0}
    ]
    assert queues.depth("in")["delayed"] == 2501
    assert "moved: 2501" in queues.run("move", "in", "out", "--state", "delayed", "--create")
    assert queues.depth("out")["delayed"] == 2501


def test_what_a_terminal_would_obey_is_shown_escaped_and_bytes_as_bytes(queues: Queues) -> None:
    with open_queue(queues.url("odd")) as queue:
        queue.publish([Message(id="a\x1b[2J", body=b"\x1b[31mred\nline"), Message(id="b", body=b"\xff\xfe" * 20)])
    shown = queues.run("peek", "odd")
    assert "\x1b" not in shown
    assert "40 bytes: ff fe" in shown
    encoded = queues.lines("peek", "odd")[1]["body_base64"]
    assert base64.b64decode(encoded) == b"\xff\xfe" * 20
    assert "\x1b" not in queues.run("drain", "odd", "--limit", "1")
    assert queues.depth("odd")["ready"] == 1


def test_dead_letters_are_shown_and_replayed(queues: Queues) -> None:
    with open_queue(queues.url("orders")) as queue:
        queue.publish([Message(id="order-1"), Message(id="order-2")])
        queue.dead_letter([Letter(handle=one.handle, reason="a negative number") for one in queue.lease(2)])
    assert "a negative number" in queues.run("dead", "orders")
    assert queues.lines("move", "orders", "--dead", "--message", "order-1") == [
        {"source": "orders", "target": "orders", "moved": 1}
    ]
    assert queues.depth("orders") == {"ready": 1, "leased": 0, "delayed": 0, "dead": 1}


def test_check_leaves_nothing_behind_and_says_what_the_broker_cannot(queues: Queues) -> None:
    assert "cannot: several_hosts" in queues.run("check", "", "--create")
    [checked] = queues.lines("check", "")
    assert checked["ok"] is True
    assert queues.depth("tupletree-check") == {"ready": 0, "leased": 0, "delayed": 0, "dead": 0}


def test_check_says_so_where_a_broker_can_everything(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    def able(url: QueueUrl) -> Broker:
        broker = registry.open_sqlite(url)
        broker.capabilities = msgspec.structs.replace(broker.capabilities, several_hosts=True)
        return broker

    monkeypatch.setattr(registry, "_schemes", {"sqlite": registry._Scheme(able)})
    assert "cannot: nothing, it declares every capability" in queues.run("check", "", "--create")


@pytest.mark.parametrize(
    ("command", "queue", "arguments", "expected"),
    [
        ("depth", "", [], "there is no such queue file"),
        ("peek", "orders", ["--state", "dad"], "one of ready"),
        ("peek", "odrers", [], "did you mean 'orders'?"),
        ("peek", "", [], "name the queue"),
        ("move", "orders", [], "name the queue to move to"),
        ("publish", "orders", ["--id", "x"], "give its --body"),
        ("publish", "orders", ["--id", "x", "--id-field", "id", "--body", "{}"], "the id is given twice"),
        ("publish", "orders", ["--key", "x", "--key-field", "id", "--body", "{}"], "the key is given twice"),
        ("publish", "orders", ["--id-field", "id", "--body", "three pears"], "line 1: no JSON"),
        ("publish", "orders", ["--id-field", "id", "--body", '["id"]'], "no text or whole number in 'id'"),
        ("publish", "orders", ["--id-field", "id", "--body", '{"id": true}'], "no text or whole number in 'id'"),
        ("publish", "orders", ["--key-field", "k", "--body", '{"id": 1}'], "no text or whole number in 'k'"),
        ("publish", "orders", ["--body", "x", "--header", "x"], "NAME=VALUE"),
        ("publish", "other", ["--body", "x"], "there is no such queue"),
    ],
)
def test_what_is_wrong_is_said_in_one_block(
    command: str, queue: str, arguments: list[str], expected: str, queues: Queues
) -> None:
    if command != "depth":
        open_queue(queues.url("orders")).close()
    assert expected in queues.run(command, queue, *arguments, code=2)
    assert queues.path.exists() == (command != "depth")


def test_lines_carry_their_ids_and_keys_and_publishing_them_again_changes_nothing(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--id-field", "number", "--key-field", "customer"]

    def publish(*lines: str, code: int = 0) -> str:
        given = io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))
        monkeypatch.setattr("sys.stdin", given)
        return queues.run("publish", "orders", *arguments, "--create", code=code)

    good = [f'{{"number": {number}, "customer": "c{number % 2}"}}' for number in range(BATCH + 2)]
    said = publish(*good, '{"number": null, "customer": "c"}', code=2)
    assert f"line {BATCH + 3:,}" in said
    assert "publish all again" in said
    assert f"published: 2 ({BATCH} had an id that is in the queue already)" in publish(*good)
    with open_queue(queues.url("orders")) as queue:
        found = queue.peek(limit=BATCH + 10)
        assert [(one.message.id, one.message.key) for one in found] == [
            (str(number), f"c{number % 2}") for number in range(BATCH + 2)
        ]
        assert found[0].message.body == good[0].encode()
        assert found[0].message.content_type == "application/json"
