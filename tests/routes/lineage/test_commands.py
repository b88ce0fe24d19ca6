"""`tupletree lineage`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.routes.lineage.records import call, calls_of, ingest, write
from tests.until import until
from tupletree.cli.main import main
from tupletree.queues import Message, open_queue
from tupletree.routes import Pipeline


class Command:
    """Runs `tupletree lineage` in a folder where pipelines were run, and reads what it printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def url(self, pipeline: str) -> str:
        return f"sqlite:///{self.folder}/.tupletree/routes/{pipeline}/pipeline.lineage.db"

    def write(self, pipeline: str, records: list[Any]) -> None:
        home = self.folder / ".tupletree" / "routes" / pipeline
        home.mkdir(parents=True, exist_ok=True)
        (home / "pipeline.db").touch()
        write(self.url(pipeline), records, pipeline)

    def run(self, *arguments: str, code: int = 0) -> str:
        assert main(["lineage", *arguments]) == code
        captured = self._capsys.readouterr()
        return captured.err if code else captured.out

    def lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, capsys)


def test_the_tree_shows_each_message_with_its_calls_and_one_of_several_parents_once(command: Command) -> None:
    command.write("ingest", ingest())
    assert command.run("tree", "e1").splitlines() == [
        "execution e1",
        "└── doc  convert",
        "      read completed 10 ms, convert completed 10 ms",
        "    ├── piece-1  segment",
        "    │     clean completed 10 ms",
        "    │   └── block  index  of 2 messages",
        "    │         store completed 10 ms",
        "    └── piece-2  segment",
        "          attempt 1: clean failed 10 ms: ValueError: no text",
        "          attempt 2: clean completed 10 ms",
        "        └── block (see above)",
    ]
    [tree] = command.lines("tree", "block")
    assert (tree["asked"], tree["roots"]) == ("block", ["doc"])
    assert {"doc", "piece-1", "piece-2", "block"} == {*tree["messages"]}
    assert tree["messages"]["block"]["calls"][0]["batch"] == "b1"


def test_children_that_are_left_out_are_counted(command: Command) -> None:
    command.write("ingest", [call("doc"), *(call(f"p{number}", parents=["doc"]) for number in range(2_000))])
    printed = command.run("tree", "doc", "--limit", "3")
    assert "└── … 1,997 more (--limit)" in printed or "├── … 1,997 more (--limit)" in printed


def test_failures_and_statistics_are_tables_of_all_pipelines_that_were_run_here(command: Command) -> None:
    command.write("ingest", ingest())
    command.write("other", calls_of("m", "r", "a", status="failed", error="KeyError: 'x'", started_s=2e3))
    failures = command.run("failures")
    assert "KeyError: 'x'" in failures
    assert "1970-01-01 00:16:51 UTC  segment  clean    piece-2  1        10 ms  ValueError: no text" in failures
    assert [one["message"] for one in command.lines("failures", "doc")] == ["piece-2"]
    assert [one["pipeline"] for one in command.lines("failures", "--pipeline", "other")] == ["other"]
    stats = {(one["pipeline"], one["route"], one["adapter"]): one for one in command.lines("stats")}
    assert stats["ingest", "segment", "clean"]["calls"] == 3
    assert stats["other", "r", "a"]["failed"] == 1
    assert "p95" in command.run("stats", "e1")
    assert command.run("stats", "--last-s", "1") == "no calls\n"
    assert command.run("failures", "--route", "convert", "--pipeline", "ingest") == "no failures\n"


def test_what_is_not_there_is_said_with_the_next_step(command: Command) -> None:
    assert "no pipeline was run here" in command.run("tree", "e1", code=2)
    command.write("ingest", ingest())
    assert "knows no such message or execution" in command.run("tree", "nothing", code=2)
    assert "expected: ingest" in command.run("tree", "e1", "--pipeline", "other", code=2)
    assert "there is no lineage" in command.run("tree", "e1", "--store", f"sqlite:///{command.folder}/none.db", code=2)
    assert "there is no lineage" in command.run("tree", "e1", "--store", f"parquet:{command.folder}/none", code=2)
    assert "doc" in command.run("tree", "e1", "--store", command.url("ingest"))


def test_what_a_terminal_would_execute_is_shown_and_not_executed(command: Command) -> None:
    command.write("ingest", calls_of("m\x1b[2J", "r", "a", status="failed", error="\x1b]0;x\a [red]"))
    for printed in (command.run("tree", "e1"), command.run("failures"), command.run("failures", "--json")):
        assert "\x1b" not in printed
    assert "[red]" in command.run("failures")


def test_a_document_says_where_its_lineage_is(command: Command) -> None:
    document = command.folder / "ingest.yaml"
    document.write_text(
        "version: 1\npipeline: ingest\n"
        f"lineage: {{level: full, store: 'sqlite:///{command.folder}/elsewhere.db'}}\n"
        "routes:\n  convert:\n    inbound: {queue: q}\n"
    )
    write(f"sqlite:///{command.folder}/elsewhere.db", ingest())
    assert "doc" in command.run("tree", "e1", "--pipeline", str(document))
    document.write_text(document.read_text().replace("level: full", "level: 'off'"))
    assert "writes no lineage" in command.run("tree", "e1", "--pipeline", str(document), code=2)


PIPELINE = """
version: 1
pipeline: asked
routes: {drop: {inbound: {queue: names}, adapters: [{type: drop}]}}
"""


def test_a_message_is_found_by_the_id_that_its_publisher_gave_it(command: Command) -> None:
    file = command.folder / "asked.yaml"
    file.write_text(PIPELINE)
    url = f"sqlite:///{command.folder}/.tupletree/routes/asked/pipeline.db?queue=names"
    with Pipeline.load(file).run(), open_queue(url) as queue:
        queue.publish([Message(id="order-7", body=b"{}")])
        until(lambda: queue.depth().open == 0)
    [call] = command.lines("tree", "order-7")[0]["messages"].values()
    assert [one["adapter"] for one in call["calls"]] == ["drop"]
    assert command.lines("stats", "order-7")[0]["filtered"] == 1
    assert command.run("failures", "order-7") == "no failures\n"
