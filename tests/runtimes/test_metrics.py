"""Prometheus reads a run: counters that only grow, gauges, served on the loopback address only."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tupletree import Topology, bolt
from tupletree.config import Options
from tupletree.errors import ConfigError
from tupletree.runtimes import run
from tupletree.runtimes.api import Progress, RunHandle
from tupletree.runtimes.metrics import LOOPBACK, RunCollector, serve_metrics
from tupletree.runtimes.progress import ProgressRecord
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.tracking.outages import ShownOutage


class Word(msgspec.Struct, frozen=True):
    text: str


@bolt
def check(word: Word) -> Word:
    if word.text == "bad":
        raise ValueError(word.text)
    return word


def ended_run(tmp_path: Path) -> RunHandle:
    t = Topology("words")
    checked = t.bolt("check", check).shuffle(t.spout("in", items([Word("a"), Word("bad"), Word("b")])))
    t.sink("out", foreach(lambda row: None)).shuffle(checked)
    options = Options(max_attempts=2, backoff_initial_ms=1.0)
    handle = run.run(t, runtime="local", options=options, state_dir=tmp_path / "state")
    handle.wait(60.0)
    return handle


def test_the_numbers_of_a_run_can_be_scraped(tmp_path: Path) -> None:
    with serve_metrics(ended_run(tmp_path), "words", "local", 0) as port:
        text = urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10).read().decode()
    own = {"topology": "words", "runtime": "local"}
    samples = {
        (sample.name, *sorted(set(sample.labels.items()) - set(own.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if own.items() <= sample.labels.items()
    }
    assert samples["tupletree_messages_total", ("outcome", "acked")] == 2
    assert samples["tupletree_messages_total", ("outcome", "dead")] == 1
    assert samples["tupletree_attempts_total", ("what", "failed")] == 2
    assert samples["tupletree_attempts_total", ("what", "retried")] == 1
    assert samples["tupletree_sink_rows_total", ("sink", "out")] == 2
    assert samples["tupletree_open_messages",] == samples["tupletree_open_trees",] == 0
    assert samples["tupletree_state", ("state", "stopped")] == 1
    assert samples["tupletree_state", ("state", "processing")] == 0
    assert 0 < samples["tupletree_latency_seconds", ("quantile", "0.5")] < 60
    assert ("tupletree_epoch",) not in samples, "a local run has no epochs"


def test_a_port_that_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    handle = ended_run(tmp_path)
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ConfigError, match="the metrics cannot be served") as raised,
            serve_metrics(handle, "words", "local", port),
        ):
            pytest.fail("it was served")
    assert str(port) in str(raised.value)


def test_the_port_is_free_again_afterwards(tmp_path: Path) -> None:
    handle = ended_run(tmp_path)
    with serve_metrics(handle, "words", "local", 0) as port:
        pass
    with serve_metrics(handle, "words", "local", port) as again:
        assert again == port


class Waiting:
    """A run that waits for something outside."""

    def __init__(self, handle: RunHandle) -> None:
        self._handle = handle
        self.state_dir = handle.state_dir

    def progress(self) -> Progress:
        lasting = (ShownOutage("out", "ConnectorError: away", 12.0, 0.5),)
        return replace(self._handle.progress(), state="waiting", outages=lasting, outage_counts={"out": 3})

    def recent_progress(self) -> list[ProgressRecord]:
        return self._handle.recent_progress()


def test_outages_are_counted_and_say_how_long_they_last(tmp_path: Path) -> None:
    collector = RunCollector(Waiting(ended_run(tmp_path)), "words", "local")  # type: ignore[arg-type]  # all it asks for
    samples = {
        (sample.name, sample.labels.get("component")): sample.value
        for family in collector.collect()
        for sample in family.samples
    }
    assert samples["tupletree_outages_total", "out"] == 3
    assert samples["tupletree_outage_seconds", "out"] == 12.0
