"""What goes through a queue, as plain data: messages, deliveries, failures, dead letters, and how many there are.

Owns what each field means. Refuses to know what is done with them: that is `contract`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec

DEFAULT_CONTENT_TYPE = "application/octet-stream"
DEFAULT_LEASE_S = 30.0
DEFAULT_MAX_BYTES = 64_000_000
"""Of all bodies that one lease takes."""

MAX_ID_BYTES = 512

State = Literal["ready", "delayed", "leased", "dead"]
STATES: tuple[State, ...] = ("ready", "delayed", "leased", "dead")


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message, as it is published and as it is delivered.

    Attributes:
        id: names the message; 1 to 512 bytes of UTF-8. Publishing an id again that the queue knows changes nothing.
            The default is random: give one that a retry repeats (a hash, a business key), and publishing is idempotent.
        body: any bytes, also none.
        content_type: what the body is, as in HTTP.
        headers: text by name; any text that UTF-8 can hold.
        key: messages of one key are delivered in order by a queue that is declared so; empty means no order.
        delay_s: seconds from publishing until it may be leased, counted by the broker's host.
        not_before_s: Unix time before which it may not be leased, by the clock of the broker's host; 0 means none. With
            `delay_s`, the later one counts. Prefer `delay_s`: the caller's clock may differ from the host's.
    """

    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))
    body: bytes = b""
    content_type: str = DEFAULT_CONTENT_TYPE
    headers: Mapping[str, str] = {}
    key: str = ""
    delay_s: float = 0.0
    not_before_s: float = 0.0


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One delivery of a message under a lease.

    Attributes:
        message: what was published; its delay is spent and reads 0.
        handle: names this lease to `ack`, `fail`, `extend` and `dead_letter`. Opaque, plain text, and unlike that of
            any other lease of the message: it is the fencing token.
        deliveries: how often it was leased, this time included; leases given back with `counts=False` do not count.
        lease_s: seconds that the lease lasts from the moment the broker granted it. Measure from before the call to
            `lease`, by a monotonic clock, and you never count on it for too long.
        published_s: when it was published, Unix time by the broker's host.
    """

    message: Message
    handle: str
    deliveries: int
    lease_s: float
    published_s: float = 0.0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Gives a leased message back.

    Attributes:
        handle: of its delivery.
        delay_s: seconds until it may be leased again, counted by the broker's host.
        reason: kept with the message and shown by `peek`.
        counts: False takes the delivery back: the work was cancelled, not tried.
    """

    handle: str
    delay_s: float = 0.0
    reason: str = ""
    counts: bool = True


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a leased message a dead letter of its queue, with the reason."""

    handle: str
    reason: str


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a queue holds.

    Attributes:
        ready: may be leased now, or wait for an earlier message of their key.
        leased: with consumers, with time left.
        delayed: may be leased later.
        dead: dead letters.
    """

    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0

    @property
    def open(self) -> int:
        """All that is not dead: 0 means that the work is done."""
        return self.ready + self.leased + self.delayed


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A message as `peek` shows it.

    Attributes:
        message: what was published.
        state: where it is now.
        deliveries: how often it was leased.
        due_s: when it may be leased (delayed), when its lease ends (leased), or when it became a dead letter (dead);
            Unix time by the broker's host. 0 when ready.
        published_s: when it was published, by the same clock.
        reason: of its last failure, or why it is dead.
    """

    message: Message
    state: State
    deliveries: int = 0
    due_s: float = 0.0
    published_s: float = 0.0
    reason: str = ""


class RefusedMessage(msgspec.Struct, frozen=True):
    """A message that a broker cannot store: its position in the batch, its id, and why."""

    position: int
    id: str
    reason: str
