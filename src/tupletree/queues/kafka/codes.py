"""Codes of errors at a Kafka cluster, by what they mean for a queue.

Those that begin with an underscore are librdkafka's own.
"""

from __future__ import annotations

from confluent_kafka import KafkaError


def _codes(*names: str) -> frozenset[int]:
    return frozenset(getattr(KafkaError, name) for name in names)


NO_TOPIC = _codes("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")

REFUSED = _codes(
    *("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"),
    *("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
)
"""This user may not, or is not known."""

AWAY = _codes("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE")

[ALL_AWAY] = _codes("_ALL_BROKERS_DOWN")

SPOILT = _codes("_FATAL", "_PURGE_QUEUE")
"""A new producer is needed: the numbers by which the cluster knows repetitions are off."""

LOST = _codes("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "_STATE", "_ASSIGNMENT_LOST")
"""The partition is another member's."""

AGAIN = _codes(
    *("REBALANCE_IN_PROGRESS", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"),
    "_WAIT_COORD",
)
"""A commit is to be made again, soon."""

[REBALANCING] = _codes("REBALANCE_IN_PROGRESS")
[END] = _codes("_PARTITION_EOF")
[CLOSED] = _codes("_STATE")
[POLLED_TOO_LATE] = _codes("_MAX_POLL_EXCEEDED")
