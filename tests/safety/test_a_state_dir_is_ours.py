"""A state directory is a folder of this user's that a run has made its own; what else lies anywhere is not touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.safety.others import NOBODY, needs_root
from tests.statedirs import open_state_dir
from tupletree.cli.main import main
from tupletree.errors import CheckpointError, ForeignCheckpointError
from tupletree.runtimes.local.statedir import LocalStateDirectory
from tupletree.runtimes.spark.driver.retention import sweep_drafts

TOPOLOGY = """
from typing import NamedTuple

from tupletree import Topology
from tupletree.sinks import jsonl
from tupletree.sources import items


class Number(NamedTuple):
    value: int


def topology() -> Topology:
    t = Topology("two")
    t.sink("out", jsonl("OUT")).shuffle(t.spout("numbers", items([Number(1), Number(2)])))
    return t
"""


def open_spark(path: Path) -> None:
    open_state_dir(path, "orders", {}).close()


def open_local(path: Path) -> None:
    LocalStateDirectory.make(path, "orders")


both = pytest.mark.parametrize("take", [open_spark, open_local], ids=["spark", "local"])


def names_in(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


@pytest.mark.parametrize("runtime", ["spark", "local"])
def test_a_folder_with_something_in_it_is_refused_and_left_as_it_was(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    (project / "spark" / "000001").mkdir(parents=True)
    (project / "spark" / "jobs.py").write_text("mine")
    (project / "_notes").write_text("mine too")
    target = tmp_path / f"of_{runtime}.py"
    target.write_text(TOPOLOGY.replace("OUT", str(tmp_path / "out")))
    before = names_in(project)

    code = main(["run", str(target), "--runtime", runtime, "--state-dir", str(project)])

    said = capsys.readouterr().err
    assert code == 2
    assert str(project) in said
    assert "is not empty" in said
    assert "got: _notes, spark" in said
    assert "next: name a new folder" in said
    assert names_in(project) == before


@both
def test_a_file_named_lock_does_not_make_a_folder_ours(take: object, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("of another program")
    with pytest.raises(ForeignCheckpointError, match="is not empty"):
        take(tmp_path)  # type: ignore[operator]
    assert (tmp_path / "lock").read_text() == "of another program"


def test_what_a_start_leaves_that_was_killed_at_once_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lock").write_text("process 12 on a, started then\n")
    (tmp_path / "_tupletree.json.12.0123abcd").write_text("{")
    open_spark(tmp_path)
    assert (tmp_path / "lost+found").exists()


@both
def test_a_run_whose_identity_is_gone_is_named_as_that(take: object, tmp_path: Path) -> None:
    open_spark(tmp_path / "state")
    (tmp_path / "state" / "tupletree.json").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)tupletree\.json: .*is missing.*backup"):
        take(tmp_path / "state")  # type: ignore[operator]


def test_a_start_removes_only_what_starts_of_the_run_have_made(tmp_path: Path) -> None:
    directory = open_state_dir(tmp_path / "state", "orders", {})
    place = directory.path
    (place / "_notes").write_text("mine")
    (place / "dead" / "_keep.txt").write_text("mine")
    (place / "dead" / "_0000000001.jsonl.77.0123abcd").write_text("half a file")
    (place / "spark" / "jobs").mkdir(parents=True)
    (place / "spark" / "000001").mkdir()

    sweep_drafts(directory)
    directory.close()

    assert (place / "_notes").exists()
    assert names_in(place / "dead") == ["_keep.txt"]
    assert names_in(place / "spark") == ["000001", "jobs"]


@both
def test_a_folder_that_others_may_write_to_is_made_private_while_it_is_empty(take: object, tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    place.chmod(0o777)
    take(place)  # type: ignore[operator]
    assert place.stat().st_mode & 0o777 == 0o700


@both
@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_used_folder_that_others_may_write_to_is_refused(take: object, mode: int, tmp_path: Path) -> None:
    place = tmp_path / "state"
    open_spark(place)
    place.chmod(mode)
    with pytest.raises(ForeignCheckpointError, match=f"(?s)other users may write.*{mode:04o}.*chmod 700"):
        take(place)  # type: ignore[operator]


@needs_root
@both
def test_a_folder_of_another_user_is_refused(take: object, tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    with pytest.raises(ForeignCheckpointError, match=r"(?s)belongs to another user.*65534"):
        take(place)  # type: ignore[operator]
    assert names_in(place) == []
