"""A replay request that a run has accepted, and whose run then dies before the journal names it: each letter once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ordinary.conftest import HANG_S, begin_in_process
from tests.tasks.streams import Line, Word
from tupletree import PermanentError, Topology, bolt
from tupletree.errors import TupletreeError
from tupletree.runtimes import crash_points, deadletters
from tupletree.runtimes.spark.driver.replays import Replays
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items

MENDED: list[bool] = []
POINTS = ["epoch.before_log", "epoch.after_log", "settle.before_log", "settle.after_log", "callbacks.before"]


class Crash(BaseException):
    """In the place of the end of the process."""


@bolt
def work(line: Line) -> Word:
    if not MENDED and line.text.startswith("bad"):
        raise PermanentError("not yet")
    return Word(line.text)


def topology(folder: Path) -> Topology:
    t = Topology("replayed")
    lines = t.spout("lines", items([Line(text) for text in ("a", "bad 1", "b", "bad 2", "bad 3")]))
    t.sink("out", jsonl(folder / "out")).shuffle(t.bolt("work", work).shuffle(lines))
    return t


def die_once_accepted(folder: Path, point: str, nth: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the nth time that this point is reached after the request was accepted: its first epoch may be empty."""
    accepted: list[str] = []
    reached_since: list[str] = []
    accept = Replays._accept

    def accepts(replays: Replays, request: deadletters.ReplayRequest) -> None:
        accept(replays, request)
        accepted.append(request.id)

    def reached(name: str) -> None:
        if accepted and name == point:
            reached_since.append(name)
            if len(reached_since) == nth:
                raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Replays, "_accept", accepts)
        patched.setattr(crash_points, "on_reached", reached)
        try:
            begin_in_process(topology(folder), folder / "state", epoch_max_messages=limit).wait(HANG_S)
        except (Crash, TupletreeError):
            assert len(reached_since) == nth
    assert accepted


@pytest.mark.parametrize("limit", [2, 100], ids=["in several epochs", "in one epoch"])
@pytest.mark.parametrize("stops", [False, True], ids=["", "and a stop at once"])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_after_acceptance_replays_each_letter_once_and_the_numbers_are_right(
    point: str, nth: int, stops: bool, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MENDED.clear()
    ended = begin_in_process(topology(tmp_path), tmp_path / "state").wait(HANG_S)
    assert (ended.emitted, ended.acked, ended.dead) == (5, 2, 3)
    MENDED.append(True)
    deadletters.request_replay(tmp_path / "state", None)
    die_once_accepted(tmp_path, point, nth, limit, monkeypatch)
    if stops:
        handle = begin_in_process(topology(tmp_path), tmp_path / "state", epoch_max_messages=limit)
        handle.stop()
        handle.wait(HANG_S)
    ended = begin_in_process(topology(tmp_path), tmp_path / "state", epoch_max_messages=limit).wait(HANG_S)
    assert sorted(row["word"] for row in read_rows(tmp_path / "out")) == ["a", "b", "bad 1", "bad 2", "bad 3"]
    assert (ended.emitted, ended.acked, ended.dead, ended.open) == (5, 5, 0, 0)
    assert deadletters.read(tmp_path / "state") == []
