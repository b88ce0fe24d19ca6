import json
from pathlib import Path

import pytest

from tests.places import Place
from tupletree.errors import CheckpointError, EndOfInput
from tupletree.sources import file_table, text_lines
from tupletree.sources.file_table import FileTable


def test_the_position_of_many_files_is_small_and_quickly_taken(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.log").write_text(f"line {number} of a file\n")
    spout = text_lines(str(tmp_path / "*.log"))
    spout.open(Place())
    assert sum(split.rows for split in spout.plan(1000, 1 << 20) or ()) == 300
    spout.snapshot()
    position = spout.snapshot()
    assert len(json.dumps(position)) < 300 * 100
    assert spout.snapshot()["files"][0] is position["files"][0]
    again = text_lines(str(tmp_path / "*.log"))
    again.open(Place())
    again.restore(json.loads(json.dumps(position)))
    with pytest.raises(EndOfInput):
        again.plan(1000, 1 << 20)
    assert again.snapshot() == position


def test_a_position_that_is_none_is_refused() -> None:
    with pytest.raises(CheckpointError, match="position of a source of files"):
        FileTable("utf-8").restore({"index": 0, "offset": 3})


def test_of_files_that_are_gone_the_last_ones_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_table, "FORGET_BEYOND", 3)
    for number in range(6):
        (tmp_path / f"{number}.log").write_text(f"line {number}\n")
    position = None
    for left in range(6, -3, -1):  # one look after the last file is gone finds it gone, and the next one forgets
        spout = text_lines(str(tmp_path / "*.log"), follow=True)
        spout.open(Place())
        if position is not None:
            spout.restore(position)
        while spout.plan(1000, 1 << 20):
            pass
        position = spout.snapshot()
        spout.close()
        if left > 0:
            (tmp_path / f"{6 - left}.log").unlink()
    kept = json.dumps(position)
    assert [name for name in (f"{number}.log" for number in range(6)) if name in kept] == ["3.log", "4.log", "5.log"]
