"""Servers that several modules share: one takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.queues.servers import (
    NOBODYS_LOGIN,
    KafkaCluster,
    RabbitServer,
    SqsServer,
    kafka_cluster,
    rabbit_server,
    sqs_server,
)


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
def _sqs() -> Iterator[SqsServer]:
    pytest.importorskip("boto3")
    pytest.importorskip("moto")
    with sqs_server() as started:
        yield started


@pytest.fixture
def sqs_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the environment, where the library of AWS looks first: what this machine knows of AWS is not used."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**NOBODYS_LOGIN, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.fixture
def sqs(_sqs: SqsServer, sqs_login: None) -> SqsServer:
    """Tests that use it are of the group `sqs`, which runs in one process."""
    return _sqs
