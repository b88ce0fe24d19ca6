"""What a Spark worker must know: the program (fixed for a run of the topology) and the control of one epoch's run.

The program is pickled once with PySpark's own pickler, names user modules by reference, and is kept by each worker
under its hash. The control is plain msgpack.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
import xxhash

from tupletree.data.codec import ArrowCodec
from tupletree.errors import Finding, RuntimeUnavailableError, TopologyError
from tupletree.routing.plan import Plan
from tupletree.runtimes.java import installed_version
from tupletree.runtimes.spark.format.carryover import CarryOver
from tupletree.runtimes.spark.format.spool import file_sink_of
from tupletree.state.versions import StateFile
from tupletree.topology.model import ComponentSpec, TopologySpec
from tupletree.topology.splits import is_read_on_executors

M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 1024 * 1024


class EpochControl(msgspec.Struct, kw_only=True):
    """One run of one epoch, as seen by a stage.

    Attributes:
        run_id, epoch, run, generation: name the candidates.
        time_s: the epoch's time.
        left_out: roots that this run must not touch, packed unsigned 64-bit.
        attempts: root → attempt number, for those beyond the first.
        again: see `TaskPlace`.
        state: component → segments of the committed version.
        checked: components whose values are checked after each tuple.
        state_directory: where state files are.
        sink_directories: sink → absolute folder, as `texts.marked_text` writes it.
        kept: component → task index → what is kept for it.
        carryover_directory: where kept frames are.
        parked: roots of earlier epochs that wait for another attempt, packed unsigned 64-bit.
        gone: roots that died while tuples of theirs were kept, packed likewise.
        ticks: components that get a tick.
        drain: nothing else will come for a while: holders flush.
        first_emitted: root → when its message was first emitted, of those with a later attempt.
        retrying_since_s, kept_retrying, retries_run: see `TaskPlace`.
        ran_s: the run's clock at the epoch.
        timeout_s: the message timeout.
        processing_timeout_s: how long one call of a bolt may take.
        markers_directory: where attempts write crash markers.
        execution: how many executions of the epoch failed in Spark before.
        away: components that met an outage in the epoch before: they do not wait for its end again within this one.
        one_host: whether all attempts of a task run on one host.
        calls: how often a call of a bolt is made while it raises, before its tuples fail.
        resumes: frames of `traceless_stages` may be those of the run before, where the plan's runner still has them.
        more_calls: bolt → the same, where that is more.
        expects_crashes: messages are tried again, and some message of this start has crashed its workers.
        stage_memory_bytes: what a partition holds of frames, and of rows for a sink, until it spills them.
        call_max_bytes: what one call of a bolt may emit.
        message_max_bytes: of the longest tuple that goes to another stage.
        epochs_directory: where the epoch logs are, which name messages.
        first_key: the first key of the rows of splits.
        held: ordered bolt → what waits there: see `worker.ordered_input`.
        renamed: earlier names of components, which kept frames may have → their names now.
    """

    run_id: str
    epoch: int
    run: int
    generation: int
    time_s: float
    left_out: bytes = b""
    attempts: dict[int, int] = {}
    again: frozenset[int] = frozenset()
    state: dict[str, list[StateFile]] = {}
    checked: list[str] = []
    state_directory: str = ""
    sink_directories: dict[str, str] = {}
    kept: dict[str, dict[int, CarryOver]] = {}
    carryover_directory: str = ""
    parked: bytes = b""
    gone: bytes = b""
    ticks: list[str] = []
    drain: bool = False
    first_emitted: dict[int, float] = {}
    retrying_since_s: float | None = None
    kept_retrying: dict[int, float] = {}
    retries_run: bool = False
    ran_s: float = 0.0
    timeout_s: float | None = None
    processing_timeout_s: float | None = None
    markers_directory: str = ""
    execution: int = 0
    away: list[str] = []
    one_host: bool = True
    expects_crashes: bool = False
    calls: int = 1
    resumes: bool = False
    more_calls: dict[str, int] = {}
    stage_memory_bytes: int = 128 * 2**20
    call_max_bytes: int = 4 * 2**30
    message_max_bytes: int = 64 * 2**20
    epochs_directory: str = ""
    renamed: dict[str, str] = {}
    first_key: int = 0
    held: dict[str, list[tuple[int, int, int]]] = {}

    def needs(self, component: str, task_index: int) -> bool:
        """Whether a task has something to do although no frame of this epoch is addressed to it."""
        if component in self.ticks:
            return True
        kept = self.kept.get(component, {}).get(task_index)
        if kept is None:
            return False
        is_due = kept.due_s is not None and kept.due_s <= self.time_s
        return is_due or kept.arrives or kept.waits or self.drain or bool(self.gone)

    @property
    def has_needs(self) -> bool:
        """Whether `needs` holds for any task."""
        return bool(self.ticks) or any(self.needs(name, index) for name, tasks in self.kept.items() for index in tasks)


@dataclass(frozen=True)
class Program:
    """The plan, and what a stage derives from it once."""

    plan: Plan
    codecs: Mapping[tuple[str, str], ArrowCodec[Any]]

    def component(self, name: str) -> ComponentSpec:
        """A component by name."""
        return self.plan.spec.components[name]


def pack_program(plan: Plan, search_path: list[str]) -> bytes:
    """Pickle what workers need. Pulled spouts and called sinks stay in the driver, so their objects are left out.

    Raises TopologyError, with a finding for every component that cannot be sent.
    """
    spec = plan.spec
    components = {name: _as_sent(spec, component) for name, component in spec.components.items()}
    light = replace(plan, spec=TopologySpec(spec.name, components, spec.options))
    try:
        pickled = _pickle(light)
    except Exception as error:
        findings = unsendable(spec)
        if not findings:
            raise
        raise TopologyError("the topology cannot be sent to Spark's workers", findings=findings) from error
    return msgspec.msgpack.encode([versions_here(), list(map(os.fsencode, search_path)), pickled])


def unsendable(spec: TopologySpec) -> list[Finding]:
    """A finding for each component that cannot be pickled for workers, with the reason."""
    return [
        Finding(
            "this cannot be sent to Spark's workers",
            where=f"{component.kind} {component.name!r} ({component.where})",
            got=fault,
            next_step="acquire locks, files and connections in `open`; resources must be picklable",
        )
        for component in (_as_sent(spec, component) for component in spec.components.values())
        if (fault := _unpicklable(component))
    ]


@lru_cache(maxsize=1)  # asked for each program, and of what is imported already
def versions_here() -> dict[str, str]:
    """Versions that driver and workers must share: the format of frames, keys and state depends on them."""
    packages = {name: installed_version(name) or "none" for name in ("tupletree", "msgspec", "pyarrow", "xxhash")}
    return {"Python": ".".join(map(str, sys.version_info[:2])), **packages}


def refuse_unlike(driver: Mapping[str, str]) -> None:
    """Raise RuntimeUnavailableError if this worker has other versions than the driver."""
    here = versions_here()
    other = [name for name in driver if here.get(name) != driver[name]]
    if other:
        raise RuntimeUnavailableError(
            "a worker has different versions from the driver",
            where=platform.node(),
            got=", ".join(f"{name} {here.get(name)}" for name in other),
            expected=", ".join(f"{name} {driver[name]}" for name in other),
            next_step="use the same environment on all hosts: PYSPARK_PYTHON, or an archive that Spark ships",
        )


def _as_sent(spec: TopologySpec, component: ComponentSpec) -> ComponentSpec:
    match component.kind:
        case "spout":
            return component if is_read_on_executors(component.body) else replace(component, body=None)
        case "sink":
            return replace(component, body=file_sink_of(spec, component))
        case _:
            return component


def _pickle(thing: object) -> bytes:
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # pyspark's has no hints
    return pickled


def _unpicklable(component: ComponentSpec) -> str:
    try:
        _pickle(component)
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def _give_back_large_blocks() -> None:
    """Make glibc's allocator map large blocks separately: batches of rows are megabytes that are soon freed.

    By default it takes them from the heap after the first of them, where small objects that stay are soon between
    them, and a worker keeps many times the memory that it uses.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def _not_importable(error: ImportError) -> TopologyError:
    """What the topology refers to by a module that this worker does not have, or has in another version."""
    return TopologyError(
        f"a worker cannot import {error.name or 'a module'} of the topology",
        where=platform.node(),
        got=" ".join(f"{type(error).__name__}: {error}".split()),
        expected="every module that the topology is made of, on every worker, as in the driver",
        next_step="ship it with --py-files (a module, or a zip of a package), or install it where workers run",
    )


@lru_cache(maxsize=4)
def _load(_digest: int, blob: bytes) -> Program:
    from pyspark import cloudpickle

    versions, search_path, pickled = msgspec.msgpack.decode(blob, type=tuple[dict[str, str], list[bytes], bytes])
    refuse_unlike(versions)
    for folder in map(os.fsdecode, search_path):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        plan: Plan = cloudpickle.loads(pickled)
    except ImportError as error:
        raise _not_importable(error) from error
    # A frame's tuples are many small objects that are soon freed and have no cycles: the default threshold of 700
    # makes the collector visit them again and again, for a third of the worker's time.
    gc.set_threshold(100_000, 20, 20)
    _give_back_large_blocks()
    return Program(plan, codecs_of(plan))


def codecs_of(plan: Plan) -> dict[tuple[str, str], ArrowCodec[Any]]:
    """One codec per stream."""
    return {
        (component.name, stream.name): ArrowCodec.of(stream.schema)
        for component in plan.spec.components.values()
        for stream in component.outputs.values()
    }


def load_program(blob: bytes) -> Program:
    """The program of this blob; unpickled once per worker process."""
    return _load(xxhash.xxh3_64_intdigest(blob), blob)
