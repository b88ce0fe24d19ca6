"""A partition that a connection has, and the records of it that are here, as plain state.

Owns what is known of each. Refuses to decide: `member` does.
"""

from __future__ import annotations

import msgspec

from tupletree.queues.kafka.offsets import Marks
from tupletree.queues.kafka.wire import Delivered


class AssignedPartition:
    """A partition that this member has, or had."""

    def __init__(self, number: int, marks: Marks) -> None:
        self.number = number
        self.marks = marks
        self.leases: dict[int, Lease] = {}  # by offset: what is here, and not settled
        self.end = 0  # an offset of which it is known that there was none yet
        self.is_lost = False
        self.is_leaving = False
        self.is_paused = False

    @property
    def has_leased(self) -> bool:
        """Whether somebody holds any of them."""
        return any(one.number for one in self.leases.values())


class Lease(msgspec.Struct, gc=False, eq=False):
    """A record that is here and not settled.

    Attributes:
        part: where it is from.
        offset: where there.
        order: its place among all that were read.
        delivered: what it says.
        number: of the lease, in its handle; 0 while nobody has it.
        ends_s: when the lease ends, by the member's clock.
        is_settling: it does not end meanwhile.
    """

    part: AssignedPartition
    offset: int
    order: int
    delivered: Delivered
    number: int = 0
    ends_s: float = 0.0
    is_settling: bool = False

    @property
    def deliveries(self) -> int:
        """How often its message was delivered, also as an earlier copy."""
        return self.delivered.deliveries + self.part.marks.deliveries(self.offset)
