"""Call counts: how often the runs of an epoch make a call that raises, before the tuple in hand fails.

Owns the rule, and what it goes by: in which bolts calls passed that were made again at once. It is kept for one
incarnation, and for nothing but time: whatever it says, what counts of an epoch is right. No files, no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tupletree.runtimes.spark.format.wire import StatsReport

CALLS = (1, 3, 9)
"""How often a run makes a call while it raises: the first run, the second, all others.

The first run finds what always fails. Later failures are random, and different in each run: without
further calls an epoch would end only when it is so small that nothing in it fails.
"""


class CallCounts:
    """See the module docstring."""

    def __init__(self) -> None:
        self._passing: set[str] = set()

    @staticmethod
    def of_run(number: int) -> int:
        """How often the run with this number, the first is 0, makes a call of most bolts."""
        return CALLS[min(number, len(CALLS) - 1)]

    def of_bolts(self, number: int) -> dict[str, int]:
        """Bolt → the same, of those where repeating helps: their first run does what a second one of others does."""
        return dict.fromkeys(sorted(self._passing), self.of_run(number + 1))

    def note(self, stats: Iterable[StatsReport]) -> None:
        """Take what a run reported: repeating helps in a bolt as long as at least half of such calls pass in the end.

        What no run has said anything of stays as it was: nothing raised there.
        """
        passed: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for one in stats:
            for bolt, (passes, failures) in one.calls_again.items():
                passed[bolt] += passes
                failed[bolt] += failures
        for bolt in passed.keys() | failed.keys():
            if passed[bolt] >= failed[bolt]:
                self._passing.add(bolt)
            else:
                self._passing.discard(bolt)
