"""`tupletree routes list|status|wait|cancel|pause|resume|replay`: executions, asked and steered from any process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Json
from tupletree.cli.pipelines import LedgerUrl, PipelineName, existing, find_places
from tupletree.cli.routes.documents import app
from tupletree.cli.routes.running import execution_json, execution_text
from tupletree.cli.run import EXIT_DEAD_LETTERS
from tupletree.errors import ConfigError
from tupletree.escaping import escape

if TYPE_CHECKING:
    from tupletree.routes.ledger import Execution, Ledger

__all__ = [
    "cancel_command",
    "list_command",
    "pause_command",
    "replay_command",
    "resume_command",
    "status_command",
    "wait_command",
]

POLL_S = 0.25

MOST_REPLAYED = 1_000_000

ExecutionId = Annotated[str, typer.Argument(metavar="EXECUTION", help="Id of an execution.")]


@app.command("list")
def list_command(
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show the newest N.")] = 20,
    as_json: Json = False,
) -> None:
    """List executions, the newest first."""
    found = []
    for place in find_places(pipeline, ledger=ledger):
        with _opened(place.ledger) as opened:
            found += opened.executions(place.name, limit=limit)
    found.sort(key=lambda one: -one.created_s)
    for one in found[:limit]:
        print(json.dumps(execution_json(one)) if as_json else f"{escape(one.pipeline)} {execution_text(one)}")
    if not found and not as_json:
        print("no executions")


@app.command("status")
def status_command(
    execution: ExecutionId, pipeline: PipelineName = None, ledger: LedgerUrl = None, as_json: Json = False
) -> None:
    """Show how an execution stands: its state, and its messages by route and state."""
    with _holding(execution, pipeline, ledger) as opened:
        found = opened.execution(execution)
        counts = opened.counts(execution)
    assert found is not None, "it was found a moment ago"
    if as_json:
        routes = [
            {
                "route": one.route,
                **{state: count for state, count in one.states.items() if count},
                "failed_attempts": one.failed_attempts,
                "lost_attempts": one.lost_attempts,
            }
            for one in counts
        ]
        print(json.dumps({**execution_json(found), "routes": routes}))
        return
    print(execution_text(found))
    if found.reason:
        print(f"  {escape(found.reason)}")
    for one in counts:
        states = [f"{count:,} {state}" for state, count in one.states.items() if count]
        states += [f"{one.failed_attempts:,} failed attempts"] if one.failed_attempts else []
        print(f"  {escape(one.route) or '(queues that no route reads)'}: {', '.join(states)}")


@app.command("wait")
def wait_command(
    execution: ExecutionId,
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", metavar="SECONDS", help="Give up after so long, exit code 1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until an execution that other processes work has ended. Exit code 0, or 3 with dead letters."""
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    with _holding(execution, pipeline, ledger) as opened:
        while True:
            found = opened.execution(execution)
            assert found is not None, "executions are deleted only after their end"
            is_late = until_s is not None and time.monotonic() >= until_s
            if found.ended_s or is_late:
                break
            time.sleep(POLL_S)
    print(json.dumps(execution_json(found)) if as_json else execution_text(found))
    if not found.ended_s:
        raise typer.Exit(1)
    raise typer.Exit(EXIT_DEAD_LETTERS if found.dead or found.state != "completed" else 0)


@app.command("cancel")
def cancel_command(
    execution: ExecutionId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept with the execution.")] = "",
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
) -> None:
    """End an execution: none of its messages is worked any more, and nothing of what is in work is published."""
    with _holding(execution, pipeline, ledger) as opened:
        if not opened.cancel(execution, reason):
            raise ConfigError("the execution has ended", got=execution)
        print(f"cancelled: {execution_text(_found(opened, execution))}")


@app.command("pause")
def pause_command(execution: ExecutionId, pipeline: PipelineName = None, ledger: LedgerUrl = None) -> None:
    """Let no message of an execution be worked until `resume`; what is in work ends."""
    with _holding(execution, pipeline, ledger) as opened:
        opened.pause(execution)
        print(execution_text(_found(opened, execution)))


@app.command("resume")
def resume_command(execution: ExecutionId, pipeline: PipelineName = None, ledger: LedgerUrl = None) -> None:
    """Let the messages of a paused execution be worked again."""
    with _holding(execution, pipeline, ledger) as opened:
        opened.resume(execution)
        print(execution_text(_found(opened, execution)))


@app.command("replay")
def replay_command(
    asked: Annotated[
        list[str], typer.Argument(metavar="MESSAGE|EXECUTION…", help="Dead messages, or executions: all dead of these.")
    ],
    route: Annotated[str, typer.Option(metavar="ROUTE", help="Only dead messages of this route.")] = "",
    into: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Copy them into this pipeline, as a new execution; it needs the same ledger."
        ),
    ] = "",
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
    as_json: Json = False,
) -> None:
    """Try dead messages again, in their executions, or copied into another pipeline. A run of it works them."""
    replayed = left = 0
    executions: list[str] = []
    for place in find_places(pipeline, ledger=ledger):
        with _writable(place.ledger) as opened:
            dead = [name for one in asked for name in _dead_of(opened, one, route)]
            if not dead:
                continue
            if into:
                execution, copies = _copy(dead, into, place.ledger)
                executions.append(execution)
            else:
                copies = opened.replay(dead)
                left += len(opened.outbox(limit=MOST_REPLAYED))
            replayed += len(copies)
    if not replayed:
        raise ConfigError(
            "none of these is dead", got=", ".join(asked), next_step="tupletree why MESSAGE says how a message stands"
        )
    if as_json:
        print(json.dumps({"replayed": replayed, "executions": executions, "in_outbox": left}))
        return
    print(f"{replayed:,} messages are tried again" + "".join(f", in execution {one}" for one in executions))
    if left:
        print(f"  {left:,} are for other brokers: the next start of a run of the pipeline publishes them")


def _copy(dead: Sequence[str], into: str, ledger: str) -> tuple[str, Sequence[object]]:
    from tupletree.routes.pipeline import Pipeline

    with Pipeline.load(into).open() as run:
        if run.services.run.ledger != ledger:
            raise ConfigError(
                "the two pipelines have different ledgers",
                where=into,  # their URLs are not shown: they may hold passwords
                next_step="name one `ledger:` in both documents",
            )
        execution, copies = run.services.ledger.replay_into(dead, run.services.rules)
        run.services.drain_outbox()
    return execution, copies


def _dead_of(ledger: Ledger, asked: str, route: str) -> Iterator[str]:
    if ledger.execution(asked) is None:
        found = ledger.message(asked)
        if found is not None and found.message.state == "dead" and route in {"", found.message.route}:
            yield found.message.id
        return
    yield from (row.id for row in ledger.messages(asked, state="dead", route=route, limit=MOST_REPLAYED))


@contextmanager
def _opened(url: str) -> Iterator[Ledger]:
    from tupletree.routes.ledger import Ledger

    with closing(Ledger.open(existing(url))) as opened:
        yield opened


@contextmanager
def _writable(url: str) -> Iterator[Ledger]:
    """A ledger that publishes: in the queue file, where it lies there, and through the outbox elsewhere."""
    from tupletree.queues import connect
    from tupletree.queues.sqlite import SqliteBroker
    from tupletree.routes.ledger import Ledger

    if not existing(url).startswith("sqlite:///"):
        with _opened(url) as opened:
            yield opened
        return
    with connect(url) as broker:
        assert isinstance(broker, SqliteBroker), "the embedded queue"
        with closing(Ledger.within(broker)) as opened:
            yield opened


@contextmanager
def _holding(execution: str, pipeline: str | None, url: str | None) -> Iterator[Ledger]:
    """The ledger that has this execution."""
    for place in find_places(pipeline, ledger=url):
        with _opened(place.ledger) as opened:
            if opened.execution(execution) is not None:
                yield opened
                return
    raise ConfigError(
        "no such execution",
        got=execution,
        next_step="tupletree routes list shows those of pipelines that were run here",
    )


def _found(ledger: Ledger, execution: str) -> Execution:
    found = ledger.execution(execution)
    assert found is not None, "it was found a moment ago"
    return found
