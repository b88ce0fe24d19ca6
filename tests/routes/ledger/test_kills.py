"""A pipeline that is killed at any moment: every child once, every completion once, nothing in two batches."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.routes.ledger.kill_worker import PIECES, POINTS
from tupletree.queues import connect
from tupletree.routes.ledger import Ledger
from tupletree.routes.payloads import decode

ROOT = Path(__file__).resolve().parents[3]


class Kills:
    """Processes that run the pipeline one after the other, each killed at a point; and one that is not."""

    def __init__(self, folder: Path, *, separate: bool, runtime: str = "local") -> None:
        self.runtime = runtime
        self.home = folder / "home"
        self.ledger = f"sqlite:///{folder}/ledger.db" if separate else ""
        self.executions = 0
        self.told: Counter[str] = Counter()
        self.killed = 0

    def run(self, point: str, count: int, *, begin: bool = True) -> None:
        """One process."""
        execution = f"e{self.executions}" if begin else "-"
        self.executions += begin
        command = [sys.executable, "-m", "tests.routes.ledger.kill_worker", str(self.home), self.ledger, execution]
        done = subprocess.run(
            [*command, point, str(count), self.runtime],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
            check=False,
        )
        assert done.returncode in ((0, -9) if point != "none" else (0,)), done.stderr
        self.killed += done.returncode == -9
        self.told.update(line for line in done.stdout.splitlines() if line.startswith("completed"))

    def judge(self) -> None:
        """Everything is as if nothing had been killed."""
        ledger = Ledger.open(self.ledger or f"sqlite:///{self.home}/pipeline.db")
        executions = ledger.executions(limit=10_000)
        for one in executions:
            counts = {row.route: {k: n for k, n in row.states.items() if n} for row in ledger.counts(one.id)}
            assert one.state == "completed_with_dead_letters"
            assert counts["split"] == {"done": 1}
            assert counts["flaky"] == {"done": PIECES - 2, "filtered": 1, "dead": 1}
            assert counts["index"] == {"done": PIECES - 2}
        ledger.close()
        assert set(self.told.values()) <= {1}
        with connect(f"sqlite:///{self.home}/pipeline.db") as broker:
            ended = Counter(m.message.headers["tupletree-execution"] for m in broker.peek("ended", limit=10_000))
            assert ended == dict.fromkeys([one.id for one in executions], 1)
            batches = [decode(one.message.body)["members"] for one in broker.peek("out", limit=100_000)]
            members = Counter((of, number) for batch in batches for of, number in batch)
            wanted = [(one.id, number) for one in executions for number in range(PIECES) if number not in (7, 9)]
            assert members == dict.fromkeys(wanted, 1)
            assert broker.depth("flaky").dead == len(executions)
            assert all(broker.depth(queue).open == 0 for queue in ("split", "flaky", "index"))


def test_killed_at_each_step_of_settling_a_fan_out_and_its_batches_come_to_the_same(tmp_path: Path) -> None:
    """Among them: after child 3 of 10 was published."""
    kills = Kills(tmp_path, separate=True)
    counts = {"published": 2, "before the ack": 2}
    for point in POINTS:
        kills.run(point, counts.get(point, 3 if point == "leased" else 1))
    assert kills.killed == len(POINTS)
    kills.run("none", 0)
    kills.judge()


@pytest.mark.nightly
@pytest.mark.parametrize("runtime", ["local", "spark"])
@pytest.mark.parametrize("separate", [True, False], ids=["a database", "the queue file"])
def test_killed_at_a_hundred_random_steps(tmp_path: Path, separate: bool, runtime: str) -> None:
    drawn = random.Random(f"kills {separate}")
    kills = Kills(tmp_path, separate=separate, runtime=runtime)
    while kills.killed < 100:
        kills.run("any", drawn.randint(1, 90), begin=drawn.random() < 0.3)
    kills.run("none", 0)
    kills.judge()
