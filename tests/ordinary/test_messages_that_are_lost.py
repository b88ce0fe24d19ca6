"""A message that somebody else took out of its queue, or whose route is gone: it is named, and can be ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.routes.running.pipelines import Asked, adapter
from tests.routes.running.test_commands import Commands
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, Split, pipeline, route, states
from tests.until import until
from tupletree.cli.main import main
from tupletree.errors import ConnectorError
from tupletree.queues import Broker, connect
from tupletree.routes import lost
from tupletree.routes.ledger import Completed, NewMessage
from tupletree.routes.ledger.values import Loss
from tupletree.routes.messages import Settlement
from tupletree.routes.payloads import encode
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running import queue_spout

Start = Callable[[Pipeline], PipelineRun]

NOT_THERE = "it is not in its queue q.two any more"


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "FIRST_LOOK_S", 0.05)


def two(home: Path, **settings: Any) -> Pipeline:
    """split → two."""
    return pipeline(home, route("split", adapter(Split), out=("q.two",)), route("two", adapter(Asked)), **settings)


def held_up(home: Path, count: int = 3, **settings: Any) -> tuple[Pipeline, str]:
    """An execution whose messages wait for route two."""
    p = two(home, **settings)
    with p.run(only=["split"]) as run:
        begun = run.execute({"count": count}, route="split")
        until(lambda: states(run, begun.id).get("split") == {"done": 1})
    return p, begun.id


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_wait_says_which_messages_no_queue_has_and_they_can_be_ended(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    p, execution = held_up(tmp_path)
    with p.open() as idle:
        assert idle.execution(execution).lost().messages == []
        idle.services.broker("q.two").purge("q.two")
    with start(p) as run, caplog.at_level(logging.WARNING, "tupletree.routes"):
        begun = run.execution(execution)
        with pytest.raises(TimeoutError):
            begun.wait(0.5)
        warned = [one.getMessage() for one in caplog.records if "does not end by itself" in one.getMessage()]
        assert len(warned) == 1, "once, not with every look"
        assert f"3 messages can never be delivered: {begun.lost().messages[0].id}: {NOT_THERE}" in warned[0]
        assert [one.state for one in begun.settle_lost()] == ["pending"] * 3
        ended = begun.wait(HANG_S)
        assert (ended.state, ended.dead) == ("completed_with_dead_letters", 3)
        assert {one.reason for one in run.services.ledger.messages(execution, state="dead")} == {NOT_THERE}


def test_what_waits_is_worked_delayed_or_in_the_outbox_is_not_lost(tmp_path: Path) -> None:
    p, execution = held_up(tmp_path / "home", 4, queues={"q.two": f"sqlite:///{tmp_path}/b.db"})
    two = p.spec.routes["two"]
    with p.open() as idle:
        [failing], _ = idle.services.lease(two, 1)
        idle.services.settle([Settlement(messages=failing.messages, outcome="failed", reason="again")])
        idle.services.lease(two, 1)
        idle.services.broker("q.two").lease("q.two", 1)
        registered = idle.services.ledger.start(idle.services.rules, NewMessage("q.two", encode({})))
        assert states(idle, execution)["two"] == {"pending": 2, "processing": 1, "retrying": 1}
        assert len(idle.services.ledger.outbox()) == 1
        assert idle.execution(execution).lost().messages == []
        assert idle.execution(registered).lost().messages == []


def test_a_message_that_moves_on_while_it_is_looked_for_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, execution = held_up(tmp_path, 1)
    with p.open() as idle:
        broker = idle.services.broker("q.two")
        find = type(broker).find

        def late(self: Broker, queue: str, ids: list[str]) -> set[str]:
            """Another process works the message to its end just before."""
            [work], _ = idle.services.lease(p.spec.routes["two"], 1)
            idle.services.settle([Settlement(messages=work.messages, outcome="done")])
            return find(broker, queue, ids)

        monkeypatch.setattr(type(broker), "find", late)
        assert idle.execution(execution).lost().messages == []
        assert idle.execution(execution).status().state == "completed"


def test_a_message_that_came_back_after_it_was_found_is_not_ended(tmp_path: Path) -> None:
    p, execution = held_up(tmp_path, 1)
    with p.open() as idle:
        ledger = idle.services.ledger
        [row] = ledger.messages(execution, state="open")
        [work], _ = idle.services.lease(p.spec.routes["two"], 1)
        assert ledger.end_lost([Loss(row, "lost")]) == [], "it is worked now"
        assert work.messages[0].id == row.id


def test_a_broker_that_cannot_be_asked_for_messages_leaves_it_open_unless_its_queue_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, execution = held_up(tmp_path)
    with p.open() as idle:
        broker = idle.services.broker("q.two")
        broker.capabilities = msgspec.structs.replace(broker.capabilities, find=False)
        taken = broker.lease("q.two", 1)
        broker.ack([one.handle for one in taken])
        report = idle.execution(execution).lost()
        assert (report.messages, [*report.not_asked]) == ([], ["q.two"])
        assert "holds 2, 3 are open" in report.not_asked["q.two"]
        broker.purge("q.two")
        assert len(idle.execution(execution).lost().messages) == 3


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_route_that_is_not_in_the_document_any_more_is_named_and_its_messages_keep_their_bodies(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    p, execution = held_up(tmp_path)
    shorter = pipeline(tmp_path, route("split", adapter(Split)))
    with start(shorter) as run, caplog.at_level(logging.WARNING, "tupletree.routes"):
        begun = run.execution(execution)
        with pytest.raises(TimeoutError):
            begun.wait(0.5)
        assert "no route of the document reads its queue q.two" in caplog.text
        assert len(begun.settle_lost()) == 3
        assert begun.wait(HANG_S).state == "completed_with_dead_letters"
    with start(p) as run:
        dead = [one.id for one in run.services.ledger.messages(execution, state="dead")]
        assert len(run.services.ledger.replay(dead)) == 3
        assert run.execution(execution).wait(HANG_S).state == "completed"


def test_the_commands_say_what_is_lost_and_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / ".tupletree/routes/p"
    _, execution = held_up(home)
    commands = Commands(tmp_path, capsys)
    assert "lost" not in commands.run("status", execution)
    with connect(f"sqlite:///{home}/pipeline.db") as broker:
        broker.purge("q.two")
    assert f"pending: {NOT_THERE}" in commands.run("status", execution)
    told = commands.json("status", execution, "--json")["lost"]
    assert [(one["route"], one["reason"]) for one in told] == [("two", NOT_THERE)] * 3
    assert ", 3 lost" in commands.run("list")
    assert commands.json("list", "--json")["lost"] == 3
    assert main(["routes", "wait", execution, "--timeout-s", "0.5"]) == 1
    assert "does not end by itself: 3 messages can never be delivered" in capsys.readouterr().err
    assert main(["why", told[0]["id"]]) == 0
    assert f"it is lost: {NOT_THERE}; pending since" in capsys.readouterr().out
    ended = commands.run("settle-lost", execution)
    assert f"is dead: {NOT_THERE}" in ended
    assert "completed with dead letters, 4 messages, 3 dead" in ended
    assert "nothing is lost" in commands.run("settle-lost", execution)
    assert "can be replayed" in commands.run("replay", execution, code=2)


def test_a_broker_that_is_away_is_asked_once_for_a_list_of_executions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    p, _ = held_up(tmp_path / ".tupletree/routes/p")
    with p.run(only=["split"]) as run:
        begun = run.execute({"count": 2}, route="split")
        until(lambda: states(run, begun.id).get("split") == {"done": 1})
    asked: list[str] = []

    def find(_: object, queue: str, __: object) -> set[str]:
        asked.append(queue)
        raise ConnectorError("the broker is away")

    with connect(f"sqlite:///{tmp_path}/.tupletree/routes/p/pipeline.db") as broker:
        monkeypatch.setattr(type(broker), "find", find)
    commands = Commands(tmp_path, capsys)
    assert len(commands.run("list").splitlines()) == 2
    assert asked == ["q.two"]


def test_without_its_document_queues_that_are_elsewhere_are_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / ".tupletree/routes/p"
    p = two(home)
    with p.run():
        pass  # now the queue file has both queues
    _, execution = held_up(home, ledger=f"sqlite:///{home}/pipeline.db", queues={"q.two": f"sqlite:///{tmp_path}/b.db"})
    commands = Commands(tmp_path, capsys)
    shown = commands.run("status", execution)
    assert "not known whether messages are lost from q.two" in shown
    assert "nothing is lost" in commands.run("settle-lost", execution)
    assert json.loads(commands.run("status", execution, "--json"))["lost"] == []


@pytest.mark.parametrize("start", RUNTIMES)
def test_who_waits_for_completions_hears_of_those_that_another_process_brought_about(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_spout, "OUTBOX_S", 0.0)
    monkeypatch.setattr(queue_spout, "CANCEL_S", 0.01)
    p, execution = held_up(tmp_path, 1)
    with p.open() as idle:
        idle.services.broker("q.two").purge("q.two")
    told: list[Completed] = []
    with start(p) as run:
        run.on_completed(told.append)
        with p.open() as idle:
            idle.execution(execution).settle_lost()
        until(lambda: told)
    assert [(one.execution, one.state) for one in told] == [(execution, "completed_with_dead_letters")]
