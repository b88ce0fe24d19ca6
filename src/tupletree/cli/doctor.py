"""`tupletree doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from tupletree.cli.arguments import Json

_LEAST_MEMORY_GIB = 2.0
_LEAST_SPACE_GIB = 1.0

_EXTRAS = {
    "metrics": (("prometheus-client",), "--metrics-port"),
    "sql": (("sqlalchemy", "psycopg"), "the sink `sql`"),
    "delta": (("deltalake",), "the sink `delta`"),
    "routes": (("duckdb", "httpx", "jinja2", "pydantic", "pyyaml", "sqlalchemy"), "`tupletree routes`"),
    "embed": (("scikit-learn",), "the adapter `embed`"),
    "sentences": (("sentence-transformers",), "the adapter `embed` with a sentence model"),
    "otel": (("opentelemetry-sdk",), "spans of routes"),
    "openlineage": (("openlineage-python",), "run events of routes"),
    "cloudevents": (("cloudevents",), "messages of routes as CloudEvents"),
    "redis": (("redis",), "queues on a Redis server"),
    "nats": (("nats-py",), "queues on a NATS server"),
    "rabbitmq": (("pika",), "queues on a RabbitMQ server"),
    "kafka": (("confluent-kafka",), "queues on a Kafka cluster"),
    "sqs": (("boto3",), "queues on Amazon SQS"),
}
"""Extra → its packages, and what needs them. `java` has a row of its own."""


@dataclass(frozen=True)
class Check:
    """One thing that was examined.

    Attributes:
        name: what it is.
        status: `ok`, `warning` (works with a drawback) or `missing` (the Spark runtime will not run).
        found: what there is.
        expected: what is needed; empty if anything will do.
        next_step: how to fix it; empty if nothing is wrong.
    """

    name: str
    status: Literal["ok", "warning", "missing"]
    found: str
    expected: str = ""
    next_step: str = ""


def doctor_command(as_json: Json = False) -> None:
    """Look at Java, the packages and the machine, and say what is missing and how to get it.

    Exit code 0 if the Spark runtime can run here, 1 if not.
    """
    checks = examine()
    ready = all(check.status != "missing" for check in checks)
    if as_json:
        import json

        print(json.dumps({"ready": ready, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks, ready=ready)
    raise typer.Exit(0 if ready else 1)


def examine() -> list[Check]:
    """Look at everything; starts each Java it finds once or twice, changes nothing else."""
    return [*_packages(), _java(), *_surroundings(), *_extras(), *_machine()]


def _packages() -> list[Check]:
    from tupletree.runtimes.java import check_packages, inspect_packages

    next_steps = {finding.where: finding.next_step for finding in check_packages()}
    return [
        Check(
            status.name,
            "missing" if not status.suited else "warning" if status.note else "ok",
            status.version or "not installed",
            status.expected,
            next_steps.get(status.name, status.note),
        )
        for status in inspect_packages()
    ]


def _java() -> Check:
    from tupletree.errors import RuntimeUnavailableError
    from tupletree.runtimes.java import find_java

    try:
        java = find_java()
    except RuntimeUnavailableError as error:
        [finding] = error.findings
        return Check("Java", "missing", finding.got, finding.expected, finding.next_step)
    found = f"{java.version} in {java.home} (by {java.source})"
    if java.java_home_fault:
        next_step = "set JAVA_HOME to Java 17 or newer, or unset it"
        return Check(
            "Java", "warning", f"{found}; JAVA_HOME is ignored: {java.java_home_fault}", "17 or newer", next_step
        )
    return Check("Java", "ok", found, "17 or newer")


def _surroundings() -> list[Check]:
    """What around this process keeps Spark from starting, and whether the Python of PYSPARK_PYTHON has the packages."""
    from tupletree.runtimes.java import check_surroundings

    found = check_surroundings()
    checks = [Check(one.where, "missing", f"{one.what}: {one.got}", one.expected, one.next_step) for one in found]
    python = os.environ.get("PYSPARK_PYTHON", "")
    if python and "PYSPARK_PYTHON" not in {one.where for one in found}:
        line = [python, "-c", "import msgspec, pyarrow, pyspark, tupletree, xxhash"]
        tried = subprocess.run(line, capture_output=True, text=True, check=False)
        if tried.returncode:
            fault = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
            next_step = "unset PYSPARK_PYTHON: workers run this Python then, or install Tupletree there"
            checks.append(
                Check("PYSPARK_PYTHON", "missing", f"{python}: {fault}", "a Python with Tupletree", next_step)
            )
        else:
            checks.append(Check("PYSPARK_PYTHON", "ok", python))
    return checks


def _extras() -> list[Check]:
    """What is installed of each extra. An extra is optional, so the status is always `ok`."""
    from tupletree.runtimes.java import installed_version

    checks = []
    for extra, (packages, user) in _EXTRAS.items():
        versions = {package: installed_version(package) for package in packages}
        checks.append(
            Check(
                f"extra {extra}",
                "ok",
                ", ".join(f"{package} {version or 'not installed'}" for package, version in versions.items()),
                next_step="" if all(versions.values()) else f"for {user}: pip install 'tupletree[{extra}]'",
            )
        )
    return checks


def _machine() -> list[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    temporary = Path(tempfile.gettempdir())
    space = shutil.disk_usage(temporary).free / 2**30
    return [
        Check("cores", "ok", str(cores)),
        _at_least("memory", memory, _LEAST_MEMORY_GIB, "give Spark less: spark.driver.memory"),
        _at_least(f"space in {temporary}", space, _LEAST_SPACE_GIB, "set TMPDIR to a folder with more space"),
    ]


def _at_least(name: str, have_gib: float, least_gib: float, next_step: str) -> Check:
    enough = have_gib >= least_gib
    return Check(
        name,
        "ok" if enough else "warning",
        f"{have_gib:.1f} GiB",
        f"{least_gib:g} GiB or more",
        "" if enough else next_step,
    )


def _print(checks: list[Check], *, ready: bool) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = {"ok": "ok     ", "warning": "warning", "missing": "MISSING"}[check.status]
        print(f"{mark}  {check.name:<{width}}  {check.found}")
        indent = " " * (len(mark) + width + 4)
        if check.status != "ok" and check.expected:
            print(f"{indent}expected: {check.expected}")
        if check.next_step:
            print(f"{indent}next: {check.next_step}")
    print()
    print("The Spark runtime can run here." if ready else "The Spark runtime cannot run here yet: see MISSING above.")
