"""A queue by its name: the operations of its broker, bound to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tupletree.queues.contract import Broker
from tupletree.queues.messages import DEFAULT_LEASE_S, Delivery, Depth, Failure, Letter, Message, State, Stored


class Queue:
    """One queue. Each operation is the broker's, see `Broker`; `close` closes the broker.

    Attributes:
        broker: the connection.
        name: of the queue.
        publish, lease, ack, fail, extend, dead_letter, settle, depth, peek, find, move, purge: as those of the broker.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name

    def publish(self, messages: Sequence[Message]) -> int:
        return self.broker.publish(self.name, messages)

    def lease(
        self,
        limit: int = 1,
        *,
        lease_s: float = DEFAULT_LEASE_S,
        wait_s: float = 0.0,
        max_bytes: int = 64_000_000,
    ) -> list[Delivery]:
        return self.broker.lease(self.name, limit, lease_s=lease_s, wait_s=wait_s, max_bytes=max_bytes)

    def ack(self, handles: Sequence[str]) -> Sequence[str]:
        return self.broker.ack(handles)

    def fail(self, failures: Sequence[Failure]) -> Sequence[str]:
        return self.broker.fail(failures)

    def extend(self, handles: Sequence[str], lease_s: float = DEFAULT_LEASE_S) -> Sequence[str]:
        return self.broker.extend(handles, lease_s)

    def dead_letter(self, letters: Sequence[Letter]) -> Sequence[str]:
        return self.broker.dead_letter(letters)

    def settle(self, **settlement: Any) -> None:
        self.broker.settle(**settlement)

    def depth(self) -> Depth:
        return self.broker.depth(self.name)

    def peek(self, state: State = "ready", limit: int = 10, *, after: int = 0) -> Sequence[Stored]:
        return self.broker.peek(self.name, state, limit, after=after)

    def find(self, ids: Sequence[str]) -> set[str]:
        return self.broker.find(self.name, ids)

    def move(self, target: str, *, state: State = "ready", limit: int = 0, ids: Sequence[str] = ()) -> int:
        return self.broker.move(self.name, target, state=state, limit=limit, ids=ids)

    def purge(self, *, states: Sequence[State] = ("ready", "delayed")) -> int:
        return self.broker.purge(self.name, states=states)

    def close(self) -> None:
        """Close the broker's connection."""
        self.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({self.name!r} of {self.broker.where})"
