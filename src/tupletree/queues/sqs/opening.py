"""What an `sqs://` URL says: a region, and where the service is if it is not that of AWS.

Owns the options and their bounds. Refuses logins: they are where the library of AWS looks for them.
"""

from __future__ import annotations

from tupletree.errors import ConfigError
from tupletree.queues.sqs.broker import SqsBroker
from tupletree.queues.sqs.client import Server
from tupletree.queues.urls import QueueUrl


def open_sqs(url: QueueUrl) -> SqsBroker:
    """`sqs://eu-west-1`, or `sqs://` for the region of the environment; options endpoint, profile, timeout_s."""
    if url.user or url.password:
        raise ConfigError(
            "a login does not belong into a URL of SQS",
            where=f"sqs://{url.host}",
            expected="what AWS programs use: variables (AWS_ACCESS_KEY_ID …), a file with profiles, or a role",
            next_step="leave it out; ?profile=NAME names one of the file",
        )
    settings = url.settings(endpoint=str, profile=str, timeout_s=(float, 2, 1e4))
    if url.path or url.port:
        raise ConfigError(
            "the place in a URL of SQS is a region",
            where=url.shown,
            got=f"{url.host}{f':{url.port}' if url.port else ''}/{url.path}",
            expected="such as sqs://eu-west-1?queue=orders",
            next_step="name another server with ?endpoint=http://host:port",
        )
    endpoint = settings.get("endpoint", "")
    if (endpoint and not endpoint.startswith(("http://", "https://"))) or "@" in endpoint:
        raise ConfigError(
            "wrong value for endpoint",
            where=f"sqs://{url.host}",
            expected="http:// or https://, a host, without a login",
        )
    server = Server(
        where=url.shown,
        region=url.host,
        endpoint=endpoint,
        profile=settings.get("profile", ""),
        timeout_s=settings.get("timeout_s", 10.0),
    )
    return SqsBroker(server)
