"""Lines that are too long are dead letters that hold their start; they are read in pieces."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.places import Place
from tests.sources.test_text import opened, read, read_elsewhere, read_on, texts, write
from tupletree.clock import ManualClock
from tupletree.errors import ConfigError
from tupletree.sources import text_lines
from tupletree.sources.line_reader import START_BYTES
from tupletree.topology.components import Emit, Reject


def test_a_line_that_is_too_long_is_rejected_with_its_start_and_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"one\n" + b"x" * 300_000 + b"\nthree\n")
    first, second, third = read(path, max_line_bytes=200_000)
    assert (first, third) == (Emit(first.value, (path, 1)), Emit(third.value, (path, 3)))
    assert isinstance(second, Reject)
    assert (second.message_id, second.payload) == ((path, 2), b"x" * START_BYTES)
    assert second.reason.startswith(
        f"{path}, line 2: longer than max_line_bytes (300,000 bytes, expected at most 200,000)"
    )


@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize(("length", "passes"), [(1000, True), (1001, False)])
def test_the_limit_is_exact_also_at_the_end_of_a_file(
    length: int, ending: bytes, tmp_path: Path, *, passes: bool
) -> None:
    (row,) = read(write(tmp_path / "a", b"y" * length + ending), max_line_bytes=1000)
    assert isinstance(row, Emit) is passes


def test_the_default_takes_ordinary_long_lines_and_none_takes_all(tmp_path: Path) -> None:
    assert texts(b"z" * 2_000_000 + b"\n", tmp_path) == ["z" * 2_000_000]
    assert isinstance(read(write(tmp_path / "b", b"z" * 17_000_000))[0], Reject)
    assert len(texts(b"z" * 17_000_000, tmp_path, max_line_bytes=None)[0]) == 17_000_000


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_any_lengths_are_read_or_rejected_in_order(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    longest = draw.choice([1, 10, 5_000, 300_000])
    lengths = [draw.choice([0, 1, longest - 1, longest, longest + 1, 4 * longest, 7]) for _ in range(60)]
    content = b"".join(b"%c" % draw.choice(b"abc") * length + b"\n" for length in lengths)
    content = content[:-1] if draw.random() < 0.5 else content
    path = str(tmp_path / draw.choice(["a.txt", "a.gz"]))
    Path(path).write_bytes(gzip.compress(content) if path.endswith("gz") else content)
    lines = content.split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    options: dict[str, Any] = {"max_line_bytes": longest}
    for rows in (read(path, **options), read_elsewhere(opened(path, **options), 7, 10 * longest)):
        assert [row.message_id for row in rows] == [(path, number + 1) for number in range(len(lines))]
        got = [row.payload if isinstance(row, Reject) else row.value.text.encode() for row in rows]
        assert got == [line if len(line) <= longest else line[:START_BYTES] for line in lines]
        assert [isinstance(row, Reject) for row in rows] == [len(line) > longest for line in lines]


def test_it_is_never_held_as_a_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "a.gz")
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(60):
            file.write(b"\0" * 1_000_000)
        file.write(b"\nlast\n")
    tracemalloc.start()
    try:
        rows = read(path, max_line_bytes=1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [type(row) for row in rows] == [Reject, Emit]
    assert peak < 8_000_000


def test_one_that_grows_is_reported_once_at_its_end_also_after_a_resume(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "a"
    spout = opened(path, follow=True, max_line_bytes=100, clock=clock)
    rows: list[Any] = []
    path.write_bytes(b"first\n")
    rows += spout.next() or ()
    for step in range(6):
        with path.open("ab") as file:
            file.write(b"x" * 70)
        clock.advance(1.0)
        rows += spout.next() or ()
        if step == 3:
            position = spout.snapshot()
            spout.close()
            spout = opened(path, follow=True, max_line_bytes=100, clock=clock)
            spout.restore(position)
    with path.open("ab") as file:
        file.write(b"\nlast\n")
    clock.advance(1.0)
    for _ in range(3):
        rows += spout.next() or ()
    spout.close()
    assert [row.message_id[1] for row in rows] == [1, 2, 3]
    assert "420 bytes" in rows[1].reason
    assert rows[2].value.text == "last"


def test_a_resume_behind_one_goes_on_with_the_next_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"x" * 500 + b"\nnext\n")
    spout = opened(path, max_line_bytes=100)
    (row,) = spout.next() or ()
    position = spout.snapshot()
    spout.close()
    again = text_lines(path, max_line_bytes=100)
    again.open(Place())
    again.restore(position)
    assert isinstance(row, Reject)
    assert [one.message_id[1] for one in read_on(again)] == [2]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_limit_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="no length of a line"):
        text_lines("a", max_line_bytes=wrong)
