"""The Spark runtime on its in-process backend: the same driver, stages and files, in milliseconds.

A crash is an exception at a crash point: what was begun is not undone, and the next start has only the files.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import QUICK, SINKS, expected_rows, heard, rows_of, topology, write_text
from tests.spark.crashing_in_process import crashing_at
from tupletree.config import resolve_options
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunRequest, Summary
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.testing.in_process import InProcessPlanRunner, start_in_process

HANG_S = 30.0
LINES = 34
POISON = 2


def count(place: Path, partitions: int = 2, source: str = "file", **options: object) -> Summary:
    """Run the count of the crash tests to its end."""
    t = topology(place, source=source)
    settings = resolve_options(code={**QUICK, **t.build().options, **options})
    request = RunRequest(t, settings, None, place / "state", append=False, master="", redact=None)
    return start_in_process(request, partitions).wait(HANG_S)


def good_rows(place: Path) -> Counter[tuple[str, int]]:
    """What a plain reader must see in the end: poisoned lines never counted."""
    return expected_rows([text for text in (place / "text").read_text().splitlines() if "poison" not in text])


@pytest.mark.parametrize("source", ["file", "splits", "parquet"])
def test_it_accounts_for_every_message_as_spark_does(tmp_path: Path, source: str) -> None:
    write_text(tmp_path, LINES)
    ended = count(tmp_path, source=source)
    assert (ended.acked, ended.dead, ended.open) == (LINES - POISON, POISON, 0)
    for sink in SINKS:
        assert rows_of(tmp_path, sink) == good_rows(tmp_path)


@pytest.mark.parametrize("point", crash_points.CRASH_POINTS)
@pytest.mark.parametrize(("passes", "source"), [(1, "file"), (2, "file"), (2, "parquet")])
def test_after_a_crash_at_any_point_every_row_is_there_once(
    tmp_path: Path, point: str, passes: int, source: str
) -> None:
    write_text(tmp_path, LINES)
    with crashing_at(point, passes):
        count(tmp_path, source=source)
    ended = count(tmp_path, partitions=3, source=source)
    assert (ended.acked, ended.dead, ended.open) == (LINES - POISON, POISON, 0)
    for sink in SINKS:
        assert rows_of(tmp_path, sink) == good_rows(tmp_path)
    if source != "file":
        return  # it hears no ack
    told = heard(tmp_path)
    assert {number for what, number in told if what == "acked"} == {
        number for number, text in enumerate((tmp_path / "text").read_text().splitlines(), 1) if "poison" not in text
    }


def test_no_message_is_pulled_before_the_warm_up_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, pulled = InProcessPlanRunner.run, Intake.pull
    story: list[str] = []
    first_pull = threading.Event()

    def run(self: Any, slices: Any, control: Any) -> Any:
        if control.epoch < 0:
            first_pull.wait(0.2)  # it does not come
        reports = ran(self, slices, control)
        story.append("warm-up" if control.epoch < 0 else "epoch")
        return reports

    def pull(self: Intake, epoch: int) -> bool:
        story.append("pull")
        first_pull.set()
        return pulled(self, epoch)

    monkeypatch.setattr(InProcessPlanRunner, "run", run)
    monkeypatch.setattr(Intake, "pull", pull)
    write_text(tmp_path, LINES)
    assert count(tmp_path).open == 0
    assert story[:2] == ["warm-up", "pull"]
    assert story.count("warm-up") == 1


def test_an_epoch_is_not_committed_before_the_source_has_heard_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    next_is_logged, next_has_run, next_commits = threading.Event(), threading.Event(), threading.Event()
    logged: list[str] = []

    def reach(point: str) -> None:
        if point == "epoch.after_log":
            logged.append(point)
            if len(logged) == 2:
                next_is_logged.set()
        if point == "settle.after_run" and not story:
            assert next_is_logged.wait(HANG_S), "its input is there"
        if point == "callbacks.before" and "callbacks.after" not in story:
            assert next_has_run.wait(HANG_S), "it is logged already"
            next_commits.wait(0.3)  # it could be committed now
        if point == "settle.after_run" and story:
            next_has_run.set()
        if point in {"settle.before_log", "callbacks.after"}:
            if story:
                next_commits.set()
            story.append(point)

    monkeypatch.setattr(crash_points, "on_reached", reach)
    write_text(tmp_path, LINES)
    assert count(tmp_path, epoch_max_messages=5, max_spout_pending=100).open == 0
    assert len(story) > 6
    assert story == ["settle.before_log", "callbacks.after"] * (len(story) // 2)
