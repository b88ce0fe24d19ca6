"""Rows that wait for open trees: which are published, when, and that no file is taken for another."""

from __future__ import annotations

from tupletree.runtimes.spark.format.entries import WaitingFile
from tupletree.runtimes.spark.settle.open_trees import WaitingChanges, WaitingRows


def test_files_of_two_sinks_that_have_one_name_wait_side_by_side() -> None:
    waiting, unfinished, freed = WaitingRows(), {1, 2}, set[int]()
    changes = WaitingChanges(waiting)
    for sink in ("left", "right"):
        file = WaitingFile(sink, 0, 3, "_tt-000003-000.jsonl", "_tt-000003-000.roots", 1)
        assert changes.add(file, [(0, (1, 2))], unfinished.__contains__, lambda _: False)
    waiting.apply(changes)
    assert [file.sink for file in waiting.files()] == ["left", "right"]
    unfinished.clear()
    changes = WaitingChanges(waiting)
    decided = changes.decide([1, 2], [], unfinished.__contains__, freed)
    assert [(one.file.sink, one.publish, one.is_last) for one in decided] == [
        ("left", [True], True),
        ("right", [True], True),
    ]
    assert freed == {1, 2}
    waiting.apply(changes)
    assert len(waiting) == 0
