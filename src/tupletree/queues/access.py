"""A broker that no longer lets its user in, while a run works: an outage, and no message's fault.

Owns the one decision about it. Refuses to tell a user who may not from one who may no longer: where a run connects,
the broker's own error says so, and the start ends with it; from then on calls are made within `shut_out_is_outage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tupletree.errors import ConnectorError
from tupletree.queues.contract import RefusedConnectionError


@contextmanager
def shut_out_is_outage(where: str) -> Iterator[None]:
    """Within, calls of a broker that has let this run connect are made. Where they are refused, waiting may help.

    A password was changed, a right was taken away, a certificate has ended: an operator mends it, and the run goes on.

    Args:
        where: who calls.

    Raises:
        ConnectorError: an outage, where the call raised RefusedConnectionError.
    """
    try:
        yield
    except RefusedConnectionError as error:
        raise ConnectorError(
            "the broker does not let this user in any more",
            where=where,
            got=str(error),
            next_step="let it: the run waits, and goes on then; for another password, stop it and start it with that",
        ) from error
