"""The verdicts on an epoch's roots: which trees complete, fail, expire or stay open.

Takes what the runs of an epoch established (`reports`), the trees of earlier epochs, and the time at which the epoch
began. Pure: `decision` makes data of it, with all else that becomes of the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tupletree.data.columns import Anchors
from tupletree.data.frames import Root, roots_of
from tupletree.runtimes.spark.format.entries import OpenTree
from tupletree.runtimes.spark.settle.reports import EpochSettlement
from tupletree.tracking.outcomes import Failure, FailureKind


@dataclass
class RootVerdicts:
    """See the module docstring. Make it with `of`.

    Attributes:
        settlement: of the run that counts.
        expired: trees that have expired, and did not complete or fail otherwise in this epoch.
        timeout: why they fail.
        dead: committed roots of earlier epochs that die in this one.
        completed: roots of earlier epochs whose trees are complete.
    """

    settlement: EpochSettlement
    expired: list[OpenTree]
    timeout: Failure
    dead: set[int]
    completed: set[int]
    _bad: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        settlement: EpochSettlement,
        timeout_s: float | None,
        is_last_attempt: Callable[[int, Failure], bool],
    ) -> RootVerdicts:
        """Decide about trees of earlier epochs. One that completes does not expire; expiry is as of its start."""
        trees = settlement.trees
        timeout = Failure(
            kind=FailureKind.TIMEOUT,
            error=f"not settled within the message timeout of {timeout_s} s: a bolt neither acked nor failed it",
        )
        spared = {*settlement.completed, *settlement.failures, *settlement.extended}
        expired = [tree for tree in trees.expired(settlement.record.header.ran_s) if tree.root not in spared]
        failing = [(tree.root, timeout) for tree in expired if tree.is_committed]
        failing += [(root, failure) for root, failure in settlement.failures.items() if root in trees]
        dead = {root for root, failure in failing if is_last_attempt(root, failure)}
        bad = {*settlement.failures, *settlement.open, *settlement.away, *settlement.behind}
        return cls(settlement, expired, timeout, dead, set(settlement.completed), bad)

    @property
    def rows_may_wait(self) -> bool:
        """Whether any tree is open across epochs: rows that are anchored to it wait."""
        return bool(self.settlement.carried or len(self.settlement.trees))

    @property
    def withholds_rows(self) -> bool:
        """Whether any row of this epoch could be one that must not be published with it."""
        return bool(self._bad or self.rows_may_wait)

    def is_unfinished(self, root: int) -> bool:
        """Whether a root's tree is committed and open after this epoch."""
        if root in self.settlement.carried:
            return True
        return root not in self.completed and root not in self.dead and self.settlement.trees.is_unfinished(root)

    def is_dead(self, root: int) -> bool:
        """Whether this root is dead."""
        return root in self.dead

    def in_doubt(self, anchors: Anchors) -> list[tuple[int, Root]]:
        """Of a candidate's rows, position and root of those that may not be published with the epoch: see `shown`.

        The others are not looked at: almost always nearly all rows are of messages that are complete.
        """
        roots = {*anchors.roots.tolist()}
        doubtful = roots & self._bad
        doubtful |= roots & self.settlement.carried.keys()
        doubtful |= self.settlement.trees.among(roots)
        return anchors.rows_of(doubtful) if doubtful else []

    def shown(self, rows: Sequence[Root]) -> list[bool]:
        """Of rows of this epoch, each with its root: whether it is published with the epoch."""
        return [self._shows(roots_of(root)) for root in rows]

    def _shows(self, roots: Sequence[int]) -> bool:
        if not roots:
            return True
        if not self._bad.isdisjoint(roots):
            return False  # all of them failed, or the epoch would have run again
        return not any(map(self.is_unfinished, roots)) and not self.dead.issuperset(roots)

    def what_becomes(
        self, now_s: float, timeout_s: float | None, withheld: set[int], pause_s: float = 0.0
    ) -> list[OpenTree]:
        """Trees that this epoch opens or changes, except those of failed attempts.

        Args:
            now_s: by the run's clock.
            timeout_s: the message timeout.
            withheld: complete roots one of whose outputs waits.
            pause_s: how long those wait that met an outage.
        """
        settlement, trees = self.settlement, self.settlement.trees
        epoch, attempts = settlement.record.epoch, settlement.record.attempts
        expires_s = math.inf if timeout_s is None else settlement.record.header.ran_s + timeout_s
        renewed_s = math.inf if timeout_s is None else now_s + timeout_s
        changed: dict[int, OpenTree] = {}

        def fresh(root: int) -> OpenTree:
            until_s = renewed_s if root in settlement.extended else expires_s
            return OpenTree(root, epoch, until_s, attempt=attempts.get(root, 1))

        for root in settlement.extended:
            tree = trees.get(root)
            if tree is not None and not tree.is_complete and root not in settlement.failures:
                changed[root] = replace(tree, expires_s=renewed_s)
        for root, xor in settlement.carried.items():
            changed[root] = replace(changed.get(root) or trees.get(root) or fresh(root), xor=xor, resumes_s=0.0)
        for root in withheld:
            tree = changed.get(root) or trees.get(root) or fresh(root)
            changed[root] = replace(tree, xor=0, expires_s=math.inf, resumes_s=0.0)
        for root in settlement.open:
            tree = changed.get(root) or trees.get(root)
            if tree is None:
                changed[root] = replace(fresh(root), is_committed=False)
            else:  # kept by hand, but with frames to start from: these frames wait until the attempt has expired
                changed[root] = replace(tree, resumes_s=tree.expires_s)
        for root in settlement.put_back:
            tree = changed.get(root) or trees.get(root)
            if tree is not None and root in settlement.away:
                resumes_s = now_s + pause_s
                expires_s = math.inf if timeout_s is None else resumes_s + timeout_s
                changed[root] = replace(tree, resumes_s=resumes_s, expires_s=max(tree.expires_s, expires_s))
            elif tree is not None:
                changed[root] = replace(tree, resumes_s=now_s)
        return [tree for root, tree in changed.items() if root not in self.completed or root in withheld]
