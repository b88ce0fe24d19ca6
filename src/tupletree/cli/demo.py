"""`tupletree demo`: count words while some lines always fail and some fail at first, and account for every line."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tupletree.cli.run import EXIT_INTERRUPTED, Interruption, wait_for
from tupletree.errors import InternalError

if TYPE_CHECKING:
    from rich.console import Console

    from tupletree.runtimes.api import Summary
    from tupletree.tracking.outcomes import DeadLetter

POISON = "KeyError"
FLAKY = "coroutine"
"""Words of the Python documentation: 8 lines and about 27 of them, much the same in every CPython since 3.8."""

TOP = 10
PIPED_WIDTH = 120


def demo_command() -> None:
    """Count the words of Python's own documentation on Spark while some lines fail, and account for every line.

    Does what `tupletree run examples/word_count.py` does. Everything is kept in a temporary folder, for the
    commands that are named at the end. Exit code 0 if everything is accounted for: every line acked or dead, the counts
    equal to an independent count.
    """
    console = _console()
    place = Path(tempfile.mkdtemp(prefix="tupletree-demo-"))
    texts = _documentation()
    poisoned, flaky = _matching(POISON, texts), _matching(FLAKY, texts)
    console.rule("[bold]Tupletree: the outcome of every line", align="left")
    console.print(
        f"{len(texts):,} lines of Python's documentation go through split and count, on Spark.\n"
        f"{len(poisoned):>6} are poison, those with “{POISON}”: they fail on every attempt.\n"
        f"{len(flaky):>6} are flaky, those with “{FLAKY}”: they fail on their first two attempts.\n"
        f"All of it is kept in {place}\n"
    )
    ended, interrupted = _run(place)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    balance = _report(console, ended, place, texts, poisoned, flaky)
    raise typer.Exit(0 if balance.holds else 1)


def example_path() -> Path:
    """The word count example: beside the installed package, or in the repository of an editable install.

    Raises InternalError if neither has it.
    """
    import tupletree

    package = Path(tupletree.__file__).parent
    candidates = [folder / "examples" / "word_count.py" for folder in (package, package.parents[1])]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise InternalError("the demo's topology was not installed", expected=" or ".join(map(str, candidates)))


@dataclass(frozen=True)
class Balance:
    """What was counted, compared with what is expected.

    Attributes:
        settled: every message is acked or dead.
        dead_as_expected: exactly the poisoned lines are dead.
        counts: word → last count, in the sink.
        expected: word → count, by `collections.Counter` over the lines that are not poison.
        once: every count from 1 to the last is in the sink exactly once.
    """

    settled: bool
    dead_as_expected: bool
    counts: Mapping[str, int]
    expected: Mapping[str, int]
    once: bool

    @property
    def equal(self) -> bool:
        """Whether the sink's counts are those of the independent count."""
        return self.counts == self.expected

    @property
    def holds(self) -> bool:
        """Whether everything is as expected."""
        return self.settled and self.dead_as_expected and self.equal and self.once


def compare(
    texts: Sequence[str],
    poisoned: Iterable[int],
    dead: Iterable[int],
    rows: Iterable[Mapping[str, int | str]],
    still_open: int,
) -> Balance:
    """Compare what a run left with the text that it read.

    Args:
        texts: every line.
        poisoned: 1-based numbers of the lines that are expected to be dead.
        dead: those of the lines that are.
        rows: the sink's rows, {"word", "count"}.
        still_open: messages without a verdict.
    """
    excluded = set(poisoned)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        seen[str(row["word"])].append(int(row["count"]))
    expected = Counter(word for number, text in enumerate(texts, 1) if number not in excluded for word in text.split())
    return Balance(
        settled=still_open == 0,
        dead_as_expected=set(dead) == excluded,
        counts={word: max(counts) for word, counts in seen.items()},
        expected=dict(expected),
        once=all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in seen.values()),
    )


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def _documentation() -> list[str]:
    """The lines that the example reads when it is given no paths; line n is message ("topics", n)."""
    from pydoc_data.topics import topics

    return [line for name in sorted(topics) for line in topics[name].splitlines()]


def _matching(pattern: str, texts: Sequence[str]) -> list[int]:
    return [number for number, text in enumerate(texts, 1) if re.search(pattern, text)]


def _run(place: Path) -> tuple[Summary, bool]:
    """What `tupletree run` does, with settings of its own: a demo must not depend on where it is started."""
    from tupletree.cli.progress import ProgressDisplay
    from tupletree.cli.target import load_target
    from tupletree.config import resolve_options
    from tupletree.runtimes import run

    settings = [f"out={place / 'counts'}", f"poison={POISON}", f"flaky={FLAKY}"]
    topology, target = load_target(str(example_path()), settings)
    options = resolve_options(code=topology.build().options, command_line=["backoff_initial_ms=20"])
    with Interruption() as interruption:
        handle = run.run(topology, options=options, target=target, state_dir=place / "state")
        with ProgressDisplay(topology.name, "spark") as display:
            return wait_for(handle, display, interruption, options.drain_timeout_s), interruption.count > 0


def _report(
    console: Console, ended: Summary, place: Path, texts: list[str], poisoned: list[int], flaky: list[int]
) -> Balance:
    """Print how it ended, and whether everything is accounted for."""
    from tupletree.cli.dead import print_letters
    from tupletree.cli.summary import summary_text
    from tupletree.cli.why import print_history
    from tupletree.runtimes import deadletters
    from tupletree.runtimes import run as history_run
    from tupletree.sinks.reader import read_rows

    print(summary_text(ended))
    letters = deadletters.read(ended.state_dir)
    console.print("\n[bold]Dead letters[/bold], each with its reason\n")
    print_letters(letters)
    stories = [("poisoned", poisoned[0]), ("flaky", next(number for number in flaky if number not in poisoned))]
    for kind, number in stories:
        console.print(f"\n[bold]Why[/bold]: the history of a {kind} line, {texts[number - 1].strip()!r}\n")
        print_history(history_run.why(ended.state_dir, _id_text(number)))
    dead = [_number_of(letter) for letter in letters]
    balance = compare(texts, poisoned, dead, read_rows(place / "counts"), ended.open)
    _print_words(console, balance)
    _print_verdict(console, balance, len(texts), len(letters))
    _print_next(console, place, [_id_text(number) for _, number in stories])
    return balance


def _number_of(letter: DeadLetter) -> int:
    _, number = letter.message_id
    return int(number)


def _id_text(number: int) -> str:
    from tupletree.tracking.message_ids import id_text

    return id_text(["topics", number])


def _print_words(console: Console, balance: Balance) -> None:
    from rich.table import Table

    table = Table("word", title=f"\nThe {TOP} most frequent words", title_justify="left", box=None)
    table.add_column("in the sink", justify="right")
    table.add_column("independent count", justify="right")
    for word, count in Counter(balance.counts).most_common(TOP):
        table.add_row(word, f"{count:,}", f"{balance.expected.get(word, 0):,}")
    console.print(table)


def _print_verdict(console: Console, balance: Balance, lines: int, dead: int) -> None:
    console.print(
        f"\n[bold]The balance[/bold]: {lines:,} lines went in, {lines - dead:,} acked, {dead} dead.\n"
        f"  every line acked or dead, none open: {_yes(balance.settled)}\n"
        f"  dead are the poisoned lines and no other: {_yes(balance.dead_as_expected)}\n"
        f"  {len(balance.counts):,} words, counted {sum(balance.counts.values()):,} times,"
        f" equal to an independent count: {_yes(balance.equal)}\n"
        f"  every update is in the sink exactly once: {_yes(balance.once)}"
    )


def _print_next(console: Console, place: Path, ids: Sequence[str]) -> None:
    state_dir = ["--state-dir", str(place / "state")]
    poisoned, flaky = ids
    name = typed_name()
    commands = [
        [name, "dead", "show", poisoned, *state_dir],
        [name, "why", flaky, *state_dir],
        [name, "run", _shown(example_path()), "--set", "paths=README.md", "--set", "out=counts"],
    ]
    console.print("\n[bold]Next[/bold]\n")
    for command in commands:
        # One line each, however long: users copy them.
        console.print(f"  {shlex.join(command)}", markup=False, soft_wrap=True)


def typed_name() -> str:
    """What to type for this command: its name, or its path if a shell does not find that, as after `make demo`."""
    path = Path(sys.executable).with_name("tupletree")
    return _shown(path) if shutil.which("tupletree") is None and path.exists() else "tupletree"


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _yes(fact: bool) -> str:
    return "[green]yes[/green]" if fact else "[bold red]NO[/bold red]"
