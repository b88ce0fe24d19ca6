"""Durable files: one winner, nothing half, and every fault found."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.durable import (
    FORMAT_VERSION,
    pack,
    read_container,
    read_header,
    replace_file,
    unpack,
    write_file,
    write_once,
)
from tupletree.errors import CheckpointError


class Header(msgspec.Struct):
    name: str
    numbers: list[int]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


headers = st.builds(Header, st.text(max_size=20), st.lists(st.integers(0, 2**64 - 1), max_size=5))
sections = st.lists(st.binary(max_size=40), max_size=4)


@given(headers, sections)
def test_what_was_packed_is_unpacked(header: Header, sections: list[bytes]) -> None:
    found, body = unpack(b"".join(pack(header, sections)), Header, "here")

    assert found == header
    assert bytes(body) == b"".join(sections)


@given(headers, sections, st.data())
def test_every_changed_byte_is_found(header: Header, sections: list[bytes], data: st.DataObject) -> None:
    container = bytearray(b"".join(pack(header, sections)))
    position = data.draw(st.integers(0, len(container) - 1))
    container[position] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CheckpointError, match="here"):
        unpack(bytes(container), Header, "here")


def test_every_changed_byte_and_every_truncation_of_one_container_is_found() -> None:
    container = b"".join(pack(Header("count", [1, 2**63]), [b"abc", b"", b"\0" * 5]))

    for position in range(len(container)):
        changed = bytearray(container)
        changed[position] ^= 0xFF
        for damaged in (bytes(changed), container[:position]):
            with pytest.raises(CheckpointError, match="here"):
                unpack(damaged, Header, "here")


@given(headers, sections, st.binary(min_size=1, max_size=30))
def test_bytes_that_follow_are_found(header: Header, sections: list[bytes], more: bytes) -> None:
    with pytest.raises(CheckpointError):
        unpack(b"".join(pack(header, sections)) + more, Header, "here")


def test_a_newer_format_says_which_version_to_use() -> None:
    container = bytearray(b"".join(pack(Header("x", []))))
    container[4] = FORMAT_VERSION + 1

    with pytest.raises(CheckpointError, match="use the version of Tupletree that wrote it") as caught:
        unpack(bytes(container), Header, "here")
    assert f"format {FORMAT_VERSION + 1}" in str(caught.value)


def test_a_header_of_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="header"):
        unpack(b"".join(pack({"another": 1})), Header, "here")


def test_a_missing_container_is_named_with_the_way_out(tmp_path: Path) -> None:
    for read in (read_container, read_header):
        with pytest.raises(CheckpointError, match=r"gone\.log") as caught:
            read(tmp_path / "gone.log", Header)
        assert "backup" in str(caught.value)


def test_a_header_can_be_read_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "one", pack(Header("a", [1]), [b"body"]))
    header, offset = read_header(tmp_path / "one", Header)

    assert header == Header("a", [1])
    assert (tmp_path / "one").read_bytes()[offset : offset + 4] == b"body"


@pytest.mark.parametrize(
    "content", [b"", b"TT", b"XXXX" + bytes(20), b"TTRE\x01\x00\x05\x00\x00\x00\xc1", b"TTRE\x09" + bytes(20)]
)
def test_a_header_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.log").write_bytes(content)

    with pytest.raises(CheckpointError, match=r"bad\.log"):
        read_header(tmp_path / "bad.log", Header)


def test_the_first_to_write_wins_and_the_second_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "entry"

    assert write_once(path, b"first")
    assert not write_once(path, [b"sec", b"ond"])
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["entry"]


def test_files_are_for_their_owner_alone_unless_said_otherwise(tmp_path: Path) -> None:
    write_once(tmp_path / "a", b"")
    write_once(tmp_path / "b", b"", mode=0o640)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o640


@pytest.mark.parametrize("write", [write_once, replace_file])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, write: Any) -> None:
    def pieces() -> Any:
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "entry", pieces())
    assert names(tmp_path) == []


def test_a_draft_that_a_later_start_cleared_away_is_an_error_and_no_loss_of_the_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        source.unlink()
        true_link(source, target)

    true_link = os.link
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(CheckpointError, match="removed while it was written") as raised:
        write_once(tmp_path / "entry", b"content")
    assert "a later start of this run" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_once(tmp_path / "no" / "entry", b"x")


def test_replacing_a_file_leaves_the_new_content_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "marker", b"one")
    replace_file(tmp_path / "marker", [b"t", b"wo"])

    assert (tmp_path / "marker").read_bytes() == b"two"
    assert names(tmp_path) == ["marker"]


WRITER = """
import sys
from pathlib import Path
from tupletree.durable import write_once
me, folder, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
print(*[number for number in range(rounds) if write_once(folder / str(number), [me.encode() * 1000] * 50)])
"""


def test_of_two_processes_that_write_the_same_names_exactly_one_wins_each(tmp_path: Path) -> None:
    rounds = 100
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", WRITER, name, str(tmp_path), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for name in "ab"
    }
    for writer in writers.values():
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers.values():
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    won = {name: writer.communicate(timeout=60)[0].split() for name, writer in writers.items()}

    assert sorted(won["a"] + won["b"]) == sorted(map(str, range(rounds)))
    for name, numbers in won.items():
        for number in numbers:
            assert (tmp_path / number).read_bytes() == name.encode() * 50_000
    assert len(names(tmp_path)) == rounds
