"""`tupletree lineage`: what came of a message, through all routes; what failed; how long adapters take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from msgspec import to_builtins

from tupletree.cli.arguments import Json
from tupletree.cli.output import print_json, print_shown, print_table
from tupletree.cli.pipelines import PipelineName, Places, StoreUrl, existing, find_places
from tupletree.errors import ConfigError
from tupletree.escaping import escape
from tupletree.texts import moment_text

if TYPE_CHECKING:
    from rich.tree import Tree as RichTree

    from tupletree.routes.lineage import Call, Lineage, Tree

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Show what came of messages of a pipeline of routes, and what failed.")

Asked = Annotated[str, typer.Argument(metavar="ID", help="Of a message or an execution.")]
AskedOrAll = Annotated[
    str,
    typer.Argument(metavar="[ID]", help="Of a message or an execution. \\[default: all of them]", show_default=False),
]


@app.command("tree")
def tree_command(
    asked: Asked,
    pipeline: PipelineName = None,
    store: StoreUrl = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Messages in each direction at most.")] = 1000,
    as_json: Json = False,
) -> None:
    """Show where a message came from and all that came of it, with each call; or all messages of an execution."""
    place, tree = _ask(pipeline, store, asked, lambda lineage, one: lineage.tree(one, limit))
    failed = [one.id for one in tree.messages.values() if one.calls and one.calls[-1].status == "failed"]
    for name, words in _dropped(place, failed).items():
        tree.messages[name].state = words
    if as_json:
        print_json(tree)
    else:
        print_tree(tree)


@app.command("failures")
def failures_command(
    asked: AskedOrAll = "",
    pipeline: PipelineName = None,
    store: StoreUrl = None,
    route: Annotated[str, typer.Option("--route", metavar="ROUTE", help="Only those of this route.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """Show calls that failed, the latest first. Of a message: also those of all that came of it."""
    answers = _ask_all(pipeline, store, asked, lambda lineage, one: lineage.failures(one, route=route, limit=limit))
    found = []
    for place, calls in answers:
        dropped = _dropped(place, list(dict.fromkeys(call.message for call in calls)))
        found += [(call, dropped.get(call.message, "")) for call in calls]
    if as_json:
        print_json(*({**to_builtins(call), "state": words} for call, words in found))
        return
    rows = []
    for call, words in found:
        where = call.route, call.adapter, call.message
        error = f"{call.error} ({words.partition(' (')[0]})" if words else call.error
        rows.append((moment_text(call.started_s), *where, str(call.attempt), _span(call.took_s), error))
    print_table(("when", "route", "adapter", "message", "attempt", "took", "error"), rows, none="no failures")


@app.command("stats")
def stats_command(
    asked: AskedOrAll = "",
    pipeline: PipelineName = None,
    store: StoreUrl = None,
    last_s: Annotated[
        float | None, typer.Option("--last-s", metavar="SECONDS", help="Only calls of the last so many seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show per route and adapter: calls, failures, how long they take (p50, p95), and calls per second."""
    since_s = time.time() - last_s if last_s is not None else 0.0
    answers = _ask_all(pipeline, store, asked, lambda lineage, one: lineage.stats(one, since_s=since_s))
    found = [one for _, stats in answers for one in stats]
    if as_json:
        print_json(*found)
        return
    numbers = ("calls", "failed", "filtered", "skipped", "p50", "p95", "per second")
    rows = []
    for one in found:
        counts = (f"{count:,}" for count in (one.calls, one.failed, one.filtered, one.skipped))
        spans = ("–" if value is None else _span(value) for value in (one.p50_s, one.p95_s))
        rows.append((one.pipeline, one.route, one.adapter, *counts, *spans, f"{one.rate_per_s:,.1f}"))
    print_table(("pipeline", "route", "adapter", *numbers), rows, numbers=numbers, none="no calls")


def print_tree(tree: Tree) -> None:
    """Print a tree; a message that came of several is shown whole once, and then by its id."""
    from rich.text import Text
    from rich.tree import Tree as RichTree

    title = f"execution {tree.asked}" if tree.is_execution else f"message {tree.asked}"
    root = RichTree(Text(escape(title)))
    shown: set[str] = set()
    waiting = [(root, name) for name in reversed(tree.roots)]
    while waiting:
        above, name = waiting.pop()
        message = tree.messages[name]
        text = Text(escape(name), style="bold" if name == tree.asked else "")
        if name in shown:
            text.append(" (see above)")
            above.add(text)
            continue
        shown.add(name)
        parts = [part for part in (message.route, message.state) if part]
        text.append(f"  {escape(', '.join(parts))}" if parts else "  no calls known")
        if len(message.parents) > 1:
            text.append(f"  of {len(message.parents)} messages")
        for line in calls_in_words(message.calls):
            text.append(f"\n  {line}", style="red" if " failed " in f"{line} " else "")
        branch = above.add(text)
        if message.more_children:
            _add_more(branch, message.more_children)
        waiting += [(branch, child) for child in reversed(message.children)]
    print_shown(root)


def _add_more(branch: RichTree, count: int) -> None:
    from rich.text import Text

    branch.add(Text(f"… {count:,} more (--limit)"))


def calls_in_words(calls: list[Call]) -> Iterator[str]:
    """Calls as lines: those of an attempt that went well on one, each that did not on its own."""
    line: list[str] = []
    attempts = len({call.attempt for call in calls}) > 1
    for number, call in enumerate(calls):
        prefix = f"attempt {call.attempt}: " if attempts and not line else ""
        words = f"{prefix}{escape(call.adapter)} {call.status}"
        if call.status not in {"skipped", "pending"}:
            words += f" {_span(call.took_s)}"
        line.append(words + (f": {escape(call.error)}" if call.error else ""))
        following = calls[number + 1] if number + 1 < len(calls) else None
        if following is None or following.attempt != call.attempt or call.error:
            yield ", ".join(line)
            line = []


def _ask_all(
    pipeline: str | None, store: str | None, asked: str, question: Callable[[Lineage, str], T]
) -> list[tuple[Places, T]]:
    """Ask each place until one knows the id; without an id, all of them."""
    if asked:
        return [_ask(pipeline, store, asked, question)]
    return list(_answers(pipeline, store, asked, question))


def _ask(
    pipeline: str | None, store: str | None, asked: str, question: Callable[[Lineage, str], T]
) -> tuple[Places, T]:
    """Ask each place until one knows."""
    return next(_answers(pipeline, store, asked, question))


def _answers(
    pipeline: str | None, store: str | None, asked: str, question: Callable[[Lineage, str], T]
) -> Iterator[tuple[Places, T]]:
    """The answers of those that have one. Raises ConfigError if none has."""
    from tupletree.routes.lineage import Lineage

    first_fault: ConfigError | None = None
    has_answered = False
    for place in find_places(pipeline, store=store):
        try:
            with Lineage.open(_lineage_of(place)) as lineage:
                try:
                    answer = question(lineage, asked)
                except ConfigError:
                    known = _in_its_ledger(place, asked)
                    if known is None:
                        raise
                    answer = question(lineage, known)
        except ConfigError as error:
            first_fault = first_fault or error
            continue
        has_answered = True
        yield place, answer
    if not has_answered and first_fault is not None:
        raise first_fault


def _in_its_ledger(place: Places, asked: str) -> str | None:
    """The id here of a message that has another one in its queue: another program published it."""
    from tupletree.routes.ledger import Ledger

    if not place.ledger or not asked:
        return None
    ledger = Ledger.open(existing(place.ledger))
    try:
        found = ledger.message(asked)
    finally:
        ledger.close()
    return None if found is None or found.message.id == asked else found.message.id


def _dropped(place: Places, messages: Sequence[str]) -> dict[str, str]:
    """Those of these messages that are dead and were handled elsewhere, with the ledger's words, if it can tell."""
    from tupletree.routes.accounts import dropped_among
    from tupletree.routes.ledger import Ledger

    if not place.ledger or not messages:
        return {}
    try:
        ledger = Ledger.open(existing(place.ledger))
    except ConfigError:  # lineage may be kept for longer
        return {}
    try:
        return dropped_among(messages, ledger)
    finally:
        ledger.close()


def _lineage_of(place: Places) -> str:
    if not place.lineage:
        raise ConfigError("this pipeline writes no lineage", where=place.name, got="lineage level off")
    return place.lineage


def _span(seconds: float) -> str:
    """A duration with three digits."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 0.001:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"
