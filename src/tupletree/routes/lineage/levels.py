"""What is kept of the calls of adapters: nothing, failures, a sample of whole trees, everything.

Owns the decision about one record. It depends on the record alone, so that every process decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from tupletree.errors import ConfigError
from tupletree.routes.messages import CallRecord

_EXPECTED = "off, failures, sampled:SHARE (such as sampled:0.01) or full"


@dataclass(frozen=True)
class Level:
    """A level of lineage.

    Attributes:
        name: `off`, `failures`, `sampled` or `full`.
        share: of executions that are kept, of `sampled`; else 1.

    >>> str(Level.parse("sampled:0.01"))
    'sampled:0.01'
    """

    name: str
    share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Level:
        """Read a level as documents write it.

        Raises:
            ConfigError: it is none.
        """
        name, mark, share = text.partition(":")
        if name in {"off", "failures", "full"} and not mark:
            return cls(name)
        if name == "sampled":
            try:
                value = float(share)
            except ValueError:
                value = math.nan
            if 0.0 <= value <= 1.0:
                return cls(name, value)
        raise ConfigError("this is no level of lineage", where="lineage.level", got=repr(text), expected=_EXPECTED)

    @property
    def is_off(self) -> bool:
        """Whether nothing is kept: records need not be made."""
        return self.name == "off" or (self.name == "sampled" and self.share <= 0.0)

    def keeps(self, record: CallRecord) -> bool:
        """Whether this record is written. All records of an execution are sampled together."""
        if self.name == "full":
            return True
        if self.name == "failures":
            return record.status == "failed"
        return self.samples(record.executions or (record.execution,))

    def samples(self, executions: Sequence[str]) -> bool:
        """Whether a message of these executions may be written: one that is sampled is enough, so its tree is whole."""
        if self.name != "sampled":
            return not self.is_off
        return any(xxhash.xxh64_intdigest(name.encode()) < self.share * 2.0**64 for name in executions)

    def __str__(self) -> str:
        return f"sampled:{self.share:g}" if self.name == "sampled" else self.name
