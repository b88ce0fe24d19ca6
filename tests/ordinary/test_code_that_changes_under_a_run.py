"""A `git checkout` while a run on Spark goes on: workers that start later have the new code, and the run says so."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.ordinary.conftest import HANG_S
from tests.spark.counting import QUICK
from tupletree.config import resolve_options
from tupletree.runtimes.api import RunRequest
from tupletree.runtimes.spark import code_watch
from tupletree.testing.in_process import start_in_process
from tupletree.topology.model import TargetRef

NAME = "code_that_changes"
MODULE = """
import msgspec
from pathlib import Path
from tupletree import Topology, bolt
from tupletree.sinks import foreach
from tupletree.sources import items

class Number(msgspec.Struct, frozen=True):
    n: int

@bolt
def work(number: Number) -> Number:
    if number.n == 5 and CHANGES:
        with Path(__file__).open("a") as file:
            file.write("# another version\\n")
    return number

def topology():
    t = Topology("numbers")
    numbers = t.spout("n", items([Number(n) for n in range(20)]))
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("work", work).shuffle(numbers))
    return t
"""


@pytest.mark.parametrize("changes", [True, False])
def test_it_is_said_once_and_the_run_goes_on(
    changes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_watch, "LOOK_EVERY_S", 0.0)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{NAME}.py").write_text(f"CHANGES = {changes}\n{MODULE}")
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    topology = importlib.import_module(NAME).topology()
    settings = resolve_options(code={**QUICK, "epoch_max_messages": 2, "max_spout_pending": 4})
    target = TargetRef(NAME, "topology", str(tmp_path))
    request = RunRequest(topology, settings, target, tmp_path / "state", append=False, master="", redact=None)
    summary = start_in_process(request).wait(HANG_S)
    monkeypatch.delitem(sys.modules, NAME)
    assert (summary.acked, summary.dead) == (20, 0)
    said = [record.getMessage() for record in caplog.records if "has changed while the run goes on" in record.message]
    assert len(said) == changes
    assert all(f"{tmp_path}/{NAME}.py has changed" in text and "start it again" in text for text in said)
