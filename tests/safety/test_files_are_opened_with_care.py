"""Files are private, new, and where they say: no link is followed, and nothing that is there is emptied or replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.safety.others import as_other, needs_root
from tests.statedirs import open_state_dir
from tupletree.cli import state as state_command
from tupletree.durable import private_folder, write_file
from tupletree.errors import CheckpointError, ConfigError
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.sinks.files import written


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that links lead to."""
    file = tmp_path / "precious"
    file.write_text("mine")
    return file


def start(path: Path) -> StateDirectory:
    return open_state_dir(path, "orders", {})


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_leads_elsewhere_is_refused_and_nothing_is_emptied(
    link: object, precious: Path, tmp_path: Path
) -> None:
    start(tmp_path / "state").close()
    (tmp_path / "state" / "lock").unlink()
    link(precious, tmp_path / "state" / "lock")  # type: ignore[operator]
    with pytest.raises(CheckpointError, match="cannot be used"):
        start(tmp_path / "state")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", ["dead", "epochs", "generations", "marks", "state"])
def test_a_folder_of_a_state_directory_that_is_a_link_is_refused(name: str, tmp_path: Path) -> None:
    start(tmp_path / "state").close()
    (tmp_path / "state" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "state" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link, where a folder belongs"):
        start(tmp_path / "state")


def test_what_is_written_takes_the_place_of_a_link_and_leaves_what_it_led_to(precious: Path, tmp_path: Path) -> None:
    for number, write in enumerate((lambda path: write_file(path, b"new"), write_rows)):
        path = tmp_path / f"file{number}"
        path.symlink_to(precious)
        write(path)
        assert path.read_bytes() == b"new"
        assert not path.is_symlink()
    assert precious.read_text() == "mine"


def write_rows(path: Path) -> None:
    with written(path) as file:
        file.write(b"new")


@pytest.mark.parametrize("umask", [0, 0o022])
def test_all_of_a_state_directory_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        start(tmp_path / "new" / "state").close()
    finally:
        os.umask(before)
    for path in (tmp_path / "new" / "state").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert (tmp_path / "new").stat().st_mode & 0o022 == 0, "who may write there could exchange the folder in it"


def test_a_folder_that_is_too_open_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o777)
    assert private_folder(tmp_path / "a").stat().st_mode & 0o777 == 0o700


@needs_root
def test_another_user_reads_nothing_of_a_state_directory(shared: Path) -> None:
    start(shared / "state").close()

    def look() -> list[str]:
        return [folder for folder, _, _ in os.walk(shared) if folder != str(shared) and os.access(folder, os.R_OK)]

    assert as_other(look) == []


def test_an_export_is_private_and_touches_neither_a_file_nor_a_draft_of_the_users(
    precious: Path, tmp_path: Path
) -> None:
    place = tmp_path / "exports"
    place.mkdir()
    (place / "_state.jsonl").write_text("of the user")
    before = os.umask(0)
    try:
        assert state_command._export(place / "state.jsonl", []) == 0
        assert state_command._export(place / "state.parquet", []) == 0
    finally:
        os.umask(before)
    assert (place / "state.jsonl").stat().st_mode & 0o777 == 0o600
    assert (place / "state.parquet").stat().st_mode & 0o777 == 0o600
    assert (place / "_state.jsonl").read_text() == "of the user"
    assert sorted(path.name for path in place.iterdir()) == ["_state.jsonl", "state.jsonl", "state.parquet"]

    (place / "link.jsonl").symlink_to(precious)
    (place / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    for name in ("state.jsonl", "link.jsonl", "dangling.jsonl"):
        with pytest.raises(ConfigError, match="there already"):
            state_command._export(place / name, [])
    assert precious.read_text() == "mine"
