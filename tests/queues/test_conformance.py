"""The embedded queue, and the one that the documentation writes, against the conformance suite."""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.documents import blocks_of
from tests.queues.clocks import EmbeddedQueue, ManualHostClock
from tests.queues.document import DOCUMENT, FolderQueue, capabilities_table, folder_broker, table_in_document
from tupletree.queues import Broker, Message, open_queue, registry
from tupletree.queues.sqlite import SqliteBroker
from tupletree.testing import queue_conformance
from tupletree.testing.queue_conformance import SCENARIOS, NotConformingError, QueueScenario, check

BY_NAME = {str(scenario): scenario for scenario in SCENARIOS}
FOLDER_CANNOT = {
    "a queue says which messages it holds": "refused",
    "a dead letter can go back to work": "not asked",
    "a message moved while delayed stays delayed and exists once": "refused",
    "a message with a time of day comes at that time": "refused",
    "an id is known for a time after its ack": "not asked",
    "looking at messages leases none": "refused",
    "messages of a key come in order and one at a time": "refused",
    "moved messages are in one queue only": "refused",
    "purged messages are gone and may be published again": "refused",
    "statements of the caller run in the same transaction": "refused",
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_embedded_queue_does_all_of_it(scenario: QueueScenario, tmp_path: Path) -> None:
    assert check(scenario, EmbeddedQueue(tmp_path)) == "held"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_the_queue_of_the_documentation_does_what_it_says(
    scenario: QueueScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a file per message: the disk would take most of the time
    assert check(scenario, FolderQueue(tmp_path)) == FOLDER_CANNOT.get(str(scenario), "held")


def test_scenarios_follow_each_other_on_one_broker_any_number_of_times(tmp_path: Path) -> None:
    """As on a server, whose tables and queues stay."""
    broker = EmbeddedQueue(tmp_path)
    broker.large_bytes = 100_000
    assert [(str(one), check(one, broker)) for one in SCENARIOS * 2] == [(str(one), "held") for one in SCENARIOS * 2]


def test_the_package_of_the_documentation_brings_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point as the installed package has it; this process has registered no scheme of that name."""
    folder_broker(tmp_path)
    [block] = [block for block in blocks_of(DOCUMENT) if block.title == "pyproject.toml"]
    package = tomllib.loads(block.text)
    [(group, points)] = package["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{scheme} = {function}" for scheme, function in points.items())]
    installed = tmp_path / "folder_broker-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: folder-broker\nVersion: 0.1\n")
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setattr(registry, "_schemes", {})
    monkeypatch.delitem(sys.modules, "folder_broker", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [f"{module}.py" for module in package["tool"]["setuptools"]["py-modules"]] == ["folder_broker.py"]
    with open_queue(f"folder:///{tmp_path}?queue=letters") as queue:
        assert queue.publish([Message(body=b"hello")]) == 1
    sys.modules.pop("folder_broker")


def test_the_table_of_capabilities_is_current(tmp_path: Path) -> None:
    assert table_in_document() == capabilities_table(tmp_path), "run: python -m tests.queues.document"


class Forgetful(SqliteBroker):
    """Says that all is well, and stores every other message."""

    def publish(self, queue: str, messages: Sequence[Message]) -> int:
        return super().publish(queue, messages[::2]) + len(messages) // 2


class Unfenced(SqliteBroker):
    """Takes every ack."""

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        super().ack(handles)
        return ()


class Mute(SqliteBroker):
    """Does not say which handles it refused."""

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        super().ack(handles)
        return None  # type: ignore[return-value]  # the fault


class Boastful(SqliteBroker):
    """Declares that it can extend leases, and cannot."""

    def extend(self, handles: Sequence[str], lease_s: float = 30.0) -> Sequence[str]:
        raise self.not_capable("extend a lease")


@pytest.mark.parametrize(
    ("broker", "finding"),
    [
        (Mute, "a message arrives as it was published"),
        (Boastful, "a slow handler that extends its lease runs once"),
        (Forgetful, "a consumer that dies with ten gives all ten back"),
        (Unfenced, "the handle of an old lease is refused"),
    ],
)
def test_the_suite_finds_brokers_that_break_the_contract(
    broker: type[SqliteBroker], finding: str, tmp_path: Path
) -> None:
    class Broken(EmbeddedQueue):
        def connect(self, *, skew_s: float = 0.0) -> Broker:
            return broker(self.path, clock=ManualHostClock(self.host, skew_s))

    with pytest.raises(NotConformingError, match="; got "):
        check(BY_NAME[finding], Broken(tmp_path))


def test_what_a_scenario_compares_is_in_its_error() -> None:
    """`must` with an `==` or of an operation's result, and nothing to show, leaves authors of a broker to guess."""
    mute = []
    for path in sorted(Path(queue_conformance.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="must"),
                    args=[ast.Compare(ops=[ast.Eq()]) | ast.UnaryOp(op=ast.Not(), operand=ast.Call()), _],
                ):
                    mute.append(f"{path.name}:{node.lineno}")
    assert not mute, f"use equal or empty there: {mute}"
