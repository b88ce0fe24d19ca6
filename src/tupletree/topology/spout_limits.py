"""How many messages a spout task may have open: what its declaration says, the options, and the windows behind it.

Pure: a built topology and options in, a number or findings out. The local runtime measures how many may be in flight
where nobody says a number (`tasks/pending_limit`).
"""

from __future__ import annotations

from collections.abc import Iterator

from tupletree.config import Options
from tupletree.errors import Finding
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec

__all__ = ["limit_set", "max_pending", "pending_faults", "setting_of_limit"]

MANY_PENDING = 100_000
"""Messages that a spout task may have open, unless set otherwise, where windows and joins hold them."""

MOST_PENDING = 1_000_000_000


def limit_set(spout: ComponentSpec, options: Options) -> int | None:
    """What the user set: its own `pending=`, else `max_spout_pending`; None if neither is set."""
    return options.max_spout_pending if spout.pending is None else spout.pending


def setting_of_limit(spout: ComponentSpec, options: Options) -> str:
    """The setting by which the user limits it; empty if there is none."""
    if spout.pending is not None:
        return f"pending= of {spout.name!r}"
    return "" if options.max_spout_pending is None else "max_spout_pending"


def max_pending(topology: TopologySpec, spout: str, options: Options, usual: int) -> int:
    """How many messages a task of a spout may have open.

    What windows and joins hold is open. With a limit below what is in a window by event time, the tuple that ends it
    would never come; so where nothing is set it is a high one.

    Args:
        topology: a built topology.
        spout: name of the spout.
        options: of this run.
        usual: the runtime's choice where nothing is held.
    """
    limit = limit_set(topology.components[spout], options)
    if limit is not None:
        return limit
    bolts = (component.body for component in topology.components.values())
    holds = any(isinstance(bolt, BoltSpec) and bolt.holding is not None for bolt in bolts)
    return max(usual, MANY_PENDING) if holds else usual


def pending_faults(pending: object, where: str) -> Iterator[Finding]:
    """What is wrong with what a spout is given as `pending=`."""
    if pending is not None and (type(pending) is not int or not 1 <= pending <= MOST_PENDING):
        yield Finding(
            "pending= is out of range",
            where,
            repr(pending),
            f"a whole number of messages from 1 to {MOST_PENDING:,}",
            "leave it out for the limit that max_spout_pending gives, or that the runtime chooses",
        )
