"""Queues on a NATS server with JetStream: a stream each, a consumer that all share, and a stream of dead letters."""

from tupletree.queues.nats.broker import CAPABILITIES, NatsBroker, open_nats

__all__ = ["CAPABILITIES", "NatsBroker", "open_nats"]
