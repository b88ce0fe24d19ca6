"""Tupletree works from a zip that spark-submit ships: Spark puts it on the path of workers as `./tupletree.zip`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer

from tests.clusters import ROOT
from tupletree.runtimes.spark.format.slices import EpochSlice
from tupletree.runtimes.spark.worker.stage_function import StageFunction

BEFORE = "import importlib, pickle, pkgutil, sys; sys.path.insert(0, './tupletree.zip')\n"

EVERY_MODULE = """
import tupletree
for module in pkgutil.walk_packages(tupletree.__path__, "tupletree."):
    if not module.name.endswith("__main__"):
        print(importlib.import_module(module.name).__file__)
"""

THE_STAGE = """
with open("stage", "rb") as file:
    print(type(pickle.load(file)).__name__)
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a worker that was sent the package and a stage."""
    folder = tmp_path_factory.mktemp("worker")
    shutil.make_archive(str(folder / "tupletree"), "zip", ROOT / "src", "tupletree")
    stage = StageFunction(b"program", b"control", 0, [EpochSlice()], 2, is_last=True)
    (folder / "stage").write_bytes(CloudPickleSerializer().dumps(stage))  # type: ignore[no-untyped-call]
    return folder


def said(folder: Path, script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_module_can_be_imported(worker: Path) -> None:
    files = said(worker, EVERY_MODULE)
    assert len(files) > 100
    assert all("tupletree.zip" in file for file in files), files[0]


def test_a_worker_that_runs_a_stage_imports_nothing_of_the_driver(worker: Path) -> None:
    name, modules = said(worker, THE_STAGE)
    assert name == "StageFunction"
    spark = "tupletree.runtimes.spark."
    beyond = [module for module in modules.split() if module.startswith(spark)]
    assert beyond
    assert not [module for module in beyond if module.removeprefix(spark).split(".")[0] not in {"format", "worker"}]
