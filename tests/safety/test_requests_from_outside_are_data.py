"""What other processes leave in a state directory is data: it ends no run, and removes nothing outside."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.until import until
from tupletree import Emit, Spout, Topology
from tupletree.config import Options
from tupletree.durable import DECODE_ERRORS, read_file
from tupletree.errors import CheckpointError
from tupletree.runtimes import api, deadletters, run
from tupletree.runtimes.control import progress_in, send_request, status_of
from tupletree.runtimes.requests import REFUSED, RequestFolder
from tupletree.sinks import foreach

HANG_S = 30.0


class Tick(msgspec.Struct, frozen=True):
    number: int


class Endless(Spout[Tick]):
    def __init__(self) -> None:
        self.given = 0

    def next(self) -> Emit[Tick]:
        self.given += 1
        return Emit(Tick(self.given), self.given)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """What must stay."""
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "precious.json").write_text("mine")
    return folder


@pytest.fixture
def running(tmp_path: Path) -> Iterator[api.RunHandle]:
    t = Topology("endless")
    t.sink("out", foreach(lambda row: None)).shuffle(t.spout("ticks", Endless()))
    handle = run.run(t, runtime="local", options=Options(), state_dir=tmp_path / "state")
    yield handle
    handle.stop(5.0)


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    what: str


def folder_in(path: Path) -> RequestFolder[Asked]:
    return RequestFolder(path / "asked", Asked, 100, next_step="ask again")


def put(path: Path, name: str, content: str = '{"what": "x"}') -> Path:
    file = path / "asked" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(content)
    return file


def wait_until_gone(paths: list[Path]) -> None:
    until(lambda: not any(os.path.lexists(path) for path in paths))


def test_requests_are_read_by_the_names_of_their_files_oldest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("b.json", "a.json", "_c.json.1.0123abcd", "d.txt")):
        os.utime(put(tmp_path, name, f'{{"what": "{name}"}}'), (age, age))
    assert {one: asked.what for one, asked in folder_in(tmp_path).take().items()} == {"b": "b.json", "a": "a.json"}
    assert folder_in(tmp_path / "nowhere").take() == {}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", "[" * 50, "Expected"),
        ("a.json", '{"what": "x", "more": 1}', "unknown field"),
        ("a.json", '{"what": "' + "x" * 100 + '"}', "more than 100 bytes"),
        ("a.json", "", "truncated"),
        ("..json", '{"what": "x"}', "not an id"),
        ("a b.json", '{"what": "x"}', "not an id"),
        ("a\nb.json", '{"what": "x"}', "not an id"),
        ("x" * 65 + ".json", '{"what": "x"}', "not an id"),
    ],
)
def test_what_is_no_request_is_moved_aside_once_and_named(
    name: str, content: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = put(tmp_path, name, content)
    heard: list[CheckpointError] = []
    folder = folder_in(tmp_path)
    assert folder.read(heard.append) == {}
    assert why in str(heard[0])
    assert file.exists(), "reading changes nothing"

    assert folder.take() == {}
    assert folder.take() == {}

    assert not file.exists()
    assert (file.parent / REFUSED / name).read_text() == content
    assert len(caplog.records) == 1
    assert why in caplog.text
    assert "ask again" in caplog.text


def test_links_pipes_and_folders_are_moved_and_not_followed(tmp_path: Path, target: Path) -> None:
    link, pipe, folder = (tmp_path / "asked" / f"{name}.json" for name in ("link", "pipe", "folder"))
    folder.mkdir(parents=True)
    link.symlink_to(target / "precious.json")
    os.mkfifo(pipe)
    assert folder_in(tmp_path).take() == {}
    assert sorted(path.name for path in (tmp_path / "asked").iterdir()) == [REFUSED]
    assert (target / "precious.json").read_text() == "mine"


def test_what_cannot_be_moved_is_named_once_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = put(tmp_path, "a.json", "x")
    put(tmp_path, REFUSED, "in the way")
    folder = folder_in(tmp_path)
    for _ in range(3):
        assert folder.take() == {}
    assert file.exists()
    assert len(caplog.records) == 1


def test_a_folder_that_is_a_link_is_not_looked_into(tmp_path: Path, target: Path) -> None:
    (target / "a.json").write_text('{"what": "x"}')
    (tmp_path / "asked").symlink_to(target)
    folder = folder_in(tmp_path)
    assert folder.take() == {}
    folder.remove("a")
    assert (target / "a.json").exists()


def test_no_id_leads_out_of_the_folder(tmp_path: Path, target: Path) -> None:
    (tmp_path / "inbox").mkdir()
    away = str(target / "precious")
    (tmp_path / "inbox" / "a.json").write_text(json.dumps({"id": away, "letters": []}))
    assert deadletters.inbox_of(tmp_path).take() == {}
    with pytest.raises(ValueError, match="not an id"):
        deadletters.carried_out(tmp_path, away, [])
    assert (target / "precious.json").exists()


def test_a_copy_of_a_request_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.json").write_bytes(msgspec.json.encode(deadletters.ReplayRequest("a", ["0-0"])))
    (tmp_path / "inbox" / "b.json").write_bytes(msgspec.json.encode(deadletters.ReplayRequest("a", ["0-0"])))
    assert list(deadletters.inbox_of(tmp_path).take()) == ["a"]
    assert "it is a copy" in caplog.text


def test_a_letter_that_cannot_be_read_costs_a_replay_no_other(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "0000000001.jsonl").write_text("[" * 100_000)
    os.mkfifo(dead / "0000000002.jsonl")
    (dead / "replayed").mkdir()
    (dead / "replayed" / "a.json").write_text("{" * 100_000)
    heard: list[CheckpointError] = []
    assert deadletters.letters_of(tmp_path, heard.append) == {}
    assert len(heard) == 3
    with pytest.raises(CheckpointError, match="a\\.json"):
        deadletters.letters_of(tmp_path)


@pytest.mark.parametrize("timeout_s", ["-5", "1e308", '"1"'])
def test_a_drain_in_no_time_or_for_ever_is_no_request(timeout_s: str, running: api.RunHandle) -> None:
    file = running.state_dir / "control" / "a.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'{{"request": "drain", "drain_timeout_s": {timeout_s}}}')
    wait_until_gone([file])
    assert (file.parent / REFUSED / "a.json").exists()
    with pytest.raises(TimeoutError):
        running.wait(0.0)


def test_nested_json_ends_neither_the_thread_that_reads_it_nor_a_command(running: api.RunHandle) -> None:
    control = running.state_dir / "control"
    control.mkdir(exist_ok=True)
    nested = '{"request": "pause", "x": ' + "[" * 2_000
    (control / "a.json").write_text(nested)
    wait_until_gone([control / "a.json"])
    assert send_request(running.state_dir, "pause").is_alive(time.time())
    (running.state_dir / "stale.json").write_text("{")
    with pytest.raises(DECODE_ERRORS):
        msgspec.json.decode(nested + "]" * 2_000 + "}", type=Any)


def test_a_status_that_is_nested_or_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"progress": ' + '{"a":' * 50_000)
    with pytest.raises(CheckpointError, match="status"):
        status_of(tmp_path)
    (tmp_path / "status.json").unlink()
    os.mkfifo(tmp_path / "status.json")
    with pytest.raises(CheckpointError, match="no regular file"):
        status_of(tmp_path)


def test_reading_follows_no_link_and_is_bounded(tmp_path: Path, target: Path) -> None:
    (tmp_path / "link").symlink_to(target / "precious.json")
    with pytest.raises(OSError, match="link"):
        read_file(tmp_path / "link")
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_file(target / "precious.json", 3)
    assert read_file(target / "precious.json", 4) == b"mine"


@pytest.mark.parametrize("wrong", [{"acked": "x"}, {"outages": [{}]}, {"holds": "x"}, {"outputs": {"out": [1]}}])
def test_a_status_with_other_numbers_is_an_error_too(wrong: dict[str, Any], running: api.RunHandle) -> None:
    place = running.state_dir
    send_request(place, "pause", wait_s=HANG_S)
    status = status_of(place)
    assert progress_in(status).acked >= 0
    status.progress |= wrong
    with pytest.raises(CheckpointError, match="cannot be read"):
        progress_in(status)
