"""While a live display uses the terminal, what others write to it is printed line by line."""

from __future__ import annotations

import os
import queue
import subprocess

import pytest

from tupletree.cli.progress import ForeignLines


def test_lines_of_child_processes_are_passed_on_until_it_is_closed(capfd: pytest.CaptureFixture[str]) -> None:
    lines: queue.Queue[str] = queue.Queue()
    foreign = ForeignLines(lines.put)
    subprocess.run(["sh", "-c", "echo one >&2; echo two >&2"], check=True)
    print("mine", file=foreign.terminal, flush=True)
    assert [lines.get(timeout=10), lines.get(timeout=10)] == ["one", "two"]
    foreign.close()
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "mine\nafter\n"
    foreign.terminal.close()
