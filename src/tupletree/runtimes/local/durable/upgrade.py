"""What a start of a durable local run does with what its journal has, when the topology has changed.

The same rules as on Spark (`topology.changes`), decided here for the start and for `tupletree check`, and carried out
in one transaction: names, drops, values in the form of a wider class, and the topology that holds from then on. What
windows, joins and batches held is in no journal: their messages are open, and come again by the new topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tupletree.config import Options
from tupletree.errors import Finding, ForeignCheckpointError
from tupletree.routing.plan import Plan
from tupletree.runtimes.deadletters import letters_of, stored_numbers
from tupletree.runtimes.local.durable.journal import Journal, StateRow
from tupletree.runtimes.local.statedir import JOURNAL, stored_fingerprint
from tupletree.topology.changes.fingerprint import Fingerprint, fingerprint
from tupletree.topology.changes.upgrades import Step, StoredComponent, UpgradePlan, Words, plan_upgrade
from tupletree.topology.model import BoltSpec, TopologySpec


class Past(msgspec.Struct):
    """How the topology of a journal has changed.

    Attributes:
        fingerprint: of the topology that the last start had; empty: that of the first one.
        names: earlier names of components → their names now.
        dropped: name → how many files of dead letters there were when it was dropped; those are of that component.
        forms: bolt → how the values of its state are written.
    """

    fingerprint: dict[str, Any] = {}
    names: dict[str, str] = {}
    dropped: dict[str, int] = {}
    forms: dict[str, str] = {}

    @classmethod
    def of(cls, journal: Journal) -> Past:
        """That of a journal."""
        return msgspec.convert(journal.meta().get("past", {}), cls)

    def today(self, name: str) -> str:
        """The name that a component has now."""
        return self.names.get(name, name)

    def is_of_dropped(self, spout: str, letter_id: str) -> bool:
        """Whether a dead letter is of a spout that was dropped since, also where another one has its name now."""
        return int(letter_id.partition("-")[0]) < self.dropped.get(self.today(spout), 0)

    @property
    def given_up(self) -> dict[str, str]:
        """As `plan_upgrade` takes it."""
        return {**dict.fromkeys(self.dropped, ""), **self.names}


def preview_upgrade(path: Path, spec: TopologySpec, options: Options, words: Words) -> UpgradePlan:
    """What a start with this topology would do with what is stored.

    Raises CheckpointError if the directory is that of another topology, or damaged.
    """
    first = stored_fingerprint(path, spec.name)
    plan = Plan.of(spec, options, deputies=True)
    if not (path / JOURNAL).exists():  # killed before it had one
        return plan_upgrade(first, _plain(spec), {}, words)
    journal = Journal(path / JOURNAL)
    try:
        return _decided(journal, path, first, plan, words)
    finally:
        journal.close()


def follow_topology(journal: Journal, state_dir: Path, first: Fingerprint, plan: Plan, words: Words) -> None:
    """Bring what the journal has to the topology that starts, in one transaction. Does nothing if that is done.

    Args:
        journal: of the run.
        state_dir: of the run.
        first: the topology that the first start had.
        plan: the topology laid out.
        words: what the user says of the change.

    Raises:
        CheckpointError: the change is refused, with all reasons; or the journal is damaged.
        ConnectorError: it cannot be written.
    """
    past, current = Past.of(journal), _plain(plan.spec)
    forms = {name: _codec(plan, name).form for name in _with_state(plan.spec)}
    if (past.fingerprint or first) == current and past.forms == forms:
        return
    upgrade = _decided(journal, state_dir, first, plan, words)
    if upgrade.faults:
        raise ForeignCheckpointError(
            f"the topology has changed in a way that its state directory {state_dir} cannot follow",
            findings=upgrade.faults,
        )
    names = {name: upgrade.renames.get(now, now) for name, now in past.names.items()} | upgrade.renames
    letters = max(stored_numbers(state_dir / "dead"), default=-1) + 1
    after = Past(
        fingerprint=current,
        names={name: now for name, now in names.items() if name != now},
        dropped={upgrade.renames.get(name, name): number for name, number in past.dropped.items()}
        | dict.fromkeys(upgrade.drops, letters),
        forms=forms,
    )
    written = {upgrade.renames.get(name, name): form for name, form in past.forms.items()}
    values = {
        name: _in_form(plan, name, rows, written[name], str(journal.path))
        for name, rows in _renamed(journal.state(), upgrade.renames).items()
        if name not in upgrade.drops and written.get(name, forms.get(name)) != forms.get(name)
    }
    rows = _renamed(journal.meta().get("rows", {}), upgrade.renames)
    meta = {"rows": rows, "past": msgspec.to_builtins(after)}
    journal.follow(upgrade.renames, upgrade.drops, values, meta)


def _decided(journal: Journal, state_dir: Path, first: Fingerprint, plan: Plan, words: Words) -> UpgradePlan:
    past = Past.of(journal)
    stored = past.fingerprint or first
    contents = _contents(journal, state_dir, past)
    found = plan_upgrade(stored, _plain(plan.spec), contents, words, past.given_up)
    names = {new: old for old, new in found.renames.items()}
    for name, component in plan.spec.components.items():
        old = names.get(name, name)
        state = component.body.state if isinstance(component.body, BoltSpec) else None
        if old not in stored or state is None or state.is_keyed or name in found.drops:
            continue
        was, now = stored[old]["parallelism"] or 1, component.parallelism or 1
        if was == now or old not in contents:
            continue
        change, at = f"parallelism changed from {was} to {now}, and it has state per task", str(contents[old])
        if name in words.drops:
            found.drops.append(name)
            found.steps.append(Step(name, "dropped", change, at))
        else:
            next_step = f"go back to the old parallelism, or drop what is stored: --drop {name}"
            found.faults.append(Finding(change, name, f"stored: {at}", next_step=next_step))
    return found


def _contents(journal: Journal, state_dir: Path, past: Past) -> dict[str, StoredComponent]:
    """What there is of each component, by its name now."""
    found: dict[str, StoredComponent] = {}
    for name, rows in journal.state().items():
        found.setdefault(name, StoredComponent()).keys = len(rows)
    for (name, _), count in Counter(place for place, _, _ in journal.messages()).items():
        found.setdefault(name, StoredComponent()).open += count
    for (name, _), row in journal.spouts().items():
        found.setdefault(name, StoredComponent()).has_position |= row.position is not None
    for letter_id, letter in letters_of(state_dir, lambda _: None).items():
        if not past.is_of_dropped(letter.spout, letter_id):
            found.setdefault(past.today(letter.spout), StoredComponent()).letters += 1
    return {name: one for name, one in found.items() if not one.is_empty}


def _in_form(plan: Plan, name: str, rows: list[StateRow], form: str, where: str) -> list[StateRow]:
    """Values in the form in which those of the present class are written."""
    from tupletree.state.segments import binary_of  # PyArrow takes a while

    codec = _codec(plan, name)
    values = codec.encode(codec.decode(binary_of([row.value for row in rows]), where, form))
    return [msgspec.structs.replace(row, value=value) for row, value in zip(rows, values, strict=True)]


def _codec(plan: Plan, name: str) -> Any:
    from tupletree.runtimes.local.snapshot import codec_of  # PyArrow takes a while

    return codec_of(plan.spec.components[name], plan)[0]


def _with_state(spec: TopologySpec) -> list[str]:
    return [
        name
        for name, component in spec.components.items()
        if isinstance(component.body, BoltSpec) and component.body.state is not None
    ]


def _renamed(values: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    return {renames.get(name, name): one for name, one in values.items()}


def _plain(spec: TopologySpec) -> dict[str, Any]:
    """The fingerprint as it is stored."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fingerprint(spec)))
    return plain
