"""Every command that looks at a run shows what its payloads, keys and errors say as text: nothing in it is obeyed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_state import commit
from tests.ordinary.conftest import HANG_S
from tests.safety.test_text_from_outside_is_only_shown import HOSTILE, is_safe
from tests.spark.counting import QUICK
from tests.tasks.streams import Line, Word
from tupletree import Topology, bolt
from tupletree.cli import why
from tupletree.cli.main import main
from tupletree.config import resolve_options
from tupletree.runtimes.api import RunRequest
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.testing.in_process import start_in_process
from tupletree.tracking.facts import Fact

TEXT = HOSTILE.replace("\ud800", "")


@bolt
def refuse(line: Line) -> Word:
    raise ValueError(line.text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, with hostile payloads and errors in all that it has written."""
    place = tmp_path_factory.mktemp("shown") / "state"
    t = Topology("shown")
    refused = t.bolt("refuse", refuse).shuffle(t.spout("lines", items([Line(TEXT)])))
    t.sink("out", foreach(lambda batch: None)).shuffle(refused)
    settings = resolve_options(code={**QUICK, "max_attempts": 1})
    start_in_process(RunRequest(t, settings, None, place, append=False, master="", redact=None)).wait(HANG_S)
    file = place / "status.json"
    status = json.loads(file.read_text())
    outage = {"component": TEXT, "error": TEXT, "for_s": 1.0, "next_try_s": 1.0}
    hold = {"component": TEXT, "kind": "key", "count": 2, "since_s": 1.0, "key": TEXT}
    status["progress"] |= {"reason": TEXT, "outages": [outage], "holds": [hold]}
    file.write_text(json.dumps({**status, "topology": TEXT, "host": TEXT, "error": TEXT}))
    return place


@pytest.mark.parametrize("command", ["status", "why 0", "dead list", "dead show 0"])
@pytest.mark.parametrize("form", ["", "--json"])
def test_what_a_command_prints(command: str, form: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*command.split(), *form.split(), "--state-dir", str(place)])
    told = capsys.readouterr()
    assert code == (1 if command == "status" else 0), told.err  # its run has failed
    assert is_safe(told.out)
    assert is_safe(told.err)
    assert "0;ti" in told.out, "there is nothing to be seen by this test"
    assert [line for line in told.out.splitlines() if line.startswith("forged")] == []


@pytest.mark.parametrize("form", ["", "--json"])
def test_keys_and_values_of_a_state(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tupletree.json").write_text("{}")
    commit(tmp_path, 0, {}, latest={TEXT: TEXT})
    assert main(["state", *form.split(), "--state-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("0;ti") == 2
    assert is_safe(out)
    assert [line for line in out.splitlines() if line.startswith("forged")] == []


def test_the_table_of_why_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    why._print_table([Fact(time_s=0.0, what="dead", spout="s", message_id="m", attempt=1, note=TEXT)])
    assert is_safe(capsys.readouterr().out)


@pytest.mark.parametrize("flags", [[], ["--debug"]])
def test_an_error_that_nobody_expected(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(TEXT)

    (tmp_path / "tupletree.json").write_text("{}")
    monkeypatch.setattr("tupletree.runtimes.control.status_of", fail)
    assert main([*flags, "status", "--state-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "forged" in told
    assert is_safe(told)
    assert [line for line in told.splitlines() if line.startswith("forged")] == []
