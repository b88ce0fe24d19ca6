"""Spark's scratch folder is private, is in use as long as its process lives, and is found by name, owner and lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.safety.others import NOBODY, as_other, needs_root
from tupletree.runtimes.spark import session
from tupletree.runtimes.spark.scratch import LOCK, ScratchFolder, configured_parents, sweep_scratch

HOLD = """
import sys, time
from pathlib import Path
from tupletree.runtimes.spark.scratch import scratch_folders
[folder] = scratch_folders([Path(sys.argv[1])])
(folder / "shuffle").write_text("payload")
print(folder, flush=True)
sys.stdin.read()
"""


def hold(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a scratch folder; it ends when its input does."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    program = subprocess.Popen([sys.executable, "-c", HOLD, str(parent)], text=True, **pipes)  # type: ignore[call-overload]
    return program, Path(program.stdout.readline().strip())


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_folder_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        folder = ScratchFolder.make(tmp_path)
    finally:
        os.umask(before)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    os.close(folder.lock)


def test_it_goes_with_its_process_and_that_of_a_killed_one_with_the_next_start(tmp_path: Path) -> None:
    ending, kept = hold(tmp_path)
    killed, left = hold(tmp_path)
    with ending, killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert kept.exists()
        assert left.exists()

        sweep_scratch(tmp_path)
        assert (kept / "shuffle").exists(), "its process lives"
        assert not left.exists()

        ending.communicate("")
        assert not kept.exists()


def test_a_start_removes_the_folder_of_a_killed_process(tmp_path: Path) -> None:
    killed, left = hold(tmp_path)
    with killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    next_one, kept = hold(tmp_path)
    with next_one:
        assert kept.exists()
        assert not left.exists()
        next_one.communicate("")


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_all_that_a_local_run_makes_is_put_there(master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "scratch_folders", lambda _: [tmp_path])
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    options = session._local_options(master, {})
    assert options["spark.local.dir"] == options["spark.executorEnv.TMPDIR"] == str(tmp_path)
    for jvm in ("driver", "executor") if master != "local[2]" else ("driver",):
        assert f"-Djava.io.tmpdir={tmp_path}" in options[f"spark.{jvm}.extraJavaOptions"]
    assert options["spark.driver.host"] == options["spark.driver.bindAddress"] == "127.0.0.1"
    assert {options[name] for name in options if name.startswith(f"{session._SOCKETS}.dir")} <= {str(tmp_path)}


def test_a_local_cluster_has_a_fresh_secret_after_its_jvm_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that are there when the JVM starts are on its command line."""
    told: list[tuple[str, str]] = []
    commands: list[dict[str, str]] = []

    class Builder:
        def config(self, name: str, value: str) -> Builder:
            told.append((name, value))
            return self

        def __getattr__(self, name: str) -> object:
            return lambda *_: self

    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    monkeypatch.setattr(session, "_start_jvm", lambda chosen: commands.append(dict(chosen)))
    for _ in range(2):
        session._start("orders", "local-cluster[2,1,1024]", {"spark.authenticate": "true"})
    secrets = [value for name, value in told if name == "spark.authenticate.secret"]
    assert len({*secrets}) == 2
    assert min(map(len, secrets)) >= 32
    assert commands == [{"spark.authenticate": "true"}] * 2


def test_only_what_scratch_folders_are_named_is_swept_and_links_are_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / LOCK).touch()
    for name in ("tupletree-spark-notes", "tupletree-spark-", "spark-01234567", "xtupletree-spark-01234567"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK).touch()
    (tmp_path / "tupletree-spark-abcdefgh").symlink_to(mine)
    (tmp_path / "tupletree-spark-abcdefgi").touch()
    linked = tmp_path / "tupletree-spark-abcdefgj"
    linked.mkdir()
    (linked / LOCK).symlink_to(mine / LOCK)
    unlocked = tmp_path / "tupletree-spark-abcdefgk"
    unlocked.mkdir()
    (unlocked / "anything").touch()
    before = sorted(tmp_path.rglob("*"))

    sweep_scratch(tmp_path)

    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_in_a_swept_folder_is_removed_and_not_what_a_link_in_it_leads_to(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").touch()
    old = tmp_path / "tupletree-spark-abcdefgh"
    old.mkdir()
    (old / LOCK).touch()
    (old / "link").symlink_to(mine)
    empty = tmp_path / "tupletree-spark-abcdefgi"  # killed before it was locked
    empty.mkdir()

    sweep_scratch(tmp_path)

    assert not old.exists()
    assert not empty.exists()
    assert (mine / "file").exists()


@needs_root
def test_the_folder_of_another_user_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "tupletree-spark-abcdefgh"
    theirs.mkdir()
    (theirs / LOCK).touch()
    os.chown(theirs, NOBODY, NOBODY)
    sweep_scratch(tmp_path)
    assert (theirs / LOCK).exists()


@needs_root
def test_another_user_cannot_look_into_it(shared: Path) -> None:
    folder = ScratchFolder.make(shared)
    (folder.path / "shuffle").write_text("payload")

    def look() -> str:
        try:
            return str(list(folder.path.iterdir())) + (folder.path / "shuffle").read_text()
        except PermissionError:
            return "refused"

    assert as_other(look) == "refused"
    os.close(folder.lock)


def test_it_lies_where_spark_was_told_to_keep_such_files(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# spark.local.dir /no\nspark.local.dir   /data/1,/data/2 \n")
    conf = {"SPARK_CONF_DIR": str(tmp_path)}
    assert configured_parents({}, {}) == [Path(tempfile.gettempdir())]
    assert configured_parents({}, conf) == [Path("/data/1"), Path("/data/2")]
    assert configured_parents({"spark.local.dir": "/set"}, conf) == [Path("/set")]
    assert configured_parents({"spark.local.dir": "/set"}, {"SPARK_LOCAL_DIRS": "/env", **conf}) == [Path("/env")]
