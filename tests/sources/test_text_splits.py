import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.places import Place
from tupletree.errors import ConfigError, ConnectorError, EndOfInput, SourceChangedError
from tupletree.sources import Line, text_lines, text_splits
from tupletree.sources.lines import CHUNK_BYTES
from tupletree.sources.text_splits import TextSplits
from tupletree.topology.components import Emit, Reject
from tupletree.topology.splits import Split, read_split

TEXTS = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\n", id="an empty line"),
    pytest.param(b"a\nb", id="no end"),
    pytest.param(b"a\r\nb\r\n\r\nc\rd\r\n", id="CR LF"),
    pytest.param("\ufeffä\n\ufeffö\nß".encode(), id="byte order marks"),
    pytest.param("\ufeff".encode(), id="only a byte order mark"),
    pytest.param("a\u2028b\x0bc\x85\n€\n".encode(), id="what only some call line ends"),
    pytest.param(b"good\n\xff\xfe bad\r\ngood\n\xc3", id="undecodable"),
    pytest.param(b"x" * (3 * CHUNK_BYTES) + b"\n" + b"y" * 10 + b"\n" + b"z" * CHUNK_BYTES, id="very long lines"),
    pytest.param(b"\n" * 5000, id="many short lines"),
]


def opened(paths: Any, **options: Any) -> TextSplits[Any]:
    spout: TextSplits[Any] = text_splits(paths, **options)
    spout.open(Place())
    return spout


def planned(spout: TextSplits[Any], max_rows: int, max_bytes: int = 1 << 30) -> Iterator[Split]:
    try:
        while True:
            splits = spout.plan(max_rows, max_bytes)
            assert 0 < sum(split.rows for split in splits) <= max_rows
            assert len(splits) == 1 or sum(split.size_bytes for split in splits[:-1]) < max_bytes
            yield from splits
    except EndOfInput:
        spout.close()


def messages(spout: TextSplits[Any], max_rows: int, max_bytes: int = 1 << 30) -> list[Any]:
    return [
        row if isinstance(row, Reject) else Emit(row, split.message_id(index))
        for split in planned(spout, max_rows, max_bytes)
        for index, row in enumerate(read_split(pickle.loads(pickle.dumps(text_splits(spout.paths))), split))
    ]


def as_pulled(paths: Any, **options: Any) -> list[Any]:
    spout: Any = text_lines(paths, **options)
    spout.open(Place())
    found: list[Any] = []
    try:
        while True:
            found.extend(spout.next())
    except EndOfInput:
        spout.close()
    return found


@pytest.mark.parametrize("content", TEXTS)
@pytest.mark.parametrize(
    ("max_rows", "max_bytes"), [(1, 1 << 30), (3, 1 << 30), (10_000, 1), (10_000, 7), (999, 65536)]
)
def test_pieces_hold_the_messages_that_text_lines_gives(
    content: bytes, max_rows: int, max_bytes: int, tmp_path: Path
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(content)
    assert messages(opened(paths), max_rows, max_bytes) == as_pulled(paths)


@given(
    st.lists(st.lists(st.sampled_from(["a", "ä", "\r", "\n", "\r\n", "\ufeff", "€x"])).map("".join), max_size=3),
    st.integers(1, 5),
    st.integers(1, 12),
)
def test_every_line_is_in_one_piece_wherever_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], max_rows: int, max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    paths = [folder / str(number) for number in range(len(texts) + 1)]
    for path, text in zip(paths, [*texts, ""], strict=True):
        path.write_bytes(text.encode())
    assert messages(opened(paths), max_rows, max_bytes) == as_pulled(paths)


def test_a_position_is_behind_what_was_planned_and_is_that_of_text_lines(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nb\nc\nd\n")
    first = opened(path)
    first.plan(3, 1 << 30)
    second = opened(path)
    second.restore(first.snapshot())
    first.close()
    assert [message.value.text for message in messages(second, 10)] == ["d"]
    pulled = text_lines(path)
    pulled.open(Place())
    pulled.restore(first.snapshot())
    assert pulled.next() == [Emit(Line("d", str(path), 4), (str(path), 4))]
    pulled.close()


def test_each_task_plans_its_share_of_the_files(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(b"x\n")
    spout = text_splits(paths)
    spout.open(Place(task_index=1, parallelism=2))
    assert [split.source for split in planned(spout, 10)] == [str(paths[1])]


def test_lines_may_be_added_behind_what_was_planned(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nb\n")
    spout = opened(path)
    (split,) = spout.plan(2, 1 << 30)
    with path.open("ab") as file:
        file.write(b"c\n")
    assert [line.text for line in read_split(spout, split)] == ["a", "b"]
    assert [message.value.text for message in messages(spout, 10)] == ["c"]


@pytest.mark.parametrize(
    ("after", "got"), [(b"a\n", "a file of 2 bytes"), (b"a\nX\nc\n", "other bytes at 0 to 4")], ids=["shorter", "other"]
)
def test_lines_that_changed_since_they_were_planned_are_named_with_their_file(
    after: bytes, got: str, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nb\nc\n")
    spout = opened(path)
    (split,) = spout.plan(2, 1 << 30)
    spout.close()
    path.write_bytes(after)
    with pytest.raises(SourceChangedError) as raised:
        list(read_split(spout, split))
    assert f"{path}, lines 1 to 2: a file has changed since its lines were planned" in str(raised.value)
    assert got in str(raised.value)
    assert "bring the old file back" in str(raised.value)


def test_a_file_that_is_gone_or_shorter_than_its_position_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nb\nc\n")
    spout = opened(path)
    (split,) = spout.plan(2, 1 << 30)
    position = spout.snapshot()
    spout.close()
    path.write_bytes(b"a")
    with pytest.raises(SourceChangedError, match="shorter"):
        opened(path).restore(position)
    path.unlink()
    with pytest.raises(ConnectorError, match="cannot open"):
        list(read_split(spout, split))
    with pytest.raises(ConnectorError, match="No such file"):
        opened(path)


def test_compressed_files_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        text_splits(["a.log", "b.log.gz", "c.ZST"])
    assert "b.log.gz: a compressed file cannot be read in pieces" in str(raised.value)
    assert "c.ZST" in str(raised.value)


@pytest.mark.parametrize("paths", [[], ["a", "a"]])
def test_paths_are_checked_as_those_of_text_lines(paths: list[str]) -> None:
    with pytest.raises(ConfigError, match="text_splits"):
        text_splits(paths)
