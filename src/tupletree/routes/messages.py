"""What travels in a pipeline's topology: deliveries, what became of them, children, and calls of adapters.

Owns these classes. There are thousands at a time, and nothing in them refers back to them, so Python's collector does
not look at them (`gc=False`). Refuses to decide anything: the chain says what an attempt came to, the ledger what
becomes of its message.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["done", "filtered", "unrouted", "failed", "cancelled"]
"""What an attempt came to. `unrouted`: it succeeded and made something that no queue takes. `cancelled`: it was stopped
and does not count."""


CallStatus = Literal["pending", "completed", "failed", "skipped", "filtered", "held", "cancelled"]
"""What a call of an adapter came to."""


class Standing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a message stands: which attempt, and how to tell its broker.

    Attributes:
        id: of the message, unique in the ledger.
        route: that works it.
        queue: that it was leased from.
        handle: of the lease.
        executions: that it belongs to; several where a batch merged messages of several.
        attempt: from 1; deliveries whose work was cancelled do not count.
        body, headers: as delivered, where the attempt failed or adapters before have changed them: what a dead letter
            holds. Else empty.
        replays: how often it was dead before, and was tried again.
    """

    id: str
    route: str
    queue: str
    handle: str
    executions: tuple[str, ...]
    attempt: int
    body: bytes = b""
    headers: dict[str, str] = {}
    replays: int = 0


class Child(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that an attempt made, for one queue.

    Attributes:
        id: derived from its parents, route, position and index, so that the same attempt made twice gives it again.
        queue: that it is for.
        body: the payload, encoded.
        headers: text by name.
        delay_s: until it may be delivered.
    """

    id: str
    queue: str
    body: bytes
    headers: dict[str, str] = {}
    delay_s: float = 0.0


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a route works: one delivery of a message, or what a batch made of several, on the way to the next adapter.

    Attributes:
        messages: whose attempts these are.
        body: the payload, encoded.
        headers: text by name.
        parents: ids of the messages that the message came of.
        position: of the adapter that is next, from 0.
        emitted: children that adapters before it have made.
        only: the only outbound queue that it is for; empty: all of them.
        batch: id of the batch that it came of; empty: none.
        trace: what its header `traceparent` names: TRACE-SPAN; empty: none.
    """

    messages: list[Standing]
    body: bytes
    headers: dict[str, str] = {}
    parents: tuple[str, ...] = ()
    position: int = 0
    emitted: list[Child] = []
    only: str = ""
    batch: str = ""
    trace: str = ""


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one attempt came to: of one message, or of several that a batch made its outputs of together.

    Attributes:
        messages: whose attempt ended so.
        outcome: see `Outcome`.
        children: what they made together; only of `done`, and of `filtered` where something was emitted before.
        reason: why it was filtered, unrouted or failed, in words.
        error: of a failed attempt: the exception's class name.
        traceback: of a failed attempt, as text.
        permanent: no further attempt.
        retry_after_s: a failed attempt asked for this pause at least.
        adapter: name of the adapter that filtered or failed it.
    """

    messages: list[Standing]
    outcome: Outcome
    children: list[Child] = []
    reason: str = ""
    error: str = ""
    traceback: str = ""
    permanent: bool = False
    retry_after_s: float = 0.0
    adapter: str = ""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of lineage: one call of an adapter for one message.

    Attributes:
        execution: the first of the message's executions.
        executions: all of them, where it has several; empty: just that one.
        parents: of the message: what it came of, written as edges. Once per message is enough, with any of its calls.
        route: its route.
        adapter: name of the adapter.
        position: of the adapter in its route, from 0.
        message: id of the message.
        attempt: of the message.
        status: what the call came to. `pending`: it goes on; a record with the same start replaces it later.
        input_hash, output_hash: of the canonical JSON of payloads, 16 hex digits; empty: none.
        error: class and text of what it raised, or the reason for filtering.
        started_s, ended_s: Unix time.
        batch: id of the batch, for batch adapters.
        trace: what the message's header `traceparent` names: TRACE-SPAN; empty: none.
    """

    execution: str
    route: str
    adapter: str
    position: int
    message: str
    attempt: int
    status: CallStatus
    input_hash: str = ""
    output_hash: str = ""
    error: str = ""
    started_s: float = 0.0
    ended_s: float = 0.0
    batch: str = ""
    trace: str = ""
    executions: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()


class CallRecords(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one walk through a chain recorded, together: a tuple for each call would cost more than the calls.

    Attributes:
        calls: in their order.
    """

    calls: list[CallRecord]
