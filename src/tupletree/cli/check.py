"""`tupletree check`: find every fault of a topology and its options without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Option, RuntimeName, Set, SettingsFile, Target
from tupletree.errors import ConfigError, TopologyError

if TYPE_CHECKING:
    from tupletree.topology.model import TopologySpec

__all__ = ["check_command"]

_SHOWN = {RuntimeName.SPARK: "Spark", RuntimeName.LOCAL: "the local runtime"}


def check_command(
    target: Target,
    runtime: Annotated[
        RuntimeName | None,
        typer.Option(help="What is to run it: what it would refuse is a fault. \\[default: what both would refuse]"),
    ] = None,
    settings: Set = None,
    options: Option = None,
    config: SettingsFile = None,
) -> None:
    """Build a topology, report every fault at once, and run nothing. Exit code 0 if there is none, 2 otherwise.

    Without --runtime, what one of the runtimes would refuse is printed, and is no fault.
    """
    from tupletree.cli.settings import options_of
    from tupletree.cli.target import load_target
    from tupletree.sinks.files import directories_of
    from tupletree.topology.components import Spout
    from tupletree.topology.window_check import refuse_stuck

    topology, _ = load_target(target, settings or ())
    spec = topology.build()
    resolved = options_of(spec.options, config, options or ())
    refuse_stuck(spec, resolved, resolved.max_spout_pending)
    directories_of(spec)
    spouts = [one.body for one in spec.components.values() if isinstance(one.body, Spout)]
    faults = [finding for spout in spouts for finding in spout.faults()]
    if faults:
        raise ConfigError(f"{spec.name} cannot read its input", findings=faults)
    refusals = _refusals(spec, [runtime] if runtime else [*RuntimeName])
    counts = {"spout": 0, "bolt": 0, "sink": 0}
    for component in spec.components.values():
        counts[component.kind] += 1
    parts = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items())
    print(f"{spec.name} is OK: {parts}")
    for refused_by, error in refusals.items():
        print(f"but not on {_SHOWN[refused_by]}: {error}")


def _refusals(spec: TopologySpec, runtimes: list[RuntimeName]) -> dict[RuntimeName, TopologyError]:
    """Which of the runtimes would refuse it, and why; if all of them would, the first reason is raised."""
    from tupletree.runtimes.run import refuse

    found: dict[RuntimeName, TopologyError] = {}
    for runtime in runtimes:
        try:
            refuse(spec, runtime.value)
        except TopologyError as error:
            found[runtime] = error
    if len(found) == len(runtimes):
        raise found[runtimes[0]]
    return found
