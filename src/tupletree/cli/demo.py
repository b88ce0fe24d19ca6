"""`tupletree demo`: run a topology in which things go wrong, and account for every message."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tupletree.cli.run import Interruption, RuntimeName, wait_for

if TYPE_CHECKING:
    from tupletree.runtimes.base import Summary
    from tupletree.topology.builder import Topology

__all__ = ["demo_command"]

_MODULE = "tupletree.cli.demo_orders"
_DEADLY = 444


def demo_command(
    runtime: Annotated[RuntimeName, typer.Option(help="What runs it.")] = RuntimeName.SPARK,
    count: Annotated[int, typer.Option(min=_DEADLY, help="How many orders.")] = 1000,
) -> None:
    """Run orders of which some are unreadable, some fail at first and one kills its worker; account for every one.

    Exit code 0 if all of them are accounted for and every receipt is there exactly once.
    """
    from tupletree.cli import demo_orders

    place = Path(tempfile.mkdtemp(prefix="tupletree-demo-"))
    # On the local runtime a bolt shares its process with everything else: nothing survives its death.
    deadly = _DEADLY if runtime is RuntimeName.SPARK else None
    parameters: dict[str, Any] = {"out": place / "receipts", "count": count, "deadly": deadly}
    print(f"{count:,} orders go through parse and settle, on the runtime {runtime.value}.")
    print(f"Every {demo_orders.UNREADABLE_EVERY}th is unreadable: it can never succeed.")
    print(f"Every {demo_orders.FLAKY_EVERY}th fails at its first attempt.")
    if deadly:
        print(f"Order {deadly} kills the worker process that touches it.")
    print(flush=True)
    ended, interrupted = _run(demo_orders.topology(**parameters), runtime, place / "state", parameters)
    if interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if _account(ended, place, count) else 1)


def _run(topology: Topology, runtime: RuntimeName, state_dir: Path, parameters: dict[str, Any]) -> tuple[Summary, bool]:
    import tupletree
    from tupletree.cli.progress import ProgressDisplay
    from tupletree.cli.settings import options_of
    from tupletree.runtimes import base
    from tupletree.targets import TargetRef

    options = options_of(topology.build().options, None, ())
    search_path = str(Path(tupletree.__file__).parents[1])
    with Interruption() as interruption:
        handle = base.run(
            topology,
            runtime=runtime.value,
            options=options,
            target=TargetRef(_MODULE, "topology", search_path, parameters),
            state_dir=state_dir,
            append=False,
        )
        with ProgressDisplay(topology.name, runtime.value) as display:
            return wait_for(handle, display, interruption, options.drain_timeout_s), interruption.count > 0


def _account(ended: Summary, place: Path, count: int) -> bool:
    """Tell how it ended and whether the books balance."""
    from tupletree.cli.dead import print_letters
    from tupletree.cli.summary import summary_text
    from tupletree.cli.why import print_story
    from tupletree.runtimes import deadletters, history
    from tupletree.sinks.reader import read_rows

    print(summary_text(ended))
    letters = deadletters.read(ended.state_dir)
    print("\nDead letters, each with its reason:\n")
    print_letters(letters)
    for message in (f"order-{_DEADLY}", "order-40"):
        print(f"\nWhat happened to {message}:\n")
        print_story(history.why(ended.state_dir, message))
    receipts = Counter(row["number"] for row in read_rows(place / "receipts"))
    dead = {int(str(letter.message_id).removeprefix("order-")) for letter in letters}
    once = set(receipts.values()) <= {1}
    complete = receipts.keys() | dead == set(range(1, count + 1)) and not receipts.keys() & dead
    print(f"\n{len(receipts):,} orders have a receipt, {len(dead)} are dead; {count:,} went in.")
    print(f"Every order accounted for: {_yes(complete)}. Every receipt exactly once: {_yes(once)}.")
    print(f"\nRead on: tupletree dead show order-{_DEADLY} --state-dir {ended.state_dir}")
    return complete and once


def _yes(fact: bool) -> str:
    return "yes" if fact else "NO"
