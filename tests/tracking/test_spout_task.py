"""What is looked up costs what is asked, not what is known."""

from __future__ import annotations

from tupletree.tracking.message_table import OpenMessage, SpoutMessages


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
    task = SpoutMessages(1, "lines", by_source=False)
    for known in (task.messages, task.awaiting, task.unconfirmed):
        known.update((Counted(number), None) for number in range(10_000))  # type: ignore[misc]  # only keys are looked at
    Counted.looks = 0
    assert task.knows_none_of([Counted(number) for number in range(20_000, 20_010)])
    assert Counted.looks < 200
    assert not task.knows_none_of([Counted(20_000), Counted(9_999)])


def test_the_oldest_message_is_found_among_those_in_hand_and_those_awaiting_their_source() -> None:
    def message(first_s: float, *, by_source: bool) -> OpenMessage:
        return OpenMessage(1, first_s, 1, None, 1, 1, first_s, 0.0, by_source)

    task = SpoutMessages(1, "lines", by_source=False)
    assert task.oldest_first_s() is None
    task.messages.update((first_s, message(first_s, by_source=False)) for first_s in (3.0, 4.0))
    assert task.oldest_first_s() == 3.0
    queue = SpoutMessages(2, "queue", by_source=True)
    queue.messages.update((first_s, message(first_s, by_source=True)) for first_s in (5.0, 2.0))
    assert queue.oldest_first_s() == 2.0
    queue.awaiting[1.0] = message(1.0, by_source=True)
    assert queue.oldest_first_s() == 1.0
