"""What a start does with what is stored, when the topology has changed: decided here for it, and for `tupletree check`.

Reads only.
"""

from __future__ import annotations

from pathlib import Path

from tupletree.config import Options
from tupletree.errors import Finding
from tupletree.routing.plan import Plan
from tupletree.runtimes.deadletters import existing
from tupletree.runtimes.spark.driver.rescale import bound_to_tasks
from tupletree.runtimes.spark.driver.stored import contents_of
from tupletree.runtimes.spark.format.spool import lasting_fingerprint
from tupletree.runtimes.spark.format.statedir import stored_fingerprint
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.topology.changes.fingerprint import Fingerprint
from tupletree.topology.changes.upgrades import UpgradePlan, Words, plan_upgrade
from tupletree.topology.model import TopologySpec


def decide_upgrade(
    path: Path, stored: Fingerprint, current: Fingerprint, upgrades: Upgrades, words: Words, tasks: Plan
) -> UpgradePlan:
    """Decide what becomes of everything in a state directory. Raises CheckpointError if a file is damaged.

    Args:
        path: the state directory.
        stored: the topology that the last start had.
        current: the one that is to start.
        upgrades: how the topology changed before.
        words: what the user said.
        tasks: the topology laid out now.
    """
    contents = contents_of(path, upgrades)
    plan = plan_upgrade(stored, current, contents.stored, words, upgrades.past)
    names = plan.renames
    before = {names.get(name, name): one for name, one in contents.tasks.items()}
    now = {name: (0, tasks.parallelism(name)) for name in tasks.spec.components}
    kept = {names.get(name, name) for name in contents.kept} - {*plan.drops}
    before = {name: one for name, one in before.items() if name not in plan.drops}
    for text in bound_to_tasks(tasks.spec, before, now, kept, is_drained=contents.is_idle):
        name, _, change = text.partition(": ")
        plan.faults.append(
            Finding(
                change,
                name,
                expected="no open message: a stop keeps what windows and batches hold, a drain ends them",
                next_step="start it with the old parallelism, end it with `tupletree drain`, and change it then",
            )
        )
    return plan


def preview_upgrade(path: Path, spec: TopologySpec, options: Options, words: Words) -> UpgradePlan:
    """What a start with this topology would do with what is stored.

    Raises:
        ConfigError: there is no run in this folder.
        CheckpointError: it is that of another topology or runtime, or it is damaged.
    """
    stored, upgrades = stored_fingerprint(existing(path), spec.name)
    return decide_upgrade(path, stored, lasting_fingerprint(spec), upgrades, words, Plan.of(spec, options, 1))
