"""Queues on a RabbitMQ server: quorum queues, confirmed publishing, leases that end with their connection."""

from tupletree.queues.rabbitmq.broker import CAPABILITIES, RabbitBroker, open_rabbitmq

__all__ = ["CAPABILITIES", "RabbitBroker", "open_rabbitmq"]
