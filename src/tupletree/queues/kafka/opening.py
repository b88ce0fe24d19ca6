"""What a `kafka://` URL says: addresses, login, TLS, and numbers.

Owns the options and their bounds. Refuses to connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tupletree.errors import ConfigError
from tupletree.queues.kafka.broker import CAPABILITIES, KafkaBroker
from tupletree.queues.kafka.client import KafkaClient, Server
from tupletree.queues.kafka.offsets import MOST_MARKS
from tupletree.queues.urls import QueueUrl

TLS = {
    "ca_file": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key_file": "ssl.key.location",
    "key_password": "ssl.key.password",
}
"""Option → setting of librdkafka."""

SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def open_kafka(url: QueueUrl) -> KafkaBroker:
    """`kafka://user:password@host:9092,other:9092`.

    Options partitions and replicas of topics that are made; timeout_s, session_s, max_gap, max_body_bytes; sasl, tls,
    ca_file, certificate, key_file, key_password.
    """
    settings = url.settings(
        partitions=(int, 1, 10_000), replicas=(int, 1, 100), timeout_s=(float, 1, 1e4), session_s=(float, 0.5, 1e4),
        max_gap=(int, 1, MOST_MARKS), max_body_bytes=(int, 1, 900_000_000),
        sasl=str, tls=bool, ca_file=str, certificate=str, key_file=str, key_password=str,
    )  # fmt: skip
    if url.path:
        raise ConfigError(
            "a Kafka cluster has no path",
            where=url.shown,
            got=url.path,
            next_step=f"name a queue with ?queue={url.path}",
        )
    server = Server(
        where=url.shown,
        common={"bootstrap.servers": _addresses(url), **_security(url, settings)},
        secrets=tuple(one for one in (url.password, settings.get("key_password", "")) if one),
        timeout_s=settings.get("timeout_s", 10.0),
        max_body_bytes=settings.get("max_body_bytes", CAPABILITIES.max_body_bytes),
        session_s=settings.get("session_s", 10.0),
        partitions=settings.get("partitions", 4),
        replicas=settings.get("replicas", -1),
    )
    return KafkaBroker(KafkaClient(server), max_gap=settings.get("max_gap", MOST_MARKS))


def _addresses(url: QueueUrl) -> str:
    given = (url.host or "127.0.0.1") + (f":{url.port}" if url.port else "")
    each = [one.strip() for one in given.split(",") if one.strip()]
    return ",".join(one if one.rpartition(":")[2].isdigit() else f"{one}:9092" for one in each)


def _security(url: QueueUrl, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What librdkafka is told of login and TLS."""
    sasl = settings.get("sasl", "PLAIN")
    if sasl not in SASL:
        raise ConfigError("wrong value for sasl", where=url.shown, got=sasl, expected=f"one of {', '.join(SASL)}")
    is_encrypted = settings.get("tls", any(name in settings for name in ("ca_file", "certificate", "key_file")))
    found: dict[str, Any] = {}
    protocol = ("SASL_" if url.user else "") + ("SSL" if is_encrypted else "PLAINTEXT")
    found["security.protocol"] = protocol
    if url.user:
        found |= {"sasl.mechanism": sasl, "sasl.username": url.user, "sasl.password": url.password}
    return found | {theirs: settings[ours] for ours, theirs in TLS.items() if ours in settings}
