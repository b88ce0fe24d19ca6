"""Names, ids, errors and settings may hold what UTF-8 has no bytes for; that stops no run, no store and no start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, WriteTarget
from tests.local.running import run as run_locally
from tests.ordinary import outside
from tests.ordinary.conftest import InProcess
from tests.ordinary.outside import ODD
from tupletree import Topology
from tupletree.errors import ConfigError
from tupletree.runtimes import deadletters
from tupletree.runtimes.control import status_of
from tupletree.sinks import jsonl
from tupletree.sources import text_lines

FILE = os.fsdecode(b"caf\xe9.txt")

WORDS = """
from pathlib import Path
import msgspec
from tupletree import Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, text_lines

class Row(msgspec.Struct, frozen=True):
    path: str
    text: str

@bolt
def rows(line: Line) -> Row:
    return Row(line.path, line.text)

def topology(paths: list[Path], out: Path) -> Topology:
    t = Topology("words")
    t.sink("out", jsonl(out)).shuffle(t.bolt("rows", rows).shuffle(t.spout("lines", text_lines(paths))))
    return t
"""


def odd_file(folder: Path) -> Path:
    file = folder / FILE
    try:
        file.write_bytes(b"x\ny\n\xff\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    return file


def check_outside(heard: list[Any], state: Path, out: Path) -> None:
    """Every message ended and its source was told; the letters can be read, with ids as the source gave them."""
    letters = {letter.message_id[1]: letter for letter in deadletters.read(state)}
    assert sorted(letters) == [2, 3, 4, 5, 6]
    assert letters[2].failure.error == "caf\\udce9: no such file"
    assert "lone surrogate" in letters[3].failure.error or "surrogates" in letters[3].failure.error
    assert letters[5].failure.error == "caf\\udce9: not readable"
    assert letters[5].payload == {"$bytes": "Y2Fm6Q=="}
    assert "caf\\udce9" in letters[6].failure.error
    expected = [("ack", (ODD, 1)), *(("fail", (ODD, number)) for number in range(2, 7))]
    assert sorted({*heard}) == expected
    rows = [json.loads(line) for path in out.glob("[!_]*") for line in path.read_text().splitlines()]
    assert rows == [{"text": "good"}]


def test_ids_errors_and_values_with_lone_surrogates_stop_no_local_run(tmp_path: Path) -> None:
    heard: list[Any] = []
    out = tmp_path / os.fsdecode(b"sorti\xe9")
    topology = outside.topology(heard, out)
    summary = run_locally(topology, tmp_path / "state", max_restarts=0, max_attempts=1)
    assert (summary.acked, summary.dead, summary.open) == (1, 5, 0)
    check_outside(heard, tmp_path / "state", out)


def test_ids_errors_and_values_with_lone_surrogates_stop_no_run_on_spark_and_no_second_start(
    tmp_path: Path, in_process: InProcess
) -> None:
    heard: list[Any] = []
    out = tmp_path / os.fsdecode(b"sorti\xe9")
    topology = outside.topology(heard, out)
    options = {"max_restarts": 0, "max_attempts": 1, "history_max_bytes": 1 << 20}
    summary = in_process(topology, tmp_path / "state", **options)
    assert (summary.acked, summary.dead, summary.open) == (1, 5, 0)
    check_outside(heard, tmp_path / "state", out)
    again = in_process(topology, tmp_path / "state", **options)  # reads positions and accounts
    assert (again.acked, again.dead, again.open) == (1, 5, 0)


def test_a_file_whose_name_is_not_utf8_is_read_and_its_letters_are_found(
    tmp_path: Path, run: Run, write_target: WriteTarget
) -> None:
    target, state, file = write_target(WORDS), tmp_path / "state", odd_file(tmp_path)
    said = run(
        "run", target, "--runtime", "local", "--set", f"paths={file}", "--set", f"out={tmp_path / 'out'}",
        "--state-dir", state, "--summary", "json",
    )  # fmt: skip
    assert said.code == 3, said.err
    assert json.loads(said.out.splitlines()[-1])["acked"] == 2
    shown = run("dead", "list", "--state-dir", state)
    assert shown.code == 0
    assert "caf\\udce9.txt" in shown.out
    typed = json.dumps([str(file), 3], ensure_ascii=False)  # as a shell passes the bytes of the name on
    assert run("dead", "show", typed, "--state-dir", state).code == 0


def test_every_command_shows_a_state_directory_whose_name_is_not_utf8(
    tmp_path: Path, write_target: WriteTarget
) -> None:
    """In a process of its own, whose stdout is strict."""
    target, state, file = write_target(WORDS), tmp_path / os.fsdecode(b"\xe9tat"), odd_file(tmp_path)
    environment = {**os.environ, "TUPLETREE_DRAIN_TIMEOUT_S": "5", "SOME_TEXT": os.fsdecode(b"\xe9")}

    def command(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        line = [sys.executable, "-m", "tupletree", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, check=False, env=environment)

    out = tmp_path / os.fsdecode(b"sorti\xe9")
    ran = command(
        "run", target, "--runtime", "local", "--set", f"paths={file}", "--set", f"out={out}", "--state-dir", state
    )  # fmt: skip
    assert ran.returncode == 3, ran.stderr
    for arguments in (["dead", "list"], ["dead", "list", "--json"], ["status", "--json"]):
        said = command(*arguments, "--state-dir", state)
        assert said.returncode == 0, said.stderr
    assert b"Unicode" not in command("status", "--state-dir", state).stderr


def test_a_failed_run_whose_error_cannot_be_encoded_leaves_its_status(
    tmp_path: Path, run: Run, write_target: WriteTarget
) -> None:
    target = write_target(WORDS + "\n")
    said = run(
        "run", target, "--runtime", "local", "--set", f"paths={tmp_path / FILE}", "--set", f"out={tmp_path / 'out'}",
        "--state-dir", tmp_path / "state", "--option", "max_restarts=0",
    )  # fmt: skip
    assert said.code == 1
    assert status_of(tmp_path / "state").ended
    assert "\\udce9" in status_of(tmp_path / "state").error


def test_a_run_on_spark_refuses_a_state_directory_whose_name_is_not_utf8(tmp_path: Path, in_process: InProcess) -> None:
    t = Topology("odd")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", text_lines(tmp_path / "in")))
    with pytest.raises(ConfigError, match="not UTF-8"):
        in_process(t, tmp_path / os.fsdecode(b"\xe9tat"))
