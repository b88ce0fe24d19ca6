import dataclasses
import json
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.places import Place
from tupletree.errors import CheckpointError, ConfigError, ConnectorError, EndOfInput
from tupletree.sources import Line, text_lines, text_splits
from tupletree.sources.text import TextLines
from tupletree.topology.components import Emit, Reject


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
            messages.extend(spout.next())
    except EndOfInput:
        spout.close()
    return messages


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


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
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
def test_lines_end_with_line_feeds_and_nothing_else(
    tmp_path: Path, content: bytes, expected: list[str], batch_size: int
) -> None:
    assert texts(content, tmp_path, batch_size=batch_size) == expected


def test_a_line_of_any_length_arrives_whole(tmp_path: Path) -> None:
    long = "ü" * 10_000_000
    assert texts(f"a\n{long}\nb".encode(), tmp_path) == ["a", long, "b"]


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


@pytest.mark.parametrize("encoding", ["utf-16", "cp037", "no-such", "rot13"])
def test_encodings_whose_lines_end_otherwise_are_refused(encoding: str) -> None:
    with pytest.raises(ConfigError, match=encoding):
        text_lines("a", encoding=encoding)


def test_a_message_class_gets_the_fields_that_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"x\n")
    made = [read(path, message_type=cls)[0].value for cls in (OnlyText, Reordered, ByKeyword)]
    assert made == [OnlyText(words="x"), Reordered(1, "x"), ByKeyword(path=path, text="x")]


@pytest.mark.parametrize("cls", [NoText, TooMuch])
def test_a_message_class_that_lines_cannot_fill_is_refused(cls: type) -> None:
    with pytest.raises(ConfigError, match=cls.__name__):
        text_lines("a", message_type=cls)


@pytest.mark.parametrize("make", [text_lines, text_splits])
def test_everything_that_cannot_be_read_is_named_at_once(tmp_path: Path, make: Any) -> None:
    good = write(tmp_path / "good", b"")
    os.mkfifo(tmp_path / "pipe")
    spout = make([good, tmp_path / "gone.txt", tmp_path, tmp_path / "pipe"])
    assert [finding.where for finding in spout.faults()] == [
        str(tmp_path / "gone.txt"), str(tmp_path), str(tmp_path / "pipe")
    ]  # fmt: skip
    with pytest.raises(ConnectorError, match=r"gone\.txt: No such file[\s\S]*is a folder[\s\S]*pipe: is no ordinary"):
        spout.open(Place())
    spout.close()
    assert not make([good]).faults()


def test_lists_of_paths_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ConfigError, match="no files"):
        text_lines([])
    with pytest.raises(ConfigError, match="listed twice"):
        text_lines(["a", "b", Path("a")])


def test_several_tasks_share_the_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, name.encode()) for name in "abcde"]
    shares = []
    for index in range(2):
        spout = text_lines(paths)
        spout.open(Place(task_index=index, parallelism=2))
        shares.append("".join(message.value.text for message in read_on(spout)))
    assert shares == ["ace", "bd"]


def test_a_spout_that_is_not_open_yet_can_be_pickled(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"x\n")
    spout = pickle.loads(pickle.dumps(text_lines(path, message_type=OnlyText)))
    spout.open(Place())
    assert read_on(spout) == [Emit(OnlyText(words="x"), (path, 1))]


CONTENT = st.lists(
    st.sampled_from([b"a", b"bcd", "é".encode(), b"\xff", b"\n", b"\r\n", b"\xef\xbb\xbf"]), max_size=20
).map(b"".join)


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(CONTENT, min_size=1, max_size=3), batch_size=st.integers(1, 4))
def test_a_run_resumed_at_any_position_gives_the_rest_and_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], batch_size: int
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    paths = [write(folder / str(number), content) for number, content in enumerate(contents)]
    spout = text_lines(paths, batch_size=batch_size)
    spout.open(Place())
    everything = read(paths)
    seen: list[Any] = []
    while True:
        again = text_lines(paths, batch_size=3)
        again.open(Place())
        again.restore(json.loads(json.dumps(spout.snapshot())))
        assert seen + read_on(again) == everything
        try:
            seen.extend(spout.next())
        except EndOfInput:
            break
    assert len({message.message_id for message in everything}) == len(everything)


def test_resuming_after_the_end_reads_the_files_that_were_added(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", b"x\n"), write(tmp_path / "b", b"y\n")
    spout = text_lines([first])
    spout.open(Place())
    read_on(spout)
    more = text_lines([first, second])
    more.open(Place())
    more.restore(spout.snapshot())
    assert [message.value.text for message in read_on(more)] == ["y"]


def test_resuming_refuses_files_that_are_not_those_of_before(tmp_path: Path) -> None:
    path, other = write(tmp_path / "a", b"x\ny\n"), write(tmp_path / "b", b"x\ny\n")
    spout = text_lines(path, batch_size=1)
    spout.open(Place())
    spout.next()
    position = spout.snapshot()
    spout.close()
    with pytest.raises(CheckpointError, match="list of files changed"):
        opened(other).restore(position)
    shorter = opened(write(tmp_path / "a", b"x"))
    with pytest.raises(ConnectorError, match="shorter"):
        shorter.restore(position)
    shorter.close()
    gone = opened(path)
    Path(path).unlink()
    with pytest.raises(ConnectorError, match="cannot open"):
        gone.restore(position)


def opened(path: str) -> TextLines[Line]:
    spout = text_lines(path)
    spout.open(Place())
    return spout
