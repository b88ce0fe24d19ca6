"""What the errors of the service, and of its library, mean here.

Owns the names of errors. Refuses to know a connection.
"""

from __future__ import annotations

from typing import Any

from botocore import exceptions as theirs

from tupletree.errors import ConfigError, ConnectorError
from tupletree.queues.contract import RefusedConnectionError, RefusedRequestError, UnknownQueueError
from tupletree.queues.urls import without_secrets

FAULTS = (theirs.BotoCoreError, theirs.ClientError, OSError)
"""What a call of the library raises."""

RECEIPT_IS_OVER = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})
"""Of a part of a request that has a receipt."""

TOKEN_IS_OVER = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
"""The login was good, and is to be read again: from a file or a service that has a newer one."""

_NO_QUEUE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})

_REFUSALS = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "AuthFailure", "InvalidClientTokenId", "InvalidAccessKeyId"),
        *("UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"),
        *("MissingAuthenticationToken", "MissingAuthenticationTokenException", "InvalidSecurity", "OptInRequired"),
        *("KmsAccessDenied", "KmsDisabled", "KmsNotFound", "KmsInvalidKeyUsage", "KmsOptInRequired"),
        *("InvalidAddress", "UnsupportedOperation"),
    }
)
"""The service does not let this user do it."""

_OUTAGES = frozenset(
    {
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"),
        *("RequestLimitExceeded", "TooManyRequestsException", "BandwidthLimitExceeded", "SlowDown", "KmsThrottled"),
        *("ServiceUnavailable", "InternalFailure", "InternalError", "InternalServerError", "RequestTimeout"),
        *("OverLimit", "QueueDeletedRecently", "PurgeQueueInProgress"),
    }
)

_LOGINS = (
    theirs.NoCredentialsError,
    theirs.PartialCredentialsError,
    theirs.UnauthorizedSSOTokenError,
    theirs.SSOTokenLoadError,
    theirs.SSLError,
)
_SETTINGS = (
    theirs.NoRegionError,
    theirs.ProfileNotFound,
    theirs.ConfigParseError,
    theirs.ConfigNotFound,
    theirs.InvalidRegionError,
)


class ReceiptIsOverError(ConnectorError):
    """The service does not take a receipt any more: the handle of its message is refused."""

    is_outage = False


def code_of(name: object) -> str:
    """The name of an error without what stands before it: the service has two for some."""
    return str(name).rpartition("#")[2].rpartition(".")[2]


def error_name(error: BaseException) -> str:
    """What the service calls an error of the library's; empty if it did not answer."""
    if not isinstance(error, theirs.ClientError):
        return ""
    answer: Any = error.response
    return code_of(answer.get("Error", {}).get("Code", ""))


def meaning_of(code: str, text: str, where: str, *, status: int = 0) -> ConnectorError:
    """The error to raise for one that the service named.

    Args:
        code: its name, see `code_of`.
        text: what it says beside.
        where: the URL without secrets.
        status: of HTTP; 0 where there is none.
    """
    # Only the first line: what follows where a signature is wrong has the request, and what is secret in it.
    said = without_secrets(text.partition("\n")[0].split("The Canonical String", maxsplit=1)[0].strip())[:300]
    message = f"{where}: {code}: {said}" if said else f"{where}: {code}"
    if code in _NO_QUEUE:
        return UnknownQueueError(message)
    is_outage = code in _OUTAGES or code in TOKEN_IS_OVER or "throttl" in code.lower() or status >= 500
    if is_outage or status == 429:
        return ConnectorError(message)
    return RefusedConnectionError(message) if code in _REFUSALS else RefusedRequestError(message)


def fault_of(error: BaseException, where: str) -> ConnectorError | ConfigError:
    """The error to raise for one of the library's."""
    if isinstance(error, theirs.ClientError):
        answer: Any = error.response
        named = answer.get("Error", {})
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return meaning_of(error_name(error), str(named.get("Message", "")), where, status=status)
    text = without_secrets(str(error))
    if isinstance(error, _SETTINGS):
        return ConfigError(
            "the settings of AWS do not do",
            where=where,
            got=text,
            next_step="name the region in the URL: sqs://eu-west-1?queue=orders; docs/queues.md has the options",
        )
    if isinstance(error, _LOGINS):
        return RefusedConnectionError(f"{where}: {text}")
    return ConnectorError(f"{where} cannot be reached: {text}")
