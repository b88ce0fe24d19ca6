"""Queues in a SQLite file: `python embedded_queues.py PEER FOLDER MESSAGES BYTES BATCH`.

PEER is litequeue, litequeue-full or persist-queue, each as fast as its interface allows: litequeue puts and marks done
in transactions of BATCH, but hands out one message per transaction; persist-queue commits each operation. Both leave
`synchronous` at NORMAL, so that a commit may be lost with the power; `litequeue-full` raises it to FULL. Their messages
have no ids of the publisher's, no leases that end, no headers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path


def main(peer: str, folder: str, messages: str, size: str, batch: str) -> None:
    """Publish all messages, take and settle all of them, and print both times as the last line, in JSON."""
    bodies = ["x" * int(size)] * int(messages)
    publish, settle = (persist_queue if peer == "persist-queue" else lite_queue)(peer, Path(folder), int(batch))
    started_s = time.perf_counter()
    publish(bodies)
    published_s = time.perf_counter()
    settled = settle()
    ended_s = time.perf_counter()
    assert settled == len(bodies), f"{settled} of {len(bodies)} were settled"
    print("\n" + json.dumps({"publish_s": published_s - started_s, "settle_s": ended_s - published_s}))


def lite_queue(peer: str, folder: Path, batch: int) -> tuple[Callable[[list[str]], None], Callable[[], int]]:
    """Transactions of a batch where it can."""
    from litequeue import LiteQueue

    queue = LiteQueue(str(folder / "lite.db"))
    if peer == "litequeue-full":
        queue.conn.execute("PRAGMA synchronous = FULL")

    def publish(bodies: list[str]) -> None:
        for start in range(0, len(bodies), batch):
            with queue.transaction():
                for body in bodies[start : start + batch]:
                    queue.put(body)

    def settle() -> int:
        settled = 0
        while True:
            taken = []
            while len(taken) < batch and (message := queue.pop()) is not None:
                taken.append(message.message_id)
            if not taken:
                return settled
            with queue.transaction():
                for message_id in taken:
                    queue.done(message_id)
            settled += len(taken)

    return publish, settle


def persist_queue(_peer: str, folder: Path, _batch: int) -> tuple[Callable[[list[str]], None], Callable[[], int]]:
    """One transaction per operation: it has no other way."""
    from persistqueue import Empty, SQLiteAckQueue

    queue = SQLiteAckQueue(str(folder / "persist"))

    def publish(bodies: list[str]) -> None:
        for body in bodies:
            queue.put(body)

    def settle() -> int:
        settled = 0
        while True:
            try:
                item = queue.get(block=False)
            except Empty:
                return settled
            queue.ack(item)
            settled += 1

    return publish, settle


if __name__ == "__main__":
    main(*sys.argv[1:])
