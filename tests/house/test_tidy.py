"""The rules of this house as tests: sizes, no dead modules, nothing of one machine, nothing unsafe.

Each exception is listed with its reason. A stale exception is a fault too.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tupletree"

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70

LONG_FILES: dict[str, str] = {
    "src/tupletree/tasks/bolt.py": "one machine: frames wait for an outage, a rate or their turn",
    "src/tupletree/runtimes/spark/worker/stage.py": "one attempt of a stage: its parts share what it reports",
    "tests/ordinary/test_outages.py": "one kind of fault, with the service that all its tests share",
    "src/tupletree/topology/components.py": "all that users write and runtimes call, on one page",
    "src/tupletree/config.py": "one table of options, with the reading of each place that may set them",
    "src/tupletree/testing/simulator/simulation.py": "one world: steps, effects and faults share all of its state",
    "src/tupletree/topology/builder.py": "one fluent surface: what is declared, on which handles, and what comes of it",
    "src/tupletree/bolts/plain.py": "one class with four hot loops, each of which says what an error leaves behind",
    "src/tupletree/tracking/pending.py": "one state machine over one set of dictionaries",
    "src/tupletree/tasks/spout.py": "one machine: what a spout task may emit and what becomes of it is one state",
    "src/tupletree/tasks/async_bolt.py": "one machine: tuples that wait and calls that run are one state",
    "src/tupletree/runtimes/local/executor.py": "one loop: its parts share the outbox, the queue and the clock",
    "src/tupletree/bolts/collector.py": "the rules of verdicts are one class, over the tuples in one task's hands",
    "src/tupletree/routes/ledger/ledger.py": "one ledger: its operations share how a transaction is written and told",
    "src/tupletree/sources/broker_spout.py": "one lease loop: what is leased, out and to be told is one state",
    "src/tupletree/routing/groupings.py": "the groupings are a class each, and share how tuples are distributed",
}
"""Path → why this file may be longer than MAX_FILE_LINES."""

LONG_FUNCTIONS: dict[str, str] = {
    "src/tupletree/cli/run.py:run_command": "its parameters are the options of the command, three lines each",
    "src/tupletree/topology/window_decorators.py:window_bolt": "its parameters are the settings of windows",
}
"""`path:qualified name` → why this function may be longer than MAX_FUNCTION_LINES."""

MAY_UNPICKLE: dict[str, str] = {
    "src/tupletree/runtimes/spark/format/program.py": "the driver's own program, which Spark hands to its workers",
}
"""Path → whose bytes it unpickles, and why they can be trusted."""

PUBLIC_MODULES: dict[str, str] = {
    "tupletree": "what users import",
    "tupletree.testing": "what users import in their tests",
    "tupletree.testing.in_process": "what tests import, whose topologies are to meet the Spark runtime without Spark",
    "tupletree.routes.testing.pytest_plugin": "pytest -p, for tests that stand in documents",
    "tupletree.testing.spark_protocol": "what the simulation of the Spark protocol imports, beside its topologies",
    "tupletree.__main__": "python -m tupletree",
}
"""Modules that nothing in the package imports, and who does instead."""

# Written in pieces, so that this file does not find itself.
MACHINE_TRACES = re.compile(
    "|".join(
        [
            r"(?<![\w.])/" + r"(?:work|home/\w+|root|Users/\w+)/",
            r"(?<![\w.])/" + r"tmp/\w",
            r"\bpypi\." + r"org|files\.python" + r"hosted|registry\.npm" + r"js|repo\d?\.maven",
            r"--(?:extra-)?index" + r"-url",
        ]
    )
)
MAY_SAY_SO: dict[str, str] = {}
"""Path → why it may hold what looks like a path of one machine or a registry's address."""


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that git knows or would add, so that a new file is judged before its first commit."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def python_files() -> tuple[Path, ...]:
    return tuple(path for path in tracked_files() if path.suffix == ".py")


def source_files() -> tuple[Path, ...]:
    return tuple(path for path in python_files() if path.is_relative_to(SOURCE))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions_of(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            yield from functions_of(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):  # no expression holds a function that has a name
            yield from functions_of(child, prefix)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path) -> Iterator[str]:
    """Every dotted name that a file's import statements could mean."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_repository_has_files_to_judge() -> None:
    assert len(source_files()) > 10


def test_files_stay_short_enough_to_be_read_in_one_sitting() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    too_long = {name: count for name, count in lines.items() if count > MAX_FILE_LINES}
    assert too_long.keys() - LONG_FILES.keys() == set(), too_long
    assert LONG_FILES.keys() - too_long.keys() == set(), "listed as an exception without need"


def test_functions_stay_short_enough_for_one_screen() -> None:
    too_long = {
        f"{name_of(path)}:{name}": (function.end_lineno or 0) - function.lineno + 1
        for path in python_files()
        for name, function in functions_of(tree_of(path))
        if (function.end_lineno or 0) - function.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert too_long.keys() - LONG_FUNCTIONS.keys() == set(), too_long
    assert LONG_FUNCTIONS.keys() - too_long.keys() == set(), "listed as an exception without need"


def test_every_module_says_what_it_owns() -> None:
    silent = [name_of(path) for path in source_files() if not ast.get_docstring(tree_of(path))]
    assert silent == []


def test_no_module_is_dead() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    entry_points = {target.partition(":")[0] for target in scripts.values()}
    imported = {name for path in source_files() for name in imported_names(path)}
    imported |= set(loaded_lazily())
    modules = {module_name(path): path for path in source_files()}
    dead = {
        name
        for name, path in modules.items()
        if name not in imported
        and name not in entry_points
        and name not in PUBLIC_MODULES
        # A package lives as long as one of its modules does.
        and not (path.name == "__init__.py" and any(other.startswith(f"{name}.") for other in modules))
    }
    assert dead == set()


def loaded_lazily() -> Iterator[str]:
    """Modules named as text, as in a lazy `__getattr__` or `importlib.import_module("tupletree.…")`."""
    for path in source_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and re.fullmatch(r"tupletree(\.\w+)+", str(node.value)):
                yield str(node.value)


def test_nothing_of_one_machine_or_registry_is_in_the_repository() -> None:
    found = []
    for path in tracked_files():
        if name_of(path) in MAY_SAY_SO:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{name_of(path)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_TRACES.search(line)
        ]
    assert found == []


def test_the_package_neither_unpickles_nor_evaluates_text() -> None:
    """Exceptions and payloads cross processes as data; what is loaded must not be able to run."""
    forbidden = {"eval", "exec", "pickle.loads", "pickle.load", "marshal.loads", "cloudpickle.loads", "yaml.load"}
    found = {
        name_of(path): f"line {node.lineno}: {ast.unparse(node.func)}"
        for path in source_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in forbidden
    }
    assert found.keys() - MAY_UNPICKLE.keys() == set(), found
    assert MAY_UNPICKLE.keys() - found.keys() == set(), "listed as an exception without need"


def test_an_ignored_check_gives_its_reason() -> None:
    """`# noqa: X - why` and `# type: ignore[x]  # why`. In tests the fault is often the point, and the code enough."""
    bare = re.compile(
        r"#\s*noqa(?!: [A-Z]+\d+(, ?[A-Z]+\d+)* +[-–—#] ?\w)|#\s*type:\s*ignore(?!\[[\w-]+(, ?[\w-]+)*\]\s+# \w)"
    )
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in source_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bare.search(line)
    ]
    assert found == []


def test_a_test_that_waits_by_real_time_gives_its_reason() -> None:
    """Time is injected. `tests.until` waits for other threads and processes; each other wait says why it is one."""
    without = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\btime\.sleep\(", line) and "  # " not in line and 'r"' not in line
    ]
    assert not without, "give the reason beside it, or use tests.until:\n" + "\n".join(without)


def test_the_lock_is_hashed_and_bound_to_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    requirements = re.findall(r"^(?!\s|#)(\S+==\S+)", lock, re.MULTILINE)
    hashed = re.findall(r"^(?!\s|#)\S+==.*\\\n\s+--hash=sha256:", lock, re.MULTILINE)
    assert len(requirements) > 30
    assert len(requirements) == len(hashed)
    assert "://" not in lock
