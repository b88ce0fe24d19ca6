"""Ids: those of messages, which sources give, and 64-bit ones of roots and frames (edges), which are drawn.

The 64-bit ids are unsigned integers, never 0, and shown as 16 hex digits. Randomness comes in as a function, so a
test or a simulator can seed it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from typing import TypeAlias

MessageId: TypeAlias = "str | int | bytes | tuple[MessageId, ...]"
"""What a source calls a message. Compared with its type: 0, False, "" and b"" are four ids; only None is no id."""

MASK64 = 0xFFFF_FFFF_FFFF_FFFF

RandomBits = Callable[[int], int]
"""`getrandbits`: takes a number of bits, returns a uniform non-negative integer of that many bits."""

system_random_bits: RandomBits = random.SystemRandom().getrandbits


def draw_id(random_bits: RandomBits, taken: Container[int] = ()) -> int:
    """Draw an id that is neither 0 nor in `taken`."""
    while True:
        value = random_bits(64)
        if value and value not in taken:
            return value


def mix64(*parts: int) -> int:
    """Mix integers into one nonzero 64-bit id; the same parts give the same id in every process.

    Each part is folded in with the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
    number generators", OOPSLA 2014), which is a bijection, so parts that differ in one place never collide there.
    """
    state = 0x9E37_79B9_7F4A_7C15
    for part in parts:
        state = (state ^ (part & MASK64)) + 0x9E37_79B9_7F4A_7C15 & MASK64
        state = (state ^ (state >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK64
        state = (state ^ (state >> 27)) * 0x94D0_49BB_1331_11EB & MASK64
        state ^= state >> 31
    return state or 1


def hex_id(value: int) -> str:
    """Show an id the way logs, errors and commands do: 16 lower-case hex digits."""
    return f"{value:016x}"


def parse_id(text: str) -> int:
    """Read what `hex_id` wrote. Raises ValueError for anything else."""
    if len(text) != 16:
        raise ValueError(f"an id has 16 hex digits, got {text!r}")
    return int(text, 16)
