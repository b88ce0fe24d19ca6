"""State directories of Spark runs for tests that have a fingerprint and no topology."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.format.upgrades import Upgrades
from tupletree.topology.changes.fingerprint import Fingerprint
from tupletree.topology.changes.upgrades import UpgradePlan, Words, plan_upgrade

__all__ = ["open_state_dir"]


def open_state_dir(path: Path, topology: str, fingerprint: dict[str, Any]) -> StateDirectory:
    """Make or resume one; nothing that is stored may be lost by a change."""
    return StateDirectory.open(path, topology, fingerprint, _without_words)


def _without_words(_: Path, stored: Fingerprint, current: Fingerprint, upgrades: Upgrades) -> UpgradePlan:
    return plan_upgrade(stored, current, {}, Words(), upgrades.past)
