"""Settings that a user looks for first mean what they say."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, WriteTarget
from tests.ordinary.conftest import begin_in_process
from tupletree import Topology
from tupletree.runtimes import metrics
from tupletree.runtimes.api import RunHandle
from tupletree.sinks import jsonl
from tupletree.sources import text_lines

TARGET = """
import msgspec
from tupletree import Topology, bolt
from tupletree.sources import items
class Word(msgspec.Struct, frozen=True):
    text: str
@bolt
def ignore(word: Word) -> None: pass
topology = Topology("measured")
topology.bolt("ignore", ignore).shuffle(topology.spout("words", items([Word("a")])))
"""


def test_epochs_of_text_lines_have_as_many_messages_as_the_option_says(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n" * 1_000)
    t = Topology("sizes")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", text_lines(tmp_path / "lines.txt")))
    handle = begin_in_process(t, tmp_path / "state", epoch_max_messages=300)
    assert handle.wait(60.0).acked == 1_000
    assert max(record.emitted for record in handle.recent_progress()) <= 300


def test_metrics_are_served_at_the_address_that_is_asked_for(
    run: Run, write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    read: list[bytes] = []
    real = metrics.serve_metrics

    @contextlib.contextmanager
    def serve(handle: RunHandle, topology: str, runtime: str, _port: int, host: str) -> Iterator[int]:
        with real(handle, topology, runtime, 0, host) as port:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"http://127.0.0.2:{port}/metrics", timeout=10) as answer:
                read.append(answer.read())
            yield port

    monkeypatch.setattr(metrics, "serve_metrics", serve)
    said = run("run", write_target(TARGET), "--runtime", "local", "--metrics-port", 1, "--metrics-host", "0.0.0.0")
    assert said.code == 0, said.err
    assert b"tupletree_open_messages" in read[0]  # totals come when the run knows them
