"""Ids of messages and executions, derived from what they come of, so that work that is done twice gives the same ids.

Pure. An id is 32 hex digits: 128 bits of a hash over the parts, each with its length before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash


def child_id(parents: Sequence[str], route: str, position: int, index: int, queue: str) -> str:
    """Of a message that an attempt made.

    Args:
        parents: ids of the messages that it was made of, in any order.
        route: whose attempt it was.
        position: of the adapter that emitted it, from 0; the number of adapters for what came out of the last one.
        index: among what came out there.
        queue: that it is for.
    """
    of = parents if len(parents) == 1 else sorted(parents)
    return _digest("child", *of, route, str(position), str(index), queue)


def batch_id(members: Sequence[str], route: str, position: int) -> str:
    """Of a batch of these messages, worked by one adapter."""
    return _digest("batch", route, str(position), *sorted(members))


def init_id(execution: str) -> str:
    """Of the message that an execution starts with."""
    return _digest("init", execution)


def stranger_id(queue: str, message: str) -> str:
    """In the ledger, of a message that another program published to a queue of a pipeline."""
    return _digest("message", queue, message)


def stranger_execution(pipeline: str, queue: str, message: str) -> str:
    """Of the execution that such a message begins."""
    return _digest("execution", pipeline, queue, message)


def completion_id(execution: str, run: int) -> str:
    """Of the message that says that an execution is complete; `run` counts how often it was complete."""
    return _digest("complete", execution, str(run))


def _digest(*parts: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
