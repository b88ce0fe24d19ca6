"""RabbitMQ: messages per second through the local runtime, one ack each, against a bare pika loop.

Both take turns, each in a process of its own, on one server with a quorum queue each. The work is one trivial function
of a JSON body; ours is timed from the start of the topology to its end, after one of a few messages, with which modules
are imported. The bare loop consumes with a window and acks as many at a time; it has no retries, no dead letters and
no leases.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.harness import run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.queue_redis import WARM_UP_MESSAGES, Order, Priced, body, price, work_queue
from benchmarks.row import Row, Settings, progress
from tests.queues.servers import rabbit_server
from tupletree import Options, Topology
from tupletree.queues import Message, open_queue
from tupletree.queues.rabbitmq.wire import ready_queue_of
from tupletree.runtimes.run import run as run_topology
from tupletree.sources import queue

__all__ = ["measure_rabbitmq_queue", "run"]

MESSAGES = 30_000
BATCH = 100
JOBS = {
    "bare pika": f"`BlockingChannel.consume`, a window of {2 * BATCH}, {BATCH} acked at a time",
    "tupletree": "`queue(url)`, a bolt; leased in batches, one ack each, every message tracked",
}


def run_bare(url: str) -> float:
    """Seconds of the bare loop."""
    import pika

    connection: Any = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2 * BATCH)
    decoder = msgspec.json.Decoder(Order)
    started_s = time.perf_counter()
    for done, (method, _, data) in enumerate(channel.consume(ready_queue_of("orders")), 1):
        Priced(decoder.decode(data).number * 40)
        if done % BATCH == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if done == MESSAGES:
            break
    seconds = time.perf_counter() - started_s
    connection.close()
    return seconds


def run_own(url: str) -> float:
    """Seconds of the topology, from its start to its end."""
    work_queue(f"{url}?queue=warm-up", WARM_UP_MESSAGES)
    t = Topology("orders")
    t.bolt("price", price, unconsumed=Priced).shuffle(
        t.spout("orders", queue(f"{url}?queue=orders", Order, follow=False))
    )
    started_s = time.perf_counter()
    summary = run_topology(t, runtime="local", options=Options()).wait()
    seconds = time.perf_counter() - started_s
    assert (summary.acked, summary.dead) == (MESSAGES, 0)
    return seconds


def run(spec: JobSpec) -> JobResult:
    """A job in a process of its own."""
    with rabbit_server() as server, open_queue(f"{server.url}?queue=orders") as orders:
        for start in range(0, MESSAGES, 1000):
            orders.publish([Message(id=f"order-{number}", body=body(number)) for number in range(start, start + 1000)])
        seconds = (run_bare if spec.variant == "bare pika" else run_own)(server.url)
        assert orders.depth().ready == 0
    return JobResult(seconds=seconds)


def measure_rabbitmq_queue(settings: Settings) -> list[Row]:
    """Both in turns: medians, and ratios round by round."""
    folder = Path(settings.work, "rabbitmq")
    rates: dict[str, list[float]] = {}
    for _round in range(settings.rounds):
        for variant in JOBS:
            spec = JobSpec(master="", folder=str(folder), variant=variant)
            rates.setdefault(variant, []).append(MESSAGES / run_job("rabbitmq queue", spec).result.seconds)
            progress(f"rabbitmq, {variant}: {rates[variant][-1]:,.0f} messages/s")
    ratios = [own / bare for own, bare in zip(rates["tupletree"], rates["bare pika"])]
    against = f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) × the bare loop"
    return [
        Row(
            benchmark="rabbitmq",
            job=name,
            result=f"{median(rates[name]):,.0f} messages/s",
            ratio=against if name == "tupletree" else "1",
            note=text,
            data={"per_second": rates[name]},
        )
        for name, text in JOBS.items()
    ]
