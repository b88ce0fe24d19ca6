"""A target that sets up logging or handles signals by itself keeps what it set up, and the run says what follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import WriteTarget
from tupletree.logs import VARIABLE

TARGET = """
import logging, signal, msgspec
from tupletree import Topology, bolt
from tupletree.sources import items
{setup}
class Word(msgspec.Struct, frozen=True):
    text: str
@bolt
def look(word: Word) -> None:
    logging.getLogger("mine").info("looked")
def topology() -> Topology:
    t = Topology("own")
    t.bolt("look", look).shuffle(t.spout("words", items([Word("a")])))
    return t
"""

Ran = subprocess.CompletedProcess[str]


def ran(file: Path, folder: Path, *options: str) -> Ran:
    arguments = ["run", str(file), "--runtime", "local", "--state-dir", str(folder / "state"), *options]
    return subprocess.run(
        [sys.executable, "-m", "tupletree", *arguments], capture_output=True, text=True, check=False, cwd=folder
    )


@pytest.mark.parametrize("options", [(), ("--log-format", "json")])
def test_its_logging_is_left_and_its_signal_handlers_too_and_the_run_says_so(
    tmp_path: Path, write_target: WriteTarget, options: tuple[str, ...]
) -> None:
    setup = """
logging.basicConfig(level="INFO", format="MINE %(name)s %(message)s")
logging.getLogger("mine").info("imported")
def on_term(number, frame): pass
signal.signal(signal.SIGTERM, on_term)
"""
    said = ran(write_target(TARGET.format(setup=setup)), tmp_path, *options)
    assert said.returncode == 0, said.stderr
    lines = said.stderr.splitlines()
    assert "MINE mine imported" in lines
    assert "MINE mine looked" in lines
    [of_signals] = [line for line in lines if "has a handler already" in line]
    assert of_signals.startswith("MINE tupletree.cli.run SIGTERM has a handler already: on_term. It stays")
    assert "tupletree drain" in of_signals


def test_where_it_sets_up_nothing_every_line_is_as_the_command_says_also_while_it_is_imported(
    tmp_path: Path, write_target: WriteTarget
) -> None:
    target = write_target(TARGET.format(setup="logging.getLogger('mine').warning('imported')"))
    said = ran(target, tmp_path, "--log-format", "json", "--log-level", "info")
    assert said.returncode == 0, said.stderr
    messages = [json.loads(line)["message"] for line in said.stderr.splitlines()]
    assert "imported" in messages
    assert "looked" in messages
    assert not any("has a handler already" in message for message in messages)


@pytest.mark.parametrize("own", [True, False])
def test_so_it_is_where_workers_import_it(own: bool) -> None:
    program = f"""
import logging
from tupletree.logs import follow_environment
with follow_environment():
    if {own}:
        logging.basicConfig(format="MINE %(message)s")
    logging.getLogger("mine").warning("imported")
logging.getLogger("mine").warning("looked")
"""
    environment = {**os.environ, VARIABLE: "WARNING:text", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stderr.splitlines()
    assert len(said) == 2
    ends = ["MINE imported", "MINE looked"] if own else ["WARNING mine: imported", "WARNING mine: looked"]
    assert all(line.endswith(end) for line, end in zip(said, ends, strict=True))
