"""The messages of an epoch: what settling must know of them, whatever input they came by.

`EpochMessages` is the contract. An epoch has one for each kind of input that it has messages of; `inputs` alone knows
which kinds there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tupletree.ids import MessageId
from tupletree.tracking.ledger import Entries
from tupletree.tracking.pending_decision import Adoption

U64 = np.ndarray[Any, np.dtype[np.uint64]]
I64 = np.ndarray[Any, np.dtype[np.int64]]

ELSEWHERE = -1
"""In the place of a spout task: the root is not one here."""


@dataclass(frozen=True)
class StoredPayload:
    """A value that was read from the journal in its plain form, which is all that is needed of it."""

    payload: Any


NOT_LOGGED = StoredPayload(None)
"""The value of a message that is in no frame: it went to no task, so it can only be acked."""


@dataclass
class EpochMessage:
    """One tracked message of an epoch.

    Attributes:
        task: number of the spout task that gave it.
        message_id: what its source calls it.
        root: of this attempt.
        attempt: the number of the attempt.
        first_emitted_s: seconds since the Unix epoch.
        made: its number in the order of making; 0: it has none.
    """

    task: int
    message_id: MessageId
    root: int
    attempt: int
    first_emitted_s: float
    made: int = 0


class EpochMessages(ABC):
    """The messages of one epoch that came by one kind of input. Methods change nothing; those that read say so.

    Attributes:
        is_counted: the driver only counts these messages (`by_task`) until their epoch is settled, and `Pending` gets
            those that the epoch does not finish. Otherwise `Pending` has all of them from the cut on.
        roots: of the tracked ones, in order of emission.
        keys: what the roots are made of (`rows.root_ids`); empty where they are drawn.
        logged_s: when the epoch was logged, by the run's clock.
    """

    is_counted: ClassVar[bool]
    roots: U64
    keys: range = range(0)
    logged_s: float = 0.0

    # --- runs ---------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def openings(self) -> Entries:
        """The XOR of the first edges of each root that the driver made; 0 where a stage makes and reports them."""

    @abstractmethod
    def has_work(self, left_out: Collection[int]) -> bool:
        """Whether a run without these roots has anything to do, untracked tuples included."""

    @abstractmethod
    def worked(self, left_out: Collection[int]) -> list[int]:
        """Roots that a run without these works on, in order; not of messages that went to no task."""

    @abstractmethod
    def check_read(self, read: Collection[int]) -> None:
        """Raise if a run did not read all of its input: what it missed would look complete.

        Args:
            read: what stages say that they have read, as `StatsReport.read`.

        Raises:
            InternalError: names what was not read.
        """

    # --- single messages ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def by_task(self) -> Mapping[int, int]:
        """Spout task → how many of these messages it gave."""

    @abstractmethod
    def __iter__(self) -> Iterator[EpochMessage]:
        """All of them, in order of emission."""

    @abstractmethod
    def among(self, roots: Collection[int]) -> list[int]:
        """Those of these roots that are roots here."""

    @abstractmethod
    def id_of(self, root: int) -> MessageId | None:
        """What its source calls the message of a root; None: the root is not one here."""

    @abstractmethod
    def places_of(self, roots: U64) -> tuple[I64, I64]:
        """The number of the spout task of each root, `ELSEWHERE` if it is not one here; and that of its message.

        A message has one number from its first emission on, 0 if nothing asks for it (`EpochMessage.made`).
        """

    @abstractmethod
    def find(self, roots: Collection[int]) -> list[tuple[EpochMessage, Any]]:
        """Messages of roots that are here, with their values; reads these from where they are.

        A value is the object that the spout gave, or a `StoredPayload`.

        Raises:
            SourceChangedError, ConnectorError: a source does not have them any more.
        """

    def logged(self) -> list[tuple[EpochMessage, Any]]:
        """All of them as `Pending` has them while their epoch runs: what executors took from a broker is not read."""
        return self.find(self.roots.tolist())

    @abstractmethod
    def check_readable(self) -> None:
        """Raise CheckpointError if `find` could not read them: the topology has changed, or a file is gone."""

    def for_runs(self) -> EpochMessages:
        """The same messages, without the bytes that only `find` needs."""
        return self

    # --- settling -----------------------------------------------------------------------------------------------------

    def acked(self, left_over: Collection[int]) -> list[int]:
        """Roots that `Pending` acks when a run counts, in order: all that it has, without what that run left over."""
        if self.is_counted:
            return []
        roots: list[int] = self.roots.tolist()
        return [root for root in roots if root not in left_over] if left_over else roots

    def apart(self, roots: Collection[int], unread: Collection[int]) -> dict[int, Any]:  # noqa: ARG002 - most have none
        """Root → value, of those that `Pending` has without their values. Reads, and raises, as `find`.

        Args:
            roots: of any messages.
            unread: those of which only what is stored is wanted: what reads them may not survive it.
        """
        return {}

    def adoptions(self, left_over: Iterable[int]) -> list[Adoption]:
        """What `Pending` is to have from now on, of the roots that a run left over. Reads, and raises, as `find`."""
        if not self.is_counted:
            return []
        return [
            Adoption(one.root, one.task, one.message_id, value, one.first_emitted_s, one.made)
            for one, value in self.find(self.among({*left_over}))
        ]


def places_in(inputs: Iterable[EpochMessages], roots: U64) -> tuple[I64, I64]:
    """See `EpochMessages.places_of`, of all inputs of an epoch."""
    tasks, numbers = np.full(len(roots), ELSEWHERE, np.int64), np.zeros(len(roots), np.int64)
    for one in inputs:
        theirs, made = one.places_of(roots)
        tasks, numbers = np.maximum(tasks, theirs), np.maximum(numbers, made)
    return tasks, numbers
