"""Dead letters of a queue at SQS, for those who look at them or move them.

Owns what becomes of letters in hand: to look at one is to receive it, and to give it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Self

from tupletree.queues.sqs.client import BATCH, QueueAddress, SqsClient, in_batches
from tupletree.queues.sqs.wire import Received, received_of

MOST_REPEATS = 10
"""Requests that bring nothing new, until all is taken to have come."""

HELD_S = 300
"""For so long the letters in hand are hidden from others; after a crash they are there again then."""


class DeadLetters:
    """Dead letters in hand, which go back when this ends unless they were deleted. Use it by `with`."""

    def __init__(self, client: SqsClient, place: QueueAddress) -> None:
        self._client = client
        self._place = place
        self._held: dict[str, str] = {}  # by the service's id: receipts

    def __enter__(self) -> Self:
        self._counted = self._client.count(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        entries = [{"ReceiptHandle": one, "VisibilityTimeout": 0} for one in self._held.values()]
        # Those that cannot be given back now are there again when their time is over.
        self._client.tell("change_message_visibility_batch", self._place, in_batches(entries))

    def read(self, most: int = 0) -> Iterator[Received]:
        """The next ones; all there are with 0."""
        found = self._all()
        return islice(found, most) if most else found

    def _all(self) -> Iterator[Received]:
        seen: set[str] = set()
        repeats = 0
        while repeats < MOST_REPEATS:
            # Without a wait the service looks at some of its servers, and may find nothing though there is.
            raws = self._client.ask_of(
                "receive_message",
                self._place,
                MaxNumberOfMessages=BATCH,
                VisibilityTimeout=HELD_S,
                WaitTimeSeconds=1 if len(seen) < self._counted else 0,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages", ())
            letters = [received_of(raw) for raw in raws]
            self._held.update((one.service_id, one.receipt) for one in letters)
            new = [one for one in letters if one.service_id not in seen]
            if not letters:
                return
            repeats = 0 if new else repeats + 1  # what was in hand for too long comes again
            seen.update(one.service_id for one in new)
            yield from new

    def delete(self, letters: Sequence[Received]) -> None:
        """They are done: moved, or not wanted.

        Raises:
            ConnectorError: some are still there.
        """
        entries = [{"ReceiptHandle": one.receipt} for one in letters]
        faults = self._client.tell("delete_message_batch", self._place, in_batches(entries))
        for one, fault in zip(letters, faults, strict=True):
            if fault is None:
                self._held.pop(one.service_id, None)
        for fault in filter(None, faults):
            raise fault
