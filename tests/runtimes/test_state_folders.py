"""Where a run keeps what it must remember, and what is left of it."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest

from tests.docs.sentences import ROOT
from tests.local.running import HANG_S
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line, Script, Word, lines
from tests.until import until
from tupletree import Emit, EndOfInput, PermanentError, Spout, TaskContext, Topology, batch_bolt, bolt
from tupletree.config import Options
from tupletree.runtimes import deadletters
from tupletree.runtimes import run as api_run
from tupletree.runtimes.run import why
from tupletree.runtimes.spark.settle import decision
from tupletree.sinks import foreach
from tupletree.sources import items, text_lines


class Ones(Spout[Line]):
    """Gives one message at a time, so that epochs end."""

    def open(self, context: TaskContext) -> None:
        self.left = 60

    def next(self) -> Emit[Line]:
        if not self.left:
            raise EndOfInput
        self.left -= 1
        return Emit(Line(""), self.left)


@bolt
def work(line: Line) -> None: ...


def topology_of(source: Spout[Line]) -> Topology:
    t = Topology("folders")
    t.bolt("work", work).shuffle(t.spout("lines", source))
    return t


def test_without_a_name_it_is_a_new_folder_below_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = set()
    for _ in range(2):
        handle = api_run.run(topology_of(Script([lines("a")])), runtime="local", options=Options())
        handle.wait(HANG_S)
        folders.add(handle.state_dir.resolve())
    assert len(folders) == 2
    assert {folder.parent for folder in folders} == {tmp_path / ".tupletree" / "folders"}


def test_old_epochs_are_removed_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "BASE_EPOCHS", 4)
    handle = begin_in_process(topology_of(Ones()), tmp_path / "state", epoch_max_messages=2)
    assert handle.wait(HANG_S).acked == 60
    records = handle.recent_progress()
    most = max(len([*(tmp_path / "state" / name).iterdir()]) for name in ("epochs", "settles"))
    assert len(records) >= 20
    assert most < 10


@batch_bolt(size=10, max_age_s=600.0)
def together(words: list[Line]) -> Word:
    return Word("".join(word.text for word in words))


def test_a_drain_of_a_local_run_works_what_batches_hold(tmp_path: Path) -> None:
    rows: list[Word] = []
    t = Topology("drained")
    source = Script([lines("a", "b")], ends=False)
    t.sink("out", foreach(lambda batch: rows.extend(batch.rows))).shuffle(
        t.bolt("together", together).shuffle(t.spout("lines", source))
    )
    handle = api_run.run(t, runtime="local", options=Options(), state_dir=tmp_path / "state")
    while handle.progress().emitted < 2:
        pass
    handle.drain(HANG_S)
    assert handle.wait(HANG_S).open == 0
    assert rows == [Word("ab")]


def test_a_record_that_its_source_rejected_cannot_be_replayed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in.txt").write_bytes(b"a\n\xff\n")
    t = Topology("rejects")
    t.sink("out", foreach(lambda _: None)).shuffle(t.spout("lines", text_lines(tmp_path / "in.txt")))
    assert begin_in_process(t, tmp_path / "state").wait(HANG_S).dead == 1
    deadletters.request_replay(tmp_path / "state", None)
    with caplog.at_level(logging.WARNING):
        assert begin_in_process(t, tmp_path / "state").wait(HANG_S).dead == 1
    assert f'cannot be replayed: lines/["{tmp_path / "in.txt"}", 2]: its source' in caplog.text
    assert len(deadletters.read(tmp_path / "state")) == 1


def table_of_names() -> set[str]:
    """The names that docs/operations.md has for what is in a state directory."""
    section = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split("## State directory")[1]
    rows = [line.split("|")[1] for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


ASKED = threading.Event()


@bolt(blocking=True)
def refuses(line: Line) -> Word:
    if line.text == "bad":
        raise PermanentError("never")
    assert ASKED.wait(HANG_S)
    return Word(line.text)


@pytest.mark.parametrize("runtime", ["local", "durable", "spark"])
def test_the_documents_name_all_that_is_in_a_state_directory(tmp_path: Path, runtime: str) -> None:
    ASKED.clear()
    t = Topology("whole")
    refused = t.bolt("refuses", refuses).shuffle(
        t.spout("lines", items([Line("held"), Line("bad")], ids=["held", "bad"]))
    )
    t.sink("called", foreach(lambda _: None)).shuffle(refused)
    state = tmp_path / "state"
    if runtime == "spark":
        handle = begin_in_process(t, state)
    else:
        handle = api_run.run(t, runtime="local", state_dir=state, durable=runtime == "durable")
    until(lambda: runtime == "spark" or handle.progress().emitted)
    why(state, "held")  # it asks the run
    ASKED.set()
    assert handle.wait(HANG_S).dead == 1
    if runtime != "local":
        deadletters.request_replay(state, None)
        assert len([*(state / "inbox").iterdir()]) == 1
    there = {f"{path.name}/" if path.is_dir() else path.name for path in state.iterdir()}
    assert there <= table_of_names()
    wanted = {"tupletree.json", "status.json", "dead/"}
    if runtime != "spark":
        wanted.add("answers/")
    if runtime == "durable":
        wanted |= {"lock", "journal.sqlite", "inbox/"}
    if runtime == "spark":
        wanted |= {"lock", "generations/", "epochs/", "settles/", "spools/", "spouts.json", "started_in.json", "inbox/"}
        assert {path.suffix for path in (state / "epochs").iterdir()} == {".epoch"}
        assert {path.suffix for path in (state / "settles").iterdir()} == {".settle"}
    assert wanted <= there
    assert [path.suffix for path in (state / "dead").iterdir()] == [".jsonl"]
