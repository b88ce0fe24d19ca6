"""Redis: messages per second through the local runtime, one ack each, against a bare redis-py loop and task queues.

All take turns, each in a process of its own and on a Redis of its own, in memory alone. The work is one trivial
function of a JSON body, and the time is that of working all messages, which are in the queue before: ours from the
start of the topology to its end, after one of a few messages, with which modules are imported. The bare loop reads and
acks 100 entries at a time; it has no retries, no dead letters and no leases.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.harness import REPOSITORY, peer_environment, run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.redis_server import redis_server
from benchmarks.row import Row, Settings, progress
from tupletree import Options, Topology, bolt
from tupletree.queues import Message, open_queue
from tupletree.runtimes.run import run as run_topology
from tupletree.sources import queue

__all__ = ["measure_redis_queue"]

MESSAGES = 100_000
WARM_UP_MESSAGES = 100
PEER_MESSAGES = 5_000
BATCH = 100
PEERS_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
OWN = {
    "bare redis-py": f"XREADGROUP and XACK, {BATCH} entries at a time",
    "tupletree": "`queue(url)`, a bolt; leased in batches, one ack each, every message tracked",
}
PEERS = {"dramatiq": "an actor, eight threads", "arq": "a job, 512 at a time"}


class Order(msgspec.Struct, frozen=True):
    """What is in a message."""

    number: int
    text: str


class Priced(msgspec.Struct, frozen=True):
    """What comes of it."""

    cents: int


@bolt
def price(order: Order) -> Priced:
    """A trivial function."""
    return Priced(order.number * 40)


def run_bare(url: str) -> float:
    """Seconds of the bare loop."""
    import redis

    client: Any = redis.Redis.from_url(url)
    client.xgroup_create("orders", "group", "0", mkstream=True)
    for start in range(0, MESSAGES, 1000):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, start + 1000):
            pipeline.xadd("orders", {"body": body(number)})
        pipeline.execute()
    decoder = msgspec.json.Decoder(Order)
    started_s, done = time.perf_counter(), 0
    while done < MESSAGES:
        [(_, entries)] = client.xreadgroup("group", "me", {"orders": ">"}, count=BATCH)
        for _, fields in entries:
            Priced(decoder.decode(fields[b"body"]).number * 40)
        done += client.xack("orders", "group", *[entry for entry, _ in entries])
    return time.perf_counter() - started_s


def run_own(url: str) -> float:
    """Seconds of the topology, from its start to its end."""
    work_queue(f"{url}?queue=warm-up", WARM_UP_MESSAGES)
    return work_queue(f"{url}?queue=orders", MESSAGES)


def work_queue(url: str, messages: int) -> float:
    """Seconds of a topology that works so many messages, which are published before."""
    with open_queue(url) as orders:
        for start in range(0, messages, 1000):
            numbers = range(start, min(start + 1000, messages))
            orders.publish([Message(id=f"order-{number}", body=body(number)) for number in numbers])
    t = Topology("orders")
    t.bolt("price", price, unconsumed=Priced).shuffle(t.spout("orders", queue(url, Order, follow=False)))
    started_s = time.perf_counter()
    summary = run_topology(t, runtime="local", options=Options()).wait()
    seconds = time.perf_counter() - started_s
    assert (summary.acked, summary.dead) == (messages, 0)
    return seconds


def body(number: int) -> bytes:
    """200 bytes of JSON."""
    return msgspec.json.encode(Order(number, "x" * 170))


def run(spec: JobSpec) -> JobResult:
    """A job in a process of its own."""
    with redis_server(Path(spec.folder), durable=False) as url:
        seconds = (run_bare if spec.variant == "bare redis-py" else run_own)(url)
    return JobResult(seconds=seconds)


def measure_redis_queue(settings: Settings) -> list[Row]:
    """All in turns: medians, and ratios round by round."""
    folder = settings.work / "redis"
    rates: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    for _round in range(settings.rounds):
        for variant in OWN:
            fresh(folder)
            seconds = run_job("redis queue", JobSpec(master="", folder=str(folder), variant=variant)).result.seconds
            note(rates, variant, MESSAGES / seconds)
        for peer in PEERS:
            if peer not in absent:
                try:
                    note(rates, peer, run_peer(peer, folder))
                except RuntimeError as error:
                    absent[peer] = str(error)
    shutil.rmtree(folder, ignore_errors=True)
    rows = [row_of(name, rates, text) for name, text in (OWN | PEERS).items() if name in rates]
    return rows + [Row(benchmark="redis", job=name, result="not run", note=why) for name, why in absent.items()]


def fresh(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def run_peer(peer: str, folder: Path) -> float:
    """Messages per second of a peer. Raises RuntimeError if it is not there or fails."""
    if not PEERS_PYTHON.exists():
        raise RuntimeError("no environment for peers: make bench-peers")
    fresh(folder)
    script = REPOSITORY / "benchmarks" / "peers" / "redis_chains.py"
    with redis_server(folder, durable=False) as url:
        command = [str(PEERS_PYTHON), str(script), peer, url, str(PEER_MESSAGES), "1"]
        done = subprocess.run(command, env=peer_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    return PEER_MESSAGES / float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def note(rates: dict[str, list[float]], name: str, rate: float) -> None:
    """Keep a round, and tell the person at the terminal."""
    rates.setdefault(name, []).append(rate)
    progress(f"redis, {name}: {rate:,.0f} messages/s")


def row_of(name: str, rates: dict[str, list[float]], text: str) -> Row:
    """The median, and how many times as fast Tupletree is."""
    ratios = [own / other for own, other in zip(rates["tupletree"], rates[name])]
    ratio = f"tupletree is {median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) × as fast"
    return Row(
        benchmark="redis",
        job=name,
        result=f"{median(rates[name]):,.0f} messages/s",
        ratio="1" if name == "tupletree" else ratio,
        note=text,
        data={"per_second": rates[name]},
    )
