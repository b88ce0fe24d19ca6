"""What would mix executions, or read each other's bytes wrongly, is refused before a message is worked on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.spark.counting import target
from tupletree import Topology
from tupletree.config import Options
from tupletree.errors import RuntimeUnavailableError
from tupletree.routing.plan import Plan
from tupletree.runtimes import run
from tupletree.runtimes.spark.format import program
from tupletree.runtimes.spark.format.program import load_program, pack_program, versions_here
from tupletree.runtimes.spark.session import refuse_mixing
from tupletree.sinks import jsonl
from tupletree.sources import Line, items

GOOD = {"spark.stage.maxConsecutiveAttempts": "1", "spark.speculation": "false"}


def lines(tmp_path: Path) -> Topology:
    t = Topology("lines")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("source", items([Line("a")])))
    return t


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**GOOD, "spark.speculation": "true"}, ["spark.speculation=false"]),
        ({**GOOD, "spark.stage.maxConsecutiveAttempts": "4"}, ["spark.stage.maxConsecutiveAttempts=1"]),
        ({"spark.speculation": "true"}, ["spark.stage.maxConsecutiveAttempts=1", "spark.speculation=false"]),
    ],
)
def test_a_session_on_several_hosts_that_would_mix_executions_is_refused_with_every_fault(
    settings: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(RuntimeUnavailableError) as caught:
        refuse_mixing(settings.get, "spark://host:7077")
    assert [word for word in words if word in str(caught.value)] == words
    assert len(caught.value.findings) == len(words)
    refuse_mixing(settings.get, "local[2]")


def test_a_session_that_keeps_epochs_apart_is_accepted() -> None:
    refuse_mixing(GOOD.get, "spark://host:7077")


@pytest.mark.parametrize("name", ["Python", "tupletree", "msgspec", "pyarrow", "xxhash"])
def test_a_worker_with_another_version_refuses_the_program_by_name(tmp_path: Path, name: str) -> None:
    blob = pack_program(Plan.of(lines(tmp_path).build(), Options(), 1), [])
    assert load_program(blob).plan.spec.name == "lines"
    versions, *rest = msgspec.msgpack.decode(blob)
    other = msgspec.msgpack.encode([{**versions, name: "0.0.1"}, *rest])
    with pytest.raises(RuntimeUnavailableError, match=rf"got: {name} {versions[name]}[\s\S]*expected: {name} 0\.0\.1"):
        load_program(other)


@pytest.mark.spark
def test_a_run_with_different_versions_on_workers_ends_at_its_start_and_says_so(
    tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = versions_here()
    monkeypatch.setattr(program, "versions_here", lambda: {**here, "pyarrow": "1.0"})
    handle = run.run(lines(tmp_path), target=target(), state_dir=tmp_path / "state")
    with pytest.raises(RuntimeUnavailableError, match=r"different versions[\s\S]*expected: pyarrow 1\.0"):
        handle.wait(120.0)
    assert handle.progress().emitted == 0
