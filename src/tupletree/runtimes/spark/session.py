"""The Spark session: a new one with settings for micro-batches of messages, or an existing one, unchanged.

The low-latency settings are the default on local masters (docs/operations.md has the measurements). Starts the JVM;
nothing else in the project does.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tupletree.errors import Finding, RuntimeUnavailableError
from tupletree.runtimes.java import check_packages, check_surroundings, find_java
from tupletree.runtimes.spark.java_output import stderr_of_java
from tupletree.runtimes.spark.scratch import LOCAL_DIRS, configured_parents, scratch_folders

TASK_ATTEMPTS = 8
"""Attempts of one Spark task; `local[n]` would allow only one. A message that crashes its worker costs three of them
before it is found (`crash_markers`). Sessions that allow fewer run the epoch again instead."""

_STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"
_SPECULATION = "spark.speculation"

SETTINGS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A second attempt of a stage would mix two executions in one run: `refuse_mixing`. An epoch runs again instead.
    _STAGE_ATTEMPTS: "1",
    _SPECULATION: "false",
    "spark.task.maxFailures": str(TASK_ATTEMPTS),
    "spark.driver.maxResultSize": "0",
}

_SOCKETS = "spark.python.unix.domain.socket"
_MAX_SOCKET_PATH = 103
"""Length in bytes that every system allows for the path of a socket."""

_SOCKET_NAME_BYTES = 43
"""`.UUID.sock`, as Spark names them, and the slash before it."""

LOGGING = Path(__file__).absolute().with_name("log4j2.properties")
"""Absolute: the module of a package that was shipped as a zip has a relative path, of which no URI can be made."""

DRIVER_JAVA_OPTIONS = f"-XX:+UseSerialGC -Xss64m -Dlog4j2.configurationFile={LOGGING.as_uri()}"
"""-Xss64m: a stop during an action needs a deep stack. Spark's own lines at the start are of no use to the user."""

QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""On local masters the driver's JVM shares its cores with the Python workers, which do the work: the full compiler
costs them more time than it saves. Measured: a word count of 5 M words on two cores in 6.8 instead of 8.4 s."""


def open_session(name: str, master: str, settings: dict[str, str] | None = None) -> tuple[Any, bool]:
    """Return a SparkSession, and whether this call started it (and so may stop it).

    An active session is used as it is, whatever `master` says. In a driver that spark-submit started, its master and
    settings win. Raises RuntimeUnavailableError if there is no usable
    Java or package, if the session is a Spark Connect one, or if it would mix executions.
    """
    refuse_unsuited()
    active = _active_session()
    if active is not None:
        context = active.sparkContext
        refuse_mixing(context.getConf().get, context.master)
        return active, False
    submitted = _submitted()
    if not submitted:
        faults = check_surroundings()
        if faults:
            raise RuntimeUnavailableError("Spark cannot start here", findings=faults)
        os.environ["JAVA_HOME"] = str(find_java().home)
    master = submitted.get("spark.master", master)
    # Workers must run this Python: another one has other packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    options = {**SETTINGS, "spark.driver.extraJavaOptions": DRIVER_JAVA_OPTIONS}
    if master.startswith("local"):
        options |= _local_options(master, {**submitted, **(settings or {})})
    chosen = {**options, **submitted, **(settings or {})}
    refuse_mixing(chosen.get, master)
    session = _start(name, master, chosen)
    session.sparkContext.setLogLevel("ERROR")
    return session, True


def _start(name: str, master: str, chosen: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"tupletree: {name}").master(_with_attempts(master))
    for key, value in chosen.items():
        if key != "spark.master":
            builder = builder.config(key, value)
    if master.startswith("local-cluster") and chosen.get("spark.authenticate") == "true":
        # With plain local masters the JVM makes a secret itself. Settings that are there when the JVM starts are
        # on its command line, which every user can read; later ones are not.
        _start_jvm(chosen)
        builder = builder.config("spark.authenticate.secret", secrets.token_hex(32))
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:
        _start_jvm({**chosen, "spark.app.name": f"tupletree: {name}", "spark.master": _with_attempts(master)})
    return builder.getOrCreate()


def _start_jvm(chosen: Mapping[str, str]) -> None:
    """Start the JVM, if there is none, in a session of the operating system of its own.

    A signal to all processes of a terminal or a job (it was closed; `timeout`; `kill -- -PID`) must not end it before
    the run has settled what is in hand. It ends when this process does, for it reads from it.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - pyspark has no public word for it
        launch: Callable[..., Any] = launch_gateway
        with stderr_of_java() as output:
            gateway = launch(SparkConf().setAll(list(chosen.items())), {"start_new_session": True, **output})
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as above


def _local_options(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a session on this host only: loopback only, with a secret, its files and sockets in a private folder.

    Raises RuntimeUnavailableError if there is no place for that folder.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    parents = configured_parents(given, os.environ)
    try:
        folders = scratch_folders(parents)
    except OSError as error:
        raise RuntimeUnavailableError(
            "there is no place for Spark's temporary files",
            where=", ".join(map(str, parents)),
            got=str(error),
            expected="a folder that this user may write to, on a disk with room",
            next_step=f"name one by the variable TMPDIR or {LOCAL_DIRS}",
        ) from error
    local_dirs = ",".join(map(str, folders))
    if LOCAL_DIRS in os.environ:
        os.environ[LOCAL_DIRS] = local_dirs
    first = folders[0]
    temporary = f"-Djava.io.tmpdir={_quoted(str(first))}"
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{DRIVER_JAVA_OPTIONS} {QUICK_COMPILER} {temporary}",
        "spark.authenticate": "true",
        "spark.local.dir": local_dirs,
        "spark.executorEnv.TMPDIR": str(first),
    }
    if master.startswith("local-cluster"):
        options["spark.executor.extraJavaOptions"] = temporary
    # A worker trusts every process that can write to such a socket; over TCP, which is slower, it needs a secret. On a
    # cluster the sockets would be in a folder that all users of a host share.
    if len(os.fsencode(first)) + _SOCKET_NAME_BYTES <= _MAX_SOCKET_PATH:
        options |= {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": str(first)}
    return options


def _quoted(path: str) -> str:
    """A part of a Java option, quoted as Spark parses options."""
    return path if re.fullmatch(r"[\w./+-]+", path) else '"' + re.sub(r'(["\\])', r"\\\1", path) + '"'


def _submitted() -> dict[str, str]:
    """The settings of spark-submit, if it started this driver; then the JVM is there already."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - pyspark has no public word for it: it joins that JVM
    return dict(SparkConf().getAll())


def refuse_unsuited() -> None:
    """Raise RuntimeUnavailableError for unsupported packages, or if this process uses Spark through Connect."""
    faults = check_packages()
    if faults:
        raise RuntimeUnavailableError("the installed packages do not work with the Spark runtime", findings=faults)
    for variable in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):  # the second is set by a session that connected
        if variable in os.environ:
            raise RuntimeUnavailableError(
                "Spark Connect cannot run a topology: spouts and the settling thread run in the driver's process",
                got=f"{variable} is set",
                expected="a classic session, or none",
                next_step="unset SPARK_REMOTE and stop the session, then start the driver with --master",
            )


def refuse_mixing(setting: Callable[[str, str], str | None], master: str) -> None:
    """Raise RuntimeUnavailableError if a session on several hosts may run a part of an epoch twice.

    In one process no part of a shuffle is ever lost, and Spark does not speculate.

    Args:
        setting: name and default → value of one of the session's settings.
        master: of the session.
    """
    if master.startswith("local"):
        return
    findings = [
        Finding(
            what, where=name, got=str(got), expected=needed, next_step=f"set {name}={needed} when the session starts"
        )
        for what, name, default in (
            ("a second attempt of a stage would mix two executions of an epoch", _STAGE_ATTEMPTS, "4"),
            ("a task that runs twice at a time calls bolts twice, and blames messages for it", _SPECULATION, "false"),
        )
        if (got := setting(name, default)) != (needed := SETTINGS[name])
    ]
    if findings:
        raise RuntimeUnavailableError("this Spark session cannot keep epochs apart", findings=findings)


def _active_session() -> Any | None:
    """An existing session of this process, without starting anything."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # "Active" is per thread, and the run has a thread of its own: the context shows whether there is any session.
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - pyspark has no public word for it
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _with_attempts(master: str) -> str:
    """`local[2]` allows one attempt per task; `local[2,4]` four."""
    plain = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    return f"local[{plain[1] or 1},{TASK_ATTEMPTS}]" if plain else master


def partitions_of(session: Any) -> int:
    """The number of partitions of a plan: the cores that Spark has."""
    return max(1, int(session.sparkContext.defaultParallelism))
