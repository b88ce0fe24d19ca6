"""Packages: known faults, lowest versions, licences, and what a built release is made of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
ADVISORIES: dict[str, Any] = json.loads(Path(__file__).with_name("advisories.json").read_text())
LOCKS = ["requirements.lock", "requirements-release.lock"]
FIELDS = ("License-Expression", "License", "Classifier")
UV = str(Path(sys.executable).with_name("uv"))


def known_faults(name: str, version: str) -> list[str]:
    """Advisories about this version."""
    return [
        one["id"]
        for one in ADVISORIES["packages"].get(canonicalize_name(name), ())
        if any(is_within(Version(version), first, end) for first, end in one["ranges"])
    ]


def is_within(version: Version, first: str, end: str) -> bool:
    if version < Version(first):
        return False
    if end.startswith("<="):
        return version <= Version(end.removeprefix("<="))
    return not end or version < Version(end)


def locked(name: str) -> list[tuple[str, str]]:
    return re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / name).read_text(), re.MULTILINE)


def direct() -> Iterator[tuple[str, Requirement]]:
    """(extra, or "" of every install; requirement)."""
    yield from (("", Requirement(one)) for one in PROJECT["project"]["dependencies"])
    for extra, several in PROJECT["project"]["optional-dependencies"].items():
        yield from ((extra, Requirement(one)) for one in several)


def test_faults_are_found_where_there_are_some() -> None:
    assert known_faults("Jinja2", "2.10")
    assert not known_faults("jinja2", "3.1.6")
    assert known_faults("requests", "2.19.0")


@pytest.mark.parametrize("lock", LOCKS)
def test_no_locked_package_has_a_known_fault(lock: str) -> None:
    versions = locked(lock)
    assert len(versions) > 20
    assert {name: faults for name, version in versions if (faults := known_faults(name, version))} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_a_hash_without_which_nothing_is_installed(lock: str) -> None:
    entries = re.split(r"^(?=[A-Za-z0-9._-]+==)", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked(lock))
    assert [one for one in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", one)] == []
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "pip install" in line and f"-r {lock}" in line]
    assert installs
    assert all("--require-hashes" in line for line in installs)


def test_no_lowest_version_has_a_known_fault_and_every_package_has_one() -> None:
    for _, requirement in direct():
        lowest = [one.version for one in requirement.specifier if one.operator in {">=", "=="}]
        assert lowest, f"{requirement} allows any version"
        assert known_faults(requirement.name, lowest[0]) == [], requirement


def test_templates_cannot_leave_the_sandbox_in_any_version_that_is_allowed() -> None:
    """3.1.5 and 3.1.6 closed ways out of the sandbox (format by reference, the filter attr)."""
    (jinja,) = [one for _, one in direct() if one.name == "jinja2"]
    assert not jinja.specifier.contains("3.1.5")


def test_what_developers_need_is_no_extra_of_what_is_published() -> None:
    assert {"dev", "release"} <= {*PROJECT["dependency-groups"]}
    assert not {"dev", "release", "test", "tests"} & {*PROJECT["project"]["optional-dependencies"]}


def test_the_licence_of_every_package_is_named_as_the_package_says_it() -> None:
    rows = dict(
        re.findall(r"^\| [^|]+ \| ([\w.-]+) \| ([^|]+) \|$", (ROOT / "docs/packages.md").read_text(), re.MULTILINE)
    )
    assert {one.name for _, one in direct()} == {*rows} - {"Packages"}
    for _, requirement in direct():
        try:
            said = metadata.metadata(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # an extra that the lock leaves out
        told = " ".join(text for field in FIELDS for text in said.get_all(field) or ())
        family = next(one for one in ("LGPL", "GPL", "Apache", "MIT", "BSD") if one in rows[requirement.name])
        assert family in told, (requirement.name, told[:200])


def test_the_spark_extra_asks_for_what_every_install_brings() -> None:
    (every,) = [one for extra, one in direct() if not extra and one.name == "pyspark"]
    assert [one for extra, one in direct() if extra == "spark"] == [every]


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "VIRTUAL_ENV", "PYTHONPATH"))
    }
    return subprocess.run(
        command, cwd=cwd, env=kept | variables, capture_output=True, text=True, timeout=1_800, check=False
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    place = tmp_path_factory.mktemp("dist")
    done = run(
        *(UV, "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable),
        *("--out-dir", str(place)),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return place


def installed(place: Path, *what: str) -> Path:
    """The bin of a fresh environment with this."""
    made = run(UV, "venv", "--quiet", "--python", sys.executable, str(place / "env"), cwd=place)
    assert made.returncode == 0, made.stderr
    python = place / "env" / "bin" / "python"
    done = run(UV, "pip", "install", "--quiet", "--python", str(python), *what, cwd=place)
    assert done.returncode == 0, done.stderr
    return python.parent


def use(programs: Path, place: Path) -> None:
    """A topology and a pipeline, from nothing, on the local runtime."""
    for command, folder in (
        (["new", "shop"], place),
        (["run", "shop.py", "--runtime", "local"], place / "shop"),
        (["routes", "new", "flows"], place),
        (["routes", "run", "pipeline.yaml", "--wait"], place / "flows"),
    ):
        done = run(str(programs / "tupletree"), *command, cwd=folder)
        assert done.returncode in {0, 3}, (command, done.stdout + done.stderr)


@pytest.mark.nightly
def test_the_built_wheel_works_in_a_fresh_environment_and_the_sdist_has_what_setup_needs(
    built: Path, tmp_path: Path
) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*LOCKS, "Makefile", ".ci/run", "pyproject.toml", "SECURITY.md", "tests/safety/advisories.json"} <= names
    use(installed(tmp_path, f"{wheel}[routes]"), tmp_path)


@pytest.mark.nightly
def test_an_install_without_spark_does_all_but_run_on_it(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (tmp_path / "without.txt").write_text('pyspark; sys_platform == "none"\n')
    programs = installed(tmp_path, "--override", str(tmp_path / "without.txt"), f"{wheel}[routes]")
    assert not [*(tmp_path / "env").rglob("site-packages/pyspark")]
    use(programs, tmp_path)
    refused = run(str(programs / "tupletree"), "run", "shop.py", cwd=tmp_path / "shop")
    assert refused.returncode == 1, refused.stderr
    assert "pyspark: not installed" in refused.stderr


LOWEST = [
    "bolts",
    "config",
    "data",
    "topology",
    "tasks",
    "sources",
    "sinks",
    "state",
    "routes/adapters",
    "routes/document",
]
"""Rooms of tests that touch every package and need no server and no Spark."""


@pytest.mark.nightly
@pytest.mark.timeout(2_000)
def test_the_lowest_versions_that_are_allowed_pass_the_tests(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("tupletree-*")
    extras = [f"--extra={extra}" for extra, _ in direct() if extra not in {"", "java", "sentences"}]
    programs = installed(tmp_path, "--resolution", "lowest-direct", "-r", str(source / "pyproject.toml"), *extras)
    tools = ["pytest", "pytest-timeout", "hypothesis", "jsonschema", "packaging"]
    done = run(UV, "pip", "install", "--quiet", "--python", str(programs / "python"), *tools, cwd=source)
    assert done.returncode == 0, done.stderr
    done = run(
        *(
            str(programs / "python"),
            "-m",
            "pytest",
            "-q",
            "-o",
            "filterwarnings=default",
            "-o",
            "addopts=--import-mode=importlib",
        ),
        *("-m", "not spark and not nightly and not stress and not cluster", *(f"tests/{room}" for room in LOWEST)),
        cwd=source,
        PYTHONPATH=str(source / "src"),
    )
    assert done.returncode == 0, done.stdout[-6_000:]
