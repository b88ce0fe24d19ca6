"""`tupletree check`: find every fault of a topology and its options without running it.

With a state directory also what a start would do with what is stored there.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Drop, Json, Option, Rename, RuntimeName, Set, SettingsFile, Target
from tupletree.cli.output import print_table
from tupletree.errors import ConfigError, TopologyError
from tupletree.escaping import escape_json
from tupletree.texts import counted

if TYPE_CHECKING:
    from tupletree.config import Options
    from tupletree.topology.builder import Topology
    from tupletree.topology.model import TopologySpec

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
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="Show what a start would do with what is stored here."),
    ] = None,
    rename: Rename = None,
    drop: Drop = None,
    as_json: Json = False,
) -> None:
    """Build a topology, report every fault at once, and run nothing. Exit code 0 if there is none, 2 otherwise.

    Without --runtime, what one of the runtimes would refuse is printed, and is no fault.

    With --state-dir the plan of what is carried over is shown as well, and a start that would be refused is a fault.
    It reads only; nothing should run on the directory.
    """
    from tupletree.cli.settings import options_of
    from tupletree.cli.target import load_target
    from tupletree.sinks.files import directories_of
    from tupletree.topology.components import Spout
    from tupletree.topology.limits import refuse_stuck

    topology, _ = load_target(target, settings or ())
    spec = topology.build()
    resolved = options_of(spec.options, config, options or ())
    refuse_stuck(spec, resolved, None)
    directories_of(spec)
    spouts = [one.body for one in spec.components.values() if isinstance(one.body, Spout)]
    faults = [finding for spout in spouts for finding in spout.faults()]
    if faults:
        raise ConfigError(f"{spec.name} cannot read its input", findings=faults)
    refusals = _refusals(spec, [runtime] if runtime else [*RuntimeName])
    if state_dir is not None:
        _show_plan(topology, resolved, state_dir, rename or [], drop or [], as_json=as_json)
        return
    counts = {"spout": 0, "bolt": 0, "sink": 0}
    for component in spec.components.values():
        counts[component.kind] += 1
    limits = {one.name: one.pending for one in spec.components.values() if one.pending is not None}
    if as_json:
        print(json.dumps({"topology": spec.name, **counts, "pending": limits}))
        return
    parts = ", ".join(counted(count, kind) for kind, count in counts.items())
    print(f"{spec.name} is OK: {parts}")
    for name, limit in limits.items():
        print(f"spout {name}: at most {counted(limit, 'message')} of each task open")
    if resolved.durable and runtime is not RuntimeName.SPARK:
        print(
            "durable on the local runtime: after a kill, what the last checkpoint does not have is done again, "
            "at least once, also in state and sinks"
        )
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


def _show_plan(
    topology: Topology, options: Options, state_dir: Path, renames: list[str], drops: list[str], *, as_json: bool
) -> None:
    from tupletree.cli.settings import find_state_dir, words_of
    from tupletree.runtimes.run import preview

    plan = preview(topology, options, find_state_dir(state_dir), words_of(renames, drops))
    if as_json:
        found = {
            "topology": topology.name,
            "state_dir": str(state_dir),
            "starts": not plan.faults,
            "plan": [asdict(step) for step in plan.steps],
            "faults": [asdict(fault) for fault in plan.faults],
        }
        print(escape_json(json.dumps(found, ensure_ascii=False)))
    else:
        print_table(
            ("component", "decision", "change", "stored"),
            [(step.component, step.decision, step.change, step.stored) for step in plan.steps],
            whole=("component", "decision"),
        )
    if plan.faults:
        if as_json:
            raise typer.Exit(2)
        raise ConfigError(f"{topology.name} cannot start on {state_dir}", findings=plan.faults)
    if not as_json:
        print(f"{topology.name} can start on {state_dir}: {'as shown' if plan.is_change else 'nothing has changed'}")
