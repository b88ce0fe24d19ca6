"""The rows of the local runtime: word count against its peers, latency, memory, and cost per message."""

from __future__ import annotations

import json
import shutil
import subprocess
from statistics import median, quantiles

import msgspec

from benchmarks.corpus import count_words, ensure_corpus
from benchmarks.harness import REPOSITORY, peer_environment, run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.row import Row, Settings, progress

__all__ = ["LOCAL_BENCHMARKS"]

WORDS_PER_LINE = 10
EPOCH_LINES = 100_000  # of the corpora's files; means nothing here
PEERS_PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
PEERS = {
    "bytewax": ("bytewax_count.py", "1000", "map"),
    "bytewax, batches per key": ("bytewax_count.py", "1000", "batch"),
    "pathway": ("pathway_count.py",),
    "pystorm split": ("pystorm_split.py",),
}
"""Name → script and arguments after the corpus."""

NOTES = {
    "bytewax": "`stateful_map`, 1,000 lines per batch (its best); tracks nothing, passes bare strings",
    "bytewax, batches per key": "`stateful_batch`: its fastest keyed state, not one call per word",
    "pathway": "reads files itself, counts in its engine, one output per distinct word; tracks nothing",
    "pystorm split": "one split bolt alone over Storm's JSON protocol, fed from a file",
    "msgspec": "defaults: two threads, as many messages open as 5 ms allow; tracked, the sink waits for each root",
    "cooperative": "one thread",
    "pending 1,024": "as many messages open as a batch of bytewax has lines",
    "dataclass": "streams are frozen dataclasses",
    "collector": "the splitting bolt is a class with a collector",
    "one word": "one-word lines: one tuple per message, against bytewax on the same lines",
    "one word, cooperative": "the same on one thread",
    "one word, pending 1,024": "the same, with 1,024 open messages",
}
OWN = {
    "msgspec": ("msgspec", 0),
    "cooperative": ("cooperative", 0),
    "pending 1,024": ("msgspec", 1_024),
    "dataclass": ("dataclass", 0),
    "collector": ("collector", 0),
}
OWN_ONE_WORD = {
    "one word": ("msgspec", 0),
    "one word, cooperative": ("cooperative", 0),
    "one word, pending 1,024": ("msgspec", 1_024),
}
"""Row → variant of `local_count`, max pending (0: the default)."""


class PeerTimes(msgspec.Struct, frozen=True):
    """What a peer printed."""

    seconds: float
    cpu_seconds: float
    rows: int
    checksum: int


def measure_count(settings: Settings) -> list[Row]:
    """Jobs alternate A B C A B C; medians, and ratios to bytewax round by round, in CPU and in wall time."""
    rows = []
    for words_per_line, peers, own in ((WORDS_PER_LINE, tuple(PEERS), OWN), (1, ("bytewax",), OWN_ONE_WORD)):
        words = settings.local_words if words_per_line > 1 else settings.local_words // 2
        corpus = ensure_corpus(settings.work, words=words, words_per_line=words_per_line, epoch_lines=EPOCH_LINES)
        counts = count_words(corpus)
        expected = {"rows": counts.total(), "checksum": sum(n * (n + 1) // 2 for n in counts.values())}
        times: dict[str, list[tuple[float, float]]] = {}
        absent: dict[str, str] = {}
        for _round in range(settings.rounds):
            for name in peers:
                if name not in absent:
                    try:
                        peer = run_peer(name, str(corpus), expected)
                    except RuntimeError as error:
                        absent[name] = str(error)
                    else:
                        note_times(times, name, words_per_line, peer.seconds, peer.cpu_seconds)
            for name, (variant, pending) in own.items():
                spec = count_spec(settings, str(corpus), variant, pending)
                result = checked(run_job("local count", spec).result, expected)
                note_times(times, name, words_per_line, result.seconds, result.cpu_seconds)
        rows += [count_row(name, words_per_line, expected["rows"], times) for name in times]
        rows += [Row(benchmark="local count", job=name, result="not run", note=why) for name, why in absent.items()]
    shutil.rmtree(settings.work / "local", ignore_errors=True)
    return rows


def count_spec(settings: Settings, corpus: str, variant: str, pending: int, messages: int = 0) -> JobSpec:
    """What a word count is told."""
    folder = str(settings.work / "local")
    return JobSpec(master="", folder=folder, corpus=corpus, variant=variant, pending=pending, messages=messages)


def note_times(
    times: dict[str, list[tuple[float, float]]], name: str, words_per_line: int, wall_s: float, cpu_s: float
) -> None:
    """Keep the times of one job, and tell the person at the terminal."""
    times.setdefault(name, []).append((wall_s, cpu_s))
    progress(f"local count, {words_per_line}-word lines, {name}: {wall_s:.2f} s, {cpu_s:.2f} s of CPU")


def run_peer(name: str, corpus: str, expected: dict[str, int]) -> PeerTimes:
    """Run a peer in its own environment. Raises RuntimeError if it is not there, fails, or counts wrongly."""
    if not PEERS_PYTHON.exists():
        raise RuntimeError("no environment for peers: make bench-peers")
    script, *arguments = PEERS[name]
    command = [str(PEERS_PYTHON), str(REPOSITORY / "benchmarks" / "peers" / script), corpus, *arguments]
    done = subprocess.run(command, env=peer_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    times = msgspec.convert(json.loads(done.stdout.strip().splitlines()[-1]), PeerTimes)
    if times.rows != expected["rows"] or times.checksum not in {0, expected["checksum"]}:
        raise RuntimeError(f"a wrong count: {times.rows} rows, checksum {times.checksum}")
    return times


def checked(result: JobResult, expected: dict[str, int]) -> JobResult:
    """The result. Raises AssertionError for a wrong count: a fast wrong answer is none."""
    if result.numbers != expected:
        raise AssertionError(f"a wrong count: got {result.numbers}, expected {expected}")
    return result


def count_row(name: str, words_per_line: int, words: int, times: dict[str, list[tuple[float, float]]]) -> Row:
    """A job's medians, and how its speed compares with bytewax's."""
    own = times[name]
    wall_s, cpu_s = (median(column) for column in zip(*own))
    ratio = ""
    if "bytewax" in times:
        pairs = list(zip(times["bytewax"], own))
        cpu = [theirs[1] / mine[1] for theirs, mine in pairs]
        wall = [theirs[0] / mine[0] for theirs, mine in pairs]
        ratio = f"CPU {spread(cpu)}, wall {spread(wall)} × bytewax's speed"
    return Row(
        benchmark=f"local count, {words_per_line}-word lines",
        job=name,
        result=f"{words / cpu_s:,.0f} words per CPU second, {words / wall_s:,.0f} per second",
        ratio=ratio,
        note=NOTES["bytewax" if name == "bytewax" else name],
        data={"wall_and_cpu_seconds": own},
    )


def spread(values: list[float]) -> str:
    """Median, least and most."""
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def measure_durable(settings: Settings) -> list[Row]:
    """A durable run against one in memory, alternating; 1,000 messages open, ratios round by round."""
    corpus = ensure_corpus(
        settings.work, words=settings.local_words, words_per_line=WORDS_PER_LINE, epoch_lines=EPOCH_LINES
    )
    counts = count_words(corpus)
    expected = {"rows": counts.total(), "checksum": sum(n * (n + 1) // 2 for n in counts.values())}
    times: dict[str, list[tuple[float, float]]] = {}
    for _round in range(settings.rounds):
        for name, variant in (("in memory", "msgspec"), ("durable", "durable")):
            result = checked(run_job("local count", count_spec(settings, str(corpus), variant, 1_000)).result, expected)
            note_times(times, name, WORDS_PER_LINE, result.seconds, result.cpu_seconds)
            shutil.rmtree(settings.work / "local", ignore_errors=True)
    wall, cpu = (
        [durable[column] / memory[column] for memory, durable in zip(times["in memory"], times["durable"])]
        for column in (0, 1)
    )
    wall_s, cpu_s = (median(column) for column in zip(*times["durable"]))
    return [
        Row(
            benchmark="local durable",
            job="durable",
            result=f"{wall_s:.2f} s, {cpu_s:.2f} s of CPU",
            ratio=f"{spread(wall)} × the time in memory, {spread(cpu)} × its CPU",
            note=f"word count, {WORDS_PER_LINE}-word lines, 1,000 messages open; all of its state is stored",
            data={"times": times},
        )
    ]


def measure_latency(settings: Settings) -> list[Row]:
    """Emit to ack at 1,000 messages per second."""
    rows = []
    for variant, note in (
        ("two threads", "the default"),
        ("blocked", "while a `blocking=True` bolt of another stream stands still"),
        ("cooperative", "one thread"),
    ):
        folder = settings.work / "local"
        spec = JobSpec(master="", folder=str(folder), variant=variant, messages=settings.local_latency_messages)
        result = run_job("local latency", spec).result
        shutil.rmtree(folder, ignore_errors=True)
        cuts = quantiles([one * 1000 for one in result.epoch_ms], n=100)
        first_ms = result.numbers["first_ack_s"] * 1000
        rows.append(
            Row(
                benchmark="local latency",
                job=variant,
                result=f"{cuts[49]:.0f} / {cuts[98]:.0f} µs emit to ack; first ack {first_ms:.0f} ms after `run`",
                note=f"1,000 messages/s through three bolts, {len(result.epoch_ms)} messages, p50 / p99; {note}",
                data={"ack_ms": result.epoch_ms, "first_ack_ms": first_ms},
            )
        )
    return rows


def measure_memory(settings: Settings) -> list[Row]:
    """The acker's memory."""
    folder = settings.work / "local"
    spec = JobSpec(master="", folder=str(folder), messages=settings.local_open_trees)
    numbers = run_job("local memory", spec).result.numbers
    shutil.rmtree(folder, ignore_errors=True)
    few, many = numbers["bytes_of_tree_of_10"], numbers["bytes_of_tree_of_many"]
    return [
        Row(
            benchmark="local memory",
            job="open trees",
            result=f"{numbers['bytes_per_tree']:.0f} bytes each",
            note=f"acker at {settings.local_open_trees:,} open trees, their ids included (tracemalloc)",
            data=dict(numbers),
        ),
        Row(
            benchmark="local memory",
            job="one large tree",
            result=f"{many:,.0f} bytes",
            ratio=f"{many / few:.2f} × a tree of 10 tuples",
            note=f"acker with one tree of {settings.local_open_trees:,} tuples",
        ),
    ]


def measure_scale(settings: Settings) -> list[Row]:
    """Cost per message from few messages to many: one-word lines, default settings, less what 1,000 messages cost."""
    corpus = ensure_corpus(settings.work, words=10_000, words_per_line=1, epoch_lines=EPOCH_LINES)
    least = 1_000
    base_s = scale_cpu_s(settings, str(corpus), least)
    costs_us: dict[int, float] = {}
    rows = []
    for messages in [10**power for power in range(4, 8) if 10**power <= settings.local_scale_messages]:
        spent_s = scale_cpu_s(settings, str(corpus), messages) - base_s
        costs_us[messages] = spent_s / (messages - least) * 1e6
        rows.append(
            Row(
                benchmark="local scale",
                job=f"{messages:,} messages",
                result=f"{costs_us[messages]:.2f} µs of CPU per message",
                ratio=f"{costs_us[messages] / costs_us[10**4]:.2f} × that of 10,000 messages",
                note=f"word count of one-word lines; start and end ({base_s * 1000:.0f} ms of CPU) taken out",
            )
        )
        progress(f"local scale, {messages:,} messages: {costs_us[messages]:.2f} µs")
    shutil.rmtree(settings.work / "local", ignore_errors=True)
    return rows


def scale_cpu_s(settings: Settings, corpus: str, messages: int) -> float:
    """CPU seconds of a run: the least of several, for other work on the machine only ever adds to it."""
    spec = count_spec(settings, corpus, "msgspec", 0, messages)
    return min(run_job("local count", spec).result.cpu_seconds for _ in range(5 if messages < 10**6 else 2))


LOCAL_BENCHMARKS = {
    "local-count": measure_count,
    "local-durable": measure_durable,
    "local-latency": measure_latency,
    "local-memory": measure_memory,
    "local-scale": measure_scale,
}
"""Name on the command line → what runs it."""
