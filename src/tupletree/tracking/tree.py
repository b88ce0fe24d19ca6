"""Edges of a tuple tree: how siblings get their ids, and the two messages that a tree is made of.

A tree opens with ONE value, the XOR of all first edges. A tuple's ack is ONE value, its own edge XOR the edges of its
children. Owns drawing edges so that no set of siblings cancels out; the XOR itself is kept by `acker` or `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import xor

from tupletree.ids import RandomBits, draw_id


def draw_edges(count: int, random_bits: RandomBits) -> list[int]:
    """Draw ids for `count` sibling edges, one per delivered copy: nonzero, distinct, and their XOR is not zero.

    Siblings that cancel out would look like a tree without them. No copies means no edges, and XOR zero: a message
    that went to no task completes as it opens.
    """
    edges: list[int] = []
    while len(edges) < count:
        edges.append(draw_id(random_bits, edges))
        if len(edges) == count and not xor_all(edges):
            edges.clear()
    return edges


def xor_all(values: Iterable[int]) -> int:
    """XOR of all values; 0 for none."""
    return reduce(xor, values, 0)
