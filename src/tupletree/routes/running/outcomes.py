"""What an attempt comes to, as messages: settlements of failures, children, and records of calls.

Pure. `chain` and `stateful` make these, each of what its adapters gave.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence

import msgspec

from tupletree.errors import PermanentError
from tupletree.routes.adapters.contract import Emitted, RouteMessage
from tupletree.routes.document.spec import RouteSpec
from tupletree.routes.ids import child_id
from tupletree.routes.ledger.settling import fault_of
from tupletree.routes.messages import CallRecord, CallStatus, Child, Settlement, Standing, Work
from tupletree.routes.payloads import encode
from tupletree.texts import text_by

MAX_TEXT = 2000
MAX_TRACEBACK = 8000


def call_records(
    work: Work,
    route: RouteSpec,
    position: int,
    status: CallStatus,
    *,
    started_s: float,
    ended_s: float,
    input_hash: str = "",
    output_hash: str = "",
    error: str = "",
    batch: str = "",
) -> list[CallRecord]:
    """A call of the adapter at this position, for each message of the work. Hot: once for each call."""
    name, adapter = route.name, route.adapters[position].name
    return [
        CallRecord(
            execution=standing.executions[0] if standing.executions else "",
            route=name,
            adapter=adapter,
            position=position,
            message=standing.id,
            attempt=standing.attempt,
            status=status,
            input_hash=input_hash,
            output_hash=output_hash,
            error=error and error[:MAX_TEXT],
            started_s=started_s,
            ended_s=ended_s,
            batch=batch or work.batch,
            trace=work.trace,
            executions=standing.executions if len(standing.executions) > 1 else (),
            parents=work.parents,
        )
        for standing in work.messages
    ]


def published(
    route: RouteSpec, parents: Sequence[str], message: RouteMessage, body: bytes, queues: Sequence[str], index: int = 0
) -> list[Child]:
    """What came out of the last adapter, as children for these queues.

    Raises:
        PermanentError: a header is no text.
    """
    position = len(route.adapters)
    headers = dict(message.headers)
    if headers and queues:
        _check_headers(queues[0], headers)
    return [
        Child(id=child_id(parents, route.name, position, index, queue), queue=queue, body=body, headers=headers)
        for queue in queues
    ]


def failed(work: Work, error: BaseException, adapter: str) -> Settlement:
    """The settlement of an attempt that failed."""
    seconds = getattr(error, "seconds", 0.0)
    return Settlement(
        messages=delivered(work),
        outcome="failed",
        reason=text_by(str, error)[:MAX_TEXT],
        error=type(error).__name__,
        traceback=text_by(_formatted, error)[-MAX_TRACEBACK:],
        permanent=isinstance(error, PermanentError),
        retry_after_s=float(seconds) if isinstance(seconds, int | float) else 0.0,
        adapter=adapter,
    )


def named(error: BaseException) -> str:
    """Class and text of what an adapter raised, as records of calls have it."""
    return f"{type(error).__name__}: {text_by(str, error)}"


def _formatted(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def delivered(work: Work) -> list[Standing]:
    """The work's messages with what was delivered, which dead letters hold."""
    if len(work.messages) > 1 or work.messages[0].body:
        return work.messages  # adapters before have seen to it
    return [msgspec.structs.replace(work.messages[0], body=work.body, headers=work.headers)]


def routed(
    route: RouteSpec,
    position: int,
    parents: Sequence[str],
    emitted: Sequence[Emitted],
    headers: Mapping[str, str],
    *,
    only: str = "",
) -> list[Child]:
    """What an adapter emitted, as children for the queues that they are for.

    Args:
        route: of the adapter.
        position: its place in the chain.
        parents: the messages that they come of.
        emitted: as it gave them.
        headers: of the message in hand.
        only: the outbound queue that an adapter before chose for that: what names none is for it, too. Empty: for all.

    Raises:
        PermanentError: one names a queue that is not outbound, or there is none, or has a header that is no text.
        PayloadError: one cannot be published.
    """
    children = []
    for index, one in enumerate(emitted):
        if not isinstance(one, Emitted):
            raise PermanentError(
                "an adapter emitted what is no message",
                where=f"route {route.name}",
                got=f"{type(one).__name__} {one!r:.80}",
                expected="Emitted(payload)",
            )
        if one.queue and one.queue not in route.outbound:
            raise no_outbound(route, one.queue)
        if not route.outbound:
            raise no_outbound(route, "")
        queues = [one.queue or only] if one.queue or only else route.outbound
        body = encode(one.payload)
        own = {**headers, **one.headers}
        if own:
            _check_headers(queues[0], own)
        children += [
            Child(
                id=child_id(parents, route.name, position, index, queue),
                queue=queue,
                body=body,
                headers=own,
                delay_s=one.delay_s,
            )
            for queue in queues
        ]
    return children


def _check_headers(queue: str, headers: Mapping[str, str]) -> None:
    """Here the message still has what was delivered, which its dead letter keeps; the ledger has no payload of it."""
    if fault := fault_of(queue, headers):
        raise PermanentError(fault)


def no_outbound(route: RouteSpec, queue: str) -> PermanentError:
    """The error of an adapter that emits to a queue which is not outbound, or with an empty name: there is none."""
    return PermanentError(
        "an adapter emits to a queue that is not outbound" if queue else "an adapter emits, and no queue is outbound",
        where=f"route {route.name}",
        got=repr(queue) if queue else "no outbound queue",
        expected=" or ".join(map(repr, route.outbound)) or "`outbound:` of the route names one",
    )


def no_result(route: RouteSpec, adapter: str, result: object) -> PermanentError:
    """The error of an adapter that gave something else than a result."""
    return PermanentError(
        "an adapter gave what is no result",
        where=f"route {route.name}, adapter {adapter}",
        got=f"{type(result).__name__} {result!r:.80}",
        expected="an AdapterResult, or None",
    )
