"""What a scenario showed, and the errors for a runtime that does not conform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tupletree.config import Options
from tupletree.ids import MessageId
from tupletree.sinks.reader import read_rows
from tupletree.testing.conformance.feeding import Heard, heard
from tupletree.testing.conformance.runtime import Ended, NotConformingError, RuntimeUnderTest
from tupletree.tracking.outcomes import DeadLetter


class Observed:
    """What one scenario made observable. Names are the scenario's own (`source`, `out`).

    Args:
        scenario: its name, which is the prefix of its components.
        runtime, options: what it ran on, and with what.
        folder: where its sinks wrote.
        keys: spout → key of its feed.
        ended: how its run ended.
    """

    def __init__(
        self,
        scenario: str,
        runtime: RuntimeUnderTest,
        options: Options,
        folder: Path,
        keys: Mapping[str, str],
        ended: Ended,
    ) -> None:
        self._scenario = scenario
        self.runtime = runtime
        self.options = options
        self._folder = folder
        self._keys = keys
        self._letters = ended.letters

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """The published rows of a sink, as a plain reader sees them."""
        return list(read_rows(self._folder / sink))

    def tally(self, sink: str, *names: str) -> Counter[Any]:
        """How often each value (or tuple of values) of these fields was published."""
        if len(names) == 1:
            return Counter(row[names[0]] for row in self.rows(sink))
        return Counter(tuple(row[name] for name in names) for row in self.rows(sink))

    def heard(self, spout: str) -> Heard:
        """What the spout was told."""
        return heard(self._keys[spout])

    def acked(self, spout: str) -> Counter[MessageId]:
        """How often the spout was told `ack` for each message."""
        return self.heard(spout).acked

    def failed(self, spout: str) -> Counter[MessageId]:
        """How often the spout was told `fail` for each message."""
        return Counter(message_id for message_id, _ in self.heard(spout).failed)

    def letters(self, spout: str) -> dict[Any, DeadLetter]:
        """The dead letters of a spout by message id."""
        mine = [letter for letter in self._letters if letter.spout == f"{self._scenario}-{spout}"]
        by_id = {letter.message_id: letter for letter in mine}
        self.expect(len(by_id) == len(mine), f"one dead letter for each message of {spout}", mine)
        return by_id

    def expect_verdicts(self, spout: str, *, acked: Sequence[Any], dead: Sequence[Any] = ()) -> None:
        """Every message has exactly one end, and its source was told exactly once."""
        self.expect_equal(self.acked(spout), Counter(acked), f"acks that {spout} heard")
        self.expect_equal(self.failed(spout), Counter(dead), f"fails that {spout} heard")
        self.expect_equal(set(self.letters(spout)), set(dead), f"dead letters of {spout}")

    def expect_equal(self, got: object, expected: object, what: str) -> None:
        """Raise NotConformingError unless they are equal."""
        self.expect(got == expected, f"{what}: {_shown(expected)}", got)

    def expect(self, holds: bool, expected: str, got: object) -> None:
        """Raise NotConformingError unless it holds."""
        if not holds:
            raise NotConformingError(
                f"{self._scenario} on {self.runtime.name}\n  expected {expected}\n  got      {_shown(got)}"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 2000 else f"{text[:2000]}…"
