"""The settings of a session that a run makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tupletree.runtimes.spark import session
from tupletree.runtimes.spark.session import QUICK_COMPILER, SETTINGS


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Those of a session on a local master, with its private folder in `tmp_path`."""
    monkeypatch.setattr(session, "scratch_folders", lambda _: [tmp_path])
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return session._local_options("local[2]", {})


def test_a_run_does_not_mix_executions_and_has_no_ui() -> None:
    assert SETTINGS["spark.ui.enabled"] == "false"
    assert SETTINGS["spark.stage.maxConsecutiveAttempts"] == "1"
    assert SETTINGS["spark.speculation"] == "false"
    assert SETTINGS["spark.task.maxFailures"] == "8"


def test_on_a_local_master_everything_is_private_and_the_quick_compiler_is_used(local: dict[str, str]) -> None:
    assert QUICK_COMPILER in local["spark.driver.extraJavaOptions"]
    assert local["spark.authenticate"] == "true"
    assert local["spark.driver.bindAddress"] == "127.0.0.1"


def test_on_other_masters_workers_talk_by_tcp(local: dict[str, str]) -> None:
    sockets = {name for name in SETTINGS if "unix.domain.socket" in name}
    assert sockets == set(), "they are set for local masters only"
    assert not set(SETTINGS) & {"spark.authenticate", "spark.local.dir"}
    assert "spark.local.dir" in local
