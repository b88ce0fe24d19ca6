"""The review's trials, made again as user 65534 during a local run, a run of a pipeline, and a run on Spark.

Whatever another user can read, write, connect to or call is a fault, unless SECURITY.md names it: command lines are
shown to all users, and what is on them is no secret and no payload.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.safety.looking import Seen, look
from tests.safety.others import needs_root
from tests.safety.test_a_spark_run_is_private import TOPOLOGY

pytestmark = [pytest.mark.nightly, needs_root]

HANG_S = 180.0
PAYLOAD = "card 17"
PASSWORD = "s3cr3t-of-the-shop"

PIPELINE = """
version: 1
pipeline: orders
settings: {api_key: "${SHOP_KEY}"}
routes:
  take:
    inbound: {queue: q.take}
    adapters: [{type: "orders_adapter:wait"}]
    outbound: [{queue: q.next}]
  next:
    inbound: {queue: q.next}
init_message: {route: take, payload: {card: "card 17"}}
"""

ADAPTER = """
import time
from pathlib import Path

HERE = Path(__file__).parent


def wait(payload):
    (HERE / "reached").touch()
    while not (HERE / "go").exists():
        time.sleep(0.02)  # a file that another process makes
    return payload
"""


@dataclass
class Trial:
    """What was seen while it ran, and how it ended."""

    kind: str
    seen: Seen
    code: int
    logs: str
    left: list[str]


KINDS = ["local", "pipeline", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.fixture(scope="module", params=KINDS)
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """A run with a umask that forbids nothing, below a folder in which everybody may write."""
    kind = request.param
    shared = Path(tempfile.mkdtemp(prefix="safety-", dir="/tmp"))
    shared.chmod(0o1777)
    home = tmp_path_factory.mktemp("orders")
    (home / "orders_of_many.py").write_text(TOPOLOGY)
    (home / "orders_adapter.py").write_text(ADAPTER)
    (home / "orders.yaml").write_text(PIPELINE)
    commands = {
        "pipeline": ["routes", "run", str(home / "orders.yaml"), "--wait", "--home", str(shared / "state")],
        "local": ["run", str(home / "orders_of_many.py"), "--runtime", "local", "--state-dir", str(shared / "state")],
        "spark": ["run", str(home / "orders_of_many.py"), "--state-dir", str(shared / "state")],
    }
    variables = {"TMPDIR": str(shared), "PYTHONPATH": os.pathsep.join(sys.path), "SHOP_KEY": PASSWORD}
    program = subprocess.Popen(
        [sys.executable, "-m", "tupletree", *commands[kind]],
        cwd=home,
        env={**os.environ, **variables},
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
        seen = look(program.pid, [shared])
        (home / "go").touch()
        logs = program.communicate(timeout=HANG_S)[0]
        left = [path.name for path in shared.iterdir() if path.name != "state"]
        yield Trial(kind, seen, program.returncode, logs, left)
    finally:
        program.kill()
        if program.stdout is not None:
            program.stdout.close()
        program.wait()
        shutil.rmtree(shared, ignore_errors=True)


def test_no_file_can_be_read_or_written(trial: Trial) -> None:
    assert trial.seen.readable == []
    assert trial.seen.writable == []


def test_no_socket_takes_a_connection_and_none_is_without_a_path(trial: Trial) -> None:
    assert (trial.seen.connected, trial.seen.abstract) == ([], [])


def test_no_port_takes_an_order_and_only_spark_has_any(trial: Trial) -> None:
    """py4j answers `!y…` to a call that it carried out, and `!x` to one that it refused."""
    said = set(trial.seen.ports.values())
    assert {one for one in said if one not in {"", "silence"} and not one.startswith("!x")} == set()
    assert bool(said) is (trial.kind == "spark")
    assert trial.seen.udp == []


def test_no_environment_can_be_read_and_no_command_line_has_a_secret_or_a_payload(trial: Trial) -> None:
    assert trial.seen.environments == []
    for secret in (PASSWORD, PAYLOAD, "spark.authenticate.secret"):
        assert secret not in trial.seen.command_lines


def test_it_ends_well_and_leaves_nothing_in_the_temporary_folder(trial: Trial) -> None:
    assert trial.code == 0, trial.logs
    assert [name for name in trial.left if not name.startswith("hsperfdata_")] == []
    assert PASSWORD not in trial.logs
