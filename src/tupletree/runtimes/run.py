"""Start a topology on a runtime, and read what a run left. The only module that names both runtimes."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tupletree.config import Options
from tupletree.errors import ConfigError, RuntimeUnavailableError, TopologyError
from tupletree.runtimes.api import Redact, RunHandle, RunRequest
from tupletree.runtimes.deadletters import dropped_facts, existing, is_durable_run, is_local_run, spellings_of
from tupletree.runtimes.inspect import ComponentState
from tupletree.runtimes.state_file import ImportRow
from tupletree.topology.changes.upgrades import UpgradePlan, Words

if TYPE_CHECKING:
    from tupletree.topology.builder import Topology
    from tupletree.topology.model import TargetRef, TopologySpec
    from tupletree.tracking.facts import Fact
    from tupletree.tracking.outcomes import DeadLetter


def run(
    topology: Topology,
    *,
    runtime: str = "spark",
    options: Options | Mapping[str, Any] | None = None,
    target: TargetRef | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    append: bool = False,
    master: str = "local[2]",
    redact: Redact | None = None,
    active: bool = True,
    state_snapshot: str | os.PathLike[str] | None = None,
    on_dead: Callable[[DeadLetter], None] | None = None,
    renames: Mapping[str, str] | None = None,
    drops: Collection[str] = (),
    durable: bool | None = None,
) -> RunHandle:
    """Start a topology and return at once.

    Args:
        topology: what to run; it is checked, and every fault is reported together.
        runtime: "spark" or "local".
        options: settings. A dict overrides those of the topology and the environment; None takes only these.
        target: where workers import the topology's module from; None if its module is importable anyway.
        state_dir: resume what is there (Spark, and a durable local run), or start there; None makes a new
            `.tupletree/<name>/<run>`.
        append: let file sinks write beside what another run wrote.
        master: Spark master, where no session exists yet.
        redact: see `Redact`.
        active: False opens everything and asks no spout for anything until `resume`.
        state_snapshot: local runtime: a file with the state of bolts. It is read at the start if it is there, and
            replaced when the run ends without an error. Spark keeps state in the state directory.
        on_dead: called with each dead letter once it is durable, at least once, in a thread of its own; what it raises
            is logged. On Spark, and of a durable run, a later start also calls it for those that no earlier one did.
        renames: old name → new name, of components that were renamed since the last start on what is stored.
        drops: components, or fields as `component.Class.field`, of which what is stored may be lost if need be.
        durable: the option of that name, if it is given here.

    Raises:
        TopologyError, ConfigError: this cannot run.
        RuntimeUnavailableError: this machine cannot run it (no Java, unsupported packages).
        CheckpointError: the state directory is in use, damaged, or of another topology.
    """
    if runtime not in {"spark", "local"}:
        raise RuntimeUnavailableError(
            "there is no such runtime here",
            got=runtime,
            expected="spark or local",
            next_step="use --runtime spark or --runtime local",
        )
    resolved = _resolved(topology, options, durable)
    if runtime == "local":
        from tupletree.runtimes.local.runtime import start
    else:
        from tupletree.runtimes.spark.runtime import start
    directory = None if state_dir is None else Path(state_dir)
    snapshot = None if state_snapshot is None else Path(state_snapshot).absolute()
    if snapshot is not None and (runtime != "local" or not snapshot.parent.is_dir()):
        raise ConfigError(
            "the state snapshot cannot be used",
            got=f"{snapshot} with the runtime {runtime}",
            expected="the local runtime, and a file in a folder that exists",
            next_step="on Spark the state is in the state directory" if runtime != "local" else "make the folder",
        )
    words = Words(dict(renames or {}), frozenset(drops))
    return start(
        RunRequest(topology, resolved, target, directory, append, master, redact, active, snapshot, on_dead, words)
    )


def _resolved(topology: Topology, options: Options | Mapping[str, Any] | None, durable: bool | None) -> Options:
    from tupletree.config import resolve_options

    if isinstance(options, Options):
        resolved = options
    else:
        resolved = resolve_options(code=topology.build().options, environment=os.environ, call=options)
    return resolved if durable is None else dataclasses.replace(resolved, durable=durable)


def preview(topology: Topology, options: Options, state_dir: Path, words: Words | None = None) -> UpgradePlan:
    """What a start would do with what is stored in a state directory: the same that it decides by. Reads only.

    On Spark, or a durable local run where the directory is that of one.

    Args:
        topology: what is to run.
        options: its settings.
        state_dir: of a run; nothing should run on it.
        words: see `renames` and `drops` of `run`.

    Raises:
        ConfigError: there is no run in this folder.
        CheckpointError: it is that of another topology or runtime, or it is damaged.
    """
    if (state_dir / "tupletree.json").exists() and is_durable_run(state_dir):
        from tupletree.runtimes.local.durable.upgrade import preview_upgrade
    else:
        from tupletree.runtimes.spark.driver.upgrade import preview_upgrade

    return preview_upgrade(state_dir, topology.build(), options, words or Words())


def import_state(
    topology: Topology, options: Options, state_dir: Path, rows: Iterable[ImportRow], words: Words | None = None
) -> dict[str, int]:
    """Set keys in the state of bolts; all others stay as they are. Returns component → how many.

    They count from the next start on. A directory that is new is made: a run begins with this state there.

    Args:
        topology: what the directory belongs to; if it has changed, the directory follows it first, as at a start.
        options: its settings.
        state_dir: of a run on Spark; nothing may run on it.
        rows: what to set.
        words: see `renames` and `drops` of `run`.

    Raises:
        ConfigError: rows that do not fit, 20 of them named; nothing is written then. Or it is of a local run.
        CheckpointError: a run is on, or the directory is of another topology, or damaged.
    """
    if (state_dir / "tupletree.json").exists() and is_local_run(state_dir):
        raise _no_state(state_dir, "imported")
    from tupletree.runtimes.spark.driver.state_import import import_state as import_on_spark

    return import_on_spark(state_dir, topology.build(), options, rows, words or Words())


def refuse(spec: TopologySpec, runtime: str) -> None:
    """Raise TopologyError, with every finding, if a runtime would refuse this topology at its start.

    Whether everything can be sent to Spark's workers is tried where PySpark is installed.

    Args:
        spec: a topology without faults of its own.
        runtime: "spark" or "local".
    """
    if runtime == "local":
        from tupletree.runtimes.local.supported import refuse_unsupported as refuse_locally

        refuse_locally(spec)
        return
    from tupletree.runtimes.spark.supported import refuse_unsupported

    refuse_unsupported(spec)
    if importlib.util.find_spec("pyspark") is None:
        return
    from tupletree.runtimes.spark.format.program import unsendable

    if findings := unsendable(spec):
        raise TopologyError("the topology cannot be sent to Spark's workers", findings=findings)


def why(state_dir: Path, message: str) -> list[Fact]:
    """Everything known of a message, oldest first; at the end where it is and what holds it, if it is open.

    Of a local run that is what happened to messages with an attempt that failed, or to all, as its option `history`
    says; the last second of it may be missing, all the more after a crash. Its process, if there is one, is asked where
    the message is, which takes up to a second, and up to 5 s if it does not answer.

    Args:
        state_dir: of a run, running or not.
        message: an id as `dead list` shows it, `SPOUT/ID`, or the root id of an attempt.

    Raises:
        ConfigError: this is no state directory.
    """
    now: list[Fact] = []
    if is_local_run(existing(state_dir)):
        from tupletree.runtimes.control import where
        from tupletree.runtimes.local.history import stored_facts as facts_in

        now = where(state_dir, message)
        if not now and is_durable_run(state_dir):
            from tupletree.runtimes.local.durable.resume import open_facts

            spellings = spellings_of(message)
            now = [fact for fact in open_facts(state_dir, time.time()) if fact.is_about(spellings)]
    else:
        from tupletree.runtimes.spark.driver.history import all_facts as facts_in
    spellings = spellings_of(message)
    found = [fact for fact in facts_in(state_dir) if fact.is_about(spellings)]
    found.sort(key=lambda fact: (fact.epoch, fact.time_s))
    if found and found[-1].what == "open" and found[-1].epoch >= 0:
        from tupletree.runtimes.spark.driver.history import holds_of

        found[-1] = replace(found[-1], note="; ".join(holds_of(state_dir, found[-1].root)))
    dropped = [fact for fact in dropped_facts(state_dir) if fact.is_about(spellings)]
    return [*found, *dropped, *now]


def _no_state(state_dir: Path, action: str) -> ConfigError:
    """The error for what is done with the state of runs on Spark only."""
    place = "its journal" if is_durable_run(state_dir) else "memory"
    return ConfigError(
        f"the state of a local run cannot be {action}",
        where=str(state_dir),
        got=f"a local run, which keeps state in {place}",
        expected="the state directory of a run on Spark",
        next_step="run it with --runtime spark; a local run that is not durable goes on from --state-snapshot FILE",
    )


def stored_state(state_dir: Path) -> tuple[int, list[ComponentState]]:
    """The newest committed version: its epoch (-1 before the first), and the state of each bolt that has some.

    Args:
        state_dir: of a run, running or not.

    Raises:
        ConfigError: this is no state directory, or that of a local run.
        CheckpointError: a file is missing or damaged.
    """
    if is_local_run(existing(state_dir)):
        raise _no_state(state_dir, "shown or exported")
    from tupletree.runtimes.spark.driver.history import committed_state

    return committed_state(state_dir)
