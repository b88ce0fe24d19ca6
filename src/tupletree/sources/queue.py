"""A queue as a source: messages are leased, and acked one by one when their trees are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from tupletree.errors import ConfigError
from tupletree.queues.bodies import QueueMessage
from tupletree.queues.messages import Message
from tupletree.sources.broker_spout import BrokerSpout
from tupletree.sources.executor_queue import ExecutorQueueSpout

T = TypeVar("T")


@overload
def queue(
    url: str,
    *,
    follow: bool = True,
    prefetch: int = 100,
    lease_s: float = 60.0,
    max_deliveries: int = 20,
    ordered: bool = False,
    read_on: Literal["driver", "executors"] = "driver",
) -> BrokerSpout[QueueMessage]: ...


@overload
def queue(
    url: str,
    message_type: type[T],
    *,
    body: str | Callable[[Message], T] = "json",
    follow: bool = True,
    prefetch: int = 100,
    lease_s: float = 60.0,
    max_deliveries: int = 20,
    ordered: bool = False,
    read_on: Literal["driver", "executors"] = "driver",
) -> BrokerSpout[T]: ...


def queue(
    url: str,
    message_type: type[Any] = QueueMessage,
    *,
    body: str | Callable[[Message], Any] = "json",
    follow: bool = True,
    prefetch: int = 100,
    lease_s: float = 60.0,
    max_deliveries: int = 20,
    ordered: bool = False,
    read_on: Literal["driver", "executors"] = "driver",
) -> BrokerSpout[Any]:
    """Work the messages of a queue, each acked at its broker when everything that came of it is done.

    A message keeps its lease while it is worked, waits for a retry, or is held by a window. One that is dead becomes a
    dead letter of the queue as well as of the run. A body that does not fit is a dead letter with its bytes. What is
    out when the run stops goes back to the queue, and that is no attempt. The message's id in the queue is its message
    id, so a queue must have each id once.

    On Spark leases, acks and dead letters are the driver's: a message whose epoch is committed is done exactly once,
    whatever crashes, as long as no other consumer takes it. Locally, at least once.

    Args:
        url: such as `sqlite:///shop.db?queue=orders`; the queue is declared if it is not there.
        message_type: class of the messages; without it they are `QueueMessage`s, with the bytes as they are.
        body: how a body becomes one: "json", "msgpack", or a function of the `Message`; what it raises makes the
            message a dead letter.
        follow: wait for more when the queue is empty; False ends the input when nothing is left to be leased.
        prefetch: messages that are leased at a time. They are this run's, also while they wait for room, and so are
            those of the next batch, which is leased meanwhile; of the next three, where it is 50 or more and they are
            worked in less than a quarter of a second.
        lease_s: seconds; leases of what is out are extended three times as often. So long it takes until other
            consumers get the messages of a run that was killed.
        max_deliveries: a message that was delivered more often, because processes died of it, is a dead letter.
        ordered: see `Broker.declare`.
        read_on: who leases messages and makes values of their bodies on Spark. "executors" spares the driver both, and
            every body; acks stay with it. It needs a broker whose handles any connection may settle, so RabbitMQ,
            Kafka and SQS are refused. The other runtime does not tell one from the other.

    Raises:
        ConfigError: a wrong URL, format or number.
    """
    if read_on not in {"driver", "executors"}:
        raise ConfigError("no such reader of a queue", got=repr(read_on), expected='"driver" or "executors"')
    made: type[BrokerSpout[Any]] = BrokerSpout if read_on == "driver" else ExecutorQueueSpout
    return made(
        url,
        message_type,
        body,
        follow=follow,
        prefetch=prefetch,
        lease_s=lease_s,
        max_deliveries=max_deliveries,
        ordered=ordered,
    )
