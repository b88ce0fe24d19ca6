"""Queues on Amazon SQS: for each a queue of messages there, and one of dead letters."""

from tupletree.queues.sqs.broker import CAPABILITIES, SqsBroker
from tupletree.queues.sqs.opening import open_sqs

__all__ = ["CAPABILITIES", "SqsBroker", "open_sqs"]
