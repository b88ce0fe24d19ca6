"""Which lines executors read in their files, and which ones travel in the epoch's log."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.places import Place
from tupletree.errors import ConnectorError
from tupletree.sources import Line, text_lines
from tupletree.topology.splits import Split, read_split


def lines_without_the_file(path: Path, content: bytes, **options: Any) -> list[Any]:
    """What an executor reads that does not see the file."""
    path.write_bytes(content)
    spout = text_lines(path, **options)
    spout.open(Place())
    (split,) = spout.plan(10, 1 << 30) or ()
    spout.close()
    path.unlink()
    packed = msgspec.json.decode(msgspec.json.encode(split), type=Split)
    return [line.text for line in read_split(spout, packed) if isinstance(line, Line)]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.log", b"a\nb\n", {"follow": True}),
        ("a.log.gz", gzip.compress(b"a\nb\n"), {}),
        ("a.log", "a\nb\n".encode("utf-16"), {}),
        ("a.log", b"a\nb\n", {"logged": True}),
    ],
    ids=["followed", "compressed", "UTF-16", "logged"],  # not by content: each process compresses at another time
)
def test_followed_compressed_and_utf_16_files_are_read_by_the_driver(
    tmp_path: Path, name: str, content: bytes, options: dict[str, Any]
) -> None:
    assert lines_without_the_file(tmp_path / name, content, **options) == ["a", "b"]


def test_other_files_are_read_by_executors(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=r"a\.log"):
        lines_without_the_file(tmp_path / "a.log", b"a\nb\n")
