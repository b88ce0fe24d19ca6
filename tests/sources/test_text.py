import dataclasses
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.places import Place
from tupletree.errors import ConfigError, ConnectorError, EndOfInput, SourceChangedError
from tupletree.sources import Line, text_lines
from tupletree.sources.line_reader import CHUNK_BYTES
from tupletree.sources.text import TextLines
from tupletree.topology.components import Emit, Reject
from tupletree.topology.splits import Split, read_split


class OnlyText(msgspec.Struct, kw_only=True):
    words: str


class Reordered(NamedTuple):
    number: int
    text: str
    extra: str = "default"


@dataclasses.dataclass(kw_only=True)
class ByKeyword:
    extra: int = 7
    path: str
    text: str


class Short(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        if len(self.text) > 3:
            raise ArithmeticError("it is too long")


class NoText(msgspec.Struct):
    path: str
    number: int


class TooMuch(msgspec.Struct):
    text: str
    size: int


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def read_on(spout: TextLines[Any]) -> list[Any]:
    messages: list[Any] = []
    try:
        while True:
            messages.extend(spout.next() or ())
    except EndOfInput:
        spout.close()
    return messages


def planned(spout: TextLines[Any], max_rows: int = 10_000, max_bytes: int = 1 << 30) -> Iterator[Split]:
    try:
        while True:
            splits = spout.plan(max_rows, max_bytes) or ()
            assert 0 < sum(split.rows for split in splits) <= max_rows
            assert len(splits) == 1 or sum(split.size_bytes for split in splits[:-1]) < max_bytes
            yield from splits
    except EndOfInput:
        spout.close()


def read_elsewhere(spout: TextLines[Any], max_rows: int = 10_000, max_bytes: int = 1 << 30) -> list[Any]:
    reader = pickle.loads(pickle.dumps(text_lines(spout.paths, encoding=spout.encoding)))
    return [
        row if isinstance(row, Reject) else Emit(row, split.message_id(index))
        for split in planned(spout, max_rows, max_bytes)
        for index, row in enumerate(read_split(reader, json_round(split)))
    ]


def json_round(split: Split) -> Split:
    return msgspec.json.decode(msgspec.json.encode(split), type=Split)


def read(paths: Any, **options: Any) -> list[Any]:
    spout = text_lines(paths, **options)
    spout.open(Place())
    return read_on(spout)


def texts(content: bytes, tmp_path: Path, **options: Any) -> list[str]:
    return [message.value.text for message in read(write(tmp_path / "a", content), **options)]


def test_a_line_knows_its_path_and_number_and_so_does_its_id(tmp_path: Path) -> None:
    first, second = write(tmp_path / "b.txt", b"x\ny\n"), write(tmp_path / "a.txt", b"z")
    assert read([first, Path(second)]) == [
        Emit(Line("x", first, 1), (first, 1)),
        Emit(Line("y", first, 2), (first, 2)),
        Emit(Line("z", second, 1), (second, 1)),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\nx", ["", "", "x"]),
        (b"no end", ["no end"]),
        (b"cr lf\r\nlone\rcr\r\r\nlast\r", ["cr lf", "lone\rcr\r", "last\r"]),
        (b"\xef\xbb\xbfmark\n\xef\xbb\xbfkept\n", ["mark", "\ufeffkept"]),
        (b"\xef\xbb\xbf", []),
        (b"nul\x00 vt\x0b nel\xc2\x85 ls\xe2\x80\xa8 ff\x0c\n", ["nul\x00 vt\x0b nel\x85 ls\u2028 ff\x0c"]),
    ],
)
def test_lines_end_with_line_feeds_and_nothing_else(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    assert texts(content, tmp_path) == expected


def test_a_line_of_any_length_arrives_whole_where_no_length_is_too_much(tmp_path: Path) -> None:
    long = "ü" * 10_000_000
    assert texts(f"a\n{long}\nb".encode(), tmp_path, max_line_bytes=None) == ["a", long, "b"]


def test_a_line_that_is_not_utf8_is_rejected_with_its_place_and_bytes_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"\xef\xbb\xbfgood\r\nbad \xff\xfe!\r\ngood\xc3\xa9\r\n\xc3\n")
    messages = read(path)
    assert [message.value.text for message in messages if isinstance(message, Emit)] == ["good", "goodé"]
    rejects = [message for message in messages if isinstance(message, Reject)]
    assert [(reject.message_id, reject.payload) for reject in rejects] == [
        ((path, 2), b"bad \xff\xfe!"),
        ((path, 4), b"\xc3"),
    ]
    assert rejects[0].reason.startswith(f"{path}, line 2, byte 13: not utf-8")
    assert rejects[0].reason.endswith("ff)")


def test_other_encodings_that_extend_ascii_work(tmp_path: Path) -> None:
    assert texts("é\nß".encode("latin-1"), tmp_path, encoding="latin-1") == ["é", "ß"]
    assert texts("中文\r\n文".encode("gbk"), tmp_path, encoding="gbk") == ["中文", "文"]
    assert texts(b"\xef\xbb\xbfx", tmp_path, encoding="utf-8-sig") == ["x"]


@pytest.mark.parametrize("encoding", ["cp037", "no-such", "rot13"])
def test_encodings_whose_lines_end_otherwise_are_refused(encoding: str) -> None:
    with pytest.raises(ConfigError, match=encoding):
        text_lines("a", encoding=encoding)


def test_a_message_class_gets_the_fields_that_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"x\n")
    made = [read(path, message_type=cls)[0].value for cls in (OnlyText, Reordered, ByKeyword)]
    assert made == [OnlyText(words="x"), Reordered(1, "x"), ByKeyword(path=path, text="x")]


def test_a_line_that_its_class_refuses_leaves_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"a\nlong\nc\n")
    one, lost, other = read(path, message_type=Short)
    assert (one, other) == (Emit(Short("a"), (path, 1)), Emit(Short("c"), (path, 3)))
    assert lost == Reject(b"long", (path, 2), f"{path}, line 2: ArithmeticError: it is too long")


@pytest.mark.parametrize("cls", [NoText, TooMuch])
def test_a_message_class_that_lines_cannot_fill_is_refused(cls: type) -> None:
    with pytest.raises(ConfigError, match=cls.__name__):
        text_lines("a", message_type=cls)


def test_everything_that_cannot_be_read_is_named_at_once(tmp_path: Path) -> None:
    good = write(tmp_path / "good", b"")
    os.mkfifo(tmp_path / "pipe")
    spout = text_lines([good, tmp_path / "gone.txt", tmp_path, tmp_path / "pipe", tmp_path / "*.log"])
    found = {finding.where for finding in spout.faults()}
    assert found == {str(tmp_path / name) for name in ("gone.txt", "", "pipe", "*.log")} | {str(tmp_path)}
    spout.open(Place())
    with pytest.raises(ConnectorError) as raised:
        spout.next()
    for words in ("gone.txt: No such file", "is a folder", "pipe: is no ordinary", "no file matches the pattern"):
        assert words in str(raised.value)
    spout.close()
    assert not text_lines([good]).faults()


def test_lists_of_paths_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="no files"):
        text_lines([])
    with pytest.raises(ConfigError, match="listed twice"):
        text_lines(["a", "b", Path("a")])


def test_one_task_reads_all_files_whatever_the_parallelism(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, name.encode()) for name in "abcde"]
    shares = []
    for index in range(2):
        spout = text_lines(paths)
        spout.open(Place(task_index=index, parallelism=2))
        shares.append("".join(message.value.text for message in read_on(spout)))
    assert shares == ["abcde", ""]
    spout = text_lines(paths, follow=True)
    spout.open(Place(task_index=1, parallelism=2))
    with pytest.raises(EndOfInput):
        spout.plan(1, 1)


def test_a_spout_that_is_not_open_yet_can_be_pickled(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"x\n")
    spout = pickle.loads(pickle.dumps(text_lines(path, message_type=OnlyText)))
    spout.open(Place())
    assert read_on(spout) == [Emit(OnlyText(words="x"), (path, 1))]


CONTENT = st.lists(
    st.sampled_from([b"a", b"bcd", "é".encode(), b"\xff", b"\n", b"\r\n", b"\xef\xbb\xbf"]), max_size=20
).map(b"".join)


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(CONTENT, min_size=1, max_size=3), rows=st.integers(1, 4), max_bytes=st.integers(1, 12))
def test_a_run_resumed_at_any_position_gives_the_rest_and_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], rows: int, max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    paths = [write(folder / str(number), content) for number, content in enumerate(contents)]
    spout = opened(paths)
    everything = read(paths)
    assert read_elsewhere(opened(paths), rows, max_bytes) == everything
    seen = 0
    while True:
        for rest in (read_on, read_elsewhere):
            again = opened(paths)
            again.restore(json.loads(json.dumps(spout.snapshot())))
            assert rest(again) == everything[seen:]
        try:
            seen += sum(split.rows for split in spout.plan(rows, max_bytes) or ())
        except EndOfInput:
            break
    assert len({message.message_id for message in everything}) == len(everything)


TEXTS = [
    pytest.param(b"a\nb", id="no end"),
    pytest.param("\ufeffä\n\ufeffö\nß".encode(), id="byte order marks"),
    pytest.param(b"good\n\xff\xfe bad\r\ngood\n\xc3", id="undecodable"),
    pytest.param(b"x" * (3 * CHUNK_BYTES) + b"\n" + b"y" * 10 + b"\n" + b"z" * CHUNK_BYTES, id="very long lines"),
    pytest.param(b"\n" * 5000, id="many short lines"),
    pytest.param(b"\n".join(b"%d" % number for number in range(100_000)), id="many lines"),
]


@pytest.mark.parametrize("content", TEXTS)
@pytest.mark.parametrize(("max_rows", "max_bytes"), [(1000, 1 << 30), (10_000, 7), (999, 65536)])
def test_pieces_hold_the_messages_that_a_pull_gives(
    content: bytes, max_rows: int, max_bytes: int, tmp_path: Path
) -> None:
    paths = [write(tmp_path / name, content) for name in "ab"]
    if len(content) < 100_000 or max_bytes > 7:
        assert read_elsewhere(opened(paths), max_rows, max_bytes) == read(paths)


def test_lines_may_be_added_behind_what_was_planned(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nb\n")
    spout = opened(path)
    (split,) = spout.plan(2, 1 << 30) or ()
    with path.open("ab") as file:
        file.write(b"c\n")
    assert [line.text for line in read_split(spout, split)] == ["a", "b"]
    assert [message.value.text for message in read_elsewhere(spout)] == ["c"]


@pytest.mark.parametrize(
    ("after", "got"), [(b"a\n", "a file of 2 bytes"), (b"a\nX\nc\n", "other bytes at 0 to 4")], ids=["shorter", "other"]
)
def test_lines_that_changed_since_they_were_planned_are_named_with_their_file(
    after: bytes, got: str, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nb\nc\n")
    spout = opened(path)
    (split,) = spout.plan(2, 1 << 30) or ()
    spout.close()
    path.write_bytes(after)
    with pytest.raises(SourceChangedError) as raised:
        list(read_split(spout, split))
    assert f"{path}, lines 1 to 2: a file has changed since its lines were planned" in str(raised.value)
    assert got in str(raised.value)
    assert "bring the old file back" in str(raised.value)
    path.unlink()
    with pytest.raises(ConnectorError, match="cannot open"):
        list(read_split(spout, split))


def test_lines_that_were_planned_are_found_in_a_file_that_was_renamed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"a\nb\n")
    spout = opened(path)
    (split,) = spout.plan(2, 1 << 30) or ()
    path.rename(tmp_path / "a.log.1")
    spout.close()
    path.write_bytes(b"other\n")
    assert [line.text for line in read_split(spout, split)] == ["a", "b"]


def test_lines_in_the_log_need_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"a\nb\n\xff\n")
    spout = text_lines(path, logged=True)
    spout.open(Place())
    (split,) = spout.plan(10, 1 << 30) or ()
    spout.close()
    path.unlink()
    rows = list(read_split(text_lines(path), json_round(split)))
    assert [row if isinstance(row, Reject) else row.text for row in rows[:2]] == ["a", "b"]
    assert rows[2].message_id == (str(path), 3)


def opened(paths: Any, **options: Any) -> TextLines[Any]:
    spout: TextLines[Any] = text_lines(paths, **options)
    spout.open(Place())
    return spout
