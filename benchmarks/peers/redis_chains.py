"""Three trivial functions in a row on Redis, or one: `python redis_chains.py PEER URL MESSAGES [STEPS]`.

PEER is `dramatiq` (a pipeline of three actors, eight worker threads) or `arq` (a job that enqueues the next one, 512 at
a time, no results kept, polled every 10 ms), both with worker and sender in one process, as ours. The time of three is
from the first message sent to the last function ended, and the worker runs before; that of one is the worker's alone,
from its start, with all messages in its queue.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time


def main(peer: str, url: str, messages: str, steps: str = "3") -> None:
    """Run, and print the seconds as the last line, in JSON."""
    seconds, cpu_s = (with_dramatiq if peer == "dramatiq" else with_arq)(url, int(messages), int(steps))
    print("\n" + json.dumps({"seconds": seconds, "cpu_seconds": cpu_s}))


def with_dramatiq(url: str, messages: int, steps: int) -> tuple[float, float]:
    """A pipeline of actors for each message."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    lock, over = threading.Lock(), threading.Event()
    ended = 0

    @dramatiq.actor
    def first(payload):
        return {"n": payload["n"] + 1}

    @dramatiq.actor
    def second(payload):
        return {"n": payload["n"] + 1}

    @dramatiq.actor
    def third(_payload):  # what the last one returned would be thrown away, with a warning
        nonlocal ended
        with lock:
            ended += 1
            if ended == messages:
                over.set()

    worker = dramatiq.Worker(broker, worker_threads=8)
    if steps == 1:
        for number in range(messages):
            third.send({"n": number})
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    worker.start()
    if steps > 1:
        for number in range(messages):
            dramatiq.pipeline([first.message({"n": number}), second.message(), third.message()]).run()
    assert over.wait(600), f"{ended} of {messages} ended"
    times = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    worker.stop()
    return times


def with_arq(url: str, messages: int, steps: int) -> tuple[float, float]:
    """A job that enqueues the next one."""
    return asyncio.run(_arq(url, messages, steps))


async def _arq(url: str, messages: int, steps: int) -> tuple[float, float]:
    from arq import create_pool, func
    from arq.connections import RedisSettings
    from arq.worker import Worker

    over = asyncio.Event()
    ended = 0

    async def first(context, payload):
        await context["redis"].enqueue_job("second", {"n": payload["n"] + 1})

    async def second(context, payload):
        await context["redis"].enqueue_job("third", {"n": payload["n"] + 1})

    async def third(_context, _payload):
        nonlocal ended
        ended += 1
        if ended == messages:
            over.set()

    pool = await create_pool(RedisSettings.from_dsn(url))
    worker = Worker(
        [func(one, name=one.__name__, keep_result=0) for one in (first, second, third)],
        redis_pool=pool, max_jobs=512, poll_delay=0.01, keep_result=0, handle_signals=False, log_results=False,
    )  # fmt: skip

    async def send(name):
        for start in range(0, messages, 100):
            numbers = range(start, min(start + 100, messages))
            await asyncio.gather(*[pool.enqueue_job(name, {"n": number}) for number in numbers])

    if steps == 1:
        await send("third")
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    working = asyncio.create_task(worker.async_run())
    if steps > 1:
        await send("first")
    ending = asyncio.create_task(over.wait())
    await asyncio.wait({ending, working}, timeout=600, return_when=asyncio.FIRST_COMPLETED)
    assert ended == messages, f"{ended} of {messages} ended"
    times = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return times


if __name__ == "__main__":
    main(*sys.argv[1:])
