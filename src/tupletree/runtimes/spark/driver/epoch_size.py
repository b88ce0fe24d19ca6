"""How many messages the next epoch may have.

Owns what makes epochs smaller than `epoch_max_messages`: one had to be split, too many dead letters would come of one
at once, the calls of one take too long because of a `max_rate`, or messages are long (`epoch_max_bytes`). Each epoch
without such trouble doubles it.
"""

from __future__ import annotations

from tupletree.config import Options
from tupletree.topology.model import TopologySpec
from tupletree.tracking.dead_limit import DeadLimit

STEP_BACK = 4
"""After an epoch that had to be split, epochs start at this fraction of their limit."""

PACED_S = 10.0
"""How long the run of an epoch may take where calls wait for a rate: verdicts are told when it is settled."""


class EpochSize:
    """The limit of a run's epochs.

    Attributes:
        limit: messages in the next epoch at most, however long they are.
        max_bytes: of an epoch.
    """

    def __init__(self, topology: TopologySpec, options: Options) -> None:
        self._most = options.epoch_max_messages
        rates = [one.max_rate for one in topology.components.values() if one.max_rate is not None]
        self._is_paced = bool(rates)
        first = [self._most]
        if rates:
            first.append(max(1, int(min(rates) * PACED_S)))
        dead_limit = DeadLimit.of(options).first_look
        if dead_limit is not None:
            first.append(dead_limit)
        self.limit = min(first)
        self.max_bytes = options.epoch_max_bytes
        self._bytes_per_message = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether it is known how long messages are."""
        return bool(self._bytes_per_message)

    @property
    def messages(self) -> int:
        """Messages in the next epoch at most, as long as they are."""
        if not self._bytes_per_message:
            return max(1, self.limit)
        return max(1, min(self.limit, int(self.max_bytes / self._bytes_per_message)))

    def measured(self, messages: int, size_bytes: float) -> None:
        """Note how long messages are in the log of an epoch; longer ones count at once, shorter ones by half."""
        average = size_bytes / messages
        self._bytes_per_message = max(average, 0.5 * (average + self._bytes_per_message))

    def settled(self, messages: int, run_s: float, *, was_split: bool) -> None:
        """Note an epoch that was settled."""
        if was_split:
            self.limit = max(1, self.limit // STEP_BACK)
        elif self._is_paced and run_s > PACED_S:
            self.limit = max(1, min(self.limit, int(messages * PACED_S / run_s)))
        else:
            self.limit = min(self._most, self.limit * 2)
