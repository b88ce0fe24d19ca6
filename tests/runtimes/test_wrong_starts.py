"""A start that fails again each time ends with code 2, so that a service manager does not repeat it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.statedirs import open_state_dir
from tupletree.errors import CheckpointError, ForeignCheckpointError
from tupletree.runtimes.local.statedir import LocalStateDirectory

COUNT = {"count": {"kind": "bolt", "parallelism": 2, "inputs": {}, "state": None}}
OTHER = {"count": {"kind": "sink", "parallelism": 2, "inputs": {}, "state": None}}


def first_start(folder: Path) -> None:
    open_state_dir(folder, "words", COUNT).close()


def with_identity(folder: Path, **changes: object) -> None:
    file = folder / "tupletree.json"
    file.write_bytes(msgspec.json.encode({**msgspec.json.decode(file.read_bytes()), **changes}))


def test_a_directory_of_something_else_is_a_wrong_start_on_spark(tmp_path: Path) -> None:
    first_start(tmp_path / "changed")
    LocalStateDirectory.make(tmp_path / "local", "words")
    first_start(tmp_path / "format")
    with_identity(tmp_path / "format", format=1)
    for folder, fingerprint in (("changed", OTHER), ("local", COUNT), ("format", COUNT)):
        with pytest.raises(ForeignCheckpointError) as caught:
            open_state_dir(tmp_path / folder, "words", fingerprint)
        assert caught.value.exit_code == 2, folder
    with pytest.raises(ForeignCheckpointError, match="the name changed"):
        open_state_dir(tmp_path / "changed", "other", COUNT)


def test_a_directory_that_a_run_has_used_is_a_wrong_start_locally(tmp_path: Path) -> None:
    first_start(tmp_path)
    with pytest.raises(ForeignCheckpointError):
        LocalStateDirectory.make(tmp_path, "words")


def test_a_directory_in_use_or_damaged_is_no_wrong_start(tmp_path: Path) -> None:
    held = open_state_dir(tmp_path, "words", COUNT)
    with pytest.raises(CheckpointError, match="another run") as caught:
        open_state_dir(tmp_path, "words", COUNT)
    assert caught.value.exit_code == 1
    held.close()
    (tmp_path / "tupletree.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged") as caught:
        open_state_dir(tmp_path, "words", COUNT)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("in_the_way", ["", "generations", "state", "lock"])
def test_a_start_that_the_disk_refuses_names_the_place_and_releases_it(tmp_path: Path, in_the_way: str) -> None:
    folder = tmp_path / "run"
    path = folder / in_the_way
    if in_the_way:
        first_start(folder)  # before it, a folder that holds anything is refused
    if in_the_way == "lock":
        path.unlink()
        path.mkdir()
    else:
        shutil.rmtree(path, ignore_errors=True)
        path.touch()
    with pytest.raises(CheckpointError, match="cannot be used") as caught:
        open_state_dir(folder, "words", COUNT)
    assert str(folder) in str(caught.value)
    path.rmdir() if path.is_dir() else path.unlink()
    first_start(folder)
