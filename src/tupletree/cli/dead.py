"""`tupletree dead`: list, show, replay and drop the messages that will not be tried again by themselves."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Json, StateDir
from tupletree.cli.output import console, may_ask
from tupletree.errors import ConfigError
from tupletree.escaping import escape, escape_block, escape_json
from tupletree.texts import counted, moment_text

if TYPE_CHECKING:
    from pathlib import Path

    from tupletree.tracking.outcomes import DeadLetter

LISTED = 100
"""Letters that `dead list` shows, unless it is told otherwise: a systematic fault makes thousands."""

app = typer.Typer(no_args_is_help=True, help="List, show, replay and drop dead letters.")

Selector = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="A message id as `dead list` shows it, or SPOUT/MESSAGE_ID.")
]


_WORD = re.compile(r"\w*\d\w*")
"""A number, or a word with a digit in it: a line, an id, a port."""
MOST_VALUES = 5
"""Of such a word in one place of errors that are equal otherwise; with more it says nothing of the kind of error. So an
answer 404 and one 503 are two kinds."""

OfComponent = Annotated[
    str, typer.Option("--component", metavar="NAME", help="Only those that died in this component.")
]
OfError = Annotated[
    str,
    typer.Option("--error", metavar="TEXT", help="Only those with this text in the error, as `dead list` shows it."),
]


@app.command("list")
def list_command(
    component: OfComponent = "",
    error: OfError = "",
    limit: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="How many to list; 0 is all. \\[default: 100; of --json all]"),
    ] = None,
    by_error: Annotated[bool, typer.Option("--by-error", help="Count them by component and error.")] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the dead letters of a run, one line each, or count them by what was wrong."""
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    place = find_state_dir(state_dir)
    letters = _chosen(deadletters.read(place), component, error)
    if not letters and not as_json:
        print(f"no dead letters{' of this kind' if component or error else ''} in {escape(str(place))}")
    elif by_error:
        _print_kinds(letters, as_json=as_json)
    elif as_json:
        for letter in letters[: limit or None]:
            print(_json_of(letter))
    else:
        print_letters(letters, LISTED if limit is None else limit)


def _chosen(letters: Sequence[DeadLetter], component: str, error: str) -> list[DeadLetter]:
    return [
        one
        for one in letters
        if (not component or one.failure.component == component) and (not error or error in _error_of(one))
    ]


def print_letters(letters: Sequence[DeadLetter], limit: int = 0) -> None:
    """A table of dead letters, one line each; of more than `limit` the first ones, and how many there are. 0 is all."""
    shown = letters[: limit or None]
    _print_table(
        ("message", "died", "attempts", "why", "component", "error"),
        [
            (
                escape(f"{letter.spout}/{_text_of(letter)}"),
                moment_text(letter.died_s),
                str(letter.attempts),
                letter.failure.kind.value,
                escape(letter.failure.component) or "–",
                # The first line only: `dead show` has the whole text.
                escape(_error_of(letter).partition("\n")[0]),
            )
            for letter in shown
        ],
    )
    if len(shown) < len(letters):
        print(
            f"{len(shown):,} of {len(letters):,} dead letters\n"
            "  next: --by-error counts them by what was wrong, --component and --error choose, --limit 0 lists all"
        )


def _print_kinds(letters: Sequence[DeadLetter], *, as_json: bool) -> None:
    errors = [_error_of(one).partition("\n")[0] for one in letters]
    kinds = kinds_of(errors)
    counted = Counter(
        (one.failure.component, one.failure.kind.value, kinds[error])
        for one, error in zip(letters, errors, strict=True)
    ).most_common()
    if as_json:
        for (component, why, error), count in counted:
            print(escape_json(json.dumps({"count": count, "component": component, "why": why, "error": error})))
        return
    _print_table(
        ("letters", "why", "component", "error"),
        [(f"{count:,}", why, escape(component) or "–", escape(error)) for (component, why, error), count in counted],
    )


def kinds_of(errors: Collection[str]) -> dict[str, str]:
    """Error → its kind: the error itself, with … for words with digits that take many values in errors like it."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for error in dict.fromkeys(errors):
        alike[_WORD.sub("…", error)].append(error)
    kinds: dict[str, str] = {}
    for ones in alike.values():
        places = zip(*map(_WORD.findall, ones), strict=True)
        is_left_out = [len(set(values)) > MOST_VALUES for values in places]
        for error in ones:
            kinds[error] = _without(error, is_left_out)
    return kinds


def _without(error: str, is_left_out: Iterable[bool]) -> str:
    places = iter(is_left_out)
    return _WORD.sub(lambda word: "…" if next(places) else word.group(), error)


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The last column is the only one that is cut to fit. Lines of our own: a table of Rich takes 0.3 ms per row."""
    from rich.cells import cell_len, set_cell_size

    terminal = console()
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        line = (" " + "  ".join(map(set_cell_size, row, widths))).rstrip()
        if cell_len(line) > terminal.width:
            line = set_cell_size(line, terminal.width - 1) + "…"
        if row is names:
            terminal.print(line, style="bold", soft_wrap=True)
        else:
            print(line)


@app.command("show")
def show_command(message: Selector, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show everything that is stored of one dead letter: payload, failing tuple, error, attempts and times."""
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    spellings = deadletters.spellings_of(message)
    found = [letter for letter in deadletters.read(find_state_dir(state_dir)) if _matches(letter, spellings)]
    if not found:
        raise ConfigError("no dead letter has this id", got=message, next_step="tupletree dead list shows them all")
    for letter in found:
        print(_json_of(letter) if as_json else _page_of(letter))


@app.command("replay")
def replay_command(
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="Message ids as `dead list` shows them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the run.")] = False,
    component: OfComponent = "",
    error: OfError = "",
    state_dir: StateDir = None,
) -> None:
    """Ask for dead letters to be processed again, with attempts counted from 1.

    A run that is going on accepts the request by itself, one that has ended at its next start on this state directory.
    """
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    place = find_state_dir(state_dir)
    selectors = _selectors(place, messages, component, error, everything=everything, to_be="replayed")
    waiting = {one.id for one in deadletters.requests(place, lambda _: None)}
    request = deadletters.request_replay(place, selectors)
    print(f"requested before, and not accepted yet: {request}" if request in waiting else f"requested: {request}")
    print("  next: nothing if it is running; otherwise start it as before, with its --set values:")
    how = " --runtime local --durable" if deadletters.is_local_run(place) else ""
    print(f"        tupletree run TARGET{how} --state-dir {escape(str(place))}")


@app.command("drop")
def drop_command(
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="Message ids as `dead list` shows them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the run.")] = False,
    component: OfComponent = "",
    error: OfError = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for `tupletree why`.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Drop dead letters that were handled elsewhere: they are neither listed nor replayed any more.

    Their messages stay dead in all counts. The run may go on meanwhile.
    """
    import time

    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    place = find_state_dir(state_dir)
    selectors = _selectors(place, messages, component, error, everything=everything, to_be="dropped")
    if not yes:
        may_ask(as_json=as_json)
        which = "all dead letters" if selectors is None else counted(len(selectors), "dead letter")
        typer.confirm(f"drop {which} of {escape(str(place))}?", abort=True)
    dropped = deadletters.drop_letters(place, selectors, reason=reason, wall_s=time.time())
    if as_json:
        named = [{"spout": one.spout, "message_id": one.message_id} for one in dropped]
        print(escape_json(json.dumps({"dropped": len(dropped), "reason": reason, "letters": named})))
    else:
        print(f"dropped: {counted(len(dropped), 'dead letter')}")


def _selectors(
    place: Path, messages: list[str] | None, component: str, error: str, *, everything: bool, to_be: str
) -> list[str] | None:
    """The letters that are asked for in one of three ways, by their names; None: all."""
    from tupletree.runtimes import deadletters

    ways = [bool(messages), everything, bool(component or error)]
    if sum(ways) != 1:
        raise ConfigError(
            f"what is to be {to_be}?",
            got="several ways to say it" if any(ways) else "nothing",
            expected="the names of messages, or --all, or --component and --error",
        )
    if component or error:
        chosen = _chosen(deadletters.read(place), component, error)
        if not chosen:
            raise ConfigError(
                "no dead letter is of this kind",
                where=str(place),
                got=", ".join(
                    f"--{name} {text}" for name, text in (("component", component), ("error", error)) if text
                ),
                next_step="tupletree dead list --by-error shows which there are",
            )
        messages = [f"{one.spout}/{_text_of(one)}" for one in chosen]
    return None if everything else messages


def _matches(letter: DeadLetter, spellings: list[str]) -> bool:
    text = _text_of(letter)
    return not {text, f"{letter.spout}/{text}"}.isdisjoint(spellings)


def _error_of(letter: DeadLetter) -> str:
    failure = letter.failure
    return f"{failure.error_type}: {failure.error}" if failure.error_type else failure.error


def _text_of(letter: DeadLetter) -> str:
    from tupletree.tracking.message_ids import id_text

    return id_text(letter.message_id)


def _json_of(letter: DeadLetter) -> str:
    import msgspec

    return escape_json(msgspec.json.encode(letter).decode())


def _page_of(letter: DeadLetter) -> str:
    failure = letter.failure
    rows = [
        ("message", f"{letter.spout}/{_text_of(letter)}"),
        ("topology", letter.topology),
        ("first emitted", moment_text(letter.first_emitted_s)),
        ("died", moment_text(letter.died_s)),
        ("attempts", str(letter.attempts)),
        ("why", failure.kind.value + (", permanent" if failure.permanent else "")),
        ("component", f"{failure.component} task {failure.task_id}" if failure.component else ""),
        ("error", _error_of(letter)),
        ("failing tuple", failure.failing_tuple),
        ("payload", f"{letter.payload_type} {json.dumps(letter.payload)}"),
        ("note", letter.note),
    ]
    page = "\n".join(f"{name:<14} {escape_block(text)}" for name, text in rows if text)
    return f"{page}\n{escape_block(failure.traceback)}" if failure.traceback else page
