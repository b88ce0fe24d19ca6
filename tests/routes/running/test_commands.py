"""`tupletree routes run|list|status|wait|cancel|pause|resume|replay|drop`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tupletree.cli.main import main
from tupletree.routes import Pipeline

DOCUMENT = """
version: 1
pipeline: judged
routes:
  split:
    inbound: {queue: q.split}
    adapters: [{type: "tests.routes.running.test_pipelines:Split"}]
    outbound: [{queue: q.judge}]
  judge:
    inbound: {queue: q.judge, concurrency: 8}
    adapters: [{type: "tests.routes.running.test_pipelines:Judge"}]
    error_handling: {max_retries: 1, retry_delay_seconds: 0.01}
init_message: {route: split, payload: {count: 10}}
"""


@dataclass
class Commands:
    """The commands, in a folder with a document."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str, code: int = 0) -> str:
        assert main(["routes", *arguments]) == code
        captured = self.capsys.readouterr()
        return captured.err if code in {1, 2} and not captured.out else captured.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, code=code).splitlines()[-1])


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judged.yaml").write_text(DOCUMENT)
    return Commands(tmp_path, capsys)


def test_a_run_that_waits_ends_with_its_execution_and_says_how_it_went(commands: Commands) -> None:
    text = commands.run("run", "judged.yaml", "--wait", "--execution", "first", code=3)
    assert "judged first: completed with dead letters, 11 messages, 1 dead" in text
    assert "tupletree lineage failures first" in text
    ended = commands.json("run", "judged.yaml", "--wait", "--payload", '{"count": 4}', "--summary", "json")
    assert (ended["state"], ended["messages"], ended["dead"]) == ("completed", 5, 0)


def test_executions_are_listed_and_asked(commands: Commands) -> None:
    commands.run("run", "judged.yaml", "--wait", "--execution", "first", code=3)
    assert commands.run("list").startswith("judged first: completed with dead letters")
    assert commands.json("list", "--json")["execution"] == "first"
    assert "judge: 8 done, 1 filtered, 1 dead, 3 failed attempts" in commands.run("status", "first")
    routes = commands.json("status", "first", "--json")["routes"]
    assert [one["route"] for one in routes] == ["judge", "split"]
    assert "completed" in commands.run("wait", "first", code=3)
    assert "no such execution" in commands.run("status", "second", code=2)


def test_an_execution_is_paused_resumed_and_cancelled_from_elsewhere(commands: Commands) -> None:
    with Pipeline.load("judged.yaml").open() as idle:
        idle.execute({"count": 1}, execution="waiting")
    assert "running, paused" in commands.run("pause", "waiting")
    assert "paused" not in commands.run("resume", "waiting")
    assert "1 open" in commands.run("wait", "waiting", "--timeout-s", "0", code=1)
    assert "cancelled" in commands.run("cancel", "waiting", "--reason", "no need")
    assert "no need" in commands.run("status", "waiting")
    assert "cancelled" in commands.run("wait", "waiting", code=3)


def test_dead_letters_are_tried_again_by_message_or_by_execution(commands: Commands) -> None:
    commands.run("run", "judged.yaml", "--wait", "--execution", "first", code=3)
    assert commands.json("replay", "first", "--json") == {"replayed": 1, "executions": [], "in_outbox": 0}
    assert "1 open" in commands.run("status", "first")
    assert "none of these is dead" in commands.run("replay", "first", code=2)
    commands.run("run", "judged.yaml", "--wait", "--execution", "first", code=3)
    with Pipeline.load("judged.yaml").open() as idle:
        (dead,) = idle.services.ledger.messages("first", state="dead")
    assert "none of these is dead" in commands.run("replay", dead.id, "--route", "split", code=2)
    copied = commands.json("replay", dead.id, "--into", "judged.yaml", "--json")
    assert copied["replayed"] == 1
    assert "running, 1 message, 1 open" in commands.run("status", copied["executions"][0])


def test_dead_messages_that_were_handled_elsewhere_are_dropped(commands: Commands) -> None:
    commands.run("run", "judged.yaml", "--wait", "--execution", "first", code=3)
    with Pipeline.load("judged.yaml").open() as idle:
        (dead,) = idle.services.ledger.messages("first", state="dead")
    assert "--yes" in commands.run("drop", "first", code=2)
    assert "none of these is dead" in commands.run("drop", dead.id, "--route", "split", "--yes", code=2)
    said = commands.json("drop", "first", "--reason", "paid by hand", "--yes", "--json")
    assert said == {"dropped": 1, "reason": "paid by hand", "messages": [dead.id]}
    assert "they were dropped before" in commands.run("drop", dead.id, "--yes", code=2)
    assert "none of these is dead and can be replayed" in commands.run("replay", "first", code=2)
    assert "1 dead" in commands.run("status", "first")
    assert main(["lineage", "tree", "first"]) == 0
    [told] = [line for line in commands.capsys.readouterr().out.splitlines() if dead.id in line]
    assert "judge, dropped by hand: paid by hand (it died of ValueError: 7)" in told
    assert main(["lineage", "failures", "first"]) == 0
    assert commands.capsys.readouterr().out.count("ValueError: 7 (dropped by hand: paid by hand)") == 2
    assert main(["lineage", "failures", "first", "--json"]) == 0
    assert '"state":"dropped by hand: paid by hand' in commands.capsys.readouterr().out


def test_mistakes_are_named(commands: Commands) -> None:
    assert "the payload is no JSON" in commands.run("run", "judged.yaml", "--payload", "{", code=2)
    assert "payload cannot be read" in commands.run("run", "judged.yaml", "--payload", "@none.json", code=2)
    assert "no such route" in commands.run("run", "judged.yaml", "--only", "jugde", code=2)
    (commands.folder / "idle.yaml").write_text(DOCUMENT.partition("init_message")[0].replace("judged", "idle"))
    assert "no execution to wait for" in commands.run("run", "idle.yaml", "--wait", code=2)
    assert "which route" in commands.run("run", "idle.yaml", "--wait", "--payload", "1", code=2)


def test_what_would_be_passed_over_is_refused(commands: Commands) -> None:
    assert "--route is for --payload" in commands.run("run", "judged.yaml", "--wait", "--route", "judge", code=2)
    refused = commands.run("run", "judged.yaml", "--wait", "--only", "split", "--payload", "{}", code=2)
    assert "--only begins no execution" in refused
    assert "tupletree routes wait" in refused


def test_an_interrupted_run_settles_what_is_in_flight_and_its_execution_goes_on(tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(
        textwrap.dedent("""
        import asyncio
        from tupletree.routes import Adapter, AdapterResult
        class Slowly(Adapter):
            async def process(self, context):
                open("begun", "a").write("x")
                await asyncio.sleep(1.0)
                return AdapterResult(context.message)
        """)
    )
    (tmp_path / "slow.yaml").write_text(
        textwrap.dedent("""
        version: 1
        pipeline: slow
        routes:
          one: {inbound: {queue: q.one}, adapters: [{type: "slowly:Slowly"}], outbound: [{queue: q.two}]}
          two: {inbound: {queue: q.two}, adapters: [{type: "slowly:Slowly"}]}
        init_message: {route: one, payload: {}}
        """)
    )
    command = [sys.executable, "-m", "tupletree", "routes", "run", "slow.yaml", "--wait", "--execution", "e"]
    environment = {**os.environ, "COLUMNS": "120"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(3000):
            if (tmp_path / "begun").exists() or process.poll() is not None:
                break
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in text) == (130, True), text
    ended = subprocess.run(
        [*command, "--summary", "json"], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["messages"] == 2
    assert (tmp_path / "begun").read_text() == "xx", "each adapter was called once"
