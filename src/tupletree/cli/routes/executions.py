"""`tupletree routes list|status|wait|cancel|settle-lost|pause|resume|replay|drop`: executions, from any process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tupletree.cli.arguments import Json
from tupletree.cli.output import may_ask
from tupletree.cli.pipelines import LedgerUrl, PipelineName, Places, existing, find_places
from tupletree.cli.routes.documents import app
from tupletree.cli.routes.lost import known_queues, lost_lines
from tupletree.cli.routes.running import execution_json, execution_text
from tupletree.cli.run import EXIT_DEAD_LETTERS
from tupletree.errors import ConfigError
from tupletree.escaping import escape
from tupletree.texts import counted

if TYPE_CHECKING:
    from tupletree.routes.ledger import Execution, Ledger
    from tupletree.routes.lost import LostReport

POLL_S = 0.25

MOST_REPLAYED = 1_000_000
MOST_NAMED = 20

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
    lost: dict[str, int] = {}
    for place in find_places(pipeline, ledger=ledger):
        with _opened(place.ledger) as opened:
            executions = opened.executions(place.name, limit=limit)
            found += executions
            lost |= _lost_of_all(place, opened, [one for one in executions if not one.ended_s])
    found.sort(key=lambda one: -one.created_s)
    for one in found[:limit]:
        count = lost.get(one.id, 0)
        if as_json:
            print(json.dumps({**execution_json(one), "lost": count}))
        else:
            print(f"{escape(one.pipeline)} {execution_text(one)}" + (f", {count:,} lost" if count else ""))
    if not found and not as_json:
        print("no executions")


@app.command("status")
def status_command(
    execution: ExecutionId, pipeline: PipelineName = None, ledger: LedgerUrl = None, as_json: Json = False
) -> None:
    """Show how an execution stands: its state, and its messages by route and state."""
    place, found = _found_in(execution, pipeline, ledger)
    with _opened(place.ledger) as opened:
        counts = opened.counts(execution)
        lost = _lost(place, opened, found)
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
        lines = {"lost": [msgspec.to_builtins(one) for one in lost.messages], "not_asked": lost.not_asked}
        print(json.dumps({**execution_json(found), "routes": routes, **lines}))
        return
    print(execution_text(found))
    if found.reason:
        print(f"  {escape(found.reason)}")
    for one in counts:
        states = [f"{count:,} {state}" for state, count in one.states.items() if count]
        states += [f"{one.failed_attempts:,} failed attempts"] if one.failed_attempts else []
        print(f"  {escape(one.route) or '(queues that no route reads)'}: {', '.join(states)}")
    for line in lost_lines(lost):
        print(line)


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
    """Wait until an execution that other processes work has ended. Exit code 0, or 3 with dead letters.

    While it stands still, stderr says which of its messages can never be delivered.
    """
    from tupletree.routes.lost import LostWatch

    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    place, one = _found_in(execution, pipeline, ledger)
    with _opened(place.ledger) as opened:
        watch = LostWatch(lambda: _lost(place, opened, one))
        while True:
            found = opened.execution(execution)
            assert found is not None, "executions are deleted only after their end"
            is_late = until_s is not None and time.monotonic() >= until_s
            if text := watch.see(found):
                print(escape(text), file=sys.stderr, flush=True)
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


@app.command("settle-lost")
def settle_lost_command(
    execution: ExecutionId,
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
) -> None:
    """End messages that can never be delivered: no queue has them, or no route reads their queue. They are dead.

    What a process still works of them counts no more. A message whose queue cannot be asked is left as it is.
    """
    from tupletree.routes.lost import find_lost, settle_lost

    place, one = _found_in(execution, pipeline, ledger)
    with _writable(place.ledger) as opened, known_queues(place, opened, one.pipeline) as queues:
        settled = settle_lost(opened, queues, execution)
        for message in settled[:MOST_NAMED]:
            print(escape(f"{message.id} is dead: {message.reason}"))
        if len(settled) > MOST_NAMED:
            print(f"{len(settled) - MOST_NAMED:,} more are dead")
        if not settled:
            print("nothing is lost")
        for line in lost_lines(find_lost(opened, queues, execution)):
            print(line)
        print(execution_text(_found(opened, execution)))


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
            "none of these is dead and can be replayed",
            got=", ".join(asked),
            next_step="tupletree why MESSAGE says how a message stands; bodies of lost messages are gone",
        )
    if as_json:
        print(json.dumps({"replayed": replayed, "executions": executions, "in_outbox": left}))
        return
    count = "1 message is" if replayed == 1 else f"{replayed:,} messages are"
    print(f"{count} tried again" + "".join(f", in execution {escape(one)}" for one in executions))
    if left:
        print(f"  {left:,} are for other brokers: the next start of a run of the pipeline publishes them")


@app.command("drop")
def drop_command(
    asked: Annotated[
        list[str], typer.Argument(metavar="MESSAGE|EXECUTION…", help="Dead messages, or executions: all dead of these.")
    ],
    route: Annotated[str, typer.Option(metavar="ROUTE", help="Only dead messages of this route.")] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for `tupletree why`.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
    as_json: Json = False,
) -> None:
    """Drop dead messages that were handled elsewhere: they stay dead, and can be replayed no more.

    Their payloads are deleted from the ledger. Dead letters in queues stay there: `tupletree queues move --dead`.
    """
    found: list[tuple[Places, list[str]]] = []
    for place in find_places(pipeline, ledger=ledger):
        with _opened(place.ledger) as opened:
            found.append((place, [name for one in asked for name in _dead_of(opened, one, route)]))
    count = sum(len(names) for _, names in found)
    if count and not yes:
        may_ask(as_json=as_json)
        typer.confirm(f"drop {counted(count, 'dead message')}?", abort=True)
    dropped: list[str] = []
    for place, names in found:
        if names:
            with _writable(place.ledger) as opened:
                dropped += opened.drop(names, reason)
    if not dropped:
        raise ConfigError(
            "none of these is dead, or they were dropped before",
            got=", ".join(asked),
            next_step="tupletree why MESSAGE says how a message stands",
        )
    if as_json:
        print(json.dumps({"dropped": len(dropped), "reason": reason, "messages": dropped}))
    else:
        print(f"dropped: {counted(len(dropped), 'dead message')}")


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
    place, _ = _found_in(execution, pipeline, url)
    with _opened(place.ledger) as opened:
        yield opened


def _lost(place: Places, ledger: Ledger, execution: Execution) -> LostReport:
    from tupletree.routes.lost import LostReport, find_lost

    if execution.ended_s:
        return LostReport()
    with known_queues(place, ledger, execution.pipeline) as queues:
        return find_lost(ledger, queues, execution.id)


def _lost_of_all(place: Places, ledger: Ledger, executions: Sequence[Execution]) -> dict[str, int]:
    """How many messages of each execution are lost, by one connection to each broker."""
    from tupletree.routes.lost import Away, find_lost

    lost: dict[str, int] = {}
    for pipeline in {one.pipeline for one in executions}:
        away: Away = {}
        with known_queues(place, ledger, pipeline) as queues:
            for one in executions:
                if one.pipeline == pipeline:
                    lost[one.id] = len(find_lost(ledger, queues, one.id, away=away).messages)
    return lost


def _found_in(execution: str, pipeline: str | None, url: str | None) -> tuple[Places, Execution]:
    """The place of the pipeline that has an execution, and the execution.

    Raises:
        ConfigError: there is none.
    """
    for place in find_places(pipeline, ledger=url):
        with _opened(place.ledger) as opened:
            found = opened.execution(execution)
        if found is not None:
            return place, found
    raise ConfigError(
        "no such execution",
        got=execution,
        next_step="tupletree routes list shows those of pipelines that were run here",
    )


def _found(ledger: Ledger, execution: str) -> Execution:
    found = ledger.execution(execution)
    assert found is not None, "it was found a moment ago"
    return found
