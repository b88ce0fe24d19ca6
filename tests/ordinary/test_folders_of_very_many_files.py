"""Folders with very many files: the work for each file does not grow with their number."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tupletree.clock import ManualClock
from tupletree.errors import EndOfInput
from tupletree.sources import file_queue, file_table, files, rotation, text_lines

LONG = "a line that is long enough to recognise a file by it\n"


class Counted:
    """How often functions of the source are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        counted = (file_table, "is_rotated"), (rotation, "is_rotated"), (file_table, "found_at"), (files, "found_at")
        for module, name in counted:
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, function: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            self.calls += 1
            return function(*arguments)

        return counting


def read(source: Any, position: Any = None) -> tuple[int, Any]:
    """How many lines it gives, and where it is then."""
    source.open(SimpleNamespace(task_index=0))
    if position is not None:
        source.restore(position)
    lines = 0
    while True:
        try:
            lines += len(source.next())
        except EndOfInput:
            break
    position = source.snapshot()
    source.close()
    return lines, position


@pytest.mark.parametrize("name", ["part-{:05}", "part-{:05}.txt", "part.log.{}"])
def test_a_resumed_run_compares_no_file_with_every_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def calls_for(count: int) -> float:
        folder = tmp_path / f"{count}"
        folder.mkdir()
        for number in range(count):
            (folder / name.format(number)).write_text(f"{number} {LONG}")
        lines, position = read(text_lines(str(folder / "part*")))
        assert lines == count
        for number in range(count // 2):  # finished ones are taken away, and others come
            (folder / name.format(number)).unlink()
            (folder / name.format(count + number)).write_text(f"{count + number} {LONG}")
        counted = Counted(monkeypatch)
        lines, _ = read(text_lines(str(folder / "part*")), position)
        assert lines == count // 2
        monkeypatch.undo()
        return counted.calls / count

    # 1.5 to 2.5, by how many of the inodes that become free go to the new files here: other processes take some.
    assert calls_for(40) <= 3
    assert calls_for(400) <= 3


def test_a_source_that_follows_spends_a_fifth_of_its_time_at_most_on_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(LONG)
    clock = ManualClock()
    looks = []
    real = files.FileList.find

    def slow(self: files.FileList) -> files.Listing:
        looks.append(clock.monotonic())
        clock.advance(5.0)
        return real(self)

    monkeypatch.setattr(files.FileList, "find", slow)
    source = text_lines(str(tmp_path / "*.txt"), follow=True, poll_interval_s=1.0, clock=clock)
    source.open(SimpleNamespace(task_index=0))
    while clock.monotonic() < 100.0:
        source.next()
        clock.advance(0.5)
    source.close()
    assert file_queue.LOOK_PAUSE == 4.0
    assert [round(later - before) for before, later in itertools.pairwise(looks)] == [25] * 3
