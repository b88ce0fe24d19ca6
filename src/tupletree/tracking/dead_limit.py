"""The limit on dead letters of one run: a systematic fault must not turn a whole input into dead letters.

Owns when it is exceeded, and what is said about that. It refuses to act: the runtimes pause or stop.
"""

from __future__ import annotations

from tupletree.config import Options, share_of


class DeadLimit:
    """Counts since the start of this process, or since a run that was paused went on.

    Args:
        limit: a number of messages, or a share as text (`1%`); None: no limit.
        sample: messages that must have ended before a share counts.

    >>> limit = DeadLimit("10%", sample=20)
    >>> limit.exceeded(acked=8, dead=2)
    ''
    >>> limit.exceeded(acked=17, dead=3)
    '3 of 20 messages that ended are dead: more than max_dead (10%)'
    """

    def __init__(self, limit: int | str | None, sample: int) -> None:
        self._limit = limit
        self._share = share_of(limit)
        self._sample = sample
        self._acked = self._dead = 0

    @classmethod
    def of(cls, options: Options) -> DeadLimit:
        """That of a run's options."""
        return cls(options.max_dead, options.max_dead_sample)

    @property
    def first_look(self) -> int | None:
        """After how many messages the limit can be exceeded at the earliest; None: there is no limit."""
        if self._limit is None:
            return None
        return self._sample if self._share is not None else int(self._limit) + 1

    def begin(self, acked: int, dead: int, still_open: int = 0) -> None:
        """Count from here on, given the totals so far. As many as are `still_open` may die yet of what was before."""
        self._acked, self._dead = acked, dead + still_open

    def exceeded(self, acked: int, dead: int) -> str:
        """Why the run is not to go on, given the totals so far; empty: it may."""
        if self._limit is None:
            return ""
        died = max(0, dead - self._dead)
        ended = acked - self._acked + died
        if self._share is None:
            if died <= int(self._limit):
                return ""
        elif ended < self._sample or died <= self._share * ended:
            return ""
        return f"{died:,} of {ended:,} messages that ended are dead: more than max_dead ({self._limit})"
