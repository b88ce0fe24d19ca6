"""Rows that executors read: their keys, and the roots that follow from these."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

U64 = np.ndarray[Any, np.dtype[np.uint64]]

KEY_BITS = 63
"""Bits of a key: few enough that no epoch's rows wrap around to 0."""

_FACTORS = (0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB)


_INVERSES = tuple(pow(factor, -1, 1 << 64) for factor in _FACTORS)


def root_ids(first: int, count: int) -> U64:
    """The roots of `count` rows whose keys begin with `first`, below 2**63 and above 0.

    The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
    """
    roots = np.arange(first, first + count, dtype=np.uint64)
    roots ^= roots >> np.uint64(30)
    roots *= np.uint64(_FACTORS[0])
    roots ^= roots >> np.uint64(27)
    roots *= np.uint64(_FACTORS[1])
    roots ^= roots >> np.uint64(31)
    return roots


def keys_of(given: Collection[int]) -> U64:
    """Undo `root_ids`, root by root."""
    roots = np.fromiter(given, np.uint64, len(given))
    keys: U64 = roots ^ (roots >> np.uint64(31)) ^ (roots >> np.uint64(62))
    keys *= np.uint64(_INVERSES[1])
    keys ^= (keys >> np.uint64(27)) ^ (keys >> np.uint64(54))
    keys *= np.uint64(_INVERSES[0])
    keys ^= (keys >> np.uint64(30)) ^ (keys >> np.uint64(60))
    return keys
