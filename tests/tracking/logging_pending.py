"""How tests of `Pending` write down what it holds, as the runtime does: by a decision, here an empty one."""

from __future__ import annotations

from tupletree.tracking.pending import Pending
from tupletree.tracking.pending_log import Encode, PendingChanges


def take_changes(pending: Pending, encode: Encode, now_s: float, wall_s: float) -> PendingChanges:
    """What changed since the last base or delta; changes count from here."""
    decider = pending.decider(now_s, wall_s)
    changes = decider.changes(encode)
    pending.apply(decider.decision)
    return changes


def snapshot(pending: Pending, encode: Encode, now_s: float, wall_s: float) -> PendingChanges:
    """All that waits and all that is unconfirmed: a new base; changes count from here."""
    decider = pending.decider(now_s, wall_s)
    base = decider.base(encode)
    pending.apply(decider.decision)
    return base
