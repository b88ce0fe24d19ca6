"""What the documents say is so: links lead somewhere, tables are complete, every snippet runs."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml

import tupletree
import tupletree.bolts
import tupletree.sinks
import tupletree.sources
from tests.docs.documents import (
    DOCUMENTS,
    PACKAGE,
    ROOT,
    Block,
    blocks_of,
    committed_modules,
    links_of,
    modules_page,
    options_in,
    options_table,
    route_faults,
    route_keys,
    routes_in,
)
from tupletree.cli.main import app, main
from tupletree.queues import registry
from tupletree.runtimes.spark.format import carryover, entries
from tupletree.topology.builder import BoltHandle
from tupletree.topology.model import GroupingKind
from tupletree.tracking.pending_log import PendingChanges


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code, and all that it wrote."""

    code: int
    said: str


SEEN_BY_EYE = {"", "text", "mermaid"}
"""Languages of blocks that are looked at, not run."""

STORIES = [
    ["README.md"],
    ["docs/guide.md", "docs/operations.md"],
    ["docs/semantics.md"],
    ["docs/reference.md"],
    ["docs/queues.md"],
    ["docs/routes.md"],
    ["docs/routes_adapters.md"],
    ["docs/routes_running.md"],
    ["docs/routes_lineage.md"],
]
"""Documents whose blocks are run, in order, in one folder."""

TELLER = "docs/guide.md"
"""The one document whose `tupletree run` really runs, on Spark; elsewhere the same command line is only checked."""


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(document: Path) -> None:
    for link in links_of(document):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, link


def test_the_table_of_options_is_current() -> None:
    assert options_in(ROOT / "docs" / "operations.md") == options_table(), "run: python -m tests.docs.documents"


def test_the_tables_of_routes_are_current() -> None:
    assert routes_in(ROOT / "docs" / "routes.md") == (route_keys(), route_faults()), (
        "run: python -m tests.docs.documents"
    )


def test_the_architecture_names_every_folder_and_no_module_that_is_not_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+?)/?`", text))
    modules = committed_modules()
    for folder in {module.parent for module in modules} - {Path(), Path("testing")}:
        assert folder.as_posix() in named, f"{folder} is not on the map"
    for folder in re.findall(r"`([\w/]+)/`", text):
        assert (PACKAGE / folder).is_dir() or (ROOT / folder).is_dir(), f"{folder}/ is no folder"
    for row in re.findall(r"^\| (`[\w/]+/`.*?) \| .*? \| (.*) \|$", text, re.MULTILINE):
        folders = re.findall(r"`([\w/]+)/`", row[0])
        for name in re.findall(r"`([\w/]+)`", row[1]):
            places = [Path(folder, f"{name}.py") for folder in folders] + [Path(f"{name}.py")]
            assert any(place in modules for place in places), f"{name} is in none of {', '.join(folders)}"


def test_where_new_things_are_put_is_there_and_has_what_is_named() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \|$", text[text.index("## Where to put new things") :], re.MULTILINE)
    named = [(row, path) for row in rows for path in re.findall(r"(?<![\w/.])(?:\w+/)*\w+\.py\b", row)]
    assert len(named) > 50
    for row, path in named:
        folders = [PACKAGE, ROOT, *(PACKAGE / folder for folder in re.findall(r"`([\w/]+)/", row))]
        assert any((folder / path).is_file() for folder in folders), f"{path} is in none of the folders of: {row}"
    in_file = [(path, names) for row in rows for path, names in re.findall(r"`([\w/]+\.py)` \((`[^)]*`)\)", row)]
    in_file += [(path, name) for row in rows for name, path in re.findall(r"(`\w+`) in `([\w/]+\.py)`", row)]
    assert len(in_file) > 5
    for path, names in in_file:
        code = (PACKAGE / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b{name}\b", code), f"{path} has no {name}"


def test_the_page_of_modules_is_current() -> None:
    page = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    assert page == modules_page(), "run: python -m tests.docs.documents"


def test_the_reference_names_everything_public() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    public = [*tupletree.__all__, *tupletree.bolts.__all__, *tupletree.sinks.__all__, *tupletree.sources.__all__]
    groupings = ["global_" if kind == "global" else kind for kind in get_args(GroupingKind)]
    assert all(hasattr(BoltHandle, grouping) for grouping in groupings)
    missing = [name for name in [*public, *groupings] if not re.search(rf"`[^`]*\b{re.escape(name)}\b[^`]*`", text)]
    assert missing == []


NOT_FOR_USERS = {
    ("Retry", "is_outage"): "`Retry.OUTAGE` sets it",
    ("rate", "clock"): "tests",
    ("text_lines", "clock"): "tests",
    ("parquet_rows", "clock"): "tests",
}
"""(what is called, parameter) → who else gives it."""


def test_calls_that_the_reference_writes_out_have_the_parameters_that_they_take() -> None:
    """All with a default, but where an ellipsis says that there are others."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    text = text[: text.index("## Testing")] if "## Testing" in text else text
    homes = (tupletree, tupletree.bolts, tupletree.sinks, tupletree.sources)
    public = {name: getattr(home, name) for home in homes for name in home.__all__}
    checked: set[str] = set()
    for name, given in re.findall(r"`@?(\w+)(?:\[[^`(]*\])?\(([^`]*)\)`", text):
        if not callable(public.get(name)):
            continue
        takes = inspect.signature(public[name]).parameters
        said = set(re.findall(r"(?<![\w.])(\w+)\b(?!\()", given))
        missing = {one.name for one in takes.values() if one.default is not one.empty} - said
        missing -= {parameter for parameter in missing if (name, parameter) in NOT_FOR_USERS}
        assert "…" in given or not missing, f"`{name}({given})`: it takes {sorted(missing)}, too"
        takes_any = any(one.kind is one.VAR_KEYWORD for one in takes.values())
        unknown = set(re.findall(r"(?:^|, )(\w+)=", given)) - takes.keys()
        assert takes_any or not unknown, f"`{name}({given})`: it takes no {sorted(unknown)}"
        checked.add(name)
    assert {"Topology", "Retry", "run", "text_lines", "sql", "jsonl"} <= checked


def test_the_reference_names_every_command_and_every_option_of_it() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    missing: list[str] = []
    for words, command in commands_of((), typer.main.get_command(app)):
        # `dead list|show|replay` stands for three.
        if not re.search(rf"`tupletree {words[0]}\b[^`]*\b{words[-1]}\b|`tupletree {words[-1]}\b", text):
            missing.append(" ".join(words))
        options = {name for one in command.params for name in one.opts if name.startswith("--")}
        missing += [f"{words}: {name}" for name in sorted(options) if not re.search(rf"`[^`\n]*{name}\b", text)]
    assert missing == []


def commands_of(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in getattr(command, "commands", {}).items():
        yield from commands_of((*words, name), one)
    if not hasattr(command, "commands"):
        yield words, command


def test_the_checkpoint_page_names_every_field_of_the_journal() -> None:
    text = (ROOT / "docs" / "checkpoint.md").read_text(encoding="utf-8")
    structs = [
        entries.Amendment,
        entries.Base,
        entries.Counters,
        entries.DeadEntry,
        entries.EpochHeader,
        entries.FailedAttempt,
        entries.Messages,
        entries.OpenTree,
        entries.WaitingFile,
        carryover.CarryOver,
        carryover.CarryOverPart,
        entries.AckedTree,
        entries.OutputFile,
        entries.SettleEntry,
        entries.Unsendable,
        PendingChanges,
    ]
    fields = {field for struct in structs for field in struct.__struct_fields__}
    assert {field for field in fields if f"`{field}`" not in text} == set()


def test_the_operations_page_names_every_metric_of_a_run() -> None:
    code = (PACKAGE / "runtimes" / "metrics.py").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    there = {name.removesuffix("_total") for name in re.findall(r"`(tupletree_\w+)`", text)}
    assert there == set(re.findall(r'"(tupletree_\w+)"', code))


def test_a_reader_is_told_which_file_a_block_is() -> None:
    """What a page that is shown hides: the title of a block."""
    untold: list[str] = []
    for document in DOCUMENTS:
        lines = document.read_text(encoding="utf-8").split("\n")
        for block in blocks_of(document):
            before = "\n".join(lines[: block.line - 2]).rstrip().rpartition("\n\n")[2]
            if block.title and f"`{block.title}`" not in before:
                untold.append(f"{document.name}:{block.line} {block.title}")
    assert untold == []


def test_every_block_is_of_a_language_that_is_run_or_looked_at() -> None:
    told = {name for story in STORIES for name in story}
    for document in DOCUMENTS:
        for block in blocks_of(document):
            runnable = block.language in {"python", "sh"} or block.title
            assert not runnable or name_of(document) in told, f"{document.name}:{block.line} is run by no test"
            assert runnable or block.language in SEEN_BY_EYE, f"{document.name}:{block.line}"


@pytest.mark.spark
@pytest.mark.xdist_group("session")
@pytest.mark.parametrize("story", STORIES, ids=" ".join)
def test_every_snippet_runs_as_it_stands(
    story: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if TELLER in story:
        request.getfixturevalue("spark")  # the session of other tests is used: it is that of the process
    monkeypatch.setattr(os, "fsync", lambda _: None)  # snippets are about what happens, not about the disk
    monkeypatch.setattr(registry, "_schemes", dict(registry._schemes))  # a snippet adds one
    for name in story:
        namespace: dict[str, object] = {"__name__": "snippets"}
        for block in blocks_of(ROOT / name):
            where = f"{ROOT / name}:{block.line}"
            if block.title:
                (tmp_path / block.title).write_text(block.text, encoding="utf-8")
            if block.language == "python" and not block.title:
                _run_python(block, where, namespace, tmp_path)
            elif block.language == "sh":
                for line in block.text.splitlines():
                    _run_line(line, where, tmp_path, on_spark=name == TELLER)


def _run_python(block: Block, where: str, namespace: dict[str, object], folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        exec(compile(block.text, where, "exec", dont_inherit=True), namespace)  # the repository's own documents
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)


def _run_line(line: str, where: str, folder: Path, *, on_spark: bool) -> None:
    command, _, comment = line.partition("  #")
    words = shlex.split(command)
    match words:
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), where
        case ["tupletree", "demo"]:
            pass  # tests/cli/test_demo.py runs it
        case ["tupletree", *arguments]:
            if arguments[0] == "run" and not on_spark:
                arguments = _as_check(arguments)
            code = int(found[1]) if (found := re.search(r"exit code (\d+)", comment)) else 0
            ended = _run_in_process(arguments, folder)
            assert ended.code == code, f"{where}: {command}\n{ended.said}"
        case _:
            pytest.fail(f"{where}: nobody knows how to test {command!r}")


def _run_in_process(arguments: list[str], folder: Path) -> Ended:
    """What a process of its own would do, which starts without the modules of this one that lie in the folder."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        loaded = [name for name, module in sys.modules.items() if _lies_in(folder, module)]
        hidden = {name: sys.modules.pop(name) for name in loaded}
        path = list(sys.path)
        try:
            return Ended(main(arguments), said.getvalue())
        finally:
            sys.path[:] = path
            for name in [name for name, module in sys.modules.items() if _lies_in(folder, module)]:
                del sys.modules[name]
            sys.modules.update(hidden)


def _lies_in(folder: Path, module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(f"{folder}{os.sep}")


def _as_check(arguments: list[str]) -> list[str]:
    """The same target and settings for `tupletree check`, which knows no other options of `run`."""
    kept = ["check", arguments[1]]
    for name, value in itertools.pairwise(arguments):
        if name in {"--set", "--option", "--config"}:
            kept += [name, value]
    return kept


def test_the_alerts_of_the_operations_page_are_yaml_and_ask_for_metrics_that_there_are() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    [alerts] = [block for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if block.startswith("groups:")]
    [group] = yaml.safe_load(alerts)["groups"]
    source = (ROOT / "src" / "tupletree" / "runtimes" / "metrics.py").read_text(encoding="utf-8")
    known = {name.removesuffix("_total") for name in re.findall(r'"(tupletree_\w+)"', source)}
    for rule in group["rules"]:
        asked = {name.removesuffix("_total") for name in re.findall(r"tupletree_\w+", rule["expr"])}
        assert asked, rule
        assert asked <= known, rule


def test_the_unit_of_the_operations_page_runs_a_command_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    [unit] = [block for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) if block.startswith("[Unit]")]
    [line] = re.findall(r"^ExecStart=(.*)$", unit.replace("\\\n", ""), re.MULTILINE)
    words = shlex.split(line)
    assert words[0].endswith("bin/tupletree")
    assert main(words[1:]) == 2
    assert "the target's file does not exist" in capsys.readouterr().err, "and nothing else is wrong with it"
