"""Queues on a Kafka cluster: for each a topic of messages, one of retries, and one of dead letters."""

from tupletree.queues.kafka.broker import CAPABILITIES, KafkaBroker
from tupletree.queues.kafka.opening import open_kafka

__all__ = ["CAPABILITIES", "KafkaBroker", "open_kafka"]
