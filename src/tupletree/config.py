"""Options: one typed table with units, and the order in which settings win.

Precedence: defaults < code < file < environment < command line. Storm's names are aliases. Owns parsing, ranges and
the words of each fault; it reads the settings file it is given, and nothing else from outside: the
environment and the command line come in as arguments.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from tupletree.errors import ConfigError, Finding

ENVIRONMENT_PREFIX = "TUPLETREE_"
KUBERNETES = re.compile(
    r"TUPLETREE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes sets in every pod beside a Service whose name begins with tupletree."""


_MOST: dict[str, float] = {
    "seconds": 31_536_000.0,  # a year: a longer wait is a mistake; `none` means for ever
    "milliseconds": 31_536_000_000.0,
    "bytes": 2**50,
    "factor": 1_000_000.0,
    "tasks": 100_000,
    "threads": 10_000,
    "buckets": 1_000,
    "tuples": 2**24,
}
"""By unit, what no option may exceed: beyond it, arithmetic or memory ends a run later, far from the mistake."""

_MOST_OF_OTHERS = 1_000_000_000


def _option(default: float | str | None, unit: str, meaning: str, **more: Any) -> Any:
    """A field of Options; `more` as in `_Declared`."""
    return field(default=default, metadata={"unit": unit, "meaning": meaning, **more})


@dataclass(frozen=True)
class Options:
    """Every setting of a run. Units are in the names; None means "unset", or that the runtime chooses.

    `describe_options` gives the meaning, unit and range of each. Raises ConfigError, with every fault, for values
    out of range.
    """

    max_spout_pending: int | None = _option(
        None,
        "messages",
        "open messages per spout task; none lets the runtime choose: locally as many as the measured pace allows, up "
        "to 128 so that they wait for less than a quarter of message_timeout_s, and up to 8,192 so that they wait for "
        "less than 5 ms; two epochs on Spark; 100,000 where windows or joins hold them",
        storm="topology.max.spout.pending",
        at_least=1,
    )
    message_timeout_s: float | None = _option(
        30.0,
        "seconds",
        "an attempt whose tree is not complete after this time fails; none disables it",
        storm="topology.message.timeout.secs",
        above=0,
    )
    timeout_buckets: int = _option(
        3,
        "buckets",
        "rotating buckets of the timeout T: an attempt expires between T and T + T/(buckets - 1)",
        at_least=2,
    )
    acker_tasks: int = _option(
        4,
        "tasks",
        "tasks that track tuple trees; 0 turns tracking off: messages are acked on emit",
        storm="topology.acker.tasks",
        at_least=0,
    )
    acker_executors: int = _option(
        1, "threads", "threads that serve the acker tasks", storm="topology.acker.executors", at_least=1
    )
    ring_size: int = _option(
        256,
        "tuples",
        "ring buffer of an executor per task it serves, rounded up to a power of two",
        storm="topology.executor.receive.buffer.size",
        at_least=1,
    )
    local_threads: int = _option(
        2,
        "threads",
        "local runtime: 2 serves spouts and ackers apart from bolts, 1 serves all on one; "
        "blocking bolts and components with `executors=` get their own",
        at_least=1,
        at_most=2,
    )
    durable: bool = _option(
        default=False,
        unit="switch",
        meaning="local runtime: positions of sources, open messages and state are stored in the state directory, and "
        "the next start on it continues from them; Spark always does so",
    )
    local_gc_threshold: int = _option(
        10_000,
        "objects",
        "local runtime: least threshold of young garbage collections in this process while it runs; 0: as it is",
        at_least=0,
    )
    max_attempts: int = _option(5, "attempts", "attempts in total before a message is dead", at_least=1)
    max_dead: int | str | None = _option(
        None,
        "messages",
        "more dead letters than this stop or pause the run (`on_max_dead`): a number, or a share of the messages that "
        "ended, such as 1%; counted since this start, or since the run was resumed; none: no limit",
        pattern=r"\d{1,18}|\d{1,2}(\.\d{1,9})?\s*%",
        in_words="a whole number of messages, or a share such as 1% or 0.5%",
    )
    max_dead_sample: int = _option(
        100, "messages", "messages that must have ended before a share in max_dead counts", at_least=1
    )
    on_max_dead: Literal["stop", "pause"] = _option(
        "stop",
        "action",
        "what happens then: stop ends the run as `tupletree drain` does without its retries, with exit code 5; pause "
        "waits for `tupletree resume`",
    )
    max_restarts: int = _option(
        5,
        "restarts",
        "restarts after a failure of infrastructure, 2 s to 30 s apart, without a minute of health in between",
        at_least=0,
    )
    backoff_initial_ms: float = _option(
        100.0,
        "milliseconds",
        "delay before the second attempt; with the defaults the pauses before five attempts are 1.5 s in total",
        at_least=0,
    )
    backoff_factor: float = _option(2.0, "factor", "growth of the delay with each further attempt", at_least=1)
    backoff_max_ms: float = _option(30_000.0, "milliseconds", "longest delay before an attempt", at_least=0)
    service_backoff_initial_ms: float = _option(
        500.0,
        "milliseconds",
        "delay before the second attempt after an error of a service or network: an OSError (ConnectionError, "
        "TimeoutError, and those of many clients), unless it is about a path; with the defaults the pauses before five "
        "attempts are 130 s in total",
        at_least=0,
    )
    service_backoff_factor: float = _option(6.0, "factor", "growth of that delay with each further attempt", at_least=1)
    service_backoff_max_ms: float = _option(120_000.0, "milliseconds", "longest such delay", at_least=0)
    backoff_jitter: float = _option(0.2, "fraction", "spread of each delay, up and down", at_least=0, at_most=1)
    high_water_factor: float = _option(
        2.0, "factor", "open trees above this times what spouts may have pending pause the spouts", at_least=1
    )
    spout_idle_wait_ms: float = _option(
        100.0,
        "milliseconds",
        "wait after a spout had nothing",
        storm="topology.sleep.spout.wait.strategy.time.ms",
        at_least=0,
    )
    epoch_max_messages: int = _option(
        10_000, "messages", "messages in one Spark epoch at most; one batch of a spout may go beyond", at_least=1
    )
    epoch_max_bytes: int = _option(64 * 1024 * 1024, "bytes", "payload of one Spark epoch at most", at_least=1)
    stage_memory_bytes: int = _option(
        128 * 1024 * 1024,
        "bytes",
        "on Spark: frames that a stage's partition holds in memory, and rows that a sink's task gathers for one file; "
        "beyond that, frames go to a file in the executor's local folder, and rows to a further file",
        at_least=0,
    )
    call_max_bytes: int = _option(
        4 * 1024 * 1024 * 1024,
        "bytes",
        "on Spark: what one call of a bolt may emit, encoded, where its stage has no room for it in memory; what "
        "becomes more makes its message dead",
        at_least=1,
    )
    message_max_bytes: int = _option(
        64 * 1024 * 1024,
        "bytes",
        "on Spark: the longest message that a spout may give, and the longest tuple that goes to another stage, "
        "encoded; what is longer makes its message dead, with a dead letter that has the start of it",
        at_least=4096,
    )
    epoch_min_interval_ms: float = _option(
        0.0, "milliseconds", "start epochs no closer together than this; 0 is as fast as they come", at_least=0
    )
    processing_timeout_s: float | None = _option(
        60.0,
        "seconds",
        "a bolt's call that takes longer fails its tuple: on Spark it is interrupted, an async one is cancelled on "
        "both runtimes; locally a plain one cannot be ended and is named with its stack; none lets it take for ever",
        above=0,
    )
    history_max_bytes: int = _option(
        256 * 1024 * 1024, "bytes", "how much of the per-message history is kept for `tupletree why`", at_least=0
    )
    history: Literal["failures", "all"] = _option(
        "failures",
        "messages",
        "local runtime: whose history is kept: failures, of messages with an attempt that failed; all, of every "
        "message; Spark keeps that of every message",
    )
    progress_file: str | None = _option(
        None, "file", "a progress record per epoch (Spark) or second (local) is appended to it, as JSON Lines"
    )
    outage_limit_s: float | None = _option(
        None,
        "seconds",
        "how long an outage (a ConnectorError, a full disk) may last before the run ends with exit code 1 and its "
        "messages open; unset: no limit",
        above=0,
    )
    drain_timeout_s: float = _option(30.0, "seconds", "how long a stop waits for what is in flight", at_least=0)
    state_guarantee: Literal["exactly_once", "at_least_once"] = _option(
        "exactly_once",
        "guarantee",
        "on Spark: exactly_once runs an epoch again without a message that failed after it touched state; "
        "at_least_once lets what it did stay, as the local runtime does, and saves that run, except where an input is "
        "ordered",
    )
    tick_interval_s: float | None = _option(
        None,
        "seconds",
        "ticks for bolts that do not set their own; none is unset",
        storm="topology.tick.tuple.freq.secs",
        above=0,
    )

    def __post_init__(self) -> None:
        findings = []
        for name, declared in _TABLE.items():
            value = getattr(self, name)
            try:
                declared.accept(value)
            except ValueError as fault:
                findings.append(Finding("wrong value", f"option {name}", repr(value), str(fault)))
        if findings:
            raise ConfigError(_HEADLINE, findings=findings)


def share_of(limit: int | str | None) -> float | None:
    """The share that `max_dead` names, between 0 and 1; None for a number of messages, or no limit.

    >>> share_of("0.5%"), share_of("100")
    (0.005, None)
    """
    return float(limit.strip().removesuffix("%")) / 100.0 if isinstance(limit, str) and "%" in limit else None


@dataclass(frozen=True)
class OptionInfo:
    """One row of the table of options.

    Attributes:
        name: its name in code, in files and after `--option`; `TUPLETREE_<NAME>` in the environment.
        type: `int`, `float`, or one of them `or none`.
        default: as it would be written.
        unit: what the number counts.
        expected: type and range in words, as errors show it.
        meaning: what it does.
        storm_alias: Storm's key for the same setting; empty if there is none.
    """

    name: str
    type: str
    default: str
    unit: str
    expected: str
    meaning: str
    storm_alias: str


def describe_options() -> list[OptionInfo]:
    """The table of all options in declaration order, for docs and `tupletree run --help`."""
    return [
        OptionInfo(
            name=declared.name,
            type=("text" if declared.kind is str else declared.kind.__name__) + " or none" * declared.optional,
            default="none" if declared.default is None else str(declared.default),
            unit=declared.unit,
            expected=declared.expected,
            meaning=declared.meaning,
            storm_alias=declared.storm,
        )
        for declared in _TABLE.values()
    ]


def resolve_options(
    *,
    code: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    command_line: Sequence[str] = (),
    call: Mapping[str, Any] | None = None,
) -> Options:
    """Put the settings of all places together; the later place wins.

    Args:
        code: what the topology sets; numbers, None, or text as on the command line.
        file: a TOML file with a table `[tupletree]`; other tables are ignored.
        environment: variables; those that start with `TUPLETREE_` are settings, all others are ignored. A name that
            is no option is a warning.
        command_line: `key=value` texts of `--option`, in order; of the same key the last one wins.
        call: what a program gives to `run`, as in `code`.

    Raises:
        ConfigError: with every fault of every place: where, got, expected and the nearest key.
    """
    findings: list[Finding] = []
    values: dict[str, Any] = {}
    for settings in (
        _from_code(code or {}),
        _from_file(file, findings),
        _from_environment(environment or {}),
        _from_command_line(command_line, findings),
        _from_code(call or {}, "the options of run()"),
    ):
        values |= _read_place(settings, findings)
    if findings:
        raise ConfigError(_HEADLINE, findings=findings)
    return Options(**values)


_HEADLINE = "the options are not right"


@dataclass(frozen=True)
class _Setting:
    """One key and value as they were written, and where."""

    where: str
    key: str
    value: Any
    may_repeat: bool = False
    may_be_foreign: bool = False


@dataclass(frozen=True)
class _Declared:
    """One field of Options with its type and metadata resolved."""

    name: str
    kind: type[int | float | str]  # or bool
    optional: bool
    default: float | str | None
    unit: str
    meaning: str
    storm: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    pattern: str = ""
    in_words: str = ""
    choices: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        if self.choices:
            return " or ".join(self.choices)
        if self.in_words:
            return self.in_words + " or none" * self.optional
        if self.kind is bool:
            return "true or false"
        kind = {int: "a whole number", float: "a number", str: "a text"}[self.kind]
        bounds = [
            f"{word} {bound:g}" if bound < 1e6 else f"{word} {bound:,.0f}"
            for word, bound in (("at least", self.at_least), ("above", self.above), ("at most", self.at_most))
            if bound is not None and self.kind is not str
        ]
        return " ".join([kind, " and ".join(bounds), "or none" if self.optional else ""]).strip()

    def accept(self, value: object) -> float | str | None:
        """The value as the field's type. Raises ValueError, with what was expected, for anything that is not one."""
        if self.choices:
            if value not in self.choices:
                raise ValueError(self.expected)
            return str(value)
        parsed = self._parse(value) if isinstance(value, str) else value
        if self.kind is bool:
            if type(parsed) is not bool:
                raise ValueError(self.expected)
            return parsed
        if parsed is None and self.optional:
            return None
        if self.kind is str:
            if self.pattern and type(parsed) is int:
                parsed = str(parsed)
            if not isinstance(parsed, str) or not parsed.strip():
                raise ValueError(self.expected)
            if self.pattern and not re.fullmatch(self.pattern, parsed.strip()):
                raise ValueError(self.expected)
            return parsed
        if self.kind is float and isinstance(parsed, int) and not isinstance(parsed, bool):
            try:
                parsed = float(parsed)
            except OverflowError:
                raise ValueError(self.expected) from None
        if not isinstance(parsed, int | float) or type(parsed) is not self.kind:
            raise ValueError(self.expected)
        if isinstance(parsed, float) and not math.isfinite(parsed):
            raise ValueError(self.expected)
        if (
            (self.at_least is not None and parsed < self.at_least)
            or (self.above is not None and parsed <= self.above)
            or (self.at_most is not None and parsed > self.at_most)
        ):
            raise ValueError(self.expected)
        return parsed

    def _parse(self, text: str) -> float | str | None:
        if text.strip().lower() == "none":
            return None
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.strip().lower())
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError(self.expected) from None


def _declared_options() -> dict[str, _Declared]:
    hints = typing.get_type_hints(Options)
    table = {}
    for described in fields(Options):
        hint = hints[described.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        assert described.default is not MISSING
        table[described.name] = _Declared(
            name=described.name,
            kind=bool if bool in members else str if choices or str in members else int if int in members else float,
            optional=type(None) in members,
            default=described.default,
            choices=choices,
            **{"at_most": _MOST.get(described.metadata["unit"], _MOST_OF_OTHERS), **described.metadata},
        )
    return table


_TABLE = _declared_options()
_STORM_NAMES = {declared.storm: declared.name for declared in _TABLE.values() if declared.storm}
_STORM_OLD_NAMES = {"topology.ackers": "acker_tasks"}
"""Names that Storm gave these settings before."""

_PARALLELISM = "set the parallelism of each component"
_TYPED = "streams are typed by their message classes and need no serializer"
_SPARK_MEMORY = "set spark.executor.memory and spark.executor.extraJavaOptions on the Spark session"
_BUFFERS = "tasks have one queue each, which ring_size limits on the local runtime; Spark's are limited by the epoch"
_WINDOWS = "give it to the window: `@window_bolt(…)` has its length, slide, time field, lag and `late=`"
_ALL_KEPT = "leave it out: every failure is kept, and the log has the like once in 10 s"
_CLUSTER = "Storm's cluster has it; here the Spark session, or the one process of the local runtime"

_STORM_WITHOUT_COUNTERPART = {
    "topology.workers": "a topology has no worker processes of its own: set the parallelism of its components, and "
    "the executors of the Spark session",
    "topology.enable.message.timeouts": "set message_timeout_s to none",
    "topology.max.task.parallelism": _PARALLELISM,
    "topology.tasks": _PARALLELISM,
    "topology.debug": "raise the level of the logger `tupletree`, and see `tupletree why` with history=all",
    "topology.stats.sample.rate": "leave it out: numbers are counted, not sampled",
    "topology.message.timeout.ms": "set message_timeout_s, in seconds",
    "topology.spout.wait.strategy": "set spout_idle_wait_ms, the pause after a spout had nothing",
    "topology.spout.wait.park.microsec": "set spout_idle_wait_ms, the pause after a spout had nothing",
    "topology.max.error.report.per.interval": _ALL_KEPT,
    "topology.error.throttle.interval.secs": _ALL_KEPT,
    "topology.optimize": "leave it out: there is nothing to choose",
    "topology.name": "give it to `Topology(name)`",
    "topology.classpath": "set spark.jars on the Spark session, and let workers import modules by `--py-files`",
    "topology.environment": "set spark.executorEnv.NAME on the Spark session; a local run has that of its process",
    "topology.fall.back.on.java.serialization": _TYPED,
    "topology.skip.missing.kryo.registrations": _TYPED,
    "topology.tuple.serializer": _TYPED,
    "topology.multilang.serializer": "components are called in Python: there is no multilang process",
    "topology.shellbolt.max.pending": "components are called in Python: there is no multilang process",
    "topology.subprocess.timeout.secs": "set processing_timeout_s, after which a call is named, and on Spark ended",
    "topology.trident.batch.emit.interval.millis": "set epoch_min_interval_ms",
    "topology.state.checkpoint.interval.ms": "set epoch_min_interval_ms: state is committed with each epoch",
    "topology.transfer.batch.size": "leave it out: frames hold a few milliseconds of work",
    "topology.producer.batch.size": "leave it out: frames hold a few milliseconds of work",
    "topology.builtin.metrics.bucket.size.secs": "records come each second, or with each epoch: set progress_file",
}
_STORM_FAMILIES = {
    "topology.kryo.": _TYPED,
    "topology.worker.": _SPARK_MEMORY,
    "topology.component.": _SPARK_MEMORY,
    "topology.executor.": _BUFFERS,
    "topology.transfer.": _BUFFERS,
    "topology.receiver.": _BUFFERS,
    "topology.disruptor.": _BUFFERS,
    "topology.backpressure.": "set max_spout_pending and high_water_factor: open messages are what is limited",
    "topology.bolts.": _WINDOWS,
    "topology.state.": "declare state in the bolt: `@bolt(state=…)`; on Spark it is in the state directory",
    "topology.metrics.": "progress_file, `handle.on_progress` and tupletree.runtimes.metrics give the numbers",
    "topology.eventlogger.": "set history=all, and ask `tupletree why`",
    **dict.fromkeys(("storm.", "nimbus.", "supervisor.", "worker.", "ui.", "drpc.", "pacemaker."), _CLUSTER),
}
"""What the names of further settings begin with → what to do instead."""


def _from_code(code: Mapping[str, Any], where: str = "code") -> Iterator[_Setting]:
    for key, value in code.items():
        yield _Setting(f"{where}, option {key}", key, value)


def _from_file(file: Path | None, findings: list[Finding]) -> Iterator[_Setting]:
    if file is None:
        return
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
        document = tomllib.loads(text)
    except OSError as error:
        findings.append(Finding("the settings file cannot be read", str(file), error.strerror or str(error)))
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        findings.append(Finding("the settings file is no TOML", str(file), str(error)))
        return
    table = document.get("tupletree", {})
    if not isinstance(table, dict):
        findings.append(Finding("tupletree is no table", str(file), repr(table), "a table [tupletree]"))
        return
    if similar := difflib.get_close_matches("tupletree", map(str.lower, document.keys() - {"tupletree"}), cutoff=0.8):
        name = next(key for key in document if key.lower() == similar[0] and key != "tupletree")
        findings.append(
            Finding(
                "the table has another name, so that its settings would be ignored",
                f"{file}{_header_line(name, text)}",
                f"[{name}]",
                "[tupletree]",
                "correct the name of the table",
            )
        )
    if outside := [key for key, value in document.items() if not isinstance(value, dict)]:
        findings.append(
            Finding(
                "settings are outside of the table [tupletree]",
                str(file),
                ", ".join(outside),
                next_step="put the line [tupletree] above them",
            )
        )
    for key, value in _flatten(table):
        yield _Setting(f"{file}{_line_of(key, text)}", key, value)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Storm's keys have dots, which TOML reads as tables: `topology.acker.tasks = 2`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _header_line(table: str, text: str) -> str:
    """`:3` for the line on which a table begins; empty if none does by itself."""
    numbered = enumerate(text.splitlines(), 1)
    return next((f":{number}" for number, line in numbered if line.strip().startswith(f"[{table}]")), "")


def _line_of(key: str, text: str) -> str:
    """`:3` for the line that sets the key; empty if it is split over tables, which tomllib does not report."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = header[1].strip()
        elif table == "tupletree" and line.partition("=")[0].strip().strip("\"'") == key:
            return f":{number}"
    return ""


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Setting]:
    for variable, value in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and not KUBERNETES.fullmatch(variable):
            key = variable.removeprefix(ENVIRONMENT_PREFIX)
            yield _Setting(
                f"environment variable {variable}",
                key if key.startswith("TOPOLOGY_") else key.lower(),
                value,
                may_be_foreign=True,
            )


def _from_command_line(command_line: Sequence[str], findings: list[Finding]) -> Iterator[_Setting]:
    for text in command_line:
        key, equals, value = text.partition("=")
        if equals:
            yield _Setting(f"--option {text}", key.strip(), value, may_repeat=True)
        else:
            findings.append(Finding("not a setting", f"--option {text}", text, "key=value"))


def _read_place(settings: Iterator[_Setting], findings: list[Finding]) -> dict[str, Any]:
    """The good settings of one place by name; faults go to `findings`."""
    values: dict[str, Any] = {}
    for setting in settings:
        name = _name_of(setting.key)
        if name == "acker_executors" and setting.key != name and setting.value in (0, "0"):
            name = "acker_tasks"  # Storm turns tracking off so
        if name is None:
            unknown = _unknown(setting)
            if setting.may_be_foreign:
                # Containers and shells have variables that the user did not choose: no reason not to start.
                advice = f" ({unknown.next_step})" if unknown.next_step else ""
                warnings.warn(f"ignored: {unknown.where}: {unknown.what}{advice}", stacklevel=2)
            else:
                findings.append(unknown)
            continue
        if name in values and not setting.may_repeat:
            findings.append(
                Finding("set twice in one place", setting.where, setting.key, f"either {name} or its Storm alias")
            )
        try:
            values[name] = _TABLE[name].accept(setting.value)
        except ValueError as fault:
            findings.append(Finding(f"wrong value for {name}", setting.where, repr(setting.value), str(fault)))
    return values


def _dotted_storm_key(key: str) -> str:
    """`TOPOLOGY_ACKER_TASKS`, as Storm's Java code writes it, is `topology.acker.tasks`."""
    return key.lower().replace("_", ".") if key.startswith("TOPOLOGY_") else key


def _name_of(key: str) -> str | None:
    dotted = _dotted_storm_key(key)
    return key if key in _TABLE else _STORM_NAMES.get(dotted) or _STORM_OLD_NAMES.get(dotted)


def _unknown(setting: _Setting) -> Finding:
    dotted = _dotted_storm_key(setting.key)
    families = (word for start, word in _STORM_FAMILIES.items() if dotted.startswith(start))
    if word := _STORM_WITHOUT_COUNTERPART.get(dotted):
        return Finding("this Storm setting has no counterpart", setting.where, setting.key, next_step=word)
    near = difflib.get_close_matches(dotted.lower(), [*_TABLE, *_STORM_NAMES], n=1, cutoff=0.6)
    if (word := next(families, "")) and not difflib.get_close_matches(dotted, near, cutoff=0.9):
        return Finding("this Storm setting has no counterpart", setting.where, setting.key, next_step=word)
    return Finding(
        "unknown option",
        setting.where,
        setting.key,
        f"one of {', '.join(_TABLE)}" if not near else "",
        f"did you mean {near[0]}?" if near else "",
    )
