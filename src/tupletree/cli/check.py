"""`tupletree check`: find every fault of a topology and its options without running it."""

from __future__ import annotations

from tupletree.cli.arguments import Option, Set, SettingsFile, Target
from tupletree.errors import ConfigError

__all__ = ["check_command"]


def check_command(target: Target, settings: Set = None, options: Option = None, config: SettingsFile = None) -> None:
    """Build a topology, report every fault at once, and run nothing. Exit code 0 if there is none, 2 otherwise."""
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
    counts = {"spout": 0, "bolt": 0, "sink": 0}
    for component in spec.components.values():
        counts[component.kind] += 1
    parts = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items())
    print(f"{spec.name} is OK: {parts}")
