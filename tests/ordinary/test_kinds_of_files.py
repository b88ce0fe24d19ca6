"""Folders, compressed files, encodings and odd names are read, or refused with a word about what to do."""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.conftest import Run, WriteTarget
from tests.ordinary.reading import Reader, here, lines_of, no_file_stays_open
from tupletree.errors import ConfigError
from tupletree.sinks import read_rows
from tupletree.sources import text_lines
from tupletree.sources.files import FileList

__all__ = ["here", "no_file_stays_open"]


def test_a_pattern_finds_new_files_as_they_come_and_does_not_miss_those_that_were_read(here: Path) -> None:
    Path("in").mkdir()
    reader = Reader("in/**/*.log", follow=True)
    assert reader.ask() == []
    Path("in/b.log").write_text("b\n")
    Path("in/a.log").write_text("a\n")
    assert reader.texts() == ["a", "b"]
    Path("in/a.log").unlink()
    Path("in/sub").mkdir()
    Path("in/b.log").rename("in/sub/b.log")
    Path("in/sub/c.log").write_text("c\n")
    assert reader.texts() == ["c"]
    reader.resume(follow=False)
    assert reader.ask() == []


PATTERNS = [
    "**/*.log", "**", "**/**/*.log", "in/**/*.log", "./in/**/b.log", "i*/**/*.log", "in/**/sub/*", "in/**/sub/**/*.log",
    "in/[[]odd]/**/*.log", "in/**/.hidden/*.log", "none/**/*.log", "in/*", "in/a.log/**/*.log",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
def test_a_pattern_finds_what_glob_finds(here: Path, pattern: str, is_absolute: bool) -> None:
    folders = ["in/sub/sub", "in/[odd]/c", "in/.hidden", "else/where", "in/empty"]
    for folder in folders:
        Path(folder).mkdir(parents=True)
        for name in ("a.log", "b.log", "c.txt", ".d.log"):
            Path(folder, name).write_text(f"{folder}/{name}\n")
    Path("in/a.log").write_text("a\n")
    Path("in/link").symlink_to("../else")
    Path("in/dangling.log").symlink_to("nowhere")
    Path("in/itself.log").symlink_to("itself.log")
    pattern = str(here / pattern) if is_absolute else pattern
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - it is what ours is compared with
    expected = {name for name in found if Path(name).is_file()}
    assert {file.name for file in FileList(pattern, "test").find().files} == expected


@pytest.mark.parametrize(
    "links", [{"in/loop": "."}, {"in/one": ".", "in/two": "../in"}, {"in/sub/up": "../.."}], ids=str
)
def test_a_pattern_enters_no_folder_in_itself(
    here: Path, links: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    Path("in/sub").mkdir(parents=True)
    Path("in/z.log").write_text("z\n")
    Path("in/sub/y.log").write_text("y\n")
    for link, target in links.items():
        Path(link).symlink_to(target)
    reader = Reader("in/**/*.log", follow=True)
    assert [name for (name, _), _ in reader.ask()] == ["in/sub/y.log", "in/z.log"]
    assert "another name" not in caplog.text


def test_files_come_by_name_or_by_time(here: Path) -> None:
    for number, name in enumerate(["c.log", "a.log", "b.log"]):
        Path(name).write_text(f"{name}\n")
        os.utime(name, (number, number))
    assert Reader("*.log").texts() == ["a.log", "b.log", "c.log"]
    assert Reader("*.log", order="time").texts() == ["c.log", "a.log", "b.log"]


def test_compressed_files_are_decompressed_by_their_suffix(here: Path) -> None:
    Path("a.gz").write_bytes(gzip.compress(b"gz 1\ngz ") + gzip.compress(b"2\n"))
    Path("b.bz2").write_bytes(bz2.compress(b"bz2 1\n") + bz2.compress(b"bz2 2\n"))
    Path("c.xz").write_bytes(lzma.compress(b"xz 1\nxz 2"))
    with pa.CompressedOutputStream("d.zst", "zstd") as file:
        file.write(b"zst 1\nzst 2\n")
    reader = Reader(["a.gz", "b.bz2", "c.xz", "d.zst"])
    split = reader.spout.plan(3, 1 << 20)
    assert split is not None
    assert sum(one.rows for one in split) == 3
    reader.resume()
    assert reader.ask() == [
        (("b.bz2", 2), "bz2 2"),
        (("c.xz", 1), "xz 1"),
        (("c.xz", 2), "xz 2"),
        (("d.zst", 1), "zst 1"),
        (("d.zst", 2), "zst 2"),
    ]
    with pytest.raises(ConfigError, match=r"e\.zip: files that end with \.zip cannot be read"):
        text_lines(["a.gz", "e.zip"])


def test_a_compressed_file_that_is_cut_off_is_reported_and_the_run_goes_on(here: Path) -> None:
    whole = gzip.compress(lines_of(1000).encode())
    Path("a.gz").write_bytes(whole[:-20])
    Path("b.txt").write_text("b\n")
    reader = Reader(["a.gz", "b.txt"])
    found = reader.ask()
    assert [text for _, text in found[:-2]] == lines_of(len(found) - 2).splitlines()
    assert found[-2][0][:2] == ("a.gz", "damaged")
    assert "cannot be decompressed" in found[-2][1]
    assert found[-1] == (("b.txt", 1), "b")
    follower = Reader(["a.gz"], follow=True)
    os.utime("a.gz", (4e9, 4e9))
    assert all(isinstance(message_id[1], int) for message_id, _ in follower.ask())
    Path("a.gz").write_bytes(whole)
    follower.ask()
    assert follower.spout._queue.table.records[0].lines == 1000


def test_a_compressed_file_that_is_followed_loses_no_last_line(here: Path) -> None:
    Path("a.gz").write_bytes(gzip.compress(b"one\ntwo"))
    os.utime("a.gz", (4e9, 4e9))
    reader = Reader("*.gz", follow=True)
    assert reader.texts() == ["one"]
    reader.clock.advance(10.0)
    assert reader.texts() == ["two"]
    assert reader.texts() == []


def test_utf_16_is_followed(here: Path) -> None:
    Path("a.txt").write_bytes("one\ntw".encode("utf-16"))
    reader = Reader("a.txt", follow=True)
    assert reader.texts() == ["one"]
    with Path("a.txt").open("ab") as file:
        file.write("o\n€\n".encode("utf-16-le"))
    assert reader.texts() == ["two", "€"]
    reader.resume()
    assert reader.texts() == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_encodings_are_told_by_their_mark_or_by_name(here: Path, encoding: str) -> None:
    Path("a.txt").write_bytes("ä\r\n\n€𝄞".encode(encoding))
    options = {"encoding": encoding} if encoding == "utf-16-le" else {}
    assert Reader("a.txt", **options).texts() == ["ä", "", "€𝄞"]


def test_what_is_no_utf_16_is_rejected_alone(here: Path) -> None:
    Path("a.txt").write_bytes("good\nbad ".encode("utf-16") + b"\x00\xd8\n\x00" + "good\n".encode("utf-16-le") + b"x")
    found = Reader("a.txt").ask()
    assert [message_id for message_id, _ in found] == [("a.txt", n) for n in (1, 2, 3, 4)]
    assert [text for _, text in found if "not utf-8" not in text] == ["good", "good"]


def test_patterns_and_commas_in_names_can_be_set(here: Path, run: Run, write_target: WriteTarget) -> None:
    target = write_target(TOPOLOGY)
    Path("a,b.txt").write_text("comma\n")
    Path("c.txt").write_text("c\n")
    result = run("run", target, "--runtime", "local", "--set", "paths=a\\,b.txt,c*.txt", "--set", "out=out")
    assert result.code == 0, result.err
    assert sorted(row["text"] for row in read_rows(here / "out")) == ["c", "comma"]
    result = run("check", target, "--set", "paths=a,b.txt", "--set", "out=new")
    assert "a: No such file" in result.err
    assert "a,b.txt is there: --set takes a comma that belongs to a name as \\," in result.err
    result = run("check", target, "--set", "paths=*.log", "--set", "out=new")
    assert "*.log: no file matches the pattern" in result.err


TOPOLOGY = """
from pathlib import Path
from tupletree import Topology
from tupletree.sinks import jsonl
from tupletree.sources import text_lines
from tupletree.sources.files import FileList

def topology(paths: list[str], out: Path) -> Topology:
    t = Topology("copy")
    t.sink("out", jsonl(out)).shuffle(t.spout("lines", text_lines(paths)))
    return t
"""
