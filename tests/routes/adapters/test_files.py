from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.routes.adapters.calls import called, payload_of, pieces_of
from tupletree import durable
from tupletree.errors import ConnectorError, PermanentError


def run(work: Any) -> Any:
    return asyncio.run(work)


def read(folder: Path, path: str, **config: Any) -> Any:
    return run(payload_of("read_file", {"path": path}, folder=str(folder), **config))["content"]


def write(folder: Path, path: str, content: Any, **config: Any) -> None:
    payload = {"path": path, "content": content}
    assert run(payload_of("write_file", payload, folder=str(folder), path="{{ payload.path }}", **config)) == payload


def test_files_are_written_and_read_as_text_bytes_or_json(tmp_path: Path) -> None:
    write(tmp_path, "a/b.txt", "grün\r\n")
    assert read(tmp_path, "a/b.txt") == "grün\r\n"
    write(tmp_path, "c.bin", b"\xff\x00")
    assert read(tmp_path, "c.bin", mode="bytes") == b"\xff\x00"
    write(tmp_path, "d.json", {"a": [1]})
    assert read(tmp_path, "d.json") == '{"a":[1]}'
    write(tmp_path, "e.txt", "é", encoding="latin-1", mode=0o600)
    assert read(tmp_path, "e.txt", encoding="latin-1") == "é"
    assert (tmp_path / "e.txt").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "path", ["../out.txt", "/etc/hostname", "a/../../out.txt", "link/out.txt", "file_link", "\0", ""]
)
def test_nothing_outside_of_the_folder_is_read_or_written(tmp_path: Path, path: str) -> None:
    folder, outside = tmp_path / "in", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "out.txt").write_text("secret")
    (tmp_path / "out.txt").write_text("secret")
    (folder / "link").symlink_to(outside)
    (folder / "file_link").symlink_to(outside / "out.txt")
    with pytest.raises(PermanentError):
        read(folder, path)
    with pytest.raises(PermanentError):
        write(folder, path, "overwritten")
    assert {file.read_text() for file in (outside / "out.txt", tmp_path / "out.txt")} == {"secret"}


def test_a_link_that_stays_in_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("x")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert read(tmp_path, "link.txt") == "x"


def test_what_cannot_be_read_fails_for_good(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "big").write_bytes(b"x" * 11)
    (tmp_path / "binary").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    for path in ("nothing.txt", "folder", "big", "binary", "pipe", "big/inner"):
        with pytest.raises(PermanentError):
            read(tmp_path, path, max_bytes=10)
    assert len(read(tmp_path, "big", max_bytes=11)) == 11


def test_a_folder_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    for work in (lambda: read(tmp_path / "away", "a"), lambda: write(tmp_path / "away", "a", "x")):
        with pytest.raises(ConnectorError, match="is not there"):
            work()


def test_a_full_disk_is_an_outage_and_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.txt", "old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "_write", full)
    with pytest.raises(ConnectorError, match="No space left"):
        write(tmp_path, "a.txt", "new")
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert read(tmp_path, "a.txt") == "old"


def test_content_that_no_file_can_hold_fails_for_good(tmp_path: Path) -> None:
    for content, config in [("é", {"encoding": "ascii"}), (object(), {})]:
        with pytest.raises(PermanentError):
            write(tmp_path, "a.txt", content, **config)
    with pytest.raises(PermanentError, match="got: nothing"):
        run(called("write_file", {}, folder=str(tmp_path), path="a.txt"))
    assert [file.name for file in tmp_path.iterdir()] == []


def test_files_of_a_folder_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", "a/d.md", ".hidden/e.txt", ".f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = run(called("list_files", {"run": 1}, folder=str(tmp_path), pattern="**/*.txt"))
    assert pieces_of(found) == [{"run": 1, "path": "a/c.txt"}, {"run": 1, "path": "b.txt"}]
    assert pieces_of(run(called("list_files", None, folder=str(tmp_path), into="payload")))[1] == "a/d.md"
    assert run(called("list_files", None, folder=str(tmp_path), pattern="*.xml")).reason == "no file is there"
    assert run(called("list_files", None, folder=str(tmp_path / "a"), pattern="../*")).reason == "no file is there"
