"""Redis on Spark: messages of a queue to Parquet files, one ack each, against a `foreachBatch` that does it by hand.

Both take turns, each in a process of its own, with a warm session and a Redis of its own, in memory alone. The one by
hand reads up to as many entries as an epoch has, makes a data frame of them, calls the same function in `mapInArrow`,
appends the rows and acks. It has no retries and no dead letters, and after a crash it writes rows again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.alternating import Contender, alternate, row_of
from benchmarks.job import JobResult, JobSpec
from benchmarks.queue_redis import Order, body, price
from benchmarks.redis_server import redis_server
from benchmarks.row import Row, Settings
from benchmarks.session import start_session, warm_up
from tupletree import Topology
from tupletree import run as run_topology
from tupletree.queues import Message, open_queue
from tupletree.runtimes.spark.session import open_session
from tupletree.sinks import parquet
from tupletree.sources import queue

__all__ = ["measure_redis_spark", "run"]

MESSAGES = 100_000
EPOCH_MESSAGES = 10_000
BATCH = 1_000
BY_HAND, OWN = "foreachBatch", "tupletree"
JOB = "redis spark"


def price_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Bodies in, prices out."""
    decoder = msgspec.json.Decoder(Order)
    for batch in batches:
        bodies: list[Any] = batch.column(0).to_pylist()
        cents = [price(decoder.decode(one)).cents for one in bodies]
        yield pa.RecordBatch.from_pydict({"cents": pa.array(cents, pa.int64())})


def by_hand(spec: JobSpec, url: str) -> float:
    """Seconds from the start of the query until all is acked."""
    import redis

    client: Any = redis.Redis.from_url(url)
    client.xgroup_create("orders", "group", "0", mkstream=True)
    for start in range(0, MESSAGES, BATCH):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, start + BATCH):
            pipeline.xadd("orders", {"body": body(number)})
        pipeline.execute()
    session = start_session(spec.master, full_jit=True)
    acked = 0

    def work(_ticks: object, _epoch: int) -> None:
        nonlocal acked
        entries: list[Any] = []
        while len(entries) < EPOCH_MESSAGES:
            answer = client.xreadgroup("group", "me", {"orders": ">"}, count=BATCH)
            if not answer:
                break
            entries += answer[0][1]
        if entries:
            bodies = pa.table({"body": pa.array([fields[b"body"] for _, fields in entries], pa.binary())})
            rows = session.createDataFrame(bodies).mapInArrow(price_stage, "cents long")
            rows.write.mode("append").parquet(str(spec.out), compression="snappy")
        for start in range(0, len(entries), BATCH):
            acked += client.xack("orders", "group", *[entry for entry, _ in entries[start : start + BATCH]])

    ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = ticks.writeStream.foreachBatch(work).option("checkpointLocation", str(spec.checkpoint))
    started_s = time.perf_counter()
    query = writer.start()
    while acked < MESSAGES:
        if not query.isActive:
            raise RuntimeError("the query ended before all was acked")
        time.sleep(0.01)
    seconds = time.perf_counter() - started_s
    query.stop()
    return seconds


def own(spec: JobSpec, url: str) -> float:
    """Seconds of the whole run, on a session that is there."""
    with open_queue(f"{url}?queue=orders") as orders:
        for start in range(0, MESSAGES, BATCH):
            orders.publish([Message(id=f"order-{number}", body=body(number)) for number in range(start, start + BATCH)])
    session, _ = open_session("tupletree-benchmarks", spec.master)
    warm_up(session)
    t = Topology("orders", options={"epoch_max_messages": EPOCH_MESSAGES})
    coming = t.spout("orders", queue(f"{url}?queue=orders", Order, follow=False, prefetch=BATCH))
    t.sink("out", parquet(spec.out, compression="snappy")).shuffle(
        t.bolt("price", price, parallelism=2).shuffle(coming)
    )
    started_s = time.perf_counter()
    summary = run_topology(t, state_dir=spec.checkpoint, master=spec.master).wait()
    seconds = time.perf_counter() - started_s
    assert (summary.acked, summary.dead) == (MESSAGES, 0), summary
    with open_queue(f"{url}?queue=orders") as orders:
        assert orders.depth().open == 0
    return seconds


def run(spec: JobSpec) -> JobResult:
    """A job in a process of its own."""
    folder = Path(spec.folder, "redis")
    folder.mkdir()
    with redis_server(folder, durable=False) as url:
        seconds = (by_hand if spec.variant == BY_HAND else own)(spec, url)
    return JobResult(seconds=seconds)


def check(out: Path) -> None:
    """Raises AssertionError if a row is missing or there twice."""
    cents: list[Any] = pq.read_table(out, columns=["cents"]).column(0).to_pylist()
    assert sorted(cents) == [number * 40 for number in range(MESSAGES)], len(cents)


def measure_redis_spark(settings: Settings) -> list[Row]:
    """Both in turns."""
    contenders = {
        BY_HAND: Contender(
            job=JOB,
            variant=BY_HAND,
            note=f"up to {EPOCH_MESSAGES:,} entries per batch, {BATCH:,} read and acked at a time; untracked",
            check=check,
        ),
        OWN: Contender(
            job=JOB,
            variant=OWN,
            peer=BY_HAND,
            note=f"`queue(url, prefetch={BATCH})`, a bolt, `parquet`; one ack each, tracked, exactly once",
            check=check,
        ),
    }
    measured = alternate(settings, "redis-spark", contenders, settings.work)
    return [row_of("redis-spark", name, one, measured, MESSAGES) for name, one in contenders.items()]
