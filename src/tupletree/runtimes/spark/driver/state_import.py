"""Importing state: rows of an export, checked against the topology, become segments that count from the next start on.

It is a start of its own that runs nothing: it takes the lock, claims a generation, and writes one entry into
`upgrades/`. A kill before that leaves files that nothing names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tupletree.config import Options
from tupletree.data.payloads import lift, registry_of
from tupletree.durable import private_folder, sync_directory
from tupletree.errors import ConfigError, Finding, TupletreeError, did_you_mean, one_of
from tupletree.routing.hashing import KEY_GROUPS
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.driver.upgrade import decide_upgrade
from tupletree.runtimes.spark.format.spool import lasting_fingerprint
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.format.upgrades import Upgrade, Upgrades, write_upgrade
from tupletree.runtimes.state_file import ImportRow
from tupletree.state.encoding import KeyEncoding
from tupletree.state.keys import key_types
from tupletree.state.segments import Records, binary_of, merge, slots_of, write_segment
from tupletree.state.store import StateCodec
from tupletree.state.versions import StateFile
from tupletree.topology import hints, keys
from tupletree.topology.changes.fingerprint import Fingerprint
from tupletree.topology.changes.upgrades import UpgradePlan, Words
from tupletree.topology.model import ComponentSpec, TopologySpec

SHOWN = 20
"""Faults that an error names; it says how many more there are."""
MAX_TIME_S = 1e15
"""Beyond any time: infinity and NaN are none, either."""


@dataclass
class _Read:
    """What was read for one bolt."""

    component: ComponentSpec
    codec: StateCodec
    coercions: list[Any]
    tasks: int
    keys: list[Any] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    expires_s: list[float] = field(default_factory=list)
    places: dict[Any, str] = field(default_factory=dict)


def import_state(
    state_dir: Path, spec: TopologySpec, options: Options, rows: Iterable[ImportRow], words: Words
) -> dict[str, int]:
    """Set these keys; all others stay as they are. Returns component → keys.

    Args:
        state_dir: of a run, on which nothing runs now; or new: then a run begins with this state.
        spec: the topology; if it has changed, the directory follows it first, as at a start.
        options: its settings.
        rows: of the file.
        words: what the user said of the change.

    Raises:
        ConfigError: rows that do not fit, up to 20 of them named, with how many there are; nothing is written.
        CheckpointError: a run is on, or the directory is that of another topology, or damaged.
    """
    faults: list[Finding] = []
    plan = Plan.of(spec, options, 1)
    known = {
        one.name: _reader(spec, one, plan.parallelism(one.name))
        for one in spec.components.values()
        if getattr(one.body, "state", None)
    }
    now_s = time.time()
    for row in rows:
        fault = _take(row, known, now_s)
        if fault is not None:
            faults.append(fault)
    if faults:
        more = f", and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
        raise ConfigError(
            f"the state cannot be imported: {len(faults):,} rows do not fit{more}", findings=faults[:SHOWN]
        )

    def decide(path: Path, stored: Fingerprint, current: Fingerprint, upgrades: Upgrades) -> UpgradePlan:
        return decide_upgrade(path, stored, current, upgrades, words, plan)

    directory = StateDirectory.open(state_dir, spec.name, lasting_fingerprint(spec), decide)
    try:
        files = {name: _write(directory, one) for name, one in known.items() if one.keys}
        if files:
            fingerprint = msgspec.to_builtins(lasting_fingerprint(spec))
            directory.claim_again()
            write_upgrade(directory.path, Upgrade(directory.generation, fingerprint, state=files))
    finally:
        directory.close()
    return {name: len(one.keys) for name, one in known.items() if one.keys}


def _reader(spec: TopologySpec, component: ComponentSpec, tasks: int) -> _Read:
    state = component.body.state
    types = key_types(spec, component)
    codec = StateCodec(component.name, types, state.value_type, is_keyed=state.is_keyed)
    fields = len(component.inputs[0].grouping.fields) if state.is_keyed else 1
    return _Read(component, codec, [(kind, keys.coercion_of(kind)) for kind in types[:fields]], tasks)


def _take(row: ImportRow, known: Mapping[str, _Read], now_s: float) -> Finding | None:
    """Take a row, or say why it does not fit: afterwards nothing of it can be refused."""
    named: Any = row.component
    if not isinstance(named, str):  # the file may have anything there
        return Finding("this is no name of a bolt", row.place, repr(named), one_of(known))
    read = known.get(named)
    if read is None:
        near = did_you_mean(row.component, known)
        return Finding("no bolt of this name has state", row.place, row.component, one_of(known), near)
    try:
        key = _key(read, row.key)
        value = _value(read, row.value)
    except (TupletreeError, TypeError, ValueError, LookupError, msgspec.MsgspecError) as error:
        reason = error.findings[0].got if isinstance(error, TupletreeError) else str(error)
        return Finding(f"it does not fit the state of {row.component!r}", row.place, reason, _expected(read))
    if not (read.codec.is_keyed or (type(key) is int and 0 <= key < read.tasks)):
        last = f"the index of one of its tasks: 0 to {read.tasks - 1}" if read.tasks > 1 else "0: it has one task"
        return Finding(f"no task of {row.component!r} has this key", row.place, repr(row.key), last)
    if row.expires_s is not None and not _is_time(row.expires_s):
        expected = "seconds since 1970, or null: by the time to live of the bolt"
        return Finding("expires_s is no time", row.place, repr(row.expires_s), expected)
    if key in read.places:
        return Finding(
            f"the key is there twice: {row.key!r}", row.place, f"also at {read.places[key]}", "each key once"
        )
    state = read.component.body.state
    lasts_s = float("inf") if state.ttl_s is None else now_s + state.ttl_s
    read.places[key] = row.place
    read.keys.append(key)
    read.values.append(value)
    read.expires_s.append(lasts_s if row.expires_s is None else float(row.expires_s))
    return None


def _is_time(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) < MAX_TIME_S


def _expected(read: _Read) -> str:
    kinds = ", ".join(hints.text_of(kind) for kind, _ in read.coercions)
    return f"a key of {kinds} and a value of {hints.text_of(read.component.body.state.value_type)}"


def _key(read: _Read, stored: Any) -> Any:
    plain = lift(stored, {})
    parts = plain if len(read.coercions) > 1 else [plain]
    if not isinstance(parts, list) or len(parts) != len(read.coercions):
        raise TypeError(f"a key of {len(parts) if isinstance(parts, list) else 1} fields")
    found = []
    for part, (kind, coerce) in zip(parts, read.coercions, strict=True):
        value = lift(part, registry_of(kind)) if isinstance(part, dict) else part
        found.append(value if value is None or coerce is None else coerce(value))
    return tuple(found) if len(found) > 1 else found[0]


def _value(read: _Read, stored: Any) -> bytes:
    """The value as it is stored: read in the form that the type has now, or in that of an earlier version of it."""
    packed = binary_of([msgspec.msgpack.encode(lift(stored, {}))])
    codec = read.codec
    try:
        return codec.encode(codec.decode(packed, ""))[0]
    except TupletreeError:
        try:
            return codec.encode(codec.decode(packed, "", "tagged" if codec.form == "native" else "native"))[0]
        except TupletreeError:
            pass
        raise


def _write(directory: StateDirectory, read: _Read) -> list[StateFile]:
    """Write the segments: one for all key groups, or one for each task."""
    folder = private_folder(directory.state / read.component.name)
    numbers = count()
    parts: dict[range, list[int]] = {}
    for at, key in enumerate(read.keys):
        own = range(KEY_GROUPS) if read.codec.is_keyed else range(key, key + 1)
        parts.setdefault(own, []).append(at)
    files = []
    for groups, places in parts.items():
        stored, hashes = read.codec.keys.encode([read.keys[at] for at in places])
        expires = np.array([read.expires_s[at] for at in places])
        records = Records.of(slots_of(hashes), stored, [read.values[at] for at in places], None)
        if np.isfinite(expires).any():
            order = np.argsort(slots_of(hashes), kind="stable")
            records = Records(records.slots, records.keys, records.values, expires[order])
        records = merge([records], 0.0, KeyEncoding.same, is_whole=True)
        name = f"imported-{directory.run_id[:8]}-{directory.generation:06d}-{os.getpid()}-{next(numbers)}.state"
        size = write_segment(folder / name, read.codec.header(), records)
        files.append(StateFile(name, groups.start, groups.stop, len(records), size))
    sync_directory(folder)
    return files
