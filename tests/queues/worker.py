"""A process that works on a queue file until it is killed, and writes down what it was promised.

`python worker.py cycle|move FILE JOURNAL NAME`. A line of the journal is written after a call returned (`published`,
`acked`) or before it is made (`acking`); an unfinished line was never promised.
"""

from __future__ import annotations

import os
import sys

from tupletree.queues import Broker, Delivery, Failure, LeaseLostError, Message, connect


def main(mode: str, file: str, journal: str, name: str) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, ids: list[str]) -> None:
        # One write, as a kill between two must not tear a promise apart.
        os.write(descriptor, "".join(f"{what} {one}\n" for one in ids).encode())

    with connect(f"sqlite:///{file}") as broker:
        print("ready", flush=True)
        turn = 0
        while True:
            turn += 1
            if mode == "move":
                broker.move("in", "out", limit=40)
                broker.move("out", "in", limit=40)
                continue
            batch = [f"{name}.{turn}.{number}" for number in range(5)]
            broker.publish("in", [Message(id=one, body=one.encode()) for one in batch])
            note("published", batch)
            leased = broker.lease("in", 8, lease_s=0.2)
            failing, good = leased[:1], leased[1:]
            broker.fail([Failure(handle=one.handle) for one in failing])
            ids = [one.message.id for one in good]
            note("acking", ids)
            # Leases of 0.2 s: where the machine stalls for longer, others have the messages, and all is left to them.
            settled = _settle(broker, good)
            if settled:
                note("acked", ids)


def _settle(broker: Broker, good: list[Delivery]) -> bool:
    children = [Message(id=f"child of {one.message.id}") for one in good]
    try:
        broker.settle(acks=[one.handle for one in good], publish={"out": children})
    except LeaseLostError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:5])
