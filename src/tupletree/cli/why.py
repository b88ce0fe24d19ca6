"""`tupletree why`: where a message is, or what happened to it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Json, StateDir
from tupletree.cli.output import print_json, print_table
from tupletree.cli.pipelines import LedgerUrl, PipelineName, existing, find_places, were_run_here
from tupletree.errors import ConfigError
from tupletree.escaping import escape, escape_block, escape_json
from tupletree.ids import hex_id

if TYPE_CHECKING:
    from pathlib import Path

    from tupletree.routes.accounts import Account
    from tupletree.tracking.facts import Fact


def why_command(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="A message id, or SPOUT/MESSAGE_ID.")],
    state_dir: StateDir = None,
    pipeline: PipelineName = None,
    ledger: LedgerUrl = None,
    as_json: Json = False,
) -> None:
    """Show the whole history of one message: each attempt, what failed it, and where it is now.

    Of a pipeline of routes: where the message is, or what happened to it and to all that came of it. Without options
    the pipelines that were run here are asked first, then the latest run of a topology.
    """
    if pipeline or ledger or (state_dir is None and were_run_here()):
        account = _account(message, pipeline, ledger)
        if account is not None:
            print_account(account, as_json=as_json)
            return
        if pipeline or ledger or not _has_runs():
            raise ConfigError(
                "no such message",
                where=pipeline or "the pipelines that were run here",
                got=message,
                expected="the id of a message, or of an execution",
                next_step="old executions are deleted from the ledger after a while",
            )
    facts = _facts(message, state_dir)
    if as_json:
        for fact in facts:
            print(escape_json(json.dumps(_plain(fact))))
        return
    print_history(facts)
    failed = [fact.failure for fact in facts if fact.failure is not None and fact.failure.traceback]
    if failed:
        print(textwrap.indent(escape_block(failed[-1].traceback.rstrip()), "  "))


def _facts(message: str, state_dir: Path | None) -> list[Fact]:
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import run
    from tupletree.runtimes.deadletters import is_local_run

    place = find_state_dir(state_dir)
    facts = run.why(place, message)
    if not facts:
        raise ConfigError(
            "nothing is known of this message",
            where=str(place),
            got=message,
            expected="an id as logs and `dead list` show it: text as it is, else JSON, such as '[\"orders.csv\", 4]'",
            next_step=(
                "a local run keeps nothing of a message that was acked at its first attempt, unless --option "
                "history=all is given, and the history of others for a while"
                if is_local_run(place)
                else "the history keeps old messages only for a while (option history_max_bytes)"
            ),
        )
    return facts


def _has_runs() -> bool:
    from tupletree.cli.settings import STATE_ROOT

    # Those of pipelines are asked through their ledgers.
    return any(path.parent.parent.parent.name != "routes" for path in STATE_ROOT.glob("*/*/tupletree.json"))


def _account(message: str, pipeline: str | None, ledger: str | None) -> Account | None:
    """The account of a message by the first pipeline that knows it."""
    from tupletree.cli.routes.lost import known_queues
    from tupletree.routes.accounts import account_of, with_losses
    from tupletree.routes.ledger import Ledger
    from tupletree.routes.lineage import Lineage

    for place in find_places(pipeline, ledger=ledger):
        with ExitStack() as opened:
            asked = Ledger.open(existing(place.ledger))
            opened.callback(asked.close)
            calls: Lineage | None = None
            with suppress(ConfigError):  # none was written
                calls = opened.enter_context(Lineage.open(place.lineage)) if place.lineage else None
            found = account_of(message, asked, calls)
            if found is not None and (execution := asked.execution(next(iter(found.executions), ""))) is not None:
                queues = opened.enter_context(known_queues(place, asked, execution.pipeline))
                found = with_losses(found, asked, queues)
        if found is not None:
            return found
    return None


def print_account(account: Account, *, as_json: bool = False) -> None:
    """What can be told of a message of a pipeline."""
    if as_json:
        print_json(account)
        return
    of = f" of execution {account.executions[0]}" if len(account.executions) == 1 else ""
    more = f" of {len(account.executions)} executions" if len(account.executions) > 1 else ""
    print(escape(f"message {account.id}{of}{more}: {account.sentence}."))
    for one in account.came_of:
        print(escape(f"  It came of {one.id}: {one.what}."))
    for event in account.events:
        print(f"  {_utc(event.time_s)} UTC  {escape(event.what)}")
    if account.through:
        print(f"  {escape(account.through)}.")
    for one in account.not_done:
        print(escape(f"    {one.id}: {one.what}."))
    if account.traceback:
        print(textwrap.indent(escape_block(account.traceback.rstrip()), "  "))
    if account.is_lost:
        print(escape(f"  next: tupletree routes settle-lost {account.executions[0]} ends it as dead"))
    if account.state == "dead" and not account.is_dropped:
        print(escape(f"  next: when its cause is gone, tupletree routes replay {account.id}"))


def print_history(facts: Iterable[Fact]) -> None:
    """What happened to a message, one line per fact; on a terminal a table, because most lines would not fit."""
    if sys.stdout.isatty():
        _print_table(list(facts))
        return
    for fact in facts:
        epoch = f"epoch {fact.epoch}  " if fact.epoch >= 0 else ""
        print(
            f"{_time(fact)} UTC  {epoch}attempt {fact.attempt}  root {hex_id(fact.root)}  {fact.what}"
            + (f": {escape(fact.detail)}" if fact.detail else "")
        )


def _print_table(facts: list[Fact]) -> None:
    names = ["UTC", "epoch", "attempt", "root", "what", "because"]
    rows = [
        [_time(fact), str(fact.epoch), str(fact.attempt), hex_id(fact.root), fact.what, fact.detail or "–"]
        for fact in facts
    ]
    if not any(fact.epoch >= 0 for fact in facts):
        for row in (names, *rows):
            del row[1]
    print_table(names, rows)


def _time(fact: Fact) -> str:
    return _utc(fact.time_s)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _plain(fact: Fact) -> dict[str, object]:
    failure = fact.failure
    return {
        "time_s": fact.time_s,
        "epoch": fact.epoch,
        "spout": fact.spout,
        "message_id": fact.message_id,
        "attempt": fact.attempt,
        "root": hex_id(fact.root),
        "what": fact.what,
        "detail": fact.detail,
        "kind": failure.kind.value if failure is not None else "",
        "component": failure.component if failure is not None else "",
        "error_type": failure.error_type if failure is not None else "",
        "error": failure.error if failure is not None else "",
        "traceback": failure.traceback if failure is not None else "",
        "next_s": fact.next_s,
    }
