"""Message queues: one contract, brokers behind it, and the embedded one on SQLite.

`open_queue(url)` is a queue, `connect(url)` a broker with any number of them. docs/queues.md is the way in.
"""

from tupletree.queues.bodies import QueueMessage
from tupletree.queues.contract import (
    Broker,
    Capabilities,
    LeaseLostError,
    NotCapableError,
    RefusedMessagesError,
    UnknownQueueError,
)
from tupletree.queues.messages import Delivery, Depth, Failure, Letter, Message, RefusedMessage, Stored
from tupletree.queues.named import Queue
from tupletree.queues.registry import connect, open_queue, register_scheme, schemes
from tupletree.queues.urls import QueueUrl, url_of

__all__ = [
    "Broker",
    "Capabilities",
    "Delivery",
    "Depth",
    "Failure",
    "LeaseLostError",
    "Letter",
    "Message",
    "NotCapableError",
    "Queue",
    "QueueMessage",
    "QueueUrl",
    "RefusedMessage",
    "RefusedMessagesError",
    "Stored",
    "UnknownQueueError",
    "connect",
    "open_queue",
    "register_scheme",
    "schemes",
    "url_of",
]
