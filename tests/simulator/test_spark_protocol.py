"""The protocol of the Spark runtime in a simulation: seeds that must pass, and bugs put in on purpose that must not."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.protocol import KINDS, BrokenRuleError, simulate
from tests.simulator.script import Leased
from tupletree.errors import TupletreeError
from tupletree.runtimes import crash_points
from tupletree.runtimes.spark.driver import retention
from tupletree.runtimes.spark.driver.loop import Loop, LoopEvents
from tupletree.runtimes.spark.driver.retention import sweep_orphans
from tupletree.runtimes.spark.format import segments
from tupletree.runtimes.spark.format.entries import numbered, read_epoch_header
from tupletree.runtimes.spark.format.segments import epoch_of_segment
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.incarnation import Incarnation
from tupletree.runtimes.spark.settle import decision
from tupletree.runtimes.spark.settle.decision import EpochDecision
from tupletree.runtimes.spark.settle.engine import Engine
from tupletree.runtimes.spark.settle.epoch_runs import EpochRuns
from tupletree.runtimes.spark.settle.publish import remove
from tupletree.runtimes.spark.settle.reports import EpochSettlement, Reports, SidecarReader
from tupletree.runtimes.spark.settle.root_verdicts import RootVerdicts
from tupletree.runtimes.spark.worker import stage as stages
from tupletree.sinks.files import publish
from tupletree.testing.spark_protocol import ProtocolFaults, ProtocolSimulation

SEEDS = range(300)
SHARES = 6
MOST_SEEDS = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What goes wrong here is meant to, and is logged a thousand times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory if possible: a seed writes and removes hundreds of files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="tupletree-", dir=memory) as folder:
        yield Path(folder)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def simulated(seed: int, place: Path, kind: str = "") -> ProtocolSimulation:
    """Simulate a seed, and leave nothing in the folder."""
    folder = made(place / str(seed))
    try:
        return simulate(seed, folder, kind=kind)
    finally:
        shutil.rmtree(folder)


def simulate_all(seeds: range, place: Path) -> Counter[str]:
    totals: Counter[str] = Counter()
    for seed in seeds:
        totals.update(simulated(seed, place).counts)
    return totals


@pytest.mark.parametrize("share", range(SHARES))
def test_the_guarantee_holds_under_every_seed(place: Path, share: int) -> None:
    totals = simulate_all(SEEDS[share::SHARES], place)
    assert totals["machine"] > 4
    assert totals["process"] > 2


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (13, "splits"),
        (207, "replay"),
        (208, "splits"),
        (671, "plain"),
        (826, "held"),
        (3712, "held"),
        (4562, "replay"),
        (5145, "splits"),
        (29, "leased"),
        (5274, "replay"),
    ],
)
def test_seeds_that_have_found_something_before(place: Path, seed: int, kind: str) -> None:
    """A sidecar removed before its candidate; an attempt in no log; names that were not durable, five times; a source
    that had not been told of a message, whose lease was over; four jobs lost in a row, which end a run rightly."""
    simulate(seed, place, kind=kind)


@pytest.mark.nightly
@pytest.mark.parametrize("share", range(100))
def test_the_guarantee_holds_under_ten_thousand_seeds(place: Path, share: int) -> None:
    simulate_all(range(10_000)[share::100], place)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_without_faults_every_message_ends(place: Path, kind: int) -> None:
    faults = ProtocolFaults(crashes=0, executor=0.0, twice=0.0, job=0.0)
    assert simulate(kind, place, faults).counts == {}


def test_a_seed_gives_the_same_run_again(place: Path) -> None:
    for number in range(2):
        (place / str(number)).mkdir()
    # The two runs have other paths, other inodes, and other moments; 7 retries a called sink.
    for seed in range(len(KINDS)):
        one, other = (simulate(seed, made(place / str(number) / str(seed))) for number in range(2))
        assert one.counts == other.counts
        assert one.chance.random() == other.chance.random()


def test_what_other_threads_do_meanwhile_is_not_in_a_run(place: Path) -> None:
    """A run that another test left wrote its status, whose draft has a drawn name: seeds gave other runs then."""
    is_over, asked = threading.Event(), Counter[str]()

    def write() -> None:
        while not is_over.is_set():
            asked["names"] += len(os.urandom(1))
            crash_points.crash_point("settle.after_run")

    alone = simulate(0, made(place / "alone"))
    other = threading.Thread(target=write)
    other.start()
    try:
        beside = simulate(0, made(place / "beside"))
    finally:
        is_over.set()
        other.join()
    assert asked["names"] > 0
    assert (alone.counts, alone.chance.random()) == (beside.counts, beside.chance.random())


def caught(place: Path, kind: str = "") -> str:
    """Simulate until a rule is broken, or the run cannot go on; which, or why. A kind: only topologies of it."""
    for seed in range(MOST_SEEDS):
        try:
            simulated(seed, place, kind)
        except (BrokenRuleError, TupletreeError) as error:
            return str(error)
    pytest.fail(f"{MOST_SEEDS} seeds and nothing was noticed")


def test_a_commit_before_the_candidates_are_durable_is_caught(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "sync_directory", lambda _: None)
    broken = caught(place)
    assert "neither the candidate nor the published file exists" in broken or "missing" in broken


def before_the_commit(monkeypatch: pytest.MonkeyPatch, what: Callable[[Engine, EpochDecision], None]) -> None:
    real = Engine._commit

    def commit(self: Engine, decision: EpochDecision) -> None:
        what(self, decision)
        real(self, decision)

    monkeypatch.setattr(Engine, "_commit", commit)


def test_publishing_before_the_commit_is_caught(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def publish_all(engine: Engine, decision: EpochDecision) -> None:
        for output in decision.entry.outputs:
            if output.final:
                folder = Path(engine._runs._sinks[output.sink])
                publish(folder / output.candidate, folder / output.final)

    before_the_commit(monkeypatch, publish_all)
    broken = caught(place)
    # Recovery takes a published file for a sign that an entry is lost.
    signs = ("that are not acked", "missing", "the rows say", "before the crash and are not after it")
    assert any(sign in broken for sign in signs), broken


def test_an_output_of_a_message_that_was_left_out_is_caught(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RootVerdicts, "shown", lambda _self, rows: [True] * len(rows))
    broken = caught(place, "plain")
    assert "twice" in broken or "not acked" in broken or "part of a message" in broken or "the rows say" in broken


def test_a_state_of_a_run_that_did_not_count_is_caught(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = EpochSettlement.judge_run
    first: dict[int, Reports] = {}

    def judge_run(self: EpochSettlement, reports: Reports, read_sidecar: SidecarReader) -> bool:
        before = first.setdefault(id(self.record), reports)
        if not real(self, reports, read_sidecar):
            return False
        reports.states[:] = before.states
        return True

    monkeypatch.setattr(EpochSettlement, "judge_run", judge_run)
    monkeypatch.setattr(EpochRuns, "_files_of", lambda _self, _reports: [])
    assert "the state is" in caught(place)


def test_callbacks_before_the_commit_are_caught(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Incarnation.open
    now: list[Loop] = []

    def open_(self: Incarnation, events: Callable[[Incarnation], LoopEvents], **others: Any) -> Loop:
        now[:] = [real(self, events, **others)]
        return now[0]

    monkeypatch.setattr(Incarnation, "open", open_)

    def tell(_engine: Engine, decision: EpochDecision) -> None:
        now[0]._callbacks.tell(decision.outcomes)

    before_the_commit(monkeypatch, tell)
    broken = caught(place)
    assert "heard of" in broken or "lacks rows of acked messages" in broken or "letters" in broken


@pytest.mark.parametrize("what", ["state", "waiting"])
def test_a_sweep_of_a_file_that_an_entry_names_is_caught(
    place: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    real = sweep_orphans

    def sweep(directory: Any, sinks: Any, published: int, state: Any, kept: Any, waiting: Any) -> None:
        named = {"state": ({}, kept, waiting), "waiting": (state, kept, frozenset[str]())}[what]
        real(directory, sinks, published, *named)

    monkeypatch.setattr("tupletree.runtimes.spark.driver.loop.sweep_orphans", sweep)
    broken = caught(place)
    assert "missing" in broken or "gone" in broken


def test_a_log_that_names_a_segment_which_is_not_durable_is_caught(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, pieces: list[bytes]) -> bool:
        return path.write_bytes(b"".join(pieces)) > 0

    monkeypatch.setattr(segments, "write_once", write)
    broken = caught(place, "leased")
    assert "missing" in broken or "checksum" in broken or "container" in broken


def test_a_message_that_is_forgotten_before_its_source_knows_what_became_of_it_is_caught(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leased, "not_told", lambda _self: ())
    assert "twice" in caught(place, "leased")


def test_a_segment_that_is_swept_while_a_log_may_still_name_it_is_caught(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep(directory: StateDirectory, before: float) -> None:
        remove(directory.segments.glob("*.segment"))

    monkeypatch.setattr(retention, "sweep_segments", sweep)
    monkeypatch.setattr(decision, "BASE_EPOCHS", 2)
    broken = caught(place, "leased")
    assert "missing" in broken or "gone" in broken, broken


@pytest.mark.parametrize("kind", ["leased", "released"])
def test_segments_go_with_the_logs_that_name_them(place: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """All go at the next sweep, also those that a crash of the machine brings back after they were removed."""
    monkeypatch.setattr(decision, "BASE_EPOCHS", 2)
    sweep = retention.sweep_segments
    removed: set[str] = set()

    def sweep_all(directory: StateDirectory, before: float) -> None:
        there = segments_in(directory.segments)
        sweep(directory, before)
        left = segments_in(directory.segments)
        logs = [read_epoch_header(directory.epochs, one) for one in numbered(directory.epochs, ".epoch")]
        named = {one.file for header in logs for one in header.segments}
        assert {name for name in left if epoch_of_segment(name) < before} <= named
        removed.update(there - left)

    monkeypatch.setattr(retention, "sweep_segments", sweep_all)
    came_back = 0
    for seed in range(12):
        removed.clear()
        folder = made(place / str(seed))
        simulation = simulate(seed, folder, kind=kind)
        first = numbered(simulation.state_dir / "epochs", ".epoch")[0]
        old = {name for name in segments_in(simulation.state_dir / "segments") if epoch_of_segment(name) < first - 1}
        assert old <= removed, f"seed {seed}: never swept"
        assert not old or simulation.counts["machine"], f"seed {seed}: not brought back by a crash"
        came_back += len(old)
        shutil.rmtree(folder)
    print(f"{kind}: {came_back} came back after the last sweep")


def segments_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.segment")}
