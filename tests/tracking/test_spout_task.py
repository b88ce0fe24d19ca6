"""What is looked up costs what is asked, not what is known."""

from __future__ import annotations

from tupletree.tracking.messages import SpoutTask


class Counted:
    """A key that counts how often keys are looked at."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        Counted.looks += 1
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.number == other.number


def test_a_few_new_messages_are_not_compared_with_every_message_in_flight() -> None:
    task = SpoutTask(1, "lines", by_source=False)
    for known in (task.messages, task.awaiting, task.unconfirmed):
        known.update((Counted(number), None) for number in range(10_000))  # type: ignore[misc]  # only keys are looked at
    Counted.looks = 0
    assert task.knows_none_of([Counted(number) for number in range(20_000, 20_010)])
    assert Counted.looks < 200
    assert not task.knows_none_of([Counted(20_000), Counted(9_999)])
