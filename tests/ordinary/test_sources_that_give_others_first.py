"""A source that gives a failed message again only after others does not stop windows for `retry_hold_s`.

The local runtime's part is in tests/tasks/test_blocked_sources.py, on virtual time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ordinary.conftest import InProcess
from tests.tasks.giving_again import Members, Queue, pairs_from, seconds
from tupletree.sinks import jsonl, read_rows


def rows_of(folder: Path) -> list[Members]:
    return [Members(row) for row in sorted(row["seconds"] for row in read_rows(folder))]


@pytest.mark.parametrize("others", [0, 6])
def test_windows_wait_for_it_while_it_can_come(tmp_path: Path, in_process: InProcess, others: int) -> None:
    ended = in_process(seconds(Queue(20, others), jsonl(tmp_path / "out"), 8), tmp_path / "state")
    assert (ended.acked, ended.dead, ended.open) == (20, 0, 0)
    assert rows_of(tmp_path / "out") == pairs_from(0, 20)


@pytest.mark.parametrize("others", [40, 1000])
def test_windows_go_on_without_it_when_those_that_they_hold_fill_the_limit(
    tmp_path: Path, in_process: InProcess, others: int
) -> None:
    ended = in_process(seconds(Queue(60, others), jsonl(tmp_path / "out"), 8), tmp_path / "state")
    assert (ended.acked, ended.dead, ended.open) == (60, 0, 0)
    assert rows_of(tmp_path / "out") == [Members([0]), Members([1]), *pairs_from(2, 60)]
