"""Routes: messages per second through three trivial adapters, against the same three functions on Redis.

All take turns, each in a process of its own. Ours is fsynced at every commit, knows what became of each message and
when the execution is complete, and writes a row of lineage per call unless that is off; the peers have no more than
their defaults, on a Redis of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.harness import REPOSITORY, child_environment, peer_environment, run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.redis_server import redis_server
from benchmarks.row import Row, Settings, progress

__all__ = ["measure_routes"]

MESSAGES = 10_000
SPARK_MESSAGES = 100_000
PEER_MESSAGES = 2_000  # arq takes ten seconds for them
EXECUTIONS = 100
ROUTES = 100
PEERS_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
OWN = {
    "full": "lineage full: three rows per message",
    "off": "lineage off",
}
PEERS = {
    "dramatiq": ("dramatiq", False, "a pipeline of three actors, eight threads; Redis in memory alone"),
    "dramatiq, durable": ("dramatiq", True, "the same; Redis appends to a file that is fsynced every second"),
    "arq": ("arq", False, "jobs that enqueue the next one, 512 at a time; Redis in memory alone"),
    "arq, durable": ("arq", True, "the same; Redis appends to a file that is fsynced every second"),
}
"""Name → program, whether its Redis keeps anything, note."""

Rates = dict[str, list[float]]


def measure_routes(settings: Settings) -> list[Row]:
    """All in turns: medians, and how many times as fast full lineage is, round by round."""
    folder = settings.work / "routes"
    rates: Rates = {}
    cpu_us: Rates = {}
    absent: dict[str, str] = {}
    for _round in range(settings.rounds):
        for variant in OWN:
            result = run_own(folder, variant, MESSAGES)
            note(rates, variant, MESSAGES / result.seconds)
            cpu_us.setdefault(variant, []).append(result.cpu_seconds / MESSAGES * 1e6)
        for name in PEERS:
            if name not in absent:
                try:
                    note(rates, name, run_peer(name, folder))
                except RuntimeError as error:
                    absent[name] = str(error)
    rows = [own_row(variant, rates, median(cpu_us[variant])) for variant in OWN]
    rows += [peer_row(name, rates) for name in PEERS if name in rates]
    rows += [Row(benchmark="routes", job=name, result="not run", note=why) for name, why in absent.items()]
    rows += [spark_row(folder, level, settings) for level in OWN]
    rows += [told_row(folder), validate_row(folder, settings.repeats)]
    shutil.rmtree(folder, ignore_errors=True)
    return rows


def run_own(folder: Path, variant: str, messages: int, master: str = "") -> JobResult:
    """The job of ours, in a process of its own."""
    return run_job("routes", JobSpec(master=master, folder=str(folder), variant=variant, messages=messages)).result


def run_peer(name: str, folder: Path) -> float:
    """Messages per second of a peer. Raises RuntimeError if it is not there or fails."""
    if not PEERS_PYTHON.exists():
        raise RuntimeError("no environment for peers: make bench-peers")
    program, durable, _ = PEERS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    script = REPOSITORY / "benchmarks" / "peers" / "redis_chains.py"
    with redis_server(folder, durable=durable) as url:
        command = [str(PEERS_PYTHON), str(script), program, url, str(PEER_MESSAGES)]
        done = subprocess.run(command, env=peer_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    return PEER_MESSAGES / float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def note(rates: Rates, name: str, rate: float) -> None:
    """Keep a round, and tell the person at the terminal."""
    rates.setdefault(name, []).append(rate)
    progress(f"routes, {name}: {rate:,.0f} messages/s")


def own_row(variant: str, rates: Rates, cpu_us: float) -> Row:
    """Without lineage: against the same with it."""
    ratio = "1" if variant == "full" else f"{spread(rates[variant], rates['full'])} × full lineage"
    return Row(
        benchmark="routes",
        job=f"lineage {variant}",
        result=f"{median(rates[variant]):,.0f} messages/s, {cpu_us:.0f} µs of CPU each",
        ratio=ratio,
        note=f"three async adapters, embedded queue, one execution of {MESSAGES:,}; {OWN[variant]}",
        data={"per_second": rates[variant]},
    )


def peer_row(name: str, rates: Rates) -> Row:
    """How many times as fast ours is."""
    ratio = f"tupletree is {spread(rates['full'], rates[name])} × as fast with lineage"
    ratio += f", {spread(rates['off'], rates[name])} × without"
    result, note = f"{median(rates[name]):,.0f} messages/s", f"{PEER_MESSAGES:,} messages; {PEERS[name][2]}"
    return Row(benchmark="routes", job=name, result=result, ratio=ratio, note=note, data={"per_second": rates[name]})


def spark_row(folder: Path, level: str, settings: Settings) -> Row:
    """A route on Spark, ledger included."""
    rates, driver_us, others_us = [], [], []
    for _round in range(settings.rounds):
        result = run_own(folder, f"spark {level}", SPARK_MESSAGES, settings.master)
        rates.append(SPARK_MESSAGES / result.seconds)
        driver_us.append(result.cpu_seconds / SPARK_MESSAGES * 1e6)
        others_us.append(result.numbers["others_cpu_s"] / SPARK_MESSAGES * 1e6)
        progress(f"routes, spark {level}: {rates[-1]:,.0f} messages/s")
    return Row(
        benchmark="routes",
        job=f"spark, lineage {level}",
        result=f"{median(rates):,.0f} messages/s, {median(driver_us):.0f} µs of CPU each in the driver, "
        f"{median(others_us):.0f} in Spark and its workers",
        note=f"one route of three async adapters, {settings.master}, epochs of 10,000, one execution of "
        f"{SPARK_MESSAGES:,}; from the moment when all of them are in the queue",
        data={"per_second": rates},
    )


def told_row(folder: Path) -> Row:
    """From the begin of the transaction that completes an execution until somebody knows."""
    result = run_own(folder, "told", EXECUTIONS)
    told, waited = (f"{median(ms):.0f} / {sorted(ms)[-2]:.0f} ms" for ms in (result.epoch_ms, result.settle_ms))
    return Row(
        benchmark="routes",
        job="completion told",
        result=f"{told} to the listener, {waited} to `wait`",
        note=f"after the last settlement began, its commit included; {EXECUTIONS} executions, p50 / p99",
        data={"told_ms": result.epoch_ms, "waited_ms": result.settle_ms},
    )


def validate_row(folder: Path, repeats: int) -> Row:
    """The command, as people run it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "many.yaml"
    document.write_text(many_routes(ROUTES))
    command = [str(Path(sys.executable).with_name("tupletree")), "routes", "validate", str(document)]
    seconds = []
    environment = child_environment()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else all modules are compiled, each time
    for _repeat in range(repeats):
        started_s = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - started_s)
        if done.returncode != 0:
            raise RuntimeError(f"the document of the benchmark has faults: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Row(
        benchmark="routes",
        job="validate",
        result=f"{min(seconds) * 1000:.0f} / {median(seconds) * 1000:.0f} ms",
        note=f"`tupletree routes validate`, {ROUTES} routes of three adapters, Python's start included; min / median",
        data={"seconds": seconds},
    )


def many_routes(routes: int) -> str:
    """A document of that many routes in a row."""
    lines = ["version: 1", "pipeline: many", "routes:"]
    for number in range(routes):
        lines += [
            f"  step-{number}:",
            f"    inbound: {{queue: /queue/{number}, concurrency: 4}}",
            "    adapters:",
            *[f'      - type: "benchmarks.routes_adapters:{name}"' for name in ("first", "second", "third")],
            *([f"    outbound: [{{queue: /queue/{number + 1}}}]"] if number + 1 < routes else []),
        ]
    return "\n".join([*lines, ""])


def spread(ours: list[float], theirs: list[float]) -> str:
    """Ratios round by round: median, least and most."""
    ratios = [own / other for own, other in zip(ours, theirs)]
    return f"{median(ratios):.1f} ({min(ratios):.1f}–{max(ratios):.1f})"
