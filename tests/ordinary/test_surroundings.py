"""What keeps Spark from starting is named before anything starts, by `doctor` and by the run."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from tupletree.cli.doctor import examine
from tupletree.errors import CheckpointError, RuntimeUnavailableError
from tupletree.runtimes.java import check_surroundings
from tupletree.runtimes.local.statedir import LocalStateDirectory
from tupletree.runtimes.spark import session

NOBODY = 987_654


@pytest.mark.parametrize(
    ("environment", "where", "next_step"),
    [
        ({"SPARK_HOME": "/nowhere"}, "SPARK_HOME", "unset SPARK_HOME"),
        ({"PYSPARK_PYTHON": "/nowhere/python"}, "PYSPARK_PYTHON", "unset PYSPARK_PYTHON"),
        ({"PYSPARK_DRIVER_PYTHON": "python-of-another-host"}, "PYSPARK_DRIVER_PYTHON", "unset PYSPARK_DRIVER_PYTHON"),
    ],
)
def test_variables_that_lead_nowhere_are_named(environment: dict[str, str], where: str, next_step: str) -> None:
    (fault,) = check_surroundings(environment)
    assert fault.where == where
    assert next_step in fault.next_step


def test_a_user_without_a_name_is_named() -> None:
    (fault,) = check_surroundings({}, NOBODY)
    assert str(NOBODY) in fault.got
    assert "/etc/passwd" in fault.next_step


def test_too_few_open_files_are_named() -> None:
    (fault,) = check_surroundings({}, open_files=200)
    assert (fault.where, fault.got) == ("open files", "a hard limit of 200 (ulimit -Hn)")
    assert "LimitNOFILE=" in fault.next_step
    assert check_surroundings({}, open_files=resource.RLIM_INFINITY) == []


def test_what_is_right_is_not_named() -> None:
    assert check_surroundings({"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": ""}) == []


def test_a_run_says_it_before_it_starts_a_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    monkeypatch.setattr(session, "_active_session", lambda: None)
    with pytest.raises(RuntimeUnavailableError, match="SPARK_HOME leads nowhere"):
        session.open_session("x", "local[1]")


def test_doctor_tries_the_python_of_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named pyspark' >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    (check,) = [one for one in examine() if one.name == "PYSPARK_PYTHON"]
    assert check.status == "missing"
    assert "No module named pyspark" in check.found


def test_a_state_directory_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="the state directory cannot be used") as failed:
        LocalStateDirectory.make(tmp_path / "file" / "state", "x")
    assert "name another --state-dir" in str(failed.value)
