"""The collector's threshold belongs to the process: it is raised and restored."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.running import run
from tupletree import Topology
from tupletree.runtimes.local.gc import rarer_collections
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.testing.conformance.messages import Item

OWN = (700, 10, 10)


@pytest.fixture(autouse=True)
def own_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*OWN)
    yield
    gc.set_threshold(*before)


def test_the_last_user_restores_it_in_any_order() -> None:
    first, second = rarer_collections(5_000), rarer_collections(9_000)
    first.__enter__()
    assert gc.get_threshold() == (5_000, 10, 10)
    second.__enter__()
    assert gc.get_threshold() == (9_000, 10, 10)
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (9_000, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == OWN


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 5, 5)], ids=["off", "higher"])
def test_a_collector_that_is_off_or_rarer_already_is_not_changed(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rarer_collections(9_000):
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


@pytest.mark.parametrize("threshold", [0, 9_000])
def test_a_run_sets_the_threshold_of_its_option(tmp_path: Path, threshold: int) -> None:
    seen = []
    t = Topology("t")
    t.sink("out", foreach(lambda _: seen.append(gc.get_threshold()[0]))).shuffle(t.spout("in", items([Item(1)])))
    run(t, tmp_path / "state", local_gc_threshold=threshold)
    assert seen == [threshold or OWN[0]]
    assert gc.get_threshold() == OWN


def test_a_run_that_fails_restores_it(tmp_path: Path) -> None:
    def refuse(_: object) -> None:
        raise OSError("no")

    t = Topology("t")
    t.sink("out", foreach(refuse)).shuffle(t.spout("in", items([Item(1)])))
    run(t, tmp_path / "state", local_gc_threshold=9_000, max_attempts=1)
    assert gc.get_threshold() == OWN
