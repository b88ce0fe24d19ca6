"""The embedded queue: publishing, and leasing with acks, in one process, against other queues in a SQLite file.

All do the same work in turns: messages of 200 bytes, published, then taken and settled, each in a process of its own.
Ours is fsynced at every commit and knows ids, leases, tokens and headers; the peers are as durable as their defaults.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.harness import REPOSITORY, peer_environment, run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.row import Row, Settings, progress
from tupletree.queues import Message
from tupletree.queues.sqlite import SqliteBroker

__all__ = ["measure_queue", "run"]

MESSAGES = 10_000  # litequeue's pop looks over all that is done: at 50,000 it takes minutes
BODY_BYTES = 200
BATCH = 1000
ONE_BY_ONE = 2_000
DEEP = 1_000_000
PEERS_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
PEERS = {
    "litequeue": "transactions of 1,000 to put and to mark done, one per pop; synchronous=NORMAL, its default",
    "litequeue-full": "the same with synchronous=FULL: as durable as ours",
    "persist-queue": "one transaction per operation; synchronous=NORMAL",
}
OWN = {
    "": f"batches of {BATCH:,}, every commit fsynced",
    "ordered": "the same, in a queue that keeps the order of 1,000 keys",
    "one by one": f"one message per call, {ONE_BY_ONE:,} of them: the disk's fsyncs",
    "deep": f"batches of {BATCH:,} at the front of {DEEP:,} ready messages",
}


class Times(msgspec.Struct, frozen=True):
    """Seconds of one round."""

    publish_s: float
    settle_s: float
    messages: int = MESSAGES


def run(spec: JobSpec) -> JobResult:
    """The job of ours, in a process of its own."""
    batch = 1 if spec.variant == "one by one" else BATCH
    total = ONE_BY_ONE if spec.variant == "one by one" else MESSAGES
    messages = [
        Message(id=f"order-{number:012}", body=b"x" * BODY_BYTES, key=str(number % 1000)) for number in range(total)
    ]
    with SqliteBroker(Path(spec.folder, "queue.db")) as broker:
        broker.declare("q", ordered=spec.variant == "ordered")
        if spec.variant == "deep":
            for start in range(0, DEEP, 10_000):
                broker.publish("q", [Message(body=b"x" * BODY_BYTES) for _ in range(start, start + 10_000)])
        started_s = time.perf_counter()
        for start in range(0, total, batch):
            broker.publish("q", messages[start : start + batch])
        published_s = time.perf_counter()
        settled = 0
        while settled < total:
            leased = broker.lease("q", batch)
            assert not broker.ack([delivery.handle for delivery in leased])
            settled += len(leased)
        ended_s = time.perf_counter()
        depth_s = 0.0
        if spec.variant == "deep":
            asked_s = time.perf_counter()
            assert broker.depth("q").ready == DEEP
            depth_s = time.perf_counter() - asked_s
    numbers = {"publish_s": published_s - started_s, "settle_s": ended_s - published_s, "depth_ms": depth_s * 1000}
    return JobResult(seconds=ended_s - started_s, numbers={**numbers, "messages": total})


def measure_queue(settings: Settings) -> list[Row]:
    """All in turns; medians, and ratios of ours to each peer, round by round."""
    times: dict[str, list[Times]] = {}
    depths: list[float] = []
    absent: dict[str, str] = {}
    folder = settings.work / "queue"
    for _round in range(settings.rounds):
        for variant in OWN:
            spec = JobSpec(master="", folder=str(folder), variant=variant)
            numbers = run_job("embedded queue", spec).result.numbers
            note(times, f"tupletree {variant}".strip(), numbers)
            depths += [numbers["depth_ms"]] if variant == "deep" else []
        for peer in PEERS:
            if peer not in absent:
                try:
                    note(times, peer, run_peer(peer, folder))
                except RuntimeError as error:
                    absent[peer] = str(error)
    shutil.rmtree(folder, ignore_errors=True)
    notes = {f"tupletree {variant}".strip(): text for variant, text in OWN.items()} | PEERS
    notes["tupletree deep"] += f"; depth {median(depths):.1f} ms"
    rows = [row_of(name, times, notes[name]) for name in times]
    return rows + [Row(benchmark="queue", job=name, result="not run", note=why) for name, why in absent.items()]


def note(times: dict[str, list[Times]], name: str, numbers: dict[str, float]) -> None:
    """Keep a round, and tell the person at the terminal."""
    one = Times(numbers["publish_s"], numbers["settle_s"], int(numbers.get("messages", MESSAGES)))
    times.setdefault(name, []).append(one)
    progress(f"queue, {name}: {one.messages / one.publish_s:,.0f} and {one.messages / one.settle_s:,.0f} per second")


def run_peer(peer: str, folder: Path) -> dict[str, float]:
    """Run a peer in its own environment. Raises RuntimeError if it is not there or fails."""
    if not PEERS_PYTHON.exists():
        raise RuntimeError("no environment for peers: make bench-peers")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    script = REPOSITORY / "benchmarks" / "peers" / "embedded_queues.py"
    command = [str(PEERS_PYTHON), str(script), peer, str(folder), str(MESSAGES), str(BODY_BYTES), str(BATCH)]
    done = subprocess.run(command, env=peer_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    numbers: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return numbers


def row_of(name: str, times: dict[str, list[Times]], text: str) -> Row:
    """Medians, and how much faster the embedded queue in batches is than a peer."""
    rounds = times[name]
    publishes = median(one.messages / one.publish_s for one in rounds)
    settles = median(one.messages / one.settle_s for one in rounds)
    ratio = ""
    if name in PEERS:
        pairs = list(zip(times["tupletree"], rounds))
        ratios = (
            [(ours.messages / ours.publish_s) / (theirs.messages / theirs.publish_s) for ours, theirs in pairs],
            [(ours.messages / ours.settle_s) / (theirs.messages / theirs.settle_s) for ours, theirs in pairs],
        )
        ratio = " and ".join(f"{median(one):.1f} ({min(one):.1f}–{max(one):.1f})" for one in ratios)
        ratio = f"tupletree is {ratio} × as fast"
    return Row(
        benchmark="queue",
        job=name,
        result=f"{publishes:,.0f} published/s, {settles:,.0f} taken and settled/s",
        ratio=ratio,
        note=text,
        data={"publish_s": [one.publish_s for one in rounds], "settle_s": [one.settle_s for one in rounds]},
    )
