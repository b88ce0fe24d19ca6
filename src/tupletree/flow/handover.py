"""What outlives a spout machine: a restart of the topology loses no message and no word that a source is to hear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tupletree.flow.offers import Offers
from tupletree.flow.shares import ShareDraw
from tupletree.topology.components import MessageId
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.pending import Pending
from tupletree.tracking.verdicts import Died

__all__ = ["Handover"]


@dataclass(frozen=True)
class Handover:
    """What one spout machine leaves to the one that takes its place after a restart of the topology.

    Attributes:
        pending: its messages; those that were in flight wait for their next attempt.
        draw: draws root ids, for `pending`.
        offers: what the spout gave and nobody has emitted yet, and its position.
        unburied: dead messages whose letters could not be stored; their source hears of them once they are.
        unheard: dead messages whose letters are stored; their source could not be told.
        untold: (message id, failure or None) that the spout could not be told: it raised, or was not open.
    """

    pending: Pending
    draw: ShareDraw
    offers: Offers
    unburied: list[Died] = field(default_factory=list)
    unheard: list[Died] = field(default_factory=list)
    untold: Sequence[tuple[MessageId, Failure | None]] = ()
