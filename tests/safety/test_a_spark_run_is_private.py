"""What another user of the host gets at while a topology runs on Spark, tried as that user, with a umask that forbids
nothing: no file with payloads, no socket, no port that takes orders. One run for all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clusters import descendants
from tests.safety.hostile import write_hostile_files
from tests.safety.looking import command_line, connect, listening, order, readable
from tests.safety.others import as_other, needs_root
from tupletree.runtimes.spark.scratch import PREFIX

pytestmark = [pytest.mark.spark, needs_root]

HANG_S = 120.0

TOPOLOGY = """
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tupletree import Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import items

HERE = Path(__file__).parent


class Order(NamedTuple):
    number: int
    card: str


@bolt
def check(order: Order) -> Order:
    return order


@bolt
def charge(order: Order) -> Order:
    (HERE / "temporary").write_text(tempfile.gettempdir())
    (HERE / "reached").touch()
    while not (HERE / "go").exists():
        time.sleep(0.02)  # a file that another process makes
    return order


def topology() -> Topology:
    t = Topology("orders")
    source = t.spout("source", items([Order(n, f"card {n}") for n in range(40)]))
    checked = t.bolt("check", check, parallelism=2).shuffle(source)
    charged = t.bolt("charge", charge, parallelism=2).fields(checked, "number")
    t.sink("out", jsonl(HERE / "out")).shuffle(charged)
    return t
"""


@dataclass
class Running:
    """A run that waits in its second stage.

    Attributes:
        temporary: what TMPDIR says; everybody may write there.
        files: every file and socket below it.
        readable, entered: what another user could open, and list, of these.
        after: entries of TMPDIR once the run has ended.
        precious: files, with their text, of a folder that hostile files in its state directory led to.
        refused: how many of those in its inbox it moved aside.
    """

    temporary: Path
    files: list[Path]
    readable: list[str]
    sockets: dict[str, str]
    ports: dict[int, str]
    driver_ports: list[int]
    command_lines: list[str]
    worker_temporary: str
    logs: str = ""
    code: int = -1
    after: list[str] | None = None
    state_dir: Path = Path()
    precious: list[tuple[str, str]] | None = None
    refused: int = 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    import shutil
    import tempfile

    shared = Path(tempfile.mkdtemp(prefix="safety-", dir="/tmp"))
    shared.chmod(0o1777)
    home = tmp_path_factory.mktemp("orders")
    (home / "orders_of_many.py").write_text(TOPOLOGY)
    command = [
        sys.executable,
        "-m",
        "tupletree",
        "run",
        str(home / "orders_of_many.py"),
        "--state-dir",
        str(shared / "state"),
    ]
    program = subprocess.Popen(
        command,
        cwd=home,
        env={**os.environ, "TMPDIR": str(shared), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0,
    )
    try:
        until_s = time.monotonic() + HANG_S
        while not (home / "reached").exists():
            assert program.poll() is None, program.stdout and program.stdout.read()
            assert time.monotonic() < until_s
            time.sleep(0.05)  # another process, whose clock is not ours to set
        looked = _look(shared, home, program.pid)
        others = home / "others"
        others.mkdir()
        (others / "precious.json").write_text("mine")
        for seed, name in enumerate(("control", "inbox", "dead", "epochs")):
            write_hostile_files(shared / "state" / name, 200, seed, others)
        looked.state_dir = shared / "state"
        (home / "go").touch()
        looked.logs = program.communicate(timeout=HANG_S)[0]
        looked.code = program.returncode
        looked.precious = [(path.name, path.read_text()) for path in others.iterdir()]
        looked.refused = len(list((shared / "state" / "inbox" / "refused").iterdir()))
        looked.after = [path.name for path in shared.iterdir() if path.name != "state"]
        yield looked
    finally:
        program.kill()
        if program.stdout is not None:
            program.stdout.close()
        program.wait()
        shutil.rmtree(shared, ignore_errors=True)


def _look(shared: Path, home: Path, process: int) -> Running:
    processes = [process, *descendants(process)]
    ports = listening(processes)
    files = [path for path in shared.rglob("*") if not path.is_dir()]
    sockets = [str(path) for path in files if path.is_socket()]
    return Running(
        temporary=shared,
        files=files,
        readable=as_other(lambda: readable([str(path) for path in files])),
        sockets=as_other(lambda: {path: connect(path) for path in sockets}),
        ports=dict(zip(ports, as_other(lambda: [order(port) for port in ports]), strict=True)),
        driver_ports=listening([process]),
        command_lines=[command_line(one) for one in processes],
        worker_temporary=(home / "temporary").read_text(),
    )


def test_no_file_of_the_run_can_be_read_by_another_user(running: Running) -> None:
    shuffled = [path for path in running.files if path.name.startswith("shuffle_")]
    assert shuffled, "Spark wrote none: there is nothing to be seen by this test"
    assert running.readable == []


def test_workers_have_their_temporary_files_in_the_private_folder(running: Running) -> None:
    folder = Path(running.worker_temporary)
    assert folder.parent == running.temporary
    assert folder.name.startswith(PREFIX)


def test_no_socket_of_the_workers_can_be_connected_to(running: Running) -> None:
    assert running.sockets
    assert set(running.sockets.values()) == {"refused"}


def test_no_port_takes_an_order_without_the_secret(running: Running) -> None:
    """py4j answers `!y…` to a call that it carried out, and `!x` to one that it refused."""
    assert len(running.ports) >= 3  # of the gateway, and of Spark's own
    assert running.driver_ports == [], "nothing calls back into Python, so nobody else may"
    assert [said for said in running.ports.values() if said.startswith("!y")] == []
    assert [said for said in running.ports.values() if said not in {"", "silence"} and not said.startswith("!x")] == []


def test_spark_authenticates_and_no_command_line_shows_the_secret(running: Running) -> None:
    java = [line for line in running.command_lines if "SparkSubmit" in line]
    assert java
    assert all("spark.authenticate=true" in line for line in java)
    assert "spark.authenticate.secret" not in " ".join(running.command_lines)


def test_the_run_ends_well_and_leaves_nothing_in_the_temporary_folder(running: Running) -> None:
    assert running.code == 0, running.logs
    assert "40 messages" in running.logs
    assert [name for name in running.after or () if not name.startswith("hsperfdata_")] == []


def test_hostile_files_in_its_state_directory_end_no_run_and_remove_nothing_outside(running: Running) -> None:
    assert running.code == 0, running.logs
    assert running.precious == [("precious.json", "mine")]
    assert running.refused > 50
