"""Servers that several modules share: one takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.queues.servers import KafkaCluster, RabbitServer, SqsServer, kafka_cluster, rabbit_server, sqs_server


@pytest.fixture(scope="session")
def _rabbitmq() -> Iterator[RabbitServer]:
    with rabbit_server() as started:
        yield started


@pytest.fixture
def rabbitmq(_rabbitmq: RabbitServer, monkeypatch: pytest.MonkeyPatch) -> RabbitServer:
    """Tests that use it are of the group `rabbitmq`, which runs in one process."""
    from tupletree.queues.rabbitmq import client

    monkeypatch.setattr(client, "KEEPING_S", 0.0)  # waited for where the server is killed
    return _rabbitmq


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """Tests that use it are of the group `kafka`, which runs in one process."""
    pytest.importorskip("confluent_kafka")
    with kafka_cluster() as started:
        yield started


@pytest.fixture(scope="session")
def sqs() -> Iterator[SqsServer]:
    """Tests that use it are of the group `sqs`, which runs in one process."""
    pytest.importorskip("boto3")
    pytest.importorskip("moto")
    with sqs_server() as started:
        yield started
