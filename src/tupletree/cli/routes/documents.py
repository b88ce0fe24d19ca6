"""`tupletree routes validate|explain|test|schema|graph|new`: documents are checked and shown, and begun."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tupletree.cli.arguments import Json
from tupletree.cli.graph import GraphFormat
from tupletree.cli.new import make_folder
from tupletree.cli.pipelines import require_packages
from tupletree.errors import ConfigError
from tupletree.escaping import escape, escape_json
from tupletree.texts import counted

if TYPE_CHECKING:
    from tupletree.routes.document import Document

app = typer.Typer(no_args_is_help=True, help="Check, explain and draw pipelines of routes, written in YAML.")

Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE", help="Path of a document, such as pipeline.yaml.")]
Pipelines = Annotated[list[str], typer.Argument(metavar="PIPELINE…", help="Paths of documents.")]


@app.command("validate")
def validate_command(pipelines: Pipelines, as_json: Json = False) -> None:
    """Find every fault of documents, and run nothing. Exit code 0 if there is none, 2 otherwise."""
    require_packages()
    from tupletree.routes.document import DocumentError, notes, read

    found = []
    faults: dict[str, DocumentError] = {}
    for pipeline in pipelines:
        try:
            document = read(Path(pipeline))
        except DocumentError as error:
            faults[pipeline] = error
            found.append({"file": pipeline, "ok": False, "faults": [fault.as_dict() for fault in error.faults]})
            continue
        row = {"file": pipeline, "ok": True, "faults": [], **_counts(document), "notes": notes(document)}
        found.append(row)
        if not as_json:
            counts = ", ".join(counted(row[f"{what}s"], what) for what in ("route", "adapter", "queue"))
            print(f"{escape(document.spec.name)} is OK: {counts}")
    if as_json:
        _print_json({"ok": not faults, "documents": found})
        raise typer.Exit(2 if faults else 0)
    if len(faults) == 1:
        raise next(iter(faults.values()))
    if faults:
        count = sum(len(error.faults) for error in faults.values())
        all_faults = [fault for error in faults.values() for fault in error.faults]
        raise ConfigError(f"{len(faults)} documents have {count} faults", findings=all_faults)


@app.command("explain")
def explain_command(pipeline: Pipeline, as_json: Json = False) -> None:
    """Print a document with every default filled in, and where each value comes from. Secrets are hidden."""
    document = _read(pipeline)
    from tupletree.routes.document import notes, to_yaml, values

    if not as_json:
        print(to_yaml(document), end="")
        return
    rows = [value.as_dict() for value in values(document)]
    _print_json({"pipeline": document.spec.name, "values": rows, "notes": notes(document)})


@app.command("test")
def run_tests_command(
    pipelines: Pipelines,
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Tests whose names hold this text.")] = "",
    as_json: Json = False,
) -> None:
    """Run the unit tests of documents, on virtual time. Exit code 0 if all pass, 1 otherwise."""
    documents = {pipeline: _read(pipeline) for pipeline in pipelines}
    from tupletree.routes.testing import run_tests

    trials = [trial for document in documents.values() for trial in run_tests(document, only)]
    failed = sum(not trial.passed for trial in trials)
    if as_json:
        _print_json({"ok": not failed, "tests": [trial.as_dict() for trial in trials]})
    else:
        for trial in trials:
            print(f"{'ok    ' if trial.passed else 'FAILED'}  {escape(trial.name)}  ({trial.place})")
            for problem in trial.problems:
                print("  " + problem.replace("\n", "\n  "))
        print(f"{counted(len(trials), 'test')}, {failed} failed")
    raise typer.Exit(1 if failed else 0)


@app.command("schema")
def schema_command(
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapter", metavar="TYPE", help="Settings of this adapter, too (module:Class); repeat it."),
    ] = None,
) -> None:
    """Print the JSON Schema of documents, for editors, with the settings of all installed adapters."""
    require_packages()
    from tupletree.routes.adapters import registry
    from tupletree.routes.document import document_schema

    for adapter in adapters or ():
        registry.find(adapter)  # a wrong name is an error here
    names = list(dict.fromkeys([*registry.names(), *(adapters or ())]))
    print(json.dumps(document_schema(names), indent=2))


@app.command("graph")
def graph_command(
    pipeline: Pipeline,
    form: Annotated[GraphFormat, typer.Option("--format", help="What to draw in.")] = GraphFormat.TEXT,
) -> None:
    """Draw a pipeline: its queues, its routes and their adapters."""
    document = _read(pipeline)
    from tupletree.routes.document import to_dot, to_mermaid, to_text

    draw = {GraphFormat.TEXT: to_text, GraphFormat.DOT: to_dot, GraphFormat.MERMAID: to_mermaid}[form]
    print(draw(document.spec).rstrip("\n"))


@app.command("new")
def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline and its folder, as in word-count.")],
) -> None:
    """Make a folder NAME with a pipeline, an adapter, its test and a README."""
    require_packages()
    from tupletree.routes.document import sample_files

    make_folder(name, "pipeline", sample_files)
    print(f"next: cd {shlex.quote(name)} && tupletree routes validate pipeline.yaml")


def _read(pipeline: str) -> Document:
    require_packages()
    from tupletree.routes.document import read

    return read(Path(pipeline))


def _counts(document: Document) -> dict[str, Any]:
    routes = document.spec.routes.values()
    queues = {queue for route in routes for queue in (route.inbound.queue, *route.outbound)}
    return {
        "pipeline": document.spec.name,
        "routes": len(routes),
        "adapters": sum(len(route.adapters) for route in routes),
        "queues": len(queues),
    }


def _print_json(value: Any) -> None:
    print(escape_json(json.dumps(value, ensure_ascii=False)))
