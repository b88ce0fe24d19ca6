"""The snapshot of a local run: the state of its bolts in one file, from which the next run continues.

Written when a run ends without an error, in place of the last one; read when a run starts. Meanwhile state is in
memory: a run that is killed leaves the file as it was. Keys are routed again at each start, so a keyed bolt may get
more or fewer tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tupletree.durable import pack, read_container, replace_file
from tupletree.errors import CheckpointError, ConfigError, Finding, did_you_mean, one_of
from tupletree.routing.hashing import KEY_GROUPS, task_of_group
from tupletree.routing.plan import Plan
from tupletree.state.cells import CLEARED, ExpiringCell, ValueCell, cell_of
from tupletree.state.keys import key_types
from tupletree.state.segments import SegmentHeader, binary_of
from tupletree.state.store import StateCodec
from tupletree.topology.changes.shapes import shape_changes
from tupletree.topology.changes.upgrades import Words
from tupletree.topology.model import ComponentSpec

GO_BACK = "go back to how it was, or name another snapshot file"

logger = logging.getLogger("tupletree.local")


class ComponentSnapshot(msgspec.Struct):
    """The state of one bolt.

    Attributes:
        is_keyed: whether the state is by key, or by task.
        tasks: how many tasks the bolt had.
        key_types, value_type: the declared types, as texts.
        keys, values: as `state.encoding` writes them, in the same order.
        expires_s: when each expires, since the Unix epoch; empty where nothing expires.
        shape, form: what the type of the values is made of, and how they are written.
        key_fields: what its inputs are grouped by, each once; empty: by task.
    """

    is_keyed: bool
    tasks: int
    key_types: list[str]
    value_type: str
    keys: list[bytes]
    values: list[bytes]
    expires_s: list[float] = []
    key_fields: list[str] = []
    shape: dict[str, Any] = {}
    form: str = ""


class _Snapshot(msgspec.Struct):
    """What the file holds."""

    topology: str
    taken_s: float
    components: dict[str, ComponentSnapshot]


def save_snapshot(file: Path, plan: Plan, cells: Mapping[int, ValueCell[Any]], wall_s: float) -> None:
    """Write the state of all bolts, atomically and durably.

    Args:
        file: its folder exists.
        plan: the topology laid out.
        cells: bolt task → its state; no thread uses it any more.
        wall_s: now; what expired by then is left out.

    Raises:
        ProcessingError: a value is not of its declared type. The old file stays.
        OSError: the file cannot be written.
    """
    components = {
        component.name: _state_of(component, plan, cells, wall_s)
        for component in plan.spec.components.values()
        if getattr(component.body, "state", None) is not None
    }
    replace_file(file, pack(_Snapshot(plan.spec.name, wall_s, components)))


def _state_of(
    component: ComponentSpec, plan: Plan, cells: Mapping[int, ValueCell[Any]], wall_s: float
) -> ComponentSnapshot:
    codec, header = codec_of(component, plan)
    values: dict[Any, Any] = {}
    expires_s: dict[Any, float] = {}
    for task in plan.task_ids_of(component.name):
        cell = cells.get(task)
        if cell is None:
            continue
        values |= {key: value for key, value in cell.delta().items() if value is not CLEARED}
        if isinstance(cell, ExpiringCell):
            expires_s |= cell.renewed
    values = {key: value for key, value in values.items() if expires_s.get(key, wall_s + 1.0) > wall_s}
    keys, _ = codec.keys.encode(list(values))
    return ComponentSnapshot(
        is_keyed=header.is_keyed,
        tasks=plan.parallelism(component.name),
        key_types=header.key_types,
        value_type=header.value_type,
        keys=keys,
        values=codec.encode(list(values.values())),
        expires_s=[expires_s[key] for key in values] if expires_s else [],
        key_fields=_key_fields(component),
        shape=header.shape,
        form=header.form,
    )


def load_snapshot(file: Path, plan: Plan, wall_s: float, words: Words | None = None) -> dict[int, ValueCell[Any]]:
    """The state that an earlier run left: bolt task → its cell. Empty if there is no file.

    Args:
        file: where it is.
        plan: the topology laid out.
        wall_s: now; what expired by then is left out.
        words: what the user says of bolts that have other names, and of state that may be lost.

    Raises:
        ConfigError: it is a folder.
        CheckpointError: the file is damaged, or it does not fit the topology; every difference is named.
    """
    if file.is_dir():
        raise ConfigError(
            "the state snapshot is a folder",
            where=str(file),
            expected="a file, or a name that is free, in a folder that exists",
            next_step=f"name a file in it: {file / 'state.snapshot'}",
        )
    if not file.exists():
        return {}
    snapshot, _ = read_container(file, _Snapshot)
    words = words or Words()
    misfits = _misfits_of_renames(snapshot, plan, words)
    if not misfits:
        _warn_of_unused(file, snapshot, plan, words)
        snapshot.components = {words.renames.get(name, name): one for name, one in snapshot.components.items()}
        misfits = _misfits(snapshot, plan, words)
    if misfits:
        raise CheckpointError(
            f"the state in {file} is not of this topology",
            findings=misfits,
        )
    cells: dict[int, ValueCell[Any]] = {}
    for name, state in snapshot.components.items():
        if state.keys and name not in words.drops:
            distribute(plan.spec.components[name], state, plan, file, wall_s, cells)
    return cells


def _misfits_of_renames(snapshot: _Snapshot, plan: Plan, words: Words) -> list[Finding]:
    """Renames that would give two states one name, or a name that is none."""
    findings = []
    given: set[str] = set()
    for old, new in words.renames.items():
        where = f"--rename {old}={new}"
        if new not in plan.spec.components:
            near = did_you_mean(new, plan.spec.components)
            known = one_of(plan.spec.components)
            findings.append(Finding("the topology has no component of the new name", where, new, known, near))
        elif old in snapshot.components and new in snapshot.components:
            findings.append(
                Finding("something is stored under the new name", where, new, "a name that is new", GO_BACK)
            )
        elif new in given:
            findings.append(Finding("two components are renamed to one", where, new, "a new name each"))
        given.add(new)
    return findings


def _warn_of_unused(file: Path, snapshot: _Snapshot, plan: Plan, words: Words) -> None:
    """Words may be of components without state, or were carried out by an earlier run: no fault, but maybe misspelt."""
    names = {*snapshot.components, *words.renames.values(), *plan.spec.components}
    unused = [f"--rename {old}={new}" for old, new in words.renames.items() if old not in snapshot.components]
    unused += [f"--drop {word}" for word in sorted(words.drops) if word.partition(".")[0] not in names]
    if unused:
        stored = ", ".join(snapshot.components) or "nothing"
        logger.warning("%s: %s does nothing: stored there is the state of %s", file, ", ".join(unused), stored)


def _misfits(snapshot: _Snapshot, plan: Plan, words: Words) -> list[Finding]:
    if snapshot.topology != plan.spec.name:
        return [Finding("another topology", got=snapshot.topology, expected=plan.spec.name, next_step=GO_BACK)]
    findings = []
    for name, state in snapshot.components.items():
        component = plan.spec.components.get(name)
        if not state.keys or name in words.drops:
            continue
        next_step = f"{GO_BACK}, or say that this state may be lost: --drop {name}"
        if component is None or getattr(component.body, "state", None) is None:
            renamed = "if the bolt has another name now: --rename "
            findings.append(
                Finding(
                    "no bolt with state has this name any more",
                    where=name,
                    next_step=f"{renamed}{name}=NEW; or --drop {name}; or name another snapshot file",
                )
            )
            continue
        _, header = codec_of(component, plan)
        findings += _value_misfits(name, header, state, words)
        for what, got, expected in (
            ("the key types changed", header.key_types, state.key_types),
            ("keyed state became task state, or the other way round", header.is_keyed, state.is_keyed),
            ("the key changed", _key_fields(component), state.key_fields),
        ):
            if got != expected:
                findings.append(Finding(what, where=name, got=str(got), expected=str(expected), next_step=next_step))
        if not state.is_keyed and plan.parallelism(name) != state.tasks:
            findings.append(
                Finding(
                    "task state belongs to tasks, and there is another number of them",
                    where=name,
                    got=f"parallelism={plan.parallelism(name)}",
                    expected=f"parallelism={state.tasks}",
                    next_step=next_step,
                )
            )
    return findings


def _value_misfits(name: str, header: SegmentHeader, state: ComponentSnapshot, words: Words) -> list[Finding]:
    """Why values cannot be read with the type that is declared now; fields may be lost where the user says so."""
    if header.value_type == state.value_type and header.shape == state.shape:
        return []
    next_step = f"{GO_BACK}, or say that this state may be lost: --drop {name}"
    changes = shape_changes(state.shape, header.shape)
    if not changes and header.value_type != state.value_type:
        return [Finding("the value type changed", name, header.value_type, state.value_type, next_step)]
    findings = []
    for one in changes:
        word = f"{name}.{one.what}"
        if one.kind == "changed":
            place = f": {one.what}" if one.what else ""
            findings.append(Finding(f"the value type changed{place}", name, one.now, one.was, next_step))
        elif one.kind == "removed" and word not in words.drops:
            lose = f"put the field back, or lose what it has: --drop {word}"
            findings.append(Finding(f"a field of the values was removed: {one.what}", name, "nothing", one.was, lose))
    return findings


def distribute(
    component: ComponentSpec,
    state: ComponentSnapshot,
    plan: Plan,
    file: Path,
    wall_s: float,
    cells: dict[int, ValueCell[Any]],
) -> None:
    """Give each task the keys that are routed to it, in the order in which they expire."""
    codec, _ = codec_of(component, plan)
    spec = component.body.state
    keys = list(map(codec.keys.decode, state.keys))
    values = codec.decode(binary_of(state.values), str(file), state.form)
    expires_s = state.expires_s or [wall_s + (spec.ttl_s or 0.0)] * len(keys)
    deputies = plan.deputies_of(component.name)
    _, hashes = codec.keys.encode(keys)
    for key, value, hash_, until_s in sorted(
        zip(keys, values, hashes, expires_s, strict=True), key=lambda entry: entry[3]
    ):
        index = task_of_group(hash_ % KEY_GROUPS, len(deputies)) if state.is_keyed else key
        cell = cells.setdefault(deputies[index], cell_of(spec))
        if spec.ttl_s is None or until_s > wall_s:
            cell.adopt(key, value, until_s)


def _key_fields(component: ComponentSpec) -> list[str]:
    if not component.body.state.is_keyed:
        return []
    return sorted({f"fields({', '.join(source.grouping.fields)})" for source in component.inputs})


def codec_of(component: ComponentSpec, plan: Plan) -> tuple[StateCodec, Any]:
    """What the state of a bolt looks like as bytes, and its header."""
    spec = component.body.state
    codec = StateCodec(component.name, key_types(plan.spec, component), spec.value_type, is_keyed=spec.is_keyed)
    return codec, codec.header()
