"""Queues at moto's server, for tests: with leases that end by its clock, and as another program sees them."""

from __future__ import annotations

from typing import Any

import boto3

from tests.queues.servers import SqsServer
from tupletree.queues import (
    Queue,
)
from tupletree.queues.host_clock import HostClock
from tupletree.queues.sqs.broker import SqsBroker
from tupletree.queues.sqs.client import Server
from tupletree.queues.urls import parse_url


def broker_of(sqs: SqsServer) -> SqsBroker:
    """Whose leases end by the server's clock, which tests move."""
    url = parse_url(sqs.url)
    server = Server(where=url.shown, region=url.host, endpoint=url.options["endpoint"])
    since_boot_s = HostClock().since_boot_s
    return SqsBroker(server, clock=lambda: since_boot_s() + sqs.ahead_s)


def queue_of(sqs: SqsServer, name: str, *, ordered: bool = False) -> Queue:
    broker = broker_of(sqs)
    broker.declare(name, ordered=ordered)
    return Queue(broker, name)


def theirs(sqs: SqsServer) -> Any:
    """The client of another program."""
    return boto3.client("sqs", "eu-west-1", endpoint_url=f"http://127.0.0.1:{sqs.port}")
